"""Plausible sizes for open dimensions: the first of several usual sizes that the model accepts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnx import ValueInfoProto

from npusim.errors import NeedsValueError, NpusimError, OpenInputsError, UnsupportedError
from npusim.frontends.onnx.importer import Importer
from npusim.frontends.onnx.signature import BATCH, Dim, declared_dims, free_inputs
from npusim.frontends.onnx.source import Model
from npusim.graph import Tensor
from npusim.ops.base import Array

_SQUARES = (224, 256, 320, 640, 64, 128, 112, 512, 32, 28)
IMAGES = (*((side, side) for side in _SQUARES[:4]), (48, 320), (32, 320), *((side, side) for side in _SQUARES[4:]))
"""Heights and widths of classifiers, detectors, text line readers, face and digit networks."""
LENGTHS = (128, 512, 576, 256, 1024, 64, 32, 16, 16000, 2048, 1, 4096)
"""Numbers of tokens, frames, samples."""
DEPTH = 16
"""Frames of a video, slices of a volume."""
NODES = 20_000
"""Limit of imported nodes, including unrolled loops and functions, after which no more sizes are tried."""
GUESSES = ((1, 1), (-1, 1), (0, 0), (0, 1), (2, 2))
"""Values for the first element and the others of a deciding input that the model does not compare with a constant. (-1,
1) is a valid shape for any tensor."""
MOST_CHANNELS = 4
"""A fixed last dimension of an image up to this size is interpreted as channels."""

_NAMED = {
    "batch": BATCH,
    "height": r"height|^h$|rows",
    "width": r"width|^w$|cols",
    "length": r"seq|len|time|frame|sample|token|step|^[tls]$",
}


_AXES = {
    1: ("length",),
    2: ("batch", "length"),
    3: ("batch", "length", "length"),
    4: ("batch", "channels", "height", "width"),
    5: ("batch", "channels", "depth", "height", "width"),
}
_CHANNELS_LAST = ("batch", "height", "width", "channels")


def candidates(
    model: Model, given: Mapping[str, Sequence[int]], bind: Mapping[str, Any]
) -> Iterator[dict[str, tuple[int, ...]]]:
    """Shapes for the inputs with open dimensions, the most usual ones first. None if all dimensions are known."""
    values, symbols = free_inputs(model.proto.graph), dict[str, int]()
    for value in values:
        pairs = zip(declared_dims(value) or (), given.get(value.name, ()), strict=False)
        symbols.update((dim, size) for dim, size in pairs if isinstance(dim, str))
    asked = [value for value in values if value.name not in given and value.name not in bind]
    for (height, width), length in zip(IMAGES, LENGTHS, strict=True):
        sizes = {"batch": 1, "channels": 3, "depth": DEPTH, "height": height, "width": width, "length": length}
        shapes = _shapes(asked, symbols, sizes)
        if not shapes:
            return
        yield shapes


def with_examples(
    error: OpenInputsError, model: Model, given: Mapping[str, Sequence[int]], bind: Mapping[str, Any]
) -> NpusimError:
    """The error, completed with sizes for every open dimension. If no tried sizes fit, it states the problem with one
    of them. If the model is unsupported with all of them, that error is returned instead."""
    nodes = 0
    found: list[tuple[NpusimError, dict[str, tuple[int, ...]], dict[str, Any]]] = []
    for shapes in candidates(model, given, bind):
        bound, problem, imported = _tried(model, {**given, **shapes}, bind)
        if problem is None:
            return OpenInputsError(error.problem, shapes, bound)
        found.append((problem, shapes, bound))
        nodes += imported
        if nodes >= NODES:
            break
    if all(isinstance(problem, UnsupportedError) for problem, _, _ in found):
        return found[0][0]
    problem, shapes, bound = next(each for each in found if not isinstance(each[0], UnsupportedError))
    return OpenInputsError(f"{error.problem}. Not every size is valid: {problem}", shapes, bound)


def _shapes(
    values: Sequence[ValueInfoProto], known: Mapping[str, int], sizes: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    symbols, shapes = dict(known), {}
    for value in values:
        dims = declared_dims(value)
        if dims is None:
            dims = [None] * len(_CHANNELS_LAST)  # assume an image
        shape = []
        for axis, dim in enumerate(dims):
            size = dim if isinstance(dim, int) else symbols.get(dim or "", sizes[_role(dims, axis)])
            if isinstance(dim, str):
                symbols[dim] = size
            shape.append(size)
        if shape != dims:
            shapes[value.name] = tuple(shape)
    return shapes


def _role(dims: Sequence[Dim], axis: int) -> str:
    """The role of an open dimension, from its name or position."""
    name = str(dims[axis] or "").lower()
    for role, pattern in _NAMED.items():
        if re.search(pattern, name):
            return role
    last, second = dims[-1], dims[min(1, len(dims) - 1)]
    if len(dims) == 4 and isinstance(last, int) and last <= MOST_CHANNELS and not isinstance(second, int):
        return _CHANNELS_LAST[axis]
    if len(dims) == 3 and axis == 1 and isinstance(dims[0], int) and dims[0] > 1:
        return "batch"  # of the states of several layers or directions
    roles = _AXES.get(len(dims), ())
    return roles[axis] if roles else "batch"


def with_values(
    error: NeedsValueError, model: Model, given: Mapping[str, Sequence[int]], bind: Mapping[str, Any]
) -> NeedsValueError:
    """The error with values that the model accepts for its deciding inputs. All are None if none is found."""
    values, problem, _ = _tried(model, given, bind)
    return NeedsValueError(error.reasons, values if problem is None else dict.fromkeys(error.values))


class _Trial(Importer):
    """Trial import of a model. ``guess``: see :data:`GUESSES`."""

    guess: tuple[int, int] = (1, 1)

    @property
    def nodes(self) -> int:
        """Number of nodes visited."""
        return self._nodes

    def _contradicted(self, problems: Sequence[str]) -> None:
        """Suppressed, because the final import reports it."""

    def _one_like(self, tensor: Tensor, number: float | None) -> Array:
        value = super()._one_like(tensor, self.guess[1] if number is None else number)
        if number is None and tensor.shape:
            first = super()._one_like(Tensor(tensor.name, (), tensor.dtype), self.guess[0])
            value.reshape(-1)[:1] = first
        return value


def _tried(
    model: Model, shapes: Mapping[str, Sequence[int]], bind: Mapping[str, Any]
) -> tuple[dict[str, Any], NpusimError | None, int]:
    """(values of inputs that the model needs with these shapes, the error if it does not accept the shapes, number of
    imported nodes)."""
    nodes = 0
    found: list[tuple[dict[str, Any], NpusimError | None]] = []
    for guess in GUESSES:
        values: dict[str, Any] = {}
        while True:
            trial = _Trial(model.again(), shapes, {**bind, **values})
            trial.guess = guess
            problem: NpusimError | None = None
            try:
                trial.run()
            except NpusimError as error:
                problem = error
            nodes += trial.nodes
            if not isinstance(problem, NeedsValueError) or nodes >= NODES:
                break
            values.update(problem.values)
        found.append((values, problem))
        if problem is None:
            return values, None, nodes
        if not values or nodes >= NODES:
            break
    return *found[0], nodes
