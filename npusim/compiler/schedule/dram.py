"""Where values lie that no SRAM has room for: in the L2 as long as there is room, else in DRAM.

Both are reached by DMA alone, and a lowering is the same for either. So this comes last, when the plan says which
values are outside of SRAM, and when: those go to the L2 first that are wanted for the shortest time, where the device
moves them to and from the L2 in no more time than to and from DRAM. The plan itself sees one memory outside; so there
are two to compare, one for the device as it is, and one as if all values had room in the L2.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from operator import attrgetter

from npusim.compiler.buffers import Arena, Buffer
from npusim.compiler.schedule.memory_choices import OPEN, MemoryChoices
from npusim.compiler.schedule.schedule import L2
from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.hw.memory import align, dram_model, l2_side
from npusim.hw.sections import ConstantsConfig
from npusim.work import DmaWork


def lay_out(
    buffers: Sequence[Buffer], config: Config, choices: MemoryChoices = OPEN, relays: Sequence[Buffer] = ()
) -> int:
    """Give every value between operators that is not in SRAM its bytes; how many of DRAM that takes. ``relays``: those
    of the buffers that only pass values from core to core; the schedule has no entries for them."""
    values = sorted(filter(attrgetter("is_scratch"), buffers), key=attrgetter("born"))
    for buffer in values:  # of a core's shards some have been laid out before, without those of other cores
        buffer.in_l2 = False
    if config.l2 is not None:
        _fill_l2(values, config, config.l2.bytes, choices, relays)
    arena = Arena()
    for buffer in values:
        if not buffer.in_l2:
            arena.place(buffer)
    return arena.nbytes


@functools.lru_cache(maxsize=64)
def by_l2(config: Config) -> Config | None:
    """A device as a plan sees it that takes all values for being in the L2: that in the place of the DRAM, which is
    left with the constants. None for a device without an L2."""
    if config.l2 is None:
        return None
    near, dram = l2_side(config).dram, config.dram
    constants = config.constants or ConstantsConfig(
        bytes=dram.bytes, bandwidth=dram_model(config).bandwidth, latency_ps=dram.latency_ps
    )
    return replace(config, dram=replace(near, bytes=dram.bytes), constants=constants)


def _fill_l2(
    values: Sequence[Buffer], config: Config, capacity: int, choices: MemoryChoices, relays: Sequence[Buffer]
) -> None:
    """Put as many values into the L2 as fit: relays, those that a schedule puts there, then those of the shortest
    life."""
    placed: list[Buffer] = []
    for buffer in _l2_order(values, config, choices, set(relays)):
        beside = sorted((each for each in placed if _meet(each, buffer)), key=attrgetter("offset"))
        offset = 0
        for other in beside:
            if other.offset >= offset + buffer.nbytes:
                break
            offset = max(offset, align(other.offset + other.nbytes))
        if offset + buffer.nbytes <= capacity:
            buffer.in_l2, buffer.offset = True, offset
            placed.append(buffer)


def _l2_order(
    values: Sequence[Buffer], config: Config, choices: MemoryChoices, relays: Set[Buffer]
) -> Iterator[Buffer]:
    """Values that may be in the L2: relays, those that the schedule puts there, then the others; each kind by
    lifetime."""
    required = [each for each in values if choices.is_in(each, L2) and each not in relays]
    free = [each for each in values if each in relays or (each not in choices.areas and choices.search_areas)]
    others = [each for each in free if _pays(each.nbytes, config)]
    first, last = [each for each in others if each in relays], [each for each in others if each not in relays]
    for kind in (first, required, last):
        yield from sorted(kind, key=_time)


def _time(buffer: Buffer) -> int:
    """Of how many groups bytes are taken; each value is made once and read once, most of them."""
    return buffer.dies - buffer.born


def _meet(one: Buffer, other: Buffer) -> bool:
    return one.born <= other.dies and other.born <= one.dies


def _pays(nbytes: int, config: Config) -> bool:
    """Whether so many bytes are in the L2 and back as soon as in DRAM and back."""
    if not nbytes:
        return False
    price, whole = cost_model(config).once, DmaWork(nbytes, 1, nbytes, 0, 0)
    near = price(replace(whole, l2_reads=nbytes)).ps + price(replace(whole, l2_writes=nbytes)).ps
    return near <= price(replace(whole, reads=nbytes)).ps + price(replace(whole, writes=nbytes)).ps
