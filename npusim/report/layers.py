"""Which operators a job's time went to, and why: derived from the spans alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npusim.report.format import counted, duration, percent, quantity
from npusim.report.result import Result
from npusim.summary import OpReport
from npusim.timeline import Span

if TYPE_CHECKING:
    from npusim.hw.config import Config


@dataclass(slots=True)
class Layer:
    """One operator's part of a job.

    ``added_ps``: how much later the job's work was done because of it - from the moment every operator that finished
    before it was done to its own end. The parts of all operators add up to the whole, which overlapping times do not.
    ``op``: its row of the operator table.
    """

    timing: OpReport
    added_ps: int
    busy_ps: dict[str, int] = field(default_factory=dict)
    instructions: int = 0
    op: int = 0

    @property
    def window_ps(self) -> int:
        """From the start of its first instruction to the end of its last."""
        return self.timing.end_ps - self.timing.start_ps


def layers(result: Result) -> list[Layer]:
    """Every operator that ran an instruction, in the order in which they finished.

    The rows of ``result.ops`` are such operators in the order of the operator table, as the spans' indices are.
    """
    spans: dict[int, list[Span]] = defaultdict(list)
    for span in result.timeline.spans:
        if "." in span.unit:
            spans[span.op].append(span)
    timed = [(timing, op) for timing, op in zip(result.ops, sorted(spans), strict=False)]
    timed.sort(key=lambda pair: (pair[0].end_ps, pair[0].start_ps))
    found, done = [], 0
    for timing, op in timed:
        own = spans[op]
        # What ended in the shadow of one that ended later has added nothing, however long it took.
        layer = Layer(timing, max(0, timing.end_ps - done), instructions=len(own), op=op)
        intervals: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for span in own:
            intervals[unit_kind(span.unit)].append((span.start_ps, span.end_ps))
        layer.busy_ps = {unit: covered(pairs) for unit, pairs in intervals.items()}
        found.append(layer)
        done = max(done, timing.end_ps)
    return found


def slowest(found: Sequence[Layer], count: int) -> list[Layer]:
    """The layers that added most, the slowest first; equal ones in the order of time."""
    return sorted(found, key=lambda layer: (-layer.added_ps, layer.timing.end_ps))[:count]


def unit_kind(unit: str) -> str:
    """``core0.dma1`` -> ``dma``: which sort of unit, whichever core's."""
    return unit.rpartition(".")[2].rstrip("0123456789")


def covered(intervals: Iterable[tuple[int, int]]) -> int:
    """The length of the union of intervals: units side by side do not count twice."""
    total, reached = 0, 0
    # By start, so that one pass suffices: what reaches back behind the furthest end so far is counted already.
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def why(layer: Layer, config: Config) -> str:
    """One sentence, from numbers: what kept this layer from being faster."""
    window, macs = layer.window_ps, layer.timing.macs
    if not window:
        return "takes no time of its own"
    count = counted(layer.instructions, "instruction")
    if layer.timing.bound == "memory":
        # Against the peak of the pins and not what streams reach: the rest is for the reader to see.
        peak = config.dram.bandwidth * window / 10**12
        moved = layer.timing.dram_bytes
        busy, reached = percent(layer.busy_ps.get("dma", 0), window), percent(moved, peak)
        text = f"DMA busy {busy}, DRAM at {reached} of its peak: {quantity(moved, 'B')} moved"
        if not macs:
            return f"{text}, no MACs"
        return f"{text} for {quantity(macs, 'MAC')}, {macs / max(1, moved):.1f} per byte"
    if layer.timing.bound == "compute":
        unit = max((u for u in layer.busy_ps if u != "dma"), key=lambda u: (layer.busy_ps[u], u), default="dma")
        spent = layer.busy_ps.get(unit, 0)
        text = f"{unit} busy {percent(spent, window)}"
        if unit != "matrix" or config.matrix is None or not macs:
            return f"{text} with {count}"
        rate = macs * 10**12 / (spent * config.matrix_hz)
        return f"{text} at {quantity(rate, 'MACs')}/cycle on {config.matrix.elements * config.cores} elements"
    unit, spent = max(layer.busy_ps.items(), key=lambda item: (item[1], item[0]))
    each = duration(window // layer.instructions)
    return f"short steps, one after another: {count} of {each} on average, {unit} busy {percent(spent, window)}"
