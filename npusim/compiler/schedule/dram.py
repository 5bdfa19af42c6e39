"""Place values that are not in the scratchpad: in the L2 while there is space, else in DRAM.

Only DMA reaches either memory, and a lowering is the same for both. So this step comes last, when the plan knows which
values are outside the scratchpad and for how long. Values with the shortest lifetimes go to the L2 first, if transfers
to and from the L2 are not slower than those to and from DRAM.

The plan itself assumes one backing memory. The search therefore compares two plans: one for the device as it is, and
one that assumes that all values fit into the L2 (:func:`by_l2`).
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
    """Give every value between operators that is not in the scratchpad an address. Returns the bytes of DRAM needed.

    ``relays``: buffers that only pass values from core to core. The schedule has no entries for them.
    """
    values = sorted(filter(attrgetter("is_scratch"), buffers), key=attrgetter("born"))
    for buffer in values:  # shards of the first core may have been placed before, without those of the other cores
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
    """The device for a plan that assumes that all values fit into the L2; None for a device without an L2.

    The L2 takes the place of the DRAM, and the real DRAM becomes the memory for constants.
    """
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
    """Put as many values into the L2 as fit: first relays, then values that the schedule puts there, then the
    shortest-lived."""
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
    """Yield values that may be in the L2: relays, those that the schedule puts there, the others; each kind by
    lifetime."""
    required = [each for each in values if choices.is_in(each, L2) and each not in relays]
    free = [each for each in values if each in relays or (each not in choices.areas and choices.search_areas)]
    others = [each for each in free if _pays(each.nbytes, config)]
    first, last = [each for each in others if each in relays], [each for each in others if each not in relays]
    for kind in (first, required, last):
        yield from sorted(kind, key=_time)


def _time(buffer: Buffer) -> int:
    """The number of groups during which a buffer occupies its bytes. Most values are written once and read once."""
    return buffer.dies - buffer.born


def _meet(one: Buffer, other: Buffer) -> bool:
    """Whether the lifetimes of two buffers overlap."""
    return one.born <= other.dies and other.born <= one.dies


def _pays(nbytes: int, config: Config) -> bool:
    """Whether writing a value to the L2 and reading it back takes no longer than through DRAM."""
    if not nbytes:
        return False
    price, whole = cost_model(config).once, DmaWork(nbytes, 1, nbytes, 0, 0)
    near = price(replace(whole, l2_reads=nbytes)).ps + price(replace(whole, l2_writes=nbytes)).ps
    return near <= price(replace(whole, reads=nbytes)).ps + price(replace(whole, writes=nbytes)).ps
