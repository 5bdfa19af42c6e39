"""The result of a run: outputs, times, counters."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim import notebook
from npusim.bottleneck import Bottleneck, Instructions, bottleneck, host_ps, instructions
from npusim.driver import HostCounters
from npusim.dtypes import DType
from npusim.energy import Energy, energy
from npusim.errors import shown
from npusim.graph import HostPart
from npusim.hw.area import area
from npusim.hw.capability import capabilities
from npusim.hw.config import Config
from npusim.hw.costs import Breakdown
from npusim.hw.mapping import changes
from npusim.occupancy import Occupancy, occupancy
from npusim.program import Program
from npusim.runtime.provenance import Origin, provenance
from npusim.summary import OpReport, critical_path, summarize
from npusim.timeline import Counters, Timeline
from npusim.units import cycles_spanned

_PEAK_OF = {DType.UINT8: DType.INT8, DType.UINT16: DType.INT16}


def described(output: object) -> str:
    """Type and shape of an output; the length of a sequence."""
    if isinstance(output, np.ndarray):
        return f"{output.dtype.name}{list(output.shape)}"
    return f"{len(output)} tensors" if isinstance(output, list) else "absent"


@dataclass(frozen=True, slots=True)
class HostDecisions:
    """The host between the programs of a run.

    ``count``: of decisions, which took ``time_ps``; transfers and submissions took ``transfer_ps``. ``runs``: of
    programs. ``steps``: (name, kind, number, ps) by step of the model.
    """

    count: int
    time_ps: int
    transfer_ps: int
    runs: int
    steps: tuple[tuple[str, str, int, int], ...]


@dataclass(slots=True, eq=False)
class Result:
    """``outputs``: arrays by name; none with timing_only or if they stay in device buffers.

    All times are simulated, in ps. ``queued_ps``: from submission to the first work of the host, plus from the doorbell
    to the start. ``total_ps``: from submission to the last byte read back. ``host``: counters of the host for this run.
    ``made_for``: the device that the program was compiled for, if it is another one. ``origin``: the source of the
    program. ``seed``: of random inputs, None if unknown. ``arithmetic``: whether outputs were computed. ``state``:
    whether the run used tensors on the device.
    """

    program: Program
    device: Config
    outputs: dict[str, npt.NDArray[Any]]
    timeline: Timeline
    queued_ps: int
    total_ps: int
    host: HostCounters
    origin: Origin | None = None
    seed: int | None = None
    arithmetic: bool = True
    state: bool = False
    made_for: Config | None = None
    _ops: list[OpReport] = field(default_factory=list)
    _memory: list[Occupancy] | None = None
    _energy: Energy | None = None
    _bottleneck: Bottleneck | None = None

    def __repr__(self) -> str:
        what = f"{shown(self.model)} on {shown(self.config)}"
        outputs = ", ".join(f"{name} {kind}" for name, kind in self._arrays()[:4]) or "none"
        return f"<Result of {what}: {self.cycles} cycles, {self.time_ps / 10**6:.6g} us, outputs: {outputs}>"

    def _repr_html_(self) -> str:
        rows = [
            ("time", f"{self.cycles} cycles, {self.time_ps / 10**6:.6g} us"),
            ("matrix", f"{100 * self.matrix_utilization:.1f} % of its peak used, {self.macs} MACs"),
            ("DRAM", f"{self.dram_read_bytes} bytes read, {self.dram_write_bytes} bytes written"),
            *self._arrays(),
        ]
        from npusim.report.html.still import pictures

        totals = notebook.table(f"Result of {shown(self.model)} on {shown(self.config)}", rows)
        return f"<div>{totals}{pictures(self)}</div>"

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write an HTML page with diagrams of this run, which needs no network. Raises OSError."""
        from npusim.report.html import run_page

        Path(path).write_text(run_page(self), "ascii")

    def _arrays(self) -> list[tuple[str, str]]:
        return [(shown(name), described(x)) for name, x in self.outputs.items()]

    @property
    def model(self) -> str:
        """The name of the program."""
        return self.program.name

    @property
    def config(self) -> str:
        """The name of the device."""
        return self.device.name

    @property
    def made_elsewhere(self) -> dict[str, tuple[str, str]]:
        """Keys in which the device of the program and the device of this run differ, with both values.

        Empty if they are the same.
        """
        return changes(self.made_for, self.device) if self.made_for is not None else {}

    @property
    def compile_from_cache(self) -> bool:
        """Whether the program was read from the cache."""
        return self.program.from_cache

    @property
    def resident_bytes(self) -> int:
        """Size of the pinned weights in bytes."""
        return self.program.resident_bytes

    @property
    def residents_held(self) -> bool:
        """Whether the pinned weights were still in SRAM from the previous run."""
        return self.timeline.residents_held

    @property
    def time_ps(self) -> int:
        """Time on the device from start to interrupt, without the time during which it was preempted."""
        return self.timeline.time_ps - self.timeline.suspended_ps

    @property
    def cycles(self) -> int:
        """``time_ps`` in cycles of the device clock, rounded up."""
        return cycles_spanned(self.time_ps, self.device.clock_hz)

    @property
    def suspended_ps(self) -> int:
        """Time during which it was preempted by jobs of a higher priority, including save and restore of its
        context."""
        return self.timeline.suspended_ps

    @property
    def host_ps(self) -> int:
        """The rest of ``total_ps``: loading, mapping, transfers, submission, interrupt."""
        return self.total_ps - self.time_ps - self.suspended_ps - self.queued_ps

    @property
    def host_part(self) -> HostPart:
        """The part of the model that the host computed, and the decisions that the program depends on."""
        return self.program.host

    @property
    def host_work_ps(self) -> int:
        """The part of ``host_ps`` for operators that the host computed."""
        return self.host_part.operations * self.device.host.operation_ps

    @property
    def decisions(self) -> HostDecisions | None:
        """The decisions of the host between programs; None if the model is one program."""
        return None

    @property
    def counters(self) -> Counters:
        """Busy times, stalls and traffic of the units."""
        return self.timeline.counters

    @property
    def dram_read_bytes(self) -> int:
        """Bytes read from DRAM."""
        return self.counters.dram_read_bytes

    @property
    def dram_write_bytes(self) -> int:
        """Bytes written to DRAM."""
        return self.counters.dram_write_bytes

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the matrix units."""
        return sum(count for _, count in self.program.macs)

    @property
    def matrix_utilization(self) -> float:
        """Utilization of the matrix units: their time at peak rate divided by the time of the run."""
        if not self.program.macs or not self.time_ps:
            return 0.0
        peaks = capabilities(self.device).peak_macs
        counts = ((count, peaks.get(_PEAK_OF.get(dtype, dtype).label)) for dtype, count in self.program.macs)
        # A program from a file may contain products of types that the device does not support.
        needed = sum(count / peak for count, peak in counts if peak)
        return needed * 1e12 / self.time_ps

    @property
    def ops(self) -> list[OpReport]:
        """One row per fused operator."""
        if not self._ops:
            self._ops = summarize(self.timeline, self.program.ops, self.device)
        return self._ops

    @property
    def memory(self) -> list[Occupancy]:
        """The contents of each memory over time; empty if the program does not record them (see ``Program.places``)."""
        if self._memory is None:
            self._memory = occupancy(self.program, self.timeline, self.device)
        return self._memory

    @property
    def provenance(self) -> dict[str, Any]:
        """All that is needed to reproduce this result, as JSON values; used by ``npusim rerun``."""
        return provenance(self)

    @property
    def energy(self) -> Energy:
        """Femtojoules by action, by unit and by operator; None for actions of unknown cost."""
        if self._energy is None:
            self._energy = energy(self)
        return self._energy

    @property
    def bottleneck(self) -> Bottleneck:
        """The resources that the run waited for, from its critical path. They add up to
        ``time_ps`` and the host's part of an inference with a loaded program."""
        if self._bottleneck is None:
            self._bottleneck = bottleneck(
                self.device, self.timeline, self._executed(), host_ps(self.device, self.program)
            )
        return self._bottleneck

    def _executed(self) -> Instructions:
        """The instructions of each unit."""
        return instructions(self.program, held=self.residents_held)

    @property
    def area(self) -> Breakdown:
        """Area of the device in square micrometres, by component."""
        return area(self.device)

    def costs(self) -> dict[str, int]:
        """A summary of time, traffic and energy as JSON values."""
        names = ("cycles", "time_ps", "dram_read_bytes", "dram_write_bytes")
        return {name: getattr(self, name) for name in names}

    def _host_dict(self) -> dict[str, Any]:
        """The work of the host on the model, if any."""
        part, each_ps = self.host_part, self.device.host.operation_ps
        if not part.work and not part.decided:
            return {}
        work = [{**work._asdict(), "time_ps": work.operations * each_ps} for work in part.work]
        return {"decided": dict(part.decided), "host_work": work, "host_work_ps": self.host_work_ps}

    def _decisions_dict(self) -> dict[str, Any]:
        found = self.decisions
        if found is None:
            return {}
        steps = [dict(zip(("name", "kind", "count", "time_ps"), step, strict=True)) for step in found.steps]
        return {"decisions": {**asdict(found), "steps": steps}}

    def to_json_dict(self) -> dict[str, Any]:
        """Everything except the arrays, as JSON values."""
        elsewhere = {key: {"made_for": was, "here": here} for key, (was, here) in self.made_elsewhere.items()}
        made_for = {"made_for": {"config": self.made_for.name, "differs": elsewhere}} if self.made_for else {}
        injected = [each._asdict() for each in self.timeline.injected]
        return {
            "model": self.model,
            "config": self.config,
            **made_for,
            "cycles": self.cycles,
            "time_ps": self.time_ps,
            "macs": self.macs,
            "matrix_utilization": self.matrix_utilization,
            "dram_read_bytes": self.dram_read_bytes,
            "dram_write_bytes": self.dram_write_bytes,
            "timeline_digest": self.timeline.digest(),
            **({"faults": injected} if injected else {}),
            "compile_from_cache": self.compile_from_cache,
            "bound": dict(self.program.bound),
            **self._host_dict(),
            **self._decisions_dict(),
            "resident_bytes": self.resident_bytes,
            "residents_held": self.residents_held,
            "ops": [op.to_json_dict() for op in self.ops],
            "units": {name: asdict(unit) for name, unit in sorted(self.counters.units.items())},
            "critical_path": critical_path(self.bottleneck, self.program.ops),
            "bottleneck": self.bottleneck.to_json_dict(),
            "memory": [each.to_json_dict() for each in self.memory],
            "provenance": self.provenance,
            "energy": self.energy.to_json_dict(),
            "area": self.area.to_json_dict(),
        }
