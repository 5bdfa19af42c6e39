"""The models of a space: files, public networks by name, graphs made in Python."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim.errors import UsageError, named
from npusim.explore.kinds import ModelConfig, VariantConfig

if TYPE_CHECKING:
    from npusim.graph import Graph
    from npusim.hw.config import Config


@dataclass(frozen=True, slots=True)
class Workload:
    """One model in one form. ``name``: prefix of its figures. ``weight``: its weight in means over models.

    Its source is one of ``file``, ``network`` and ``graph``.
    """

    name: str
    weight: Fraction = Fraction(1)
    file: Path | None = None
    network: str = ""
    shape: tuple[int, ...] = ()
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bind: Mapping[str, Any] = field(default_factory=dict)
    graph: Graph | None = None

    def load(self, config: Config) -> Graph:
        """Load the graph. ``config``: a device, whose memory limits the import. Raises NpusimError."""
        if self.graph is not None:
            return self.graph
        if self.network:
            from npusim.validate.networks import NETWORKS

            try:
                return NETWORKS[self.network].make(self.shape)
            except (LookupError, ValueError, TypeError, ArithmeticError):  # the shape has another number of dimensions
                raise UsageError(f"the network has no form for an input of shape {list(self.shape)}") from None
        from npusim._core import DefaultFloats
        from npusim.frontends.models import load

        assert self.file is not None
        with DefaultFloats():  # constants are folded in the same mode as in a session
            graph = load(self.file, input_shapes=self.input_shapes, bind=self.bind, config=config)
        graph.name, graph.cache_rows = self.file.stem, 0
        return graph

    def described(self) -> dict[str, Any]:
        """Its identity as JSON values, except for the contents, which the fingerprint of the graph covers."""
        return {
            "name": self.name,
            "weight": str(self.weight),
            "file": self.file.name if self.file else None,
            "network": self.network or None,
            "shape": list(self.shape),
            "input_shapes": {name: list(shape) for name, shape in self.input_shapes.items()},
            "bind": dict(self.bind),
        }


def workloads(models: tuple[ModelConfig, ...], folder: Path) -> Iterator[Workload | tuple[str, str]]:
    """The workloads of a space file, or problems as (key, problem)."""
    for place, model in enumerate(models, 1):
        problem = _problem(model, folder)
        if problem is not None:
            yield f"model.{place}.{problem[0]}", problem[1]
            continue
        name = model.name or model.network or Path(model.file).stem
        for variant in model.variant or (None,):
            yield _workload(model, variant, name, folder)


def _workload(model: ModelConfig, variant: VariantConfig | None, name: str, folder: Path) -> Workload:
    def chosen(key: str) -> Any:
        own = getattr(variant, key) if variant is not None else None
        return own if own is not None else getattr(model, key)

    return Workload(
        name if variant is None else f"{name}/{variant.name}",
        model.weight * (variant.weight if variant is not None else 1),
        (folder / model.file).resolve() if model.file else None,
        model.network,
        chosen("shape") or (),
        {**(model.input_shapes or {}), **((variant.input_shapes if variant else None) or {})},
        {**(model.bind or {}), **((variant.bind if variant else None) or {})},
    )


def _problem(model: ModelConfig, folder: Path) -> tuple[str, str] | None:
    if bool(model.file) == bool(model.network):
        got = "both" if model.file else "neither"
        return "file", f"must be given, or network, not both: what runs is one of them; got {got}"
    if model.file:
        if model.shape is not None or any(each.shape is not None for each in model.variant or ()):
            return "shape", "is of networks; shapes of a file's inputs are input_shapes = { NAME = [...] }"
        path = folder / model.file
        # os.path accepts names that no file can have.
        return None if os.path.isfile(path) else ("file", f"no such file: {named(str(path))}")
    from npusim.validate.networks import NETWORKS

    if model.network not in NETWORKS:
        from difflib import get_close_matches

        close = get_close_matches(model.network, NETWORKS, 1)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        return "network", f"no such network {model.network!r}{hint}; there are {', '.join(NETWORKS)}"
    shapes = [each.shape or model.shape for each in model.variant or ()] or [model.shape]
    if any(shape is None or not shape for shape in shapes):
        return "shape", "missing; must be given for a network: batch, rows, columns, channels"
    if model.input_shapes or model.bind:
        return "input_shapes", "is of files, as bind is; of a network there is its shape"
    return None


def digest_of(graph: Graph, name: str) -> str:
    """The digest of a model's contents. Raises UsageError for missing constants."""
    try:
        return graph.fingerprint()
    except (OSError, ValueError) as error:
        raise UsageError(f"model {name!r}: its constants cannot be read: {error}") from None
