"""PAD to CHANNEL_SHUFFLE, element by element from the definitions, in both layouts."""

import numpy as np
import pytest

from hal.nnapi.operations.lowering import InvalidOperationError
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O
from tests.support.nnapi.one_operation import given, i32, problem, result, run_one, scalar, vector

TYPES = [T.TENSOR_FLOAT32, T.TENSOR_FLOAT16, T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED]
QUANT8 = TYPES[2:]
PADDED_BY = {T.TENSOR_FLOAT32: T.FLOAT32, T.TENSOR_FLOAT16: T.FLOAT16}


def counting(kind, *shape):
    quantised = (0.5, 9) if kind in QUANT8 else ()
    return given(kind, np.arange(1, np.prod(shape) + 1).reshape(shape) % 120, *quantised)


def like(x):
    return result(x.type, x.scale, x.zero)


def in_layout(nhwc, nchw):
    return nhwc.transpose(0, 3, 1, 2) if nchw else nhwc


def check(operation, x, parameters, wanted, nchw):
    """Check the operation on NHWC values, given and expected in either layout."""
    turned = given(x.type, in_layout(x.value, nchw), x.scale, x.zero)
    layouts = [[scalar(T.BOOL, nchw)]] if nchw else [[], [scalar(T.BOOL, False)]]
    for layout in layouts:
        array = run_one(operation, [turned, *parameters, *layout], like(x))
        assert array.dtype == x.value.dtype
        np.testing.assert_array_equal(array, in_layout(wanted, nchw))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("pads", [[[1, 0], [0, 2]], [[0, 0], [0, 0]], [[0, 0], [3, 1]]])
def test_pad(kind, pads):
    x = counting(kind, 2, 3)
    zero = x.zero
    wanted = np.full((2 + sum(pads[0]), 3 + sum(pads[1])), zero, x.value.dtype)
    wanted[pads[0][0] : pads[0][0] + 2, pads[1][0] : pads[1][0] + 3] = x.value
    for paddings in (vector(pads), given(T.TENSOR_INT32, pads)):
        np.testing.assert_array_equal(run_one(O.PAD, [x, paddings], like(x)), wanted)


@pytest.mark.parametrize("kind", TYPES)
def test_pad_with_a_value(kind):
    x, scalar_kind = counting(kind, 1, 2, 1, 2), PADDED_BY.get(kind, T.INT32)
    wanted = np.full((1, 3, 1, 4), 7, x.value.dtype)
    wanted[:, :2, :, 1:3] = x.value
    paddings = vector([[0, 0], [0, 1], [0, 0], [1, 1]])
    for value in (scalar(scalar_kind, 7), given(scalar_kind, 7)):
        np.testing.assert_array_equal(run_one(O.PAD_V2, [x, paddings, value], like(x)), wanted)


