"""A handmade run with three operators on two units, with numbers that make the report easy to check by hand.

The device moves 8 bytes and computes 64 MACs per nanosecond. ``load`` moves 8000 B in 1000 ns (100 % of DRAM), ``conv``
computes 32 000 MACs in 1000 ns on 400 B and 80 B of padding, ``tail`` is one short vector instruction after a gap.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from npusim.bottleneck import Bottleneck, BoundSegment, summed
from npusim.energy import Energy
from npusim.graph import HostPart
from npusim.occupancy import Occupancy
from npusim.summary import OpReport
from npusim.timeline import Counters, Span, Timeline, UnitCounters

NS = 1_000


@dataclass
class Run:
    """The part of Result that reports use."""

    model: str
    config: str
    outputs: dict[str, Any]
    cycles: int
    time_ps: int
    timeline: Timeline
    counters: Counters
    ops: list[OpReport]
    macs: int
    matrix_utilization: float
    dram_read_bytes: int
    dram_write_bytes: int
    memory: list[Occupancy]
    compile_from_cache: bool = False
    resident_bytes: int = 0
    host_part: HostPart = field(default_factory=HostPart)
    host_work_ps: int = 0
    made_for: str | None = None
    decisions: None = None
    energy: Energy = field(default_factory=lambda: Energy((), {}, ()))
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def bottleneck(self) -> Bottleneck:
        """One resource per segment, by its cause, because the instructions of a handmade run are unknown."""
        path = [
            BoundSegment(each, ((RESOURCE_OF.get(each.cause, "dependencies"), each.end_ps - each.start_ps),))
            for each in self.timeline.critical_path()
        ]
        return Bottleneck(path, summed(each.parts for each in path))


RESOURCE_OF = {"compute": "macs", "sram": "sram", "dram": "dram", "latency": "latency"}


def sample() -> Run:
    """Return the run described above; 2200 ns long."""
    spans = [
        Span("core0.dma0", 0, 1000 * NS, 0, "dma.copy", 0, 8000, "memory", 8000),
        Span("core0.matrix", 1000 * NS, 2000 * NS, 1, "matrix.conv", 32_000, 4000, "compute"),
        Span("core0.dma0", 1200 * NS, 1300 * NS, 1, "dma.copy", 0, 480, "memory", 400),
        Span("core0.vector", 2150 * NS, 2200 * NS, 2, "vector.unary", 0, 64, "latency"),
    ]
    ops = [
        OpReport("load", "reshape", "core0.dma0", 0, 1000 * NS, 1000, 0, 8000, "memory", 8000),
        OpReport("conv", "conv", "core0.matrix", 1000 * NS, 2000 * NS, 1000, 32_000, 480, "compute", 400),
        OpReport("tail", "unary", "core0.vector", 2150 * NS, 2200 * NS, 50, 0, 64, "latency"),
    ]
    units = {
        "core0.dma0": UnitCounters(1100 * NS, 1100 * NS, {}, 2, 0, 8480),
        "core0.matrix": UnitCounters(1000 * NS, 200 * NS, {"core0.dma0": 1000 * NS}, 1, 32_000, 4000),
        "core0.vector": UnitCounters(50 * NS, 0, {"core0.matrix": 2000 * NS, "core0.dma0": 150 * NS}, 1, 0, 64),
    }
    counters = Counters(2200 * NS, units, 8400, 0, 1050 * NS, 4)
    outputs = {"y": np.array([1.0, -2.0, np.nan, 4.0], np.float32)}
    held = {"tile": 3000, "value": 5000, "weights": 192}
    steps = [(0, {"tile": 8}), (1000 * NS, held), (2200 * NS, {})]
    memory = [Occupancy("core0.sram", 16384, [], steps, 1000 * NS, held)]
    return Run(
        "net",
        "tiny",
        outputs,
        2200,
        2200 * NS,
        Timeline(spans, counters, 2200, 2200 * NS),
        counters,
        ops,
        32_000,
        0.227,
        8400,
        0,
        memory,
    )
