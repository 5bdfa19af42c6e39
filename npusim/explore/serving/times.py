"""Times of programs: each distinct program is compiled and simulated once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npusim.errors import UsageError
from npusim.explore.serving.scenario import Shapes
from npusim.program import CONSTANTS, Program
from npusim.report.format import csv_text
from npusim.runtime import Result, Session


@dataclass(frozen=True, slots=True)
class Timed:
    """A program and one run of it, with the program loaded, without arithmetic.

    ``total_ps``: from its submission to its end including the host, of which ``time_ps`` is on the device. Neither
    includes copies of inputs and outputs between host and device.
    """

    model: str
    phase: str
    sizes: Mapping[str, int]
    program: Program
    result: Result

    @property
    def time_ps(self) -> int:
        """Device time in ps."""
        return self.result.time_ps

    @property
    def total_ps(self) -> int:
        """Time in ps including the host."""
        return self.result.total_ps

    @property
    def energy_fj(self) -> int | None:
        """Energy of the run in fJ; None if unknown."""
        return self.result.energy.total

    @property
    def constant_bytes(self) -> int:
        """Bytes of its weights in DRAM."""
        return self.program.region_bytes[CONSTANTS]


class Timer:
    """Times programs on one device, each once. ``timed``: all programs so far, in order of the first request."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[tuple[Any, ...], Timed] = {}

    @property
    def timed(self) -> list[Timed]:
        """All programs so far, in order of the first request."""
        return list(self._known.values())

    def time(
        self, model: str, phase: str, file: Path, shapes: Shapes, sizes: Mapping[str, int], bind: Mapping[str, Any]
    ) -> Timed:
        """The timed program of a model for ``sizes``, which replace names in the shapes."""
        key = (model, phase, *sorted(sizes.items()))
        if key not in self._known:
            filled = {
                name: [sizes[dim] if isinstance(dim, str) else dim for dim in shape] for name, shape in shapes.items()
            }
            program = self._session.compile(file, filled, bind=bind, timing_only=True)
            self._session.run(program, timing_only=True)  # loads the program onto the device
            result = self._session.run(program, timing_only=True)
            self._known[key] = Timed(model, phase, dict(sizes), program, result)
        return self._known[key]


def next_larger(sizes: Iterable[int], wanted: int, what: str) -> int:
    """The smallest of the sizes that is at least ``wanted``. Raises UsageError if there is none."""
    known = list(sizes)
    for size in known:
        if size >= wanted:
            return size
    raise UsageError(f"a request has {wanted} {what}, but the largest compiled size is {known[-1]}")


COLUMNS = (
    "model", "phase", "batch", "length", "context", "operator", "kind", "time_ps", "start_ps", "end_ps", "macs",
    "dram_bytes", "energy_fj", "total_ps",
)  # fmt: skip


def table(timed: Iterable[Timed]) -> str:
    """CSV for other simulators: a row per operator of each program, and one without operator for the whole program.

    The operator rows of a program, including (none) for work without an operator, add up to the whole in ``time_ps``
    (the share of the critical path), MACs, bytes and energy. ``start_ps`` to ``end_ps`` is the lifetime of an operator.
    """
    rows: list[dict[str, Any]] = []
    for each in timed:
        head = {"model": each.model, "phase": each.phase, **each.sizes}
        result = each.result
        whole = {
            "time_ps": each.time_ps,
            "start_ps": 0,
            "end_ps": each.time_ps,
            "macs": result.macs,
            "total_ps": each.total_ps,
        }
        traffic = result.dram_read_bytes + result.dram_write_bytes
        rows.append({**head, **whole, "dram_bytes": traffic, "energy_fj": each.energy_fj})
        rows += [{**head, **row} for row in _operators(result, traffic)]
    return csv_text(COLUMNS, rows)


def _operators(result: Result, traffic: int) -> list[dict[str, Any]]:
    on_path: dict[int, int] = {}
    for stretch in result.timeline.critical_path():
        op = stretch.op if stretch.op < len(result.program.ops) else -1
        on_path[op] = on_path.get(op, 0) + stretch.end_ps - stretch.start_ps
    ran = sorted({span.op for span in result.timeline.spans if "." in span.unit and span.op < len(result.program.ops)})
    # Operators of the same name are in the same order in both.
    energies: dict[str, list[int | None]] = {}
    for layer in result.energy.layers:
        energies.setdefault(layer.name, []).append(layer.energy.total)
    rows = [
        {
            "operator": row.name,
            "kind": row.kind,
            "time_ps": on_path.get(op, 0),
            "start_ps": row.start_ps,
            "end_ps": row.end_ps,
            "macs": row.macs,
            "dram_bytes": row.dram_bytes,
            "energy_fj": energies[row.name].pop(0) if energies.get(row.name) else None,
        }
        for op, row in zip(ran, result.ops, strict=True)
    ]
    rest = traffic - sum(row.dram_bytes for row in result.ops)
    energy = next((layer.energy.total for layer in reversed(result.energy.layers) if not layer.name), 0)
    none = {"time_ps": on_path.get(-1, 0), "macs": 0, "dram_bytes": rest, "energy_fj": energy}
    return [*rows, {"operator": "(none)", **none}]
