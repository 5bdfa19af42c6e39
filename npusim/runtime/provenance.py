"""The origin of a result: everything needed to reproduce it, or to find changes."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from npusim._core import simd
from npusim.compiler.schedule.schedule import FREE, Schedule
from npusim.compiler.schedule.schedule_file import document
from npusim.hw.config import Config
from npusim.isa.base import ISA_VERSION
from npusim.program import Program


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The source of a program.

    ``kind``: ``onnx`` (a model), ``graph`` (in memory) or ``program`` (a compiled file). ``file``: its path as given,
    None without a file. ``digest``: SHA-256 of the file, then of each range of bytes that it refers to in other files,
    in the order of their names. Without ``values`` (timing only), large weights are represented by file and
    modification time. ``shapes``, ``bind``, ``cache_rows``, ``schedule``: arguments of the compilation.
    ``deciding``: inputs whose values determined the program.
    """

    kind: str
    file: str | None
    digest: str
    values: bool = True
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    bind: Mapping[str, Any] = field(default_factory=dict)
    cache_rows: int = 0
    deciding: Mapping[str, Any] = field(default_factory=dict)
    schedule: Schedule = FREE


def versions() -> dict[str, str]:
    """Versions of everything that can change a result: npusim, compiler, instruction set, numpy, Python."""
    from npusim import __version__
    from npusim.compiler.version import COMPILER_VERSION

    return {
        "npusim": __version__,
        "compiler": str(COMPILER_VERSION),
        "isa": str(ISA_VERSION),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def overrides(config: Config) -> dict[str, str]:
    """Keys that were changed after the description was read, with their values as TOML."""
    return {key: value for key, value, origin, _ in config.resolved() if origin == "override"}


class ProvenanceInputs(Protocol):
    """The part of a result that its provenance depends on."""

    program: Program
    device: Config
    origin: Origin | None
    seed: int | None
    arithmetic: bool
    state: bool


def of_device(config: Config) -> dict[str, Any]:
    """A device and the software versions, as JSON values."""
    return {
        "config": config.to_table(),
        "config_origin": config.origin,
        "fingerprint": config.fingerprint(),
        "overrides": overrides(config),
        "versions": versions(),
    }


def provenance(result: ProvenanceInputs) -> dict[str, Any]:
    """As JSON values; the schema is in npusim/report/run.schema.json."""
    return {
        **of_device(result.device),
        "model": _model(result.origin, result.program),
        "seed": result.seed,
        "arithmetic": result.arithmetic,
        "state": result.state,
        "simd": simd(),
    }


def _model(origin: Origin | None, program: Program) -> dict[str, Any]:
    """The model as JSON values; without an origin, the information in the program."""
    inputs = {binding.name: list(binding.shape) for binding in program.inputs}
    told: dict[str, Any] = {"name": program.name, "inputs": inputs, "bound": dict(program.bound)}
    if origin is None:
        return {**told, "kind": "program", "file": None, "digest": None}
    return {
        **told,
        "kind": origin.kind,
        "file": origin.file,
        "digest": origin.digest,
        "digest_of_values": origin.values,
        "input_shapes": {name: list(shape) for name, shape in sorted(origin.shapes.items())},
        "bind": {name: as_json(value) for name, value in sorted(origin.bind.items())},
        "deciding": {name: as_json(value) for name, value in sorted(origin.deciding.items())},
        "cache_rows": origin.cache_rows,
        **({"schedule": document(origin.schedule)} if origin.schedule != FREE else {}),
    }


def as_json(value: Any) -> Any:
    """A number as it is; an array by its bytes, because JSON cannot represent all values."""
    array = np.asarray(value)
    if isinstance(value, int | float | list | tuple) and np.isfinite(array).all():
        return array.tolist()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "bytes": array.tobytes().hex()}


def bound_value(said: Any) -> Any:
    """The value of an input from the JSON of a provenance. Raises ValueError, TypeError, KeyError."""
    if not isinstance(said, dict):
        return said
    return np.frombuffer(bytes.fromhex(said["bytes"]), np.dtype(said["dtype"])).reshape(said["shape"])