@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("block", [1, 2])
def test_space_to_depth(kind, block, nchw):
    x = counting(kind, 2, 2, 4, 3)
    wanted = np.zeros((2, 2 // block, 4 // block, 3 * block * block), x.value.dtype)
    for n, h, w, c in np.ndindex(x.value.shape):
        depth = ((h % block) * block + w % block) * 3 + c
        wanted[n, h // block, w // block, depth] = x.value[n, h, w, c]
    check(O.SPACE_TO_DEPTH, x, [i32(block)], wanted, nchw)


@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("block", [1, 2])
def test_depth_to_space(kind, block, nchw):
    x = counting(kind, 2, 1, 3, 8)
    channels = 8 // block**2
    wanted = np.zeros((2, block, 3 * block, channels), x.value.dtype)
    for n, h, w, c in np.ndindex(wanted.shape):
        depth = ((h % block) * block + w % block) * channels + c
        wanted[n, h, w, c] = x.value[n, h // block, w // block, depth]
    check(O.DEPTH_TO_SPACE, x, [i32(block)], wanted, nchw)


@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("block", "pads"), [((2, 1), ((0, 0), (0, 0))), ((2, 3), ((1, 0), (0, 2)))])
def test_space_to_batch(kind, block, pads, nchw):
    x = counting(kind, 2, 3 + (pads[0][0] == 0), 4, 2)
    padded = np.pad(x.value, ((0, 0), *pads, (0, 0)), constant_values=x.zero)
    n, h, w, c = padded.shape
    wanted = np.zeros((n * block[0] * block[1], h // block[0], w // block[1], c), x.value.dtype)
    for i, y, z, k in np.ndindex(padded.shape):
        batch = ((y % block[0]) * block[1] + z % block[1]) * n + i
        wanted[batch, y // block[0], z // block[1], k] = padded[i, y, z, k]
    check(O.SPACE_TO_BATCH_ND, x, [vector(block), vector(pads)], wanted, nchw)


@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("block", [(2, 3), (1, 1), (3, 2)])
def test_batch_to_space(kind, block, nchw):
    x = counting(kind, 6, 1, 2, 3)
    n = 6 // (block[0] * block[1])
    wanted = np.zeros((n, block[0], 2 * block[1], 3), x.value.dtype)
    for i, y, z, k in np.ndindex(wanted.shape):
        batch = ((y % block[0]) * block[1] + z % block[1]) * n + i
        wanted[i, y, z, k] = x.value[batch, y // block[0], z // block[1], k]
    check(O.BATCH_TO_SPACE_ND, x, [vector(block)], wanted, nchw)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("axis", "groups"), [(0, 3), (1, 2), (-1, 3), (2, 1)])
def test_channel_shuffle(kind, axis, groups):
    x = counting(kind, 6, 4, 3)
    size = x.value.shape[axis] // groups
    order = [g * size + k for k in range(size) for g in range(groups)]
    wanted = np.take(x.value, order, axis)
    np.testing.assert_array_equal(run_one(O.CHANNEL_SHUFFLE, [x, i32(groups), i32(axis)], like(x)), wanted)


def test_sizes_must_divide():
    x = counting(T.TENSOR_FLOAT32, 1, 2, 3, 5)
    for operation, parameters, what in (
        (O.SPACE_TO_DEPTH, [i32(2)], "the width 3 must be divisible by 2"),
        (O.DEPTH_TO_SPACE, [i32(2)], "the depth 5 must be divisible by 4"),
        (O.SPACE_TO_BATCH_ND, [vector([2, 2]), vector([[0, 0], [0, 0]])], "the padded width 3 must be divisible by 2"),
        (O.BATCH_TO_SPACE_ND, [vector([2, 2])], "the batches 1 must be divisible by 4"),
        (O.CHANNEL_SHUFFLE, [i32(2), i32(-1)], "dimension 3 5 must be divisible by 2"),
    ):
        with pytest.raises(InvalidOperationError, match=what):
            run_one(operation, [x, *parameters], like(x))


@pytest.mark.parametrize("kind", [T.TENSOR_FLOAT16, T.TENSOR_QUANT8_ASYMM_SIGNED])
def test_on_a_device(kind):
    x = counting(kind, 4, 2, 4, 4)
    nchw = scalar(T.BOOL, True)
    for operation, parameters in (
        (O.PAD, [vector([[0, 0], [1, 2], [0, 1], [0, 0]])]),
        (O.SPACE_TO_DEPTH, [i32(2)]),
        (O.DEPTH_TO_SPACE, [i32(2)]),
        (O.SPACE_TO_BATCH_ND, [vector([2, 2]), vector([[1, 1], [0, 2]]), nchw]),
        (O.BATCH_TO_SPACE_ND, [vector([2, 2])]),
        (O.CHANNEL_SHUFFLE, [i32(2), i32(3)]),
    ):
        inputs = [x, *parameters]
        np.testing.assert_array_equal(run_one(operation, inputs, like(x), "edge"), run_one(operation, inputs, like(x)))


def test_rules():
    x, q = counting(T.TENSOR_FLOAT32, 1, 2, 2, 4), counting(T.TENSOR_QUANT8_ASYMM, 1, 2, 2, 4)
    flat = counting(T.TENSOR_FLOAT32, 2, 2)
    y, other = result(T.TENSOR_FLOAT32), result(T.TENSOR_QUANT8_ASYMM, 0.5, 8)
    pads = vector([[0, 0], [1, 1], [0, 0], [0, 0]])
    none = vector([[0, 0], [0, 0]])
    pairs = "input 1 must be of shape [rank of input 0, 2], its entries >= 0"
    assert problem(O.PAD, [flat, pads], [y]) == pairs
    assert problem(O.PAD, [flat, vector([0, 0])], [y]) == pairs
    assert problem(O.PAD, [flat, vector([[0, -1], [0, 0]])], [y]) == pairs
    assert problem(O.PAD, [flat, vector([[0, 0, 0], [0, 0, 0]])], [y]) == pairs
    assert "same scale and zero point" in str(problem(O.PAD_V2, [q, pads, i32(3)], [other]))
    assert problem(O.SPACE_TO_DEPTH, [flat, i32(1)], [y]) == "input 0 must have rank 4"
    assert problem(O.SPACE_TO_DEPTH, [x, i32(0)], [y]) == "inputs 1 must be > 0"
    assert problem(O.DEPTH_TO_SPACE, [q, i32(2)], [other]) is not None
    blocks = "input 1 must be two block sizes >= 1"
    assert problem(O.BATCH_TO_SPACE_ND, [x, vector([1, 0])], [y]) == blocks
    assert problem(O.BATCH_TO_SPACE_ND, [x, vector([1, 1, 1])], [y]) == blocks
    assert problem(O.SPACE_TO_BATCH_ND, [x, vector([[1, 1]]), none], [y]) == blocks
    assert "shape [2, 2]" in str(problem(O.SPACE_TO_BATCH_ND, [x, vector([1, 1]), pads], [y]))
    assert problem(O.CHANNEL_SHUFFLE, [x, i32(1), i32(4)], [y]) is not None
    assert problem(O.CHANNEL_SHUFFLE, [x, i32(1), i32(-4)], [y]) is None
