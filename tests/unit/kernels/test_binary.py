"""Binary functions, quantisation and quantised arithmetic compared with numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim import _core
from npusim.dtypes import DType
from npusim.isa.functions import COMPARISONS, Binary
from tests.support.kernel_operands import (
    FLOATS,
    INTEGERS,
    assert_same,
    assert_untouched,
    broadcast,
    layouts,
    levels,
    narrow,
    place,
    random_values,
    widen,
    wrap,
)

F = np.float32
FLOAT = {
    Binary.ADD: np.add,
    Binary.SUB: np.subtract,
    Binary.MUL: np.multiply,
    Binary.DIV: np.divide,
    Binary.POW: lambda a, b: np.power(a.astype(np.float64), b.astype(np.float64)).astype(F),
    Binary.MIN: np.minimum,
    Binary.MAX: np.maximum,
    Binary.MOD: np.mod,
    Binary.FMOD: np.fmod,
    Binary.EQ: np.equal,
    Binary.NE: np.not_equal,
    Binary.LT: np.less,
    Binary.LE: np.less_equal,
    Binary.GT: np.greater,
    Binary.GE: np.greater_equal,
    Binary.PRELU: lambda a, b: np.where(a < 0, a * b, a),
    Binary.SQUARED_DIFFERENCE: lambda a, b: (a - b) * (a - b),
}


def divide(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def power(a: int, b: int) -> int:
    if b < 0:
        return {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)
    return pow(a, b, 1 << 64)


INTEGER = {
    Binary.ADD: lambda a, b: a + b,
    Binary.SUB: lambda a, b: a - b,
    Binary.MUL: lambda a, b: a * b,
    Binary.DIV: divide,
    Binary.POW: power,
    Binary.MIN: min,
    Binary.MAX: max,
    Binary.MOD: lambda a, b: a % b if b else 0,
    Binary.FMOD: lambda a, b: a - divide(a, b) * b if b else 0,
    Binary.EQ: lambda a, b: a == b,
    Binary.NE: lambda a, b: a != b,
    Binary.LT: lambda a, b: a < b,
    Binary.LE: lambda a, b: a <= b,
    Binary.GT: lambda a, b: a > b,
    Binary.GE: lambda a, b: a >= b,
    Binary.BIT_AND: lambda a, b: a & b,
    Binary.BIT_OR: lambda a, b: a | b,
    Binary.BIT_XOR: lambda a, b: a ^ b,
    Binary.SHL: lambda a, b: a << b if 0 <= b < 64 else 0,
    Binary.SHR: lambda a, b: a >> b if 0 <= b < 64 else -(a < 0),
    Binary.PRELU: lambda a, b: a * b if a < 0 else a,
    Binary.SQUARED_DIFFERENCE: lambda a, b: (a - b) ** 2,
}
LOGICAL = {Binary.AND: np.logical_and, Binary.OR: np.logical_or, Binary.XOR: np.logical_xor}
dims4 = st.tuples(*[st.integers(1, 5)] * 4)
seeds = st.integers(0, 1000)
repeats = st.integers(0, 15)


def operands(dtype, dims, layout, other, seed, repeated, limit):
    """Return one operand of full shape and one with some axes repeated."""
    shape = tuple(1 if repeated >> axis & 1 else dim for axis, dim in enumerate(dims))
    a = place(random_values(dtype, dims, seed, limit), layout)
    return a, broadcast(random_values(dtype, shape, seed + 1, limit), dims, other)


def test_every_function_has_a_twin():
    assert set(FLOAT) | set(INTEGER) | set(LOGICAL) == set(Binary)


@pytest.mark.parametrize("fn", FLOAT, ids=lambda fn: fn.name)
@settings(max_examples=20)
@given(dims4, st.sampled_from(FLOATS), layouts(4), layouts(4), seeds, repeats, st.booleans())
def test_float_functions(fn, dims, dtype, layout, other, seed, repeated, swap):
    a, b = operands(dtype, dims, layout, other, seed, repeated, 1e9)
    a, b = (b, a) if swap else (a, b)
    out = DType.BOOL if fn in COMPARISONS else dtype
    dst = place(np.zeros(dims, out.storage), other)
    before = dst.memory.copy()
    _core.binary(fn, dtype, dst.operand, a.operand, b.operand, dims)
    with np.errstate(all="ignore"):
        want = FLOAT[fn](widen(a.array, dtype), widen(b.array, dtype))
    if out is DType.BOOL:
        assert_same(dst.array, want)
    else:
        assert_same(widen(dst.array, dtype), widen(narrow(want, dtype), dtype))
    assert_untouched(dst, before)


@pytest.mark.parametrize("fn", INTEGER, ids=lambda fn: fn.name)
@settings(max_examples=20)
@given(dims4, st.sampled_from(INTEGERS), layouts(4), layouts(4), seeds, repeats, st.sampled_from([3.0, 100.0, 1e6]))
def test_integer_functions(fn, dims, dtype, layout, other, seed, repeated, limit):
    a, b = operands(dtype, dims, layout, other, seed, repeated, limit)
    dst = place(np.zeros(dims, bool if fn in COMPARISONS else dtype.storage), layout)
    _core.binary(fn, dtype, dst.operand, a.operand, b.operand, dims)
    pairs = zip(a.array.ravel().tolist(), b.array.ravel().tolist(), strict=True)
    want = [INTEGER[fn](x, y) if fn in COMPARISONS else wrap(INTEGER[fn](x, y), dtype) for x, y in pairs]
    assert_same(dst.array.ravel(), np.array(want, dst.array.dtype))


@pytest.mark.parametrize("fn", LOGICAL, ids=lambda fn: fn.name)
def test_logical_functions(fn):
    a, b = operands(DType.BOOL, (2, 3, 4, 5), None, None, 0, 5, 0)
    dst = place(np.zeros((2, 3, 4, 5), bool))
    _core.binary(fn, DType.BOOL, dst.operand, a.operand, b.operand, (2, 3, 4, 5))
    assert_same(dst.array, LOGICAL[fn](a.array, b.array))


@pytest.mark.parametrize("width", [1, 511, 512, 513, 2000])
def test_long_rows_with_a_repeated_operand(width):
    dims = (1, 1, 3, width)
    a, b = operands(DType.FLOAT32, dims, None, None, 0, 8, 1e9)
    dst = place(np.zeros(dims, F))
    for one, two in ((a, b), (b, a), (a, a)):
        _core.binary(Binary.SUB, DType.FLOAT32, dst.operand, one.operand, two.operand, dims)
        with np.errstate(invalid="ignore"):
            assert_same(dst.array, one.array - two.array)


def test_every_instruction_set_gives_the_same_bits():
    dims = (1, 1, 7, 143)
    a, b = operands(DType.FLOAT32, dims, None, None, 5, 0, 1e9)
    for fn in FLOAT:
        results = []
        for level in levels():
            _core.set_simd(level)
            dst = place(np.zeros(dims, F))
            memory = dst.memory
            strides = dst.strides if fn not in COMPARISONS else tuple(s // 4 for s in dst.strides)
            _core.binary(fn, DType.FLOAT32, _core.Strided(memory, 0, strides), a.operand, b.operand, dims)
            bits = dst.array.view(np.int32)
            results.append(bits if fn in COMPARISONS else np.where(np.isnan(dst.array), 0, bits))
        _core.set_simd("auto")
        for result in results[1:]:
            assert_same(result, results[0])


@pytest.mark.parametrize(
    ("fn", "dtype", "message"),
    [
        (Binary.AND, DType.INT8, "binary function 15 is not defined for int8"),
        (Binary.BIT_AND, DType.FLOAT32, "binary function 18 is not defined for float32"),
        (Binary.ADD, DType.BOOL, "binary function 0 is not defined for bool"),
        (Binary.ADD, DType.UINT64, "kernels do not compute with uint64"),
        (25, DType.FLOAT32, r"binary function must be 0\.\.24, got 25"),
    ],
)
def test_unsupported_is_named(fn, dtype, message):
    view = _core.Strided(np.zeros(64, np.uint8), 0, (0, 0, 0, 4))
    with pytest.raises(ValueError, match=message):
        _core.binary(fn, dtype, view, view, view, (1, 1, 1, 1))


QUANTISED = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)


def quantised(values: np.ndarray, scale: np.ndarray, zero: np.ndarray, dtype: DType) -> np.ndarray:
    """Return clamp(rint(x / scale) + zero) with Python integers; NaN counts as 0."""
    info = np.iinfo(dtype.storage)
    with np.errstate(all="ignore"):
        steps = np.rint(values / scale).astype(np.float64)
    steps = np.clip(np.where(np.isnan(steps), 0, steps), -1e12, 1e12)
    return np.clip(steps + zero, info.min, info.max).astype(dtype.storage)


@given(dims4, st.sampled_from([*QUANTISED, DType.INT32]), st.sampled_from([*FLOATS, DType.INT32]), layouts(4), seeds,
       repeats)  # fmt: skip
def test_quantize(dims, target, source, layout, seed, repeated):
    shape = tuple(1 if repeated >> axis & 1 else dim for axis, dim in enumerate(dims))
    rng = np.random.default_rng(seed)
    src = place(random_values(source, dims, seed, 1e9), layout)
    scale = broadcast((rng.random(shape) + 0.01).astype(F), dims)
    zero = broadcast(rng.integers(-100, 100, shape).astype(np.int32), dims)
    values = widen(src.array, source) if source.is_float else src.array.astype(F)
    for level in levels():
        _core.set_simd(level)
        dst = place(np.zeros(dims, target.storage), layout)
        _core.quantize(target, dst.operand, source, src.operand, scale.operand, zero.operand, dims)
        assert_same(dst.array, quantised(values, scale.array, zero.array, target))


@given(dims4, st.sampled_from(FLOATS), st.sampled_from(INTEGERS[:-1]), layouts(4), seeds, repeats)
def test_dequantize(dims, target, source, layout, seed, repeated):
    shape = tuple(1 if repeated >> axis & 1 else dim for axis, dim in enumerate(dims))
    rng = np.random.default_rng(seed)
    src = place(random_values(source, dims, seed, 1e9), layout)
    scale = broadcast((rng.random(shape) + 0.01).astype(F), dims)
    zero = broadcast(rng.integers(-100, 100, shape).astype(np.int32), dims)
    want = narrow((src.array.astype(np.int64) - zero.array).astype(F) * scale.array, target)
    for level in levels():
        _core.set_simd(level)
        dst = place(np.zeros(dims, target.storage), layout)
        _core.dequantize(target, dst.operand, source, src.operand, scale.operand, zero.operand, dims)
        assert_same(widen(dst.array, target), widen(want, target))


def test_quantised_types_are_checked():
    view = _core.Strided(np.zeros(64, np.uint8), 0, (0, 0, 0, 4))
    one = (1, 1, 1, 1)
    with pytest.raises(ValueError, match="quantize: source must be a float type or int32, got int8"):
        _core.quantize(DType.INT8, view, DType.INT8, view, view, view, one)
    with pytest.raises(ValueError, match="dequantize: result must be a float type, got int8"):
        _core.dequantize(DType.INT8, view, DType.INT8, view, view, view, one)
