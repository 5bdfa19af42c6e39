"""Values for random graphs: their reference is known, and how far floats may be from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from npusim.dtypes import DType, bfloat16_to_float32, float32_to_bfloat16
from npusim.graph import Graph, Tensor
from npusim.ops.base import REGISTRY
from npusim.ops.build import GraphBuilder

Array = npt.NDArray[Any]

FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
SMALL = (DType.INT8, DType.UINT8, DType.INT16)
INTEGERS = (DType.INT32, DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT64)
NUMBERS = (*FLOATS, *INTEGERS)
ANY = (*NUMBERS, DType.BOOL)
MOST_ELEMENTS = 4000
SPECIAL = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, 1e30, 65000, 1e-40], np.float32)


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor and its reference.

    ``peak``: absolute errors are small multiples of the type's epsilon times this; 0 requires equal bits.
    """

    tensor: Tensor
    array: Array
    peak: float = 0.0

    @property
    def exact(self) -> bool:
        return self.peak == 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def rank(self) -> int:
        return len(self.tensor.shape)

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    @property
    def largest(self) -> float:
        """Largest finite magnitude, at least 1."""
        return largest(self.array, self.dtype)

    @property
    def reach(self) -> float:
        """``peak`` for results computed from this value."""
        return max(self.peak, self.largest)


def as_float(array: Array, dtype: DType) -> npt.NDArray[np.float64]:
    """Convert storage to double precision."""
    return (bfloat16_to_float32(array) if dtype is DType.BFLOAT16 else array).astype(np.float64)


def largest(array: Array, dtype: DType) -> float:
    """Return the largest finite magnitude, at least 1."""
    wide = np.abs(as_float(array, dtype))
    return float(np.max(wide, initial=1.0, where=np.isfinite(wide)))


@dataclass
class Grower:
    """Adds operators to a graph and evaluates them at once."""

    draw: st.DrawFn
    rng: np.random.Generator
    build: GraphBuilder = field(default_factory=lambda: GraphBuilder("random"))
    values: list[Value] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    special: bool = False
    """Floats include infinities, NaNs of both signs, -0 and subnormals. Results must have equal bits on all paths, but
    need not be close to the reference."""

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def pick(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(options))

    def flag(self) -> bool:
        return self.draw(st.booleans())

    def shape(self, rank: int | None = None, least: int = 0, empty: bool = True) -> tuple[int, ...]:
        """Draw a shape of up to 6 dimensions, sometimes without elements."""
        rank = self.integer(least, 6) if rank is None else rank
        sizes = (1, 2, 3, 5, 7, 8, 16, 33, 65) if rank < 4 else (1, 2, 3, 5, 7, 12) if rank == 4 else (1, 2, 3, 5, 7)
        dims = [self.pick(sizes) for _ in range(rank)]
        while math.prod(dims) > MOST_ELEMENTS:
            dims[dims.index(max(dims))] = 2
        if rank and empty and self.integer(0, 24) == 24:
            dims[self.integer(0, rank - 1)] = 0
        return tuple(dims)

    def data(self, shape: Sequence[int], dtype: DType) -> Array:
        """Draw elements: floats of order 1, integers over their whole range or near zero."""
        if dtype is DType.BOOL:
            return self.rng.random(tuple(shape)) < 0.5
        if dtype.is_float:
            values = np.asarray(self.rng.standard_normal(tuple(shape)) * 2, np.float32)
            if self.special:
                odd = self.rng.choice(SPECIAL, values.shape)
                values = np.where(self.rng.random(values.shape) < 0.15, odd, values)
            if dtype is DType.BFLOAT16:
                return float32_to_bfloat16(values).reshape(tuple(shape))
            with np.errstate(over="ignore"):
                return values.astype(dtype.storage)
        info = np.iinfo(dtype.storage)
        wide = self.flag()
        low, high = (info.min, info.max) if wide else (max(info.min, -9), 9)
        return self.rng.integers(low, high, tuple(shape), dtype.storage, endpoint=True)

    def fresh(self, shape: Sequence[int], dtype: DType, array: Array | None = None) -> Value:
        """Add a graph input."""
        name = f"x{len(self.inputs)}"
        data = self.data(shape, dtype) if array is None else array
        value = Value(self.build.input(name, tuple(shape), dtype), data)
        self.inputs[name] = data
        self.values.append(value)
        return value

    def constant(self, array: Array, dtype: DType | None = None) -> Value:
        tensor = self.build.const(array, dtype=dtype)
        return Value(tensor, np.asarray(tensor.data))

    def operand(
        self,
        dtypes: Sequence[DType] = ANY,
        fits: Callable[[Value], bool] = lambda value: True,
        exact: bool = False,
        shape: Callable[[], tuple[int, ...]] | None = None,
    ) -> Value:
        """Return an existing value that fits, most likely the newest, or a new input."""
        known = [v for v in self.values if v.dtype in dtypes and fits(v) and (v.exact or not exact)]
        if known and self.integer(0, 3):
            return known[-1 if self.integer(0, 2) else self.integer(0, len(known) - 1)]
        return self.fresh((shape or self.shape)(), self.pick(dtypes))

    def other(self, shape: Sequence[int], dtype: DType, exact: bool = False) -> Value:
        """Return a value of exactly this shape and type: an older one, a constant or a new input."""
        known = [v for v in self.values if v.shape == tuple(shape) and v.dtype is dtype and (v.exact or not exact)]
        kind = self.integer(0, 2)
        if kind == 0 and known:
            return known[self.integer(0, len(known) - 1)]
        return self.constant(self.data(shape, dtype), dtype) if kind == 1 else self.fresh(shape, dtype)

    def add(self, kind: str, operands: Sequence[Value | None], peak: float = 0.0, **attrs: Any) -> list[Value]:
        """Add an operator; ``peak`` as in Value, for float results."""
        before = self.build.op_count
        outputs = self.build.add_all(kind, [None if v is None else v.tensor for v in operands], attrs)
        (op,) = self.build.ops_since(before)
        arrays = REGISTRY[kind].reference(op, [None if v is None else v.array for v in operands])
        results = [
            Value(tensor, np.asarray(array), max(peak, largest(array, tensor.dtype)) if peak else 0.0)
            for tensor, array in zip(outputs, arrays, strict=True)
        ]
        self.values += results
        return results

    def moved(self, kind: str, operands: Sequence[Value], **attrs: Any) -> list[Value]:
        """Add an operator whose results are as exact as its operands."""
        inexact = any(not v.exact for v in operands)
        return self.add(kind, operands, max(v.reach for v in operands) if inexact else 0.0, **attrs)


class RandomGraph:
    """A graph, one set of inputs, and the reference and peak (see Value) of each output."""

    def __init__(self, graph: Graph, inputs: Mapping[str, Array], expected: Mapping[str, Value]) -> None:
        self.graph = graph
        self.inputs = inputs
        self.expected = expected

    def __repr__(self) -> str:
        lines = [
            f"{op.kind}({', '.join(map(repr, op.inputs))}) {dict(op.attrs)} -> {', '.join(map(repr, op.outputs))}"
            for op in self.graph.ops
        ]
        return "\n".join(["<RandomGraph", *lines, f"outputs {', '.join(self.expected)}>"])
