"""Named dimensions: dimensions of an operation's inputs that must be equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..types import OperandLifeTime
from .lowering import InvalidOperationError, Lowering
from .view import OpView


class Dimensions:
    """The shapes of an operation's inputs as words, one per dimension: dimensions with the same word must be equal.

    ``shapes``: by input, such as ``"batches inputs"``. ``optional``: inputs that an execution may omit; their declared
    shapes are checked only if they are present.
    """

    def __init__(self, shapes: Mapping[int, str], optional: Iterable[int] = ()) -> None:
        self._names = {index: tuple(words.split()) for index, words in shapes.items()}
        self._optional = frozenset(optional)

    def agree(self, view: OpView) -> bool:
        """inputs must have the ranks of the operation's definition, and agree in the dimensions that they share"""
        sizes: dict[str, int] = {}
        for index, names in self._names.items():
            if view.omitted(index):
                continue
            operand = view.inputs[index]
            if not operand.dimensions:
                continue  # of unknown rank
            if index in self._optional and operand.lifetime == OperandLifeTime.SUBGRAPH_INPUT:
                continue
            if len(operand.dimensions) != len(names):
                return False
            for name, size in zip(names, operand.dimensions, strict=True):
                if size and sizes.setdefault(name, size) != size:
                    return False
        return True

    def sizes(self, op: Lowering) -> dict[str, int]:
        """The size of each word. Raises InvalidOperationError for shapes that contradict each other."""
        sizes: dict[str, int] = {}
        for index, names in self._names.items():
            if op.omitted(index):
                continue
            shape = op.shape(index)
            if len(shape) != len(names) or any(sizes.setdefault(n, s) != s for n, s in zip(names, shape, strict=True)):
                wanted = ", ".join(f"{name} = {sizes[name]}" if name in sizes else name for name in names)
                raise InvalidOperationError(f"input {index} must be [{wanted}], got {list(shape)}")
        return sizes


class SequenceDimensions:
    """Dimensions of an operation on sequences, whose layout a scalar selects.

    ``time_major``: the input that is true, or 1, if time comes first. ``shapes`` are written for that layout; in the
    other one, the dimensions ``time batches`` are exchanged.
    """

    def __init__(self, time_major: int, shapes: Mapping[int, str], optional: Iterable[int] = ()) -> None:
        swapped = {index: words.replace("time batches", "batches time") for index, words in shapes.items()}
        optional = frozenset(optional)
        self._time_major = time_major
        self._layouts = Dimensions(swapped, optional), Dimensions(shapes, optional)

    def agree(self, view: OpView) -> bool:
        """inputs must have the ranks of the operation's definition, and agree in the dimensions that they share"""
        time_major = view.scalar(self._time_major)
        return time_major is None or self._layouts[bool(time_major)].agree(view)

    def sizes(self, op: Lowering) -> dict[str, int]:
        """The size of each word. Raises InvalidOperationError for shapes that contradict each other."""
        return self._layouts[bool(op.scalar(self._time_major))].sizes(op)
