"""Simulation of one design: compile each model for it, run it without arithmetic, and record the costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from npusim.compiler.schedule.prepared import PreparedGraph
from npusim.energy import power_uw
from npusim.errors import (
    CompileError,
    DeviceFaultError,
    DeviceMemoryError,
    NpusimError,
    UnsupportedError,
    UsageError,
)
from npusim.explore.figures import REFUSED, SIMULATED, ModelFigures, StudyRow
from npusim.explore.workloads import Workload, digest_of
from npusim.report.format import printable
from npusim.report.layers import unit_kind

if TYPE_CHECKING:
    from npusim.graph import Graph
    from npusim.hw.config import Config
    from npusim.runtime import Result

_UNFIT = (UnsupportedError, CompileError, DeviceMemoryError, DeviceFaultError)
"""Errors that are a property of the design; any other exception is a defect or a failure of the machine."""


class EvaluationTask(Protocol):
    """A task of a worker: (number, name of the base, settings, device)."""

    @property
    def number(self) -> int: ...
    @property
    def base(self) -> str: ...
    @property
    def settings(self) -> dict[str, Any]: ...
    @property
    def config(self) -> Config: ...


class Evaluate(Protocol):
    """Returns the row of a design. Picklable, because each worker has a copy. The row depends on the design alone."""

    def __call__(self, design: EvaluationTask, /) -> StudyRow: ...


class Simulator:
    """Simulates graphs on designs. ``graphs`` are in the order of the workloads."""

    def __init__(self, names: Sequence[str], graphs: Sequence[Graph]) -> None:
        self._models = [
            (name, PreparedGraph(graph), digest_of(graph, name)) for name, graph in zip(names, graphs, strict=True)
        ]

    @property
    def digests(self) -> dict[str, str]:
        """The digest of the contents of each model."""
        return {name: digest for name, _, digest in self._models}

    @property
    def graphs(self) -> dict[str, Graph]:
        """The models by name."""
        return {name: settled.graph for name, settled, _ in self._models}

    def __call__(self, design: EvaluationTask, /) -> StudyRow:
        from npusim.compiler.pipeline import uncollected

        config = design.config
        found, reason = [], ""
        # A program and its timeline are freed when their figures are known. They have no cycles, so garbage collection
        # is off.
        with uncollected():
            try:
                for name, graph, digest in self._models:
                    found.append(figures_of(name, simulate(graph, config, digest)))
            except _UNFIT as error:
                reason = f"{name}: {_one_line(error)}"
        return StudyRow(
            design.number, design.base, design.settings, config.fingerprint(), REFUSED if reason else SIMULATED, reason,
            area_um2(config), () if reason else tuple(found),
        )  # fmt: skip


def load_models(workloads: Sequence[Workload], config: Config) -> Simulator:
    """A simulator of these models, each read once. Raises NpusimError that names the model."""
    graphs = []
    for each in workloads:
        try:
            graphs.append(each.load(config))
        except NpusimError as error:
            raise UsageError(f"model {each.name!r}: {error}") from None
    return Simulator([each.name for each in workloads], graphs)


def simulate(graph: Graph | PreparedGraph, config: Config, digest: str = "") -> Result:
    """One run of a model on a device without arithmetic, as reported by ``npusim run``. Nothing is cached.

    If weights stay in SRAM, it is the second run. Raises UnsupportedError, CompileError, DeviceMemoryError.
    """
    from npusim._core import DefaultFloats
    from npusim.compiler.pipeline import compile_graph
    from npusim.runtime import Session

    with DefaultFloats():
        program = compile_graph(graph, config, f"{digest}-{config.fingerprint()}")
    with Session(config, cache_dir=False) as session:
        if program.resident_bytes:
            session.run(program, timing_only=True)
        return session.run(program, timing_only=True)


def area_um2(config: Config) -> int | None:
    """Area of a device in square micrometres; None if a part is unknown."""
    from npusim.hw.area import area

    return area(config).total


def figures_of(model: str, result: Result) -> ModelFigures:
    """The figures of one run of a model."""
    energy = result.energy.total
    traffic = result.dram_read_bytes + result.dram_write_bytes
    return ModelFigures(
        model, result.time_ps, result.cycles, traffic, energy, power_uw(energy, result.time_ps),
        result.timeline.digest(), busy_shares(result), result.bottleneck.resources,
    )  # fmt: skip


def busy_shares(result: Result) -> Mapping[str, float]:
    """The fraction of time in which each kind of unit (mean of its instances) is busy, and the bytes of DRAM as a
    fraction of the peak of its pins."""
    counters = result.counters
    whole = counters.duration_ps
    if not whole:
        return {}
    kinds: dict[str, list[int]] = {}
    for unit, each in counters.units.items():
        kinds.setdefault(unit_kind(unit), []).append(each.busy_ps)
    shares = {kind: sum(busy) / len(busy) / whole for kind, busy in kinds.items()}
    return {
        **{kind: round(share, 6) for kind, share in shares.items()},
        "dram": round(
            (result.dram_read_bytes + result.dram_write_bytes) * 10**12 / whole / result.device.dram.bandwidth, 6
        ),
    }


def _one_line(error: Exception) -> str:
    text = printable("; ".join(" ".join(line.split()) for line in str(error).splitlines()), lines=False)
    return text if len(text) <= MOST_REASON else f"{text[: MOST_REASON - 3]}..."


MOST_REASON = 300
"""Limit in characters, because a store has many reasons."""
