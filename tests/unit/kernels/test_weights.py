"""Conversion of weights on their way to the array, compared with numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim import _core
from npusim.dtypes import DType
from tests.support.kernel_operands import assert_same, narrow

BYTES = (DType.INT8, DType.UINT8)


def packed(values: np.ndarray, bits: int) -> np.ndarray:
    """Pack bit by bit, low bits first; each row starts on a byte boundary."""
    rows = values.reshape(len(values), -1).astype(np.int64) & ((1 << bits) - 1)
    stream = (rows[..., None] >> np.arange(bits)) & 1
    return np.packbits(stream.reshape(len(values), -1).astype(np.uint8), axis=1, bitorder="little")


def drawn(dtype: DType, bits: int, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    low = -(1 << (bits - 1)) if dtype is DType.INT8 else 0
    return rng.integers(low, low + (1 << bits), shape).astype(dtype.storage)


@given(
    st.sampled_from(BYTES), st.sampled_from([2, 4, 8]), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9),
    st.integers(0, 99),
)  # fmt: skip
def test_they_are_unpacked(dtype, bits, batch, k, oc, seed):
    w = drawn(dtype, bits, (batch, k, oc), np.random.default_rng(seed))
    memory, out = packed(w, bits), np.zeros(w.size, np.uint8)
    _core.weights(
        dtype, bits, dtype, _core.Strided(memory.reshape(-1), 0, (memory.shape[1],)), _core.Strided(out, 0, (k * oc,)),
        (batch, k, oc), None, None, 1, 0,
    )  # fmt: skip
    assert_same(out.view(dtype.storage).reshape(w.shape), w)


@given(
    st.sampled_from(BYTES), st.sampled_from([2, 4, 8]),
    st.sampled_from([DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16]), st.integers(1, 20), st.integers(1, 7),
    st.integers(1, 8), st.booleans(), st.integers(0, 99), st.data(),
)  # fmt: skip
def test_scales_make_numbers_of_them(dtype, bits, to, k, oc, block, with_zeros, seed, choices):
    rng, skip = np.random.default_rng(seed), choices.draw(st.integers(0, block - 1))
    w = drawn(dtype, bits, (2, k, oc), rng)
    rows = -(-(k + skip) // block)
    scale = rng.normal(size=(2, rows, oc)).astype(np.float32)
    zero = drawn(dtype, bits, (2, rows, oc), rng) if with_zeros else np.zeros((2, rows, oc), dtype.storage)
    memory, out = packed(w, bits), np.zeros(w.size * to.itemsize, np.uint8)
    _core.weights(
        dtype, bits, to, _core.Strided(memory.reshape(-1), 0, (memory.shape[1],)),
        _core.Strided(out, 0, (k * oc * to.itemsize,)), (2, k, oc),
        _core.Strided(scale.view(np.uint8).reshape(-1), 0, (rows * oc * 4,)),
        _core.Strided(zero.view(np.uint8).reshape(-1), 0, (rows * oc,)) if with_zeros else None, block, skip,
    )  # fmt: skip
    which = (np.arange(k) + skip) // block
    want = (w.astype(np.int32) - zero[:, which]).astype(np.float32) * scale[:, which]
    assert_same(out.view(to.storage).reshape(w.shape), narrow(want, to))


@pytest.mark.parametrize(
    ("dtype", "bits", "to", "block", "message"),
    [
        (DType.INT16, 8, DType.INT16, 1, "must be int8 or uint8 in 2, 4 or 8 bits, got int16 in 8"),
        (DType.INT8, 3, DType.INT8, 1, "must be int8 or uint8 in 2, 4 or 8 bits, got int8 in 3"),
        (DType.INT8, 4, DType.FLOAT32, 1, "int8 do not become float32 that way"),
        (DType.INT8, 4, DType.INT8, 0, "block must be >= 1 and above skip, got 0 and 0"),
    ],
)
def test_what_they_cannot_be_is_named(dtype, bits, to, block, message):
    memory = np.zeros(64, np.uint8)
    with pytest.raises(ValueError, match=message):
        _core.weights(
            dtype, bits, to, _core.Strided(memory, 0, (1,)), _core.Strided(memory, 32, (8,)), (1, 1, 1), None, None,
            block, 0,
        )  # fmt: skip


def test_operands_outside_their_memory_are_refused():
    memory = np.zeros(16, np.uint8)
    with pytest.raises(IndexError, match="w: bytes"):
        _core.weights(
            DType.INT8, 4, DType.INT8, _core.Strided(memory, 12, (5,)), _core.Strided(memory, 0, (10,)), (1, 5, 2),
            None, None, 1, 0,
        )  # fmt: skip
