"""Where values lie that no SRAM has room for: in the L2 as long as there is room, else in DRAM.

Both are reached by DMA alone, and a lowering is the same for either. So this comes last, when the plan says which
values are outside of SRAM, and when: those go to the L2 first that are moved most for the bytes and the time that they
take there, where the device moves them to and from the L2 in less time than to and from DRAM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from npusim.compiler.values import Arena, Buffer, align
from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.work import DmaWork


def lay_out(buffers: Sequence[Buffer], config: Config) -> int:
    """Give every value between operators that is not in SRAM its bytes; how many of DRAM that takes."""
    values = sorted(filter(attrgetter("is_scratch"), buffers), key=attrgetter("born"))
    if config.l2 is not None:
        _fill_l2(values, config, config.l2.bytes)
    arena = Arena()
    for buffer in values:
        if not buffer.in_l2:
            arena.place(buffer)
    return arena.nbytes


def _fill_l2(values: Sequence[Buffer], config: Config, capacity: int) -> None:
    """Put as many values into the L2 as fit; of as much use, the first one goes first."""
    placed: list[Buffer] = []
    for buffer in sorted(filter(lambda each: _pays(each.nbytes, config), values), key=_time):
        beside = sorted((each for each in placed if _meet(each, buffer)), key=attrgetter("offset"))
        offset = 0
        for other in beside:
            if other.offset >= offset + buffer.nbytes:
                break
            offset = max(offset, align(other.offset + other.nbytes))
        if offset + buffer.nbytes <= capacity:
            buffer.in_l2, buffer.offset = True, offset
            placed.append(buffer)


def _time(buffer: Buffer) -> int:
    """Of how many groups bytes are taken; each value is made once and read once, most of them."""
    return buffer.dies - buffer.born


def _meet(one: Buffer, other: Buffer) -> bool:
    return one.born <= other.dies and other.born <= one.dies


def _pays(nbytes: int, config: Config) -> bool:
    """Whether so many bytes come sooner from the L2 than from DRAM, and are sooner there."""
    if not nbytes:
        return False
    price = cost_model(config).transfer_ps
    whole = DmaWork(nbytes, 1, nbytes, 0, 0)
    near = price(replace(whole, l2_reads=nbytes)) + price(replace(whole, l2_writes=nbytes))
    return near < price(replace(whole, reads=nbytes)) + price(replace(whole, writes=nbytes))
