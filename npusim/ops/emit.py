"""Helpers for frontends that lower one operation to graph operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npusim.dtypes import DType
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.ops.build import GraphBuilder


class Emitter:
    """Adds the operators for one operation, named after it. Methods without an effect add nothing."""

    def __init__(self, builder: GraphBuilder, name: str) -> None:
        self.builder = builder
        self.name = name

    def name_of(self, kind: str) -> str:
        """The name of an operator of this kind."""
        return self.name

    def emit(self, kind: str, inputs: Sequence[Tensor | None], attrs: Mapping[str, Any] | None = None) -> Tensor:
        """Add an operator and return its output."""
        return self.builder.add(kind, inputs, attrs, self.name_of(kind))

    def const(self, array: Any, dtype: DType | None = None) -> Tensor:
        """A constant."""
        return self.builder.const(array, f"{self.name}.const", dtype)

    def like(self, value: float | int, tensor: Tensor) -> Tensor:
        """A scalar constant of a tensor's type."""
        return self.const(np.asarray(value), tensor.dtype)

    def unary(self, fn: Unary, x: Tensor, p0: float = 0.0, p1: float = 0.0) -> Tensor:
        """An elementwise function of one tensor."""
        return self.emit("unary", [x], {"fn": fn, "p0": float(p0), "p1": float(p1)})

    def binary(self, fn: Binary, a: Tensor, b: Tensor) -> Tensor:
        """An elementwise function of two tensors, broadcast to each other."""
        return self.emit("binary", [a, b], {"fn": fn})

    def reduce(self, fn: Reduce, x: Tensor, axes: Sequence[int], keepdims: bool = True) -> Tensor:
        """Reduce all elements along the axes to one."""
        return self.emit("reduce", [x], {"fn": fn, "axes": tuple(sorted(axes)), "keepdims": keepdims})

    def cast(self, x: Tensor, to: DType) -> Tensor:
        """x in another type."""
        return x if x.dtype is to else self.emit("cast", [x], {"to": to})

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """x in another shape."""
        dims = tuple(int(dim) for dim in shape)
        return x if x.shape == dims else self.emit("reshape", [x], {"shape": dims})

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        """x with its dimensions in another order."""
        return x if list(perm) == list(range(len(perm))) else self.emit("transpose", [x], {"perm": tuple(perm)})

    def expand(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """x broadcast to a shape."""
        return x if x.shape == tuple(shape) else self.emit("expand", [x], {"shape": tuple(shape)})

    def slice(self, x: Tensor, axis: int, start: int, size: int) -> Tensor:
        """``size`` elements from ``start`` on along an axis."""
        starts, sizes = [0] * len(x.shape), list(x.shape)
        starts[axis], sizes[axis] = start, size
        if tuple(sizes) == x.shape:
            return x
        return self.emit("slice", [x], {"starts": tuple(starts), "steps": (1,) * len(starts), "sizes": tuple(sizes)})

    def along(self, vector: Tensor, axis: int, rank: int) -> Tensor:
        """A vector shaped to broadcast along one axis of a tensor of this rank."""
        shape = [1] * rank
        shape[axis] = vector.size
        return self.reshape(vector, shape)

    def stack(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """Tensors of one shape joined along a new dimension before dimension ``axis``."""
        shape = parts[0].shape
        grown = [self.reshape(part, (*shape[:axis], 1, *shape[axis:])) for part in parts]
        return grown[0] if len(grown) == 1 else self.emit("concat", grown, {"axis": axis})

    def reverse(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """x with its elements along some dimensions in reverse order."""
        turned = [axis for axis in axes if x.shape[axis] > 1]
        if not turned:
            return x
        starts = tuple(dim - 1 if axis in turned else 0 for axis, dim in enumerate(x.shape))
        steps = tuple(-1 if axis in turned else 1 for axis in range(len(x.shape)))
        return self.emit("slice", [x], {"starts": starts, "steps": steps, "sizes": x.shape})

    def mirror_pad(self, x: Tensor, pads: Sequence[Sequence[int]], *, edge: bool) -> Tensor:
        """x with mirrored elements around it; ``pads``: how many before and after each dimension, at most its size with
        the edge itself, one less without."""
        for axis, (before, after) in enumerate(pads):
            if before or after:
                places = np.arange(x.shape[axis], dtype=np.int32)
                index = self.const(np.pad(places, (before, after), "symmetric" if edge else "reflect"))
                x = self.emit("gather", [x, index], {"axis": axis})
        return x
