"""Operands for kernel tests: memory, and a numpy view of the same bytes for the reference implementation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from npusim import _core
from npusim.dtypes import DType, bfloat16_to_float32, float32_to_bfloat16

Array = npt.NDArray[Any]
INTEGERS = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32, DType.INT64)
FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
_LEVELS = ("portable", "avx2", "avx512", "avx512vnni")


def levels() -> tuple[str, ...]:
    """Return the instruction sets that this processor supports; each must give the same bits."""
    _core.set_simd("auto")
    return _LEVELS[: _LEVELS.index(_core.simd()) + 1]


class Layout(NamedTuple):
    """The layout of an operand in memory: order of axes, gaps, directions, and first byte."""

    order: tuple[int, ...]
    gaps: tuple[int, ...]
    flips: tuple[bool, ...]
    shift: int


class View(NamedTuple):
    """An operand as kernels take it; ``array`` is a numpy view of the same bytes."""

    memory: npt.NDArray[np.uint8]
    offset: int
    strides: tuple[int, ...]
    array: Array

    @property
    def operand(self) -> _core.Strided:
        return _core.Strided(self.memory, self.offset, self.strides)


def layouts(rank: int) -> st.SearchStrategy[Layout]:
    """Draw any order of axes, gaps of up to two items, either direction, any alignment."""
    return st.builds(
        Layout,
        st.permutations(range(rank)).map(tuple),
        st.tuples(*[st.integers(0, 2)] * rank),
        st.tuples(*[st.booleans()] * rank),
        st.integers(0, 9),
    )


def dense(rank: int) -> Layout:
    return Layout(tuple(range(rank)), (0,) * rank, (False,) * rank, 0)


def place(values: Array, layout: Layout | None = None) -> View:
    """Copy values to new memory, in which every other byte is 0xA5."""
    layout = layout or dense(values.ndim)
    strides, step = [0] * values.ndim, values.itemsize
    for axis in reversed(layout.order):
        step *= 1 + layout.gaps[axis]
        strides[axis] = -step if layout.flips[axis] else step
        step *= max(values.shape[axis], 1)
    memory = np.full(layout.shift + step + 8, 0xA5, np.uint8)
    offset = layout.shift - sum(
        stride * (dim - 1) for stride, dim in zip(strides, values.shape, strict=True) if stride < 0 < dim
    )
    array = np.ndarray(values.shape, values.dtype, memory.data, offset, strides)
    array[...] = values
    return View(memory, offset, tuple(strides), array)


def broadcast(values: Array, shape: tuple[int, ...], layout: Layout | None = None) -> View:
    """Return values whose axes of size 1 are repeated up to ``shape`` with strides of 0."""
    view = place(values, layout)
    strides = tuple(0 if dim == 1 else stride for dim, stride in zip(values.shape, view.strides, strict=True))
    return View(view.memory, view.offset, strides, np.broadcast_to(view.array, shape))


def random_values(dtype: DType, shape: tuple[int, ...], seed: int, limit: float = 100.0) -> Array:
    """Return reproducible values in storage form: for floats also zeros and, with a limit above 100, infinities and
    NaN."""
    rng = np.random.default_rng(seed)
    if dtype is DType.BOOL:
        return rng.random(shape) < 0.5
    if dtype.is_float:
        values = (rng.standard_normal(shape) * min(limit, 100.0) / 3).astype(np.float32)
        values[rng.random(shape) < 0.1] = 0.0
        if limit > 100:
            values[rng.random(shape) < 0.05] = np.nan
            values[rng.random(shape) < 0.05] = np.inf
            values[rng.random(shape) < 0.05] = -np.inf
        return narrow(values, dtype)
    info = np.iinfo(dtype.storage)
    low, high = max(info.min, int(-limit)), min(info.max, int(limit))
    values = rng.integers(low, high, shape, np.int64, endpoint=True)
    edges = rng.random(shape) < 0.1
    return np.where(edges, rng.choice([info.min, info.max], shape), values).astype(dtype.storage)


def widen(stored: Array, dtype: DType) -> npt.NDArray[np.float32]:
    """Convert stored floats to float32."""
    return bfloat16_to_float32(stored) if dtype is DType.BFLOAT16 else stored.astype(np.float32)


def narrow(values: Array, dtype: DType) -> Array:
    """Convert float32 values to the storage form of a float type."""
    with np.errstate(over="ignore"):
        single = np.asarray(values, np.float32)
        return float32_to_bfloat16(single) if dtype is DType.BFLOAT16 else single.astype(dtype.storage)


def assert_same(got: Array, want: Array) -> None:
    """Check that values are equal; NaN equals NaN, and integers are compared as bit patterns."""
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def assert_untouched(view: View, before: npt.NDArray[np.uint8]) -> None:
    """Check that no byte outside the view has changed."""
    mask = np.ones(len(view.memory), bool)
    marks = np.ndarray(view.array.shape, np.dtype((np.void, view.array.itemsize)), mask.view(np.uint8).data,
                       view.offset, view.strides)  # fmt: skip
    marks[...] = np.zeros((), marks.dtype)
    assert np.array_equal(view.memory[mask], before[mask])


def wrap(value: int, dtype: DType) -> int:
    """Return the integer that a store with the type's width keeps."""
    bits = 8 * dtype.itemsize
    value &= (1 << bits) - 1
    return value - (1 << bits) if np.iinfo(dtype.storage).min < 0 and value >> (bits - 1) else value
