"""The time of each operator of a job, and its cause, derived from its spans."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npusim.bottleneck import Parts, summed
from npusim.report.format import counted, duration, percent, quantity
from npusim.report.result import ReportedRun
from npusim.summary import OpReport
from npusim.timeline import HOST, NO_OP, Span

if TYPE_CHECKING:
    from npusim.hw.config import Config


NO_LAYER = "(no layer)"
"""Time outside of operators: fetching the first instructions, the completion record."""
KINDS = {
    **dict.fromkeys(("macs", "vector", "scalar"), "compute"),
    **dict.fromkeys(("sram", "dma", "dram", "l2", "interconnect", "exchange"), "memory"),
}
"""The kind of a resource of ``bottleneck.RESOURCES``; ``latency`` for all others."""
MOST_SHARES, LEAST_SHARE = 3, 0.05
"""Limits of the resources in a text: their number, and the smallest share after the first."""


@dataclass(slots=True)
class LayerReport:
    """The times of one operator in a job.

    ``added_ps``: its share of the critical path. The shares add up to the total. ``resources``: the same, by the
    resources of ``bottleneck.RESOURCES``, largest first. ``work_ps``: time in which any unit worked for it. ``op``: its
    index in the operator table.
    """

    timing: OpReport
    added_ps: int
    busy_ps: dict[str, int] = field(default_factory=dict)
    instructions: int = 0
    op: int = 0
    work_ps: int = 0
    resources: dict[str, int] = field(default_factory=dict)

    @property
    def window_ps(self) -> int:
        """From the start of its first instruction to the end of its last. If it alternates with others, as in a
        cascade, only the time in which it was at work."""
        window = self.timing.end_ps - self.timing.start_ps
        return window if 2 * self.work_ps >= window else self.work_ps

    @property
    def resource(self) -> str:
        """The resource with the largest part of its time on the critical path; empty without such time."""
        return next(iter(self.resources), "")

    @property
    def bound(self) -> str:
        """The kind of that resource: ``compute``, ``memory`` or ``latency``. Without one: of its own time."""
        return KINDS.get(self.resource, "latency") if self.resource else self.timing.bound


CONVERSIONS = ("quantize", "dequantize")
"""Operators of a fused layer that are not worth a word: its type says that it is quantized."""


def kind_text(kind: str, result: str = "") -> str:
    """The kind of a layer for readers: ``conv+dequantize+add+quantize`` with an int8 result is ``conv + add (int8)``.

    ``result``: of its ``OpReport``. A layer of conversions alone keeps them.
    """
    parts = kind.split("+")
    kept = [part for part in parts if part not in CONVERSIONS]
    if not kept or len(kept) == len(parts):
        return " + ".join(parts)
    return f"{' + '.join(kept)} ({result.partition('[')[0] or 'quantized'})"


def layers(result: ReportedRun) -> list[LayerReport]:
    """All operators with instructions, in order of completion.

    The rows of ``result.ops`` are these operators in the order of the operator table, which is also the order of the
    indices in the spans.
    """
    spans: dict[int, list[Span]] = defaultdict(list)
    for span in result.timeline.spans:
        if "." in span.unit or span.unit == HOST:
            spans[span.op].append(span)
    waited: dict[int, list[Parts]] = defaultdict(list)
    for stretch, parts in result.bottleneck.path:
        waited[stretch.op].append(parts)
    timed = [(timing, op) for timing, op in zip(result.ops, sorted(spans), strict=False)]
    timed.sort(key=lambda pair: (pair[0].end_ps, pair[0].start_ps))
    found = []
    for timing, op in timed:
        own = spans[op]
        resources = summed(waited[op])
        layer = LayerReport(timing, sum(resources.values()), instructions=len(own), op=op, resources=resources)
        layer.work_ps = covered((span.start_ps, span.end_ps) for span in own)
        intervals: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for span in own:
            intervals[unit_kind(span.unit)].append((span.start_ps, span.end_ps))
        layer.busy_ps = {unit: covered(pairs) for unit, pairs in intervals.items()}
        found.append(layer)
    return found


def beside(result: ReportedRun) -> dict[str, int]:
    """The part of the critical path without an operator, by cause. Together with the layers it is the whole path."""
    found: Counter[str] = Counter()
    for stretch, _ in result.bottleneck.path:
        if stretch.op == NO_OP:
            found[stretch.cause] += stretch.end_ps - stretch.start_ps
    return dict(found)


def slowest(found: Sequence[LayerReport], count: int) -> list[LayerReport]:
    """The layers with the largest shares, slowest first; equal ones in order of time."""
    return sorted(found, key=lambda layer: (-layer.added_ps, layer.timing.end_ps))[:count]


def unit_kind(unit: str) -> str:
    """The kind of a unit, without core and channel number: ``core0.dma1`` -> ``dma``."""
    return unit.rpartition(".")[2].rstrip("0123456789")


def covered(intervals: Iterable[tuple[int, int]]) -> int:
    """The length of the union of intervals, so that parallel units count once."""
    total, reached = 0, 0
    # Sorted by start, so that one pass suffices.
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def why(layer: LayerReport, config: Config) -> str:
    """One sentence with numbers about the bottleneck of this layer."""
    window, macs = layer.window_ps, layer.timing.macs
    if not window:
        return "takes no time of its own"
    count = counted(layer.instructions, "instruction")
    if HOST in layer.busy_ps:
        return f"the host: {counted(layer.instructions, 'time')}"
    if layer.resource == "sram":
        unit, spent = max(layer.busy_ps.items(), key=lambda item: (item[1], item[0]))
        return f"{unit} busy {percent(spent, window)}, mostly with passing SRAM, with {count}"
    if layer.bound == "memory":
        # Relative to the peak of the pins, not to the rate of streams, so that the reader sees the loss.
        peak = config.dram.bandwidth * window / 10**12
        moved = layer.timing.dram_bytes
        busy, reached = percent(layer.busy_ps.get("dma", 0), window), percent(moved, peak)
        text = f"DMA busy {busy}, DRAM at {reached} of its peak: {quantity(moved, 'B')} moved"
        if not macs:
            return f"{text}, no MACs"
        return f"{text} for {quantity(macs, 'MAC')}, {macs / max(1, moved):.1f} per byte"
    if layer.bound == "compute" or layer.resource == "array":
        unit = max((u for u in layer.busy_ps if u != "dma"), key=lambda u: (layer.busy_ps[u], u), default="dma")
        spent = layer.busy_ps.get(unit, 0)
        text = f"{unit} busy {percent(spent, window)}"
        if layer.resource == "array":
            filled = percent(layer.resources["array"], layer.added_ps)
            text = f"{filled} of it fills and drains the array and loads its weights; {text}"
        if unit != "matrix" or config.matrix is None or not macs:
            return f"{text} with {count}"
        rate = macs * 10**12 / (spent * config.matrix_hz)
        return f"{text} at {quantity(rate, 'MACs')}/cycle on {config.matrix.elements * config.cores} elements"
    unit, spent = max(layer.busy_ps.items(), key=lambda item: (item[1], item[0]))
    # Includes the gaps between its steps, in which it waits.
    window = layer.timing.end_ps - layer.timing.start_ps
    each = duration(window // layer.instructions)
    return f"short steps, one after another: {count} of {each} on average, {unit} busy {percent(spent, window)}"


def shares(resources: Mapping[str, int], most: int = MOST_SHARES) -> str:
    """The ``most`` largest resources and their shares of the total, as text: ``macs 52.1 %, dram 20.3 %``."""
    whole = sum(resources.values())
    rows = [(name, ps) for name, ps in resources.items() if ps >= LEAST_SHARE * whole]
    return ", ".join(f"{name} {percent(ps, whole)}" for name, ps in (rows or list(resources.items()))[:most])
