"""Data movement operations are inverses of each other."""

import numpy as np
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O
from tests.support.nnapi.one_operation import given, i32, result, run, run_one, scalar, vector

SIZE, BLOCK = st.integers(1, 4), st.integers(1, 3)
KIND = st.sampled_from([T.TENSOR_FLOAT32, T.TENSOR_QUANT8_ASYMM_SIGNED])


def operand(kind, array):
    return given(kind, array, 0.5 if kind is T.TENSOR_QUANT8_ASYMM_SIGNED else 0.0)


def apply(operation, x, *parameters):
    """Return the operation's result as an operand of another one."""
    return operand(x.type, run_one(operation, [x, *parameters], result(x.type, x.scale, x.zero)))


def counting(kind, *shape):
    return operand(kind, np.arange(np.prod(shape)).reshape(shape) % 128)


@settings(max_examples=25)
@drawn(KIND, st.tuples(SIZE, SIZE, SIZE, SIZE), BLOCK, st.booleans())
def test_depth_to_space_undoes_space_to_depth(kind, sizes, block, nchw):
    n, h, w, c = sizes
    layout = scalar(T.BOOL, nchw)
    x = counting(kind, n, c, h * block, w * block) if nchw else counting(kind, n, h * block, w * block, c)
    there = apply(O.SPACE_TO_DEPTH, x, i32(block), layout)
    np.testing.assert_array_equal(apply(O.DEPTH_TO_SPACE, there, i32(block), layout).value, x.value)


@settings(max_examples=25)
@drawn(KIND, st.tuples(SIZE, SIZE, SIZE, SIZE), BLOCK, BLOCK, st.booleans())
def test_batch_to_space_undoes_space_to_batch(kind, sizes, high, wide, nchw):
    n, h, w, c = sizes
    layout, block = scalar(T.BOOL, nchw), vector([high, wide])
    x = counting(kind, n, c, h * high, w * wide) if nchw else counting(kind, n, h * high, w * wide, c)
    there = apply(O.SPACE_TO_BATCH_ND, x, block, vector([[0, 0], [0, 0]]), layout)
    np.testing.assert_array_equal(apply(O.BATCH_TO_SPACE_ND, there, block, layout).value, x.value)


@settings(max_examples=25)
@drawn(KIND, st.lists(SIZE, min_size=1, max_size=4), st.data())
def test_concatenation_undoes_split(kind, shape, data):
    axis, parts = data.draw(st.integers(0, len(shape) - 1)), data.draw(BLOCK)
    shape[axis] *= parts
    x = counting(kind, *shape)
    outputs = [result(kind, x.scale, x.zero) for _ in range(parts)]
    pieces = [operand(kind, array) for array in run(O.SPLIT, [x, i32(axis), i32(parts)], outputs)]
    np.testing.assert_array_equal(apply(O.CONCATENATION, *pieces, i32(axis)).value, x.value)


@settings(max_examples=25)
@drawn(KIND, st.lists(SIZE, min_size=1, max_size=4), st.data())
def test_a_permutation_and_its_inverse(kind, shape, data):
    perm = data.draw(st.permutations(range(len(shape))))
    x = counting(kind, *shape)
    there = apply(O.TRANSPOSE, x, vector(perm))
    np.testing.assert_array_equal(apply(O.TRANSPOSE, there, vector(np.argsort(perm))).value, x.value)


@settings(max_examples=25)
@drawn(KIND, st.lists(st.tuples(SIZE, st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=4))
def test_slice_undoes_pad(kind, dims):
    shape, before, after = zip(*dims, strict=True)
    x = counting(kind, *shape)
    there = apply(O.PAD, x, vector([list(pair) for pair in zip(before, after, strict=True)]))
    assert there.value.shape == tuple(map(sum, dims))
    np.testing.assert_array_equal(apply(O.SLICE, there, vector(before), vector(shape)).value, x.value)


@settings(max_examples=25)
@drawn(st.floats(2**-10, 2**10, width=32), st.integers(-128, 127))
def test_quantize_undoes_dequantize(scale, zero):
    levels = np.arange(-128, 128)
    x = given(T.TENSOR_QUANT8_ASYMM_SIGNED, levels, scale, zero)
    there = given(T.TENSOR_FLOAT32, run_one(O.DEQUANTIZE, [x], result(T.TENSOR_FLOAT32)))
    back = run_one(O.QUANTIZE, [there], result(T.TENSOR_QUANT8_ASYMM_SIGNED, scale, zero))
    np.testing.assert_array_equal(back, levels)
