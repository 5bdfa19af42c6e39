"""CompileRequest: the model to compile and all arguments that determine the program."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim.cache import FORMAT_VERSION
from npusim.compiler.schedule.schedule import FREE, Schedule
from npusim.compiler.schedule.schedule_file import schedule_text
from npusim.dtypes import value_text
from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.isa.base import ISA_VERSION
from npusim.runtime.provenance import Origin

if TYPE_CHECKING:
    from npusim.frontends.onnx.source import Source as OnnxSource

    Source = OnnxSource | Graph


@dataclass(frozen=True, eq=False)
class CompileRequest:
    """One compilation, for one device.

    ``source``: a path, the bytes of a model, an ``onnx.ModelProto`` or a Graph. ``shapes``: dimensions by input name
    that the model leaves open. ``bind``: inputs that become constants, by name. ``cache_rows``: capacity in rows of
    inputs that grow in place, 0: exactly the rows of the output. ``timing_only``: the program is only timed, so large
    weights are neither read nor hashed. ``schedule``: choices of the compiler that are given.
    """

    config: Config
    source: Source
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    bind: Mapping[str, Any] = field(default_factory=dict)
    cache_rows: int = 0
    timing_only: bool = False
    schedule: Schedule = FREE

    @property
    def file(self) -> str | None:
        """The path of the model; None if the model is not in a file."""
        return os.fspath(self.source) if isinstance(self.source, str | os.PathLike) else None

    @cached_property
    def identity(self) -> tuple[str, str]:
        """SHA-256 of the model, including external data, and the stem of its file name or an empty string.

        With ``timing_only``, weights in large files are not read; see ``digest_file`` and ``Graph.fingerprint``.
        """
        if isinstance(self.source, Graph):
            return self.source.fingerprint(values=not self.timing_only), ""
        if isinstance(self.source, bytes | bytearray):
            return hashlib.sha256(self.source).hexdigest(), ""
        if isinstance(self.source, str | os.PathLike):
            from npusim.frontends.models import digest_file

            path = Path(self.source)
            return digest_file(path, self.config.dram.bytes, values=not self.timing_only), path.stem
        from npusim.frontends.onnx.source import read

        return read(self.source).digest, ""

    def key(self, model: tuple[str, str], choice: str = "") -> str:
        """The cache key of the program.

        ``model``: an :attr:`identity`. ``choice``: values of inputs that determined the graph, as text.
        """
        from npusim.compiler.version import COMPILER_VERSION

        shapes = sorted((name, tuple(shape)) for name, shape in self.shapes.items())
        values = sorted((name, value_text(np.asarray(value))) for name, value in self.bind.items())
        versions = (FORMAT_VERSION, ISA_VERSION, COMPILER_VERSION)
        device = self.config.fingerprint(), self.config.name
        text = repr((*model, shapes, values, self.cache_rows, *device, versions))
        text += " for timing" * self.timing_only + choice
        if self.schedule != FREE:
            text += schedule_text(self.schedule)
        return hashlib.sha256(text.encode()).hexdigest()

    def load(self, arrays: Mapping[str, Any] | None = None) -> Graph:
        """The graph of the model.

        ``arrays``: values of inputs that may determine shapes, branches or loops. Raises ModelError, InputError,
        NeedsValueError, UnsupportedError.
        """
        if isinstance(self.source, Graph):
            return self.source
        from npusim.frontends.models import load

        graph = load(
            self.source,
            input_shapes=self.shapes,
            bind=self.bind,
            arrays=arrays,
            config=self.config,
            timing_only=self.timing_only,
        )
        if self.file is not None:
            graph.name = Path(self.file).stem
        graph.cache_rows = self.cache_rows
        return graph

    def origin(self, digest: str, deciding: Mapping[str, Any] | None = None) -> Origin:
        """The provenance of the program. ``deciding``: inputs whose values determined the graph."""
        kind = "graph" if isinstance(self.source, Graph) else "onnx"
        rest = dict(self.shapes), dict(self.bind), self.cache_rows, deciding or {}, self.schedule
        return Origin(kind, self.file, digest, not self.timing_only, *rest)
