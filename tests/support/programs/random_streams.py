"""Random streams of commands whose hazards are guarded by waits, so that only one result is right."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from npusim.hw.config import Config, load_config
from npusim.isa.base import Instruction, Wait, region
from tests.support.programs.streams import Stream, add, copy, exchange, fill

SLOT = 64
SLOTS = 6
SCRATCH = SLOT * SLOTS

TINY = load_config("tiny")


@dataclasses.dataclass(frozen=True)
class Slot:
    """A block of bytes: of a core's SRAM, or of the scratch region (core -1)."""

    core: int
    number: int

    @property
    def address(self) -> int:
        return self.number * SLOT if self.core >= 0 else region(1, self.number * SLOT)


@dataclasses.dataclass(frozen=True)
class Action:
    kind: str
    core: int
    channel: int
    slots: tuple[int, int, int]
    dram: tuple[bool, bool]
    value: int
    size: int


@st.composite
def actions(draw: st.DrawFn) -> Action:
    return Action(
        draw(st.sampled_from(["copy", "fill", "add"])),
        draw(st.integers(0, 1)),
        draw(st.integers(0, 2)),
        draw(st.tuples(*[st.integers(0, SLOTS - 1)] * 3)),
        draw(st.tuples(st.booleans(), st.booleans())),
        draw(st.integers(0, 255)),
        draw(st.integers(1, SLOT)),
    )


CONFIGS = st.builds(
    lambda cores, channels, depth, width, bandwidth, in_flight, way: TINY.with_(**{
        "cores": cores, "dma.channels": channels, "queue_depth": depth, "dma.bytes_per_cycle": width,
        "dram.bandwidth": bandwidth * 10**9, "dma.in_flight": in_flight,
        **({"exchange.bytes_per_cycle": way} if way else {}),
    }),
    st.integers(1, 2), st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 4, 8]), st.integers(1, 9),
    st.sampled_from([1, 2, 4]), st.sampled_from([0, 2, 16]),
)  # fmt: skip


def build(plan: list[Action], config: Config) -> Stream:
    """The stream of a plan on a device: what a device lacks (a core, a channel) is folded onto what it has."""
    stream = Stream()
    writer: dict[Slot, Wait] = {}
    readers: dict[Slot, list[Wait]] = {}
    for number, action in enumerate(plan):
        core, channel = action.core % config.cores, action.channel % config.dma.channels
        first, second, third = action.slots
        target = Slot(-1 if action.dram[0] and action.kind != "add" else core, first)
        sources = []
        # From the other core, where there is a way to it; by a channel of either of them.
        passes = config.exchange is not None and config.cores > 1 and not any(action.dram) and action.value & 1
        if action.kind == "copy" and passes:
            sources = [Slot(1 - core, second)]
        elif action.kind == "copy":
            sources = [Slot(-1 if action.dram[1] else core, second)]
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
