"""Random command streams whose hazards are guarded by waits, so that only one result is possible."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from npusim.hw.config import Config, load_config
from npusim.isa.base import Instruction, Wait, l2, region
from tests.support.programs.streams import Stream, add, copy, exchange, fill

SLOT = 64
SLOTS = 6
SCRATCH = SLOT * SLOTS

TINY = load_config("tiny")


@dataclasses.dataclass(frozen=True)
class Slot:
    """A block of bytes: in a core's SRAM, in the scratch region (core -1), or in the L2 (core -2)."""

    core: int
    number: int

    @property
    def address(self) -> int:
        at = self.number * SLOT
        return at if self.core >= 0 else region(1, at) if self.core == SCRATCH_HOME else l2(at)


SCRATCH_HOME, L2_HOME = -1, -2


@dataclasses.dataclass(frozen=True)
class Action:
    kind: str
    core: int
    channel: int
    slots: tuple[int, int, int]
    outside: tuple[int, int]
    """For target and source: 0 for the core's SRAM, 1 for scratch, 2 for the L2, or scratch on a device without L2."""
    value: int
    size: int


@st.composite
def actions(draw: st.DrawFn) -> Action:
    return Action(
        draw(st.sampled_from(["copy", "fill", "add"])),
        draw(st.integers(0, 1)),
        draw(st.integers(0, 2)),
        draw(st.tuples(*[st.integers(0, SLOTS - 1)] * 3)),
        draw(st.tuples(st.integers(0, 2), st.integers(0, 2))),
        draw(st.integers(0, 255)),
        draw(st.integers(1, SLOT)),
    )


CONFIGS = st.builds(
    lambda cores, channels, depth, width, bandwidth, in_flight, way, l2: TINY.with_(**{
        "cores": cores, "dma.channels": channels, "queue_depth": depth, "dma.bytes_per_cycle": width,
        "dram.bandwidth": bandwidth * 10**9, "dma.in_flight": in_flight,
        **({"exchange.bytes_per_cycle": way} if way else {}), **l2,
    }),
    st.integers(1, 2), st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 4, 8]), st.integers(1, 9),
    st.sampled_from([1, 2, 4]), st.sampled_from([0, 2, 16]),
    st.sampled_from([
        {}, {"l2.bytes": 1024, "l2.bytes_per_cycle": 3, "l2.latency_cycles": 5},
        {"l2.bytes": 1024, "l2.bytes_per_cycle": 16, "l2.latency_cycles": 0, "l2.line_bytes": 1},
    ]),
)  # fmt: skip


def build(plan: list[Action], config: Config) -> Stream:
    """Return the stream of a plan. Cores and channels that the device lacks are mapped to those it has."""
    stream = Stream()
    writer: dict[Slot, Wait] = {}
    readers: dict[Slot, list[Wait]] = {}
    for number, action in enumerate(plan):
        core, channel = action.core % config.cores, action.channel % config.dma.channels
        first, second, third = action.slots
        there = {0: core, 1: SCRATCH_HOME, 2: L2_HOME if config.l2 else SCRATCH_HOME}
        target = Slot(there[action.outside[0]] if action.kind != "add" else core, first)
        sources = []
        # From the other core if there is an exchange network, on a channel of either core.
        passes = config.exchange is not None and config.cores > 1 and not any(action.outside) and action.value & 1
        if action.kind == "copy" and passes:
            sources = [Slot(1 - core, second)]
        elif action.kind == "copy":
            sources = [Slot(there[action.outside[1]], second)]
        elif action.kind == "add":
            sources = [Slot(core, second), Slot(core, third)]
        waits = [writer[slot] for slot in (target, *sources) if slot in writer] + readers.get(target, [])
        unique = tuple(dict.fromkeys(waits))
        if action.kind == "copy" and passes:
            move: Instruction = exchange(target.address, sources[0].address, action.size, 1 - core, 1 << core)
            done = stream.dma(move, *unique, channel=channel, core=action.value >> 1 & 1, op=number)
        elif action.kind == "copy":
            move = copy(target.address, sources[0].address, action.size)
            done = stream.dma(move, *unique, channel=channel, core=core, op=number)
        elif action.kind == "fill":
            move = fill(target.address, action.size, action.value)
            done = stream.dma(move, *unique, channel=channel, core=core, op=number)
        else:
            sum_ = add(target.address, sources[0].address, sources[1].address, action.size)
            done = stream.vector(sum_, *unique, core=core, op=number)
        writer[target] = done
        readers[target] = []
        for slot in sources:
            readers.setdefault(slot, []).append(done)
    return stream
