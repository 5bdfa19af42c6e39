"""A Perfetto trace of bus accesses and of jobs on one time axis."""

from __future__ import annotations

import os

from npusim.device.npu import NpuDevice
from npusim.report.perfetto import write_trace
from npusim.timeline import NO_OP, ORDER, Span, Timeline

BUS, INTERRUPTS = "bus", "interrupts"


class Lanes:
    """Collects accesses and jobs of a device until the trace is written. Times count from power-on."""

    def __init__(self, device: NpuDevice) -> None:
        self._device = device
        self._spans: list[Span] = []
        device.listener = self._job_ended

    def accessed(self, began_ps: int, ended_ps: int, what: str, size: int) -> None:
        """Record a software access of ``size`` bytes, or an interrupt, which has no size."""
        unit = BUS if size else INTERRUPTS
        self._spans.append(Span(unit, began_ps, ended_ps, NO_OP, what, 0, size, "latency"))

    def _job_ended(self, seqno: int, timeline: Timeline) -> None:
        since = timeline.started_ps
        self._spans += [
            span._replace(start_ps=span.start_ps + since, end_ps=span.end_ps + since) for span in timeline.spans
        ]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write one track for the bus, one for interrupts and one per unit. Raises OSError."""
        timeline = Timeline(sorted(self._spans, key=ORDER), time_ps=self._device.now_ps)
        write_trace(path, timeline, clock_hz=self._device.config.clock_hz)
