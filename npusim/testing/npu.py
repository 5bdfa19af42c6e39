"""The fixture ``npu``: models on devices, each compiled and timed once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npusim.errors import UsageError, shown
from npusim.faults import Faulty
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.runtime import Session
from npusim.testing.run import ModelRun

if TYPE_CHECKING:
    from npusim.program import Program

_KEYS = ("config", "set", "faults")


class SharedRuns:
    """Programs and timings of a pytest session, per worker process."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._programs: dict[tuple[Any, ...], Program] = {}
        self._timed: dict[tuple[Any, ...], ModelRun] = {}
        self._kept: list[Any] = []

    def session(self, config: Config) -> Session:
        """The session of a device, created at its first use."""
        key = f"{config.name} {config.fingerprint()}"
        if key not in self._sessions:
            self._sessions[key] = Session(config)
        return self._sessions[key]

    def run(
        self,
        source: Any,
        config: Config,
        arrays: Mapping[str, Any] | None,
        input_shapes: Mapping[str, Sequence[int]],
        bind: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> ModelRun:
        """The run of a model on a device with these options; equal requests share one run."""
        if options:
            with Session(config, **options) as session:
                program = session.compile(source, input_shapes, bind=bind, inputs=arrays)
                return ModelRun(session.run(program, arrays, timing_only=arrays is None))
        if arrays is not None:
            session = self.session(config)
            return ModelRun(session.run(session.compile(source, input_shapes, bind=bind, inputs=arrays), arrays))
        key = self._key(source, config, input_shapes, bind)
        if key not in self._timed:
            program = self.compile(source, config, input_shapes, bind)
            self._timed[key] = ModelRun(self.session(config).run(program, timing_only=True))
        return self._timed[key]

    def compile(
        self, source: Any, config: Config, input_shapes: Mapping[str, Sequence[int]], bind: Mapping[str, Any]
    ) -> Program:
        """The program of a model for a device; equal requests share one program."""
        key = self._key(source, config, input_shapes, bind)
        if key not in self._programs:
            self._programs[key] = self.session(config).compile(source, input_shapes, bind=bind)
        return self._programs[key]

    def _key(
        self, source: Any, config: Config, input_shapes: Mapping[str, Sequence[int]], bind: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        shapes = tuple(sorted((name, tuple(shape)) for name, shape in input_shapes.items()))
        bound = tuple(sorted((name, repr(value)) for name, value in bind.items()))
        return self._identity(source), config.name, config.fingerprint(), shapes, bound

    def _identity(self, source: Any) -> tuple[Any, ...]:
        if isinstance(source, Path):
            # A test may rewrite its model under the same name.
            state = source.stat()
            return "file", str(source), state.st_mtime_ns, state.st_size
        if isinstance(source, bytes):
            return "bytes", hashlib.sha256(source).hexdigest()
        self._kept.append(source)  # kept alive, so that no other object gets its identity
        return "object", id(source)


class Npu:
    """Runs models on the device of a test, which its marker or the call selects."""

    def __init__(
        self,
        runs: SharedRuns,
        given: Mapping[str, Any],
        folder: Path,
        record_property: Callable[[str, object], None],
    ) -> None:
        self._runs, self._given, self._folder, self._record = runs, given, folder, record_property

    def run(
        self,
        model: Any,
        config: Config | str | os.PathLike[str] | None = None,
        *,
        set: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        bind: Mapping[str, Any] | None = None,
        faults: Faulty | None = None,
        timeout: str | int | None = None,
    ) -> ModelRun:
        """Run a model: a path, which is looked up next to the test file first, bytes, an ``onnx.ModelProto`` or a
        Graph.

        ``config``, ``set``: the device and its overrides, as for ``npusim run``. The defaults are those of the marker
        ``npu``, otherwise ``edge``. Without ``inputs`` nothing is computed, and equal runs are timed once for all
        tests. With an array for each input, ``outputs`` of the run has the results. ``faults``: a script for a device
        that is powered on for this run only; the default is that of the marker. A file is looked up next to the test
        file first. ``timeout``: simulated time after which the driver aborts the run. Raises the errors of
        ``Session.compile`` and ``Session.run``, and UsageError if a fault has not happened.
        """
        found = self._config(config, set)
        script = faults if faults is not None else self._given.get("faults")
        options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        if script is not None:
            options["faults"] = self._source(script) if isinstance(script, str | os.PathLike) else script
        run = self._runs.run(self._source(model), found, inputs, input_shapes or {}, bind or {}, options)
        self._record(f"npu_cycles[{run.result.model}@{run.result.config}]", run.cycles)
        return run

    def compile(
        self,
        model: Any,
        config: Config | str | os.PathLike[str] | None = None,
        *,
        set: Mapping[str, Any] | None = None,
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        bind: Mapping[str, Any] | None = None,
    ) -> Program:
        """The program for a device, as for :meth:`run`. For tests that drive a device themselves."""
        return self._runs.compile(self._source(model), self._config(config, set), input_shapes or {}, bind or {})

    def _config(self, config: Config | str | os.PathLike[str] | None, set: Mapping[str, Any] | None) -> Config:
        found = load_config(config if config is not None else self._given.get("config", "edge"))
        # Overrides of a marker apply to its device. Another device is used unchanged.
        changed = {**(self._given.get("set", {}) if config is None else {}), **(set or {})}
        return found.with_(**changed) if changed else found

    def _source(self, model: Any) -> Any:
        if isinstance(model, Graph | bytes) or not isinstance(model, str | os.PathLike):
            return model
        beside = self._folder / model
        return beside if beside.exists() else Path(model)


def defaults(node: pytest.Item) -> dict[str, Any]:
    """The merged arguments of the markers of a test; the nearest marker has precedence. Raises UsageError."""
    found: dict[str, Any] = {}
    for marker in node.iter_markers("npu"):
        if marker.args or not set(marker.kwargs) <= set(_KEYS):
            wrong = shown(marker.args[0]) if marker.args else shown(min(set(marker.kwargs) - set(_KEYS)))
            raise UsageError(f"{node.nodeid}: marker npu: takes config=..., set={{...}} and faults=..., got {wrong}")
        changed = {**marker.kwargs.get("set", {}), **found.get("set", {})}
        found = {**marker.kwargs, **found, "set": changed}
    return found
