"""Capabilities: time and energy of reference workloads on the device, relative to a processor.

The processor is the simulated config ``cpu_reference``. Times of operand types are device times; for IF and WHILE, in
which the host takes part, they include submissions, transfers and interrupts. The energy of a device whose config has
no energy table is unknown: its ratio is FLT_MAX, the value of the interface for a missing entry.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import npusim
from npusim.cache import default_directory
from npusim.compiler.pipeline import compile_graph
from npusim.compiler.version import COMPILER_VERSION
from npusim.errors import CompileError, NpusimError, UnsupportedError
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.isa.base import ISA_VERSION
from npusim.runtime import Session
from npusim.trusted_files import replace_file
from npusim.untrusted import FileKind

from ..execution.duration import overhead_ps
from ..types import FLT_MAX, Capabilities, OperandPerformance, PerformanceInfo
from . import workloads
from .workloads import MEASURED, Workload

REFERENCE = "cpu_reference"
CAPABILITIES = FileKind("capabilities of a device", 1 << 20, own=True)
_log = logging.getLogger("hal.nnapi")


@dataclass(frozen=True, slots=True)
class Effort:
    """Time in picoseconds, and energy in femtojoules if it is known."""

    time_ps: int
    energy_fj: int | None


_known: dict[str, Capabilities] = {}
_lock = threading.Lock()


def capabilities_of(config: Config) -> Capabilities:
    """The capabilities of a device, measured once per description and stored in the user's cache directory."""
    key = _key(config)
    # Held during the measurement, so that a second client waits for the same result.
    with _lock:
        found = _known.get(key)
        if found is None:
            found = _known[key] = _load(key) or _keep(key, measure(config))
        return found


def measure(config: Config) -> Capabilities:
    """Run the workloads on the device and on the reference. Types that the device does not support are absent."""
    device, reference = _Bench(config), _reference()

    def ratio(*ways: Workload, host: bool = False) -> PerformanceInfo | None:
        """The ratio for a workload, which both may execute in the way that is fastest for them."""
        mine, other = device.least(ways, host=host), reference.least(ways, host=host)
        if mine is None or other is None:
            return None
        energy = FLT_MAX
        if mine.energy_fj is not None and other.energy_fj is not None:
            energy = mine.energy_fj / other.energy_fj
        # Below 1 is better than the processor, as the interface defines it.
        return PerformanceInfo(mine.time_ps / other.time_ps, energy)

    def known(*ways: Workload, host: bool = False) -> PerformanceInfo:
        return ratio(*ways, host=host) or PerformanceInfo()

    by_type = [OperandPerformance(kind, info) for kind in MEASURED if (info := ratio(workloads.workload_of(kind)))]
    relaxed = known(*workloads.relaxed_workloads())
    return Capabilities(
        relaxed,
        relaxed,
        by_type,
        known(workloads.if_workload(), host=True),
        known(workloads.while_workload(), host=True),
    )


class _Bench:
    """A device on which workloads are timed. Equal graphs are timed once."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._efforts: dict[str, Effort | None] = {}

    def least(self, ways: Sequence[Workload], *, host: bool) -> Effort | None:
        """Time and energy of the fastest of these workloads; None if the device can run none."""
        found = [effort for each in ways if (effort := self.effort(each, host=host)) is not None]
        return min(found, key=lambda effort: effort.time_ps, default=None)

    def effort(self, workload: Workload, *, host: bool) -> Effort | None:
        """Time and energy of a workload; None if the device cannot run it."""
        time_ps = 0
        energy: int | None = 0
        for graph, times in workload.graphs:
            effort = self._graph(graph)
            if effort is None:
                return None
            time_ps += times * (effort.time_ps + (self._host_ps(graph) if host else 0))
            energy = None if energy is None or effort.energy_fj is None else energy + times * effort.energy_fj
        return Effort(time_ps, energy)

    def _graph(self, graph: Graph) -> Effort | None:
        if graph.name not in self._efforts:
            self._efforts[graph.name] = self._run(graph)
        return self._efforts[graph.name]

    def _run(self, graph: Graph) -> Effort | None:
        try:
            program = compile_graph(graph, self._config)
        except (UnsupportedError, CompileError) as error:
            _log.info("%s does not run %r: %s", self._config.name, graph.name, error)
            return None
        with Session(self._config, cache_dir=False) as session:
            result = session.run(program, timing_only=True)
        return Effort(result.time_ps, result.energy.total)

    def _host_ps(self, graph: Graph) -> int:
        """Picoseconds of the driver for one job, including the transfer of a condition."""
        host = self._config.host
        conditions = [tensor.nbytes for tensor in (*graph.inputs, *graph.outputs) if tensor.size == 1]
        return overhead_ps(self._config) + sum(host.copy_ps(nbytes) for nbytes in conditions)


@functools.cache
def _reference() -> _Bench:
    """The processor, whose times are those of every device."""
    return _Bench(load_config(REFERENCE))


# Kept between processes


def _key(config: Config) -> str:
    reference = load_config(REFERENCE).fingerprint()
    versions = (npusim.__version__, ISA_VERSION, COMPILER_VERSION, workloads.VERSION)
    return hashlib.sha256(repr((config.fingerprint(), reference, versions)).encode()).hexdigest()


def _keep(key: str, found: Capabilities) -> Capabilities:
    """Write a file in the user's cache directory. Errors are only logged, because the file is optional."""
    path = default_directory() / f"capabilities-{key}.json"
    try:
        replace_file(path, [json.dumps(_to_json(found)).encode()])
    except OSError as error:
        _log.info("%s: the capabilities are not kept: %s", path, error)
    return found


def _load(key: str) -> Capabilities | None:
    path = default_directory() / f"capabilities-{key}.json"
    try:
        if not os.path.lexists(path):
            return None
        return _from_json(CAPABILITIES.json(path))
    except (NpusimError, ValueError, KeyError, TypeError, IndexError) as error:
        _log.warning("%s: measuring again: %s", path, error)
        return None


def _to_json(found: Capabilities) -> dict[str, list[float] | list[list[float]]]:
    return {
        "relaxed": _pair(found.relaxedFloat32toFloat16PerformanceTensor),
        "if": _pair(found.ifPerformance),
        "while": _pair(found.whilePerformance),
        "operands": [[int(entry.type), *_pair(entry.info)] for entry in found.operandPerformance],
    }


def _pair(info: PerformanceInfo) -> list[float]:
    return [info.execTime, info.powerUsage]


def _from_json(entry: dict[str, Any]) -> Capabilities:
    kinds = {int(kind): kind for kind in MEASURED}
    operands = [OperandPerformance(kinds[row[0]], _info(row[1:])) for row in entry["operands"]]
    relaxed = _info(entry["relaxed"])
    return Capabilities(relaxed, relaxed, operands, _info(entry["if"]), _info(entry["while"]))


def _info(pair: object) -> PerformanceInfo:
    if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(n, float) and 0 < n < math.inf for n in pair):
        raise ValueError(f"must be two positive numbers, got {pair!r}")
    return PerformanceInfo(*pair)
