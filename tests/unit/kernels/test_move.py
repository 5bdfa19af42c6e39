"""Movement kernels compared with numpy indexing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim import _core
from npusim.dtypes import DType
from tests.support.kernel_operands import (
    Layout,
    assert_same,
    assert_untouched,
    broadcast,
    layouts,
    place,
    random_values,
)

SIZES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
dims4 = st.tuples(*[st.integers(1, 6)] * 4)
dims3 = st.tuples(*[st.integers(1, 6)] * 3)
sizes = st.sampled_from(sorted(SIZES))
seeds = st.integers(0, 1000)


def words(size: int, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, np.iinfo(SIZES[size]).max, shape, SIZES[size], endpoint=True)


@given(dims4, sizes, layouts(4), layouts(4), seeds)
def test_copy_moves_every_item_and_nothing_else(dims, size, source, target, seed):
    src, dst = place(words(size, dims, seed), source), place(words(size, dims, seed + 1), target)
    before = dst.memory.copy()
    _core.copy(dst.operand, src.operand, dims, size)
    assert_same(dst.array, src.array)
    assert_untouched(dst, before)


@pytest.mark.parametrize("size", sorted(SIZES))
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 1, 3, 2), (0, 3, 1, 2), (3, 2, 1, 0)])
def test_copy_of_large_transposed_planes(size, order):
    dims = (2, 3, 37, 41)
    src = place(words(size, dims, 0), Layout(order, (0,) * 4, (False,) * 4, 0))
    dst = place(np.zeros(dims, SIZES[size]))
    _core.copy(dst.operand, src.operand, dims, size)
    assert_same(dst.array, src.array)


def test_copy_of_nothing_reads_nothing():
    memory = np.zeros(4, np.uint8)
    beyond = _core.Strided(memory, 100, (1, 1, 1, 1))
    _core.copy(beyond, beyond, (1, 0, 5, 5), 1)
    assert not memory.any()


far = st.sampled_from([*(sign * (2**bits - 1) for bits in (31, 32, 62, 63) for sign in (1, -1)), 2**62, -(2**63)])
near = st.integers(-3, 40)


@given(near | far, st.lists(st.tuples(st.integers(1, 4) | far.map(abs), near | far), min_size=4, max_size=4), sizes)
def test_what_lies_outside_of_a_memory_is_refused_however_far(offset, walk, size):
    """Including sums and products that overflow a machine integer."""
    dims = [min(dim, 2**63 - 1) if stride else min(dim, 4) for dim, stride in walk]  # each element of a row takes time
    strides = [stride for _, stride in walk]
    memory = np.full(48, 7, np.uint8)
    spans = [(dim - 1) * stride for dim, stride in zip(dims, strides, strict=True)]
    low, high = offset + sum(min(span, 0) for span in spans), offset + size + sum(max(span, 0) for span in spans)
    if low >= 0 and high <= memory.size:
        _core.fill(_core.Strided(memory, offset, tuple(strides)), tuple(dims), size, 0)
        assert (memory[offset : offset + size] == 0).all()
    else:
        with pytest.raises(IndexError) as refused:
            _core.fill(_core.Strided(memory, offset, tuple(strides)), tuple(dims), size, 0)
        assert str(refused.value) == f"dst: bytes [{low}, {high}) are outside its memory of 48 bytes"
        assert (memory == 7).all()


@given(dims4, sizes, layouts(4), st.integers(0, 2**64 - 1))
def test_fill_sets_the_low_bytes_of_the_pattern(dims, size, layout, pattern):
    dst = place(words(size, dims, 0), layout)
    before = dst.memory.copy()
    _core.fill(dst.operand, dims, size, pattern)
    assert (dst.array == pattern % 2 ** (8 * size)).all()
    assert_untouched(dst, before)


@given(dims4, sizes, layouts(4), layouts(4), seeds, st.integers(0, 15))
def test_select_is_where(dims, size, one, other, seed, repeated):
    shape = tuple(1 if repeated >> axis & 1 else dim for axis, dim in enumerate(dims))
    cond = broadcast(random_values(DType.BOOL, shape, seed), dims, other)
    a, b = place(words(size, dims, seed), one), broadcast(words(size, shape, seed + 1), dims, other)
    dst = place(np.zeros(dims, SIZES[size]), other)
    _core.select(size, dst.operand, cond.operand, a.operand, b.operand, dims)
    assert_same(dst.array, np.where(cond.array, a.array, b.array))


index_types = st.sampled_from([DType.INT8, DType.INT32, DType.INT64])


@given(dims3, st.integers(1, 9), sizes, layouts(3), layouts(3), index_types, seeds)
def test_gather_is_take(dims, axis, size, source, target, index_type, seed):
    outer, count, inner = dims
    data = place(words(size, (outer, axis, inner), seed), source)
    index = place(np.random.default_rng(seed).integers(-axis, axis, count).astype(index_type.storage))
    dst = place(np.zeros(dims, SIZES[size]), target)
    indices = _core.Strided(index.memory, index.offset, (0, index.strides[0], 0))
    bad = _core.gather(dst.operand, data.operand, indices, index_type, dims, axis, size)
    assert bad == -1
    assert_same(dst.array, data.array[:, index.array.astype(int)])


@pytest.mark.parametrize("wrong", [3, -4, 127])
def test_gather_names_the_first_bad_index_and_writes_nothing(wrong):
    data, dst = place(np.arange(6, dtype=np.uint8).reshape(1, 3, 2)), place(np.full((1, 4, 2), 9, np.uint8))
    index = place(np.array([0, 2, wrong, 100], np.int8))
    indices = _core.Strided(index.memory, 0, (0, 1, 0))
    assert _core.gather(dst.operand, data.operand, indices, DType.INT8, (1, 4, 2), 3, 1) == 2 * 2
    assert (dst.array == 9).all()


@given(dims3, st.integers(1, 9), sizes, layouts(3), layouts(3), index_types, seeds)
def test_gather_elements_is_take_along_axis(dims, axis, size, source, target, index_type, seed):
    data = place(words(size, (dims[0], axis, dims[2]), seed), source)
    index = place(np.random.default_rng(seed).integers(-axis, axis, dims).astype(index_type.storage), target)
    dst = place(np.zeros(dims, SIZES[size]), target)
    assert _core.gather(dst.operand, data.operand, index.operand, index_type, dims, axis, size) == -1
    assert_same(dst.array, np.take_along_axis(data.array, index.array.astype(int) % axis, 1))


COMBINE = (lambda a, b: b, lambda a, b: a + b, lambda a, b: a * b, max, min)


@given(dims3, st.integers(1, 5), st.sampled_from([DType.INT8, DType.INT64, DType.FLOAT32]), layouts(3), seeds,
       st.integers(0, 4))  # fmt: skip
def test_scatter_combines_in_order(dims, axis, dtype, layout, seed, reduction):
    shape = (dims[0], axis, dims[2])
    dst, upd = place(random_values(dtype, shape, seed, 9.0), layout), place(random_values(dtype, dims, seed + 1, 9.0))
    index = place(np.random.default_rng(seed).integers(-axis, axis, dims).astype(np.int32), layout)
    want = dst.array.copy()
    with np.errstate(over="ignore"):
        for o, j, i in np.ndindex(*dims):
            at = o, int(index.array[o, j, i]), i
            want[at] = COMBINE[reduction](want[at], upd.array[o, j, i])
    bad = _core.scatter(dst.operand, upd.operand, index.operand, DType.INT32, dims, axis, dtype, reduction)
    assert bad == -1
    assert_same(dst.array, want)


def test_scatter_names_the_first_bad_index_and_writes_nothing():
    dst, upd = place(np.zeros((1, 3, 2), np.int8)), place(np.ones((1, 2, 2), np.int8))
    index = place(np.array([[[0, 1], [2, 3]]], np.int64))
    assert _core.scatter(dst.operand, upd.operand, index.operand, DType.INT64, (1, 2, 2), 3, DType.INT8, 0) == 3
    assert not dst.array.any()


def over_its_indices(value):
    """Three int32 indices of 0 at byte 16 of a memory; the first result, at byte 20, turns the second index into
    ``value``."""
    memory = np.zeros(64, np.uint8)
    memory[:16] = 0xEE
    memory[32:36] = np.array([value], np.int32).view(np.uint8)
    return memory, _core.Strided(memory, 20, (0, 4, 0)), _core.Strided(memory, 16, (0, 4, 0))


@pytest.mark.parametrize("value", [1 << 20, -(1 << 20)])
def test_an_index_that_gather_has_written_over_is_bounded_again(value):
    memory, dst, index = over_its_indices(value)
    data = _core.Strided(memory, 32, (0, 4, 0))
    assert _core.gather(dst, data, index, DType.INT32, (1, 3, 1), 2, 4) == 1
    assert memory[16:28].view(np.int32).tolist() == [0, value, 0]
    assert (memory[:16] == 0xEE).all()


@pytest.mark.parametrize("reduction", range(5))
@pytest.mark.parametrize("value", [1 << 20, -(1 << 20)])
def test_an_index_that_scatter_has_written_over_is_bounded_again(value, reduction):
    memory, dst, index = over_its_indices(value)
    updates = _core.Strided(memory, 32, (0, 0, 0))
    bad = _core.scatter(dst, updates, index, DType.INT32, (1, 3, 1), 2, DType.INT32, reduction)
    written = COMBINE[reduction](0, value)
    assert bad == (-1 if written == 0 else 1)
    assert memory[20:24].view(np.int32) == written
    assert (memory[:16] == 0xEE).all()
