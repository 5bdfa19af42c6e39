"""RESHAPE to RANK: movement operations treat every type alike."""

import itertools

import numpy as np
import pytest

from hal.nnapi.operations.lowering import InvalidOperationError
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O
from npusim.errors import DeviceFaultError, InputError
from tests.support.nnapi.one_operation import (
    assert_close,
    given,
    holding,
    i32,
    omitted,
    problem,
    real,
    result,
    run,
    run_one,
    scalar,
    vector,
)

FLOATS = [T.TENSOR_FLOAT32, T.TENSOR_FLOAT16]
QUANT8 = [T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED]
MOVED = [*FLOATS, *QUANT8]
ALSO_INTEGERS = [*MOVED, T.TENSOR_INT32]


def counting(kind, *shape):
    """Return 0, 1, 2, ... in storage form."""
    quantised = (0.5, 3) if kind in QUANT8 else ()
    return given(kind, np.arange(np.prod(shape)).reshape(shape), *quantised)


def like(x):
    return result(x.type, x.scale, x.zero)


def check(operation, inputs, wanted, x=None):
    """Check that the operation moves the elements like numpy."""
    x = x or inputs[0]
    array = run_one(operation, inputs, like(x))
    assert array.dtype == x.value.dtype
    np.testing.assert_array_equal(array, wanted)


@pytest.mark.parametrize("kind", MOVED)
@pytest.mark.parametrize("shape", [(6, 4), (24,), (-1,), (2, -1, 2), (3, 2, 2, 2)])
def test_reshape(kind, shape):
    x = counting(kind, 2, 3, 4)
    check(O.RESHAPE, [x, vector(shape)], x.value.reshape(shape))
    check(O.RESHAPE, [x, given(T.TENSOR_INT32, shape)], x.value.reshape(shape))


@pytest.mark.parametrize("shape", [(5, 5), (-1, -1), (-1, 5), (-2, -12), (-1, 0)])
def test_reshape_keeps_the_elements(shape):
    with pytest.raises(InvalidOperationError, match="24 elements"):
        run_one(O.RESHAPE, [counting(T.TENSOR_FLOAT32, 2, 3, 4), vector(shape)], result(T.TENSOR_FLOAT32))


@pytest.mark.parametrize("kind", MOVED)
def test_squeeze(kind):
    x = counting(kind, 1, 3, 1, 2)
    check(O.SQUEEZE, [x, vector([0])], x.value.reshape(3, 1, 2))
    check(O.SQUEEZE, [x, vector([-2, 0])], x.value.reshape(3, 2))
    check(O.SQUEEZE, [x, omitted(T.TENSOR_INT32)], x.value.reshape(3, 2))
    one = counting(kind, 1, 1)
    check(O.SQUEEZE, [one, omitted(T.TENSOR_INT32)], one.value.reshape(1))


def test_only_ones_are_squeezed():
    x = counting(T.TENSOR_FLOAT32, 1, 3)
    with pytest.raises(InvalidOperationError, match=r"dimensions \[1\] of \[1, 3\] must be 1"):
        run_one(O.SQUEEZE, [x, vector([1])], like(x))
    with pytest.raises(InvalidOperationError, match="an axis must be"):
        run_one(O.SQUEEZE, [x, vector([2])], like(x))


@pytest.mark.parametrize("kind", ALSO_INTEGERS)
def test_expand_dims(kind):
    x = counting(kind, 2, 3)
    for axis in (0, 1, 2, -1, -3):
        check(O.EXPAND_DIMS, [x, i32(axis)], np.expand_dims(x.value, axis))


@pytest.mark.parametrize("kind", MOVED)
def test_transpose(kind):
    x = counting(kind, 2, 3, 4)
    for perm in itertools.permutations(range(3)):
        check(O.TRANSPOSE, [x, vector(perm)], x.value.transpose(perm))
    check(O.TRANSPOSE, [x, omitted(T.TENSOR_INT32)], x.value.transpose())


@pytest.mark.parametrize("kind", ALSO_INTEGERS)
def test_slice(kind):
    x = counting(kind, 3, 4, 2)
    check(O.SLICE, [x, vector([1, 0, 1]), vector([2, 3, 1])], x.value[1:3, :3, 1:2])
    check(O.SLICE, [x, vector([0, 2, 0]), vector([-1, -1, 2])], x.value[:, 2:])
    check(O.SLICE, [x, vector([3, 0, 0]), vector([-1, 0, 2])], x.value[3:, :0])


@pytest.mark.parametrize(("begin", "size"), [([0, 0], [3, 1]), ([-1, 0], [1, 1]), ([0, 4], [1, -1]), ([0, 0], [-2, 1])])
def test_slices_stay_inside(begin, size):
    with pytest.raises(InvalidOperationError, match="not within"):
        run_one(O.SLICE, [counting(T.TENSOR_FLOAT32, 2, 3), vector(begin), vector(size)], result(T.TENSOR_FLOAT32))


def walked(dim, begin, end, stride):
    """Return what a slice visits, by walking; positions outside are clamped to the border."""
    last = dim - 1 if stride < 0 else dim
    first = -1 if stride < 0 else 0

    def clamp(index):
        return min(max(index + dim if index < 0 else index, first), last)

    place = clamp(begin) if begin is not None else (0 if stride > 0 else last)
    stop = clamp(end) if end is not None else (dim if stride > 0 else -1)
    places = []
    while (place < stop) if stride > 0 else (place > stop):
        places.append(place)
        place += stride
    return places


@pytest.mark.parametrize("stride", [1, 2, -1, -3])
@pytest.mark.parametrize(("open_begin", "open_end"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_strided_slice(stride, open_begin, open_end):
    x = counting(T.TENSOR_QUANT8_ASYMM, 5)
    for begin, end in itertools.product((-7, -2, 0, 3, 9), repeat=2):
        inputs = [x, vector([begin]), vector([end]), vector([stride]), i32(open_begin), i32(open_end), i32(0)]
        places = walked(5, None if open_begin else begin, None if open_end else end, stride)
        check(O.STRIDED_SLICE, inputs, x.value[places])


@pytest.mark.parametrize("kind", MOVED)
def test_strided_slice_drops_dimensions(kind):
    x = counting(kind, 2, 3, 4)
    bounds = [vector([1, -1, 3]), vector([2, -4, 1]), vector([1, -1, -2])]
    check(O.STRIDED_SLICE, [x, *bounds, i32(0), i32(0), i32(1)], x.value[1, ::-1, 3:1:-2])
    whole = [vector([1, 2, 3]), vector([2, 3, 4]), vector([1, 1, 1])]
    check(O.STRIDED_SLICE, [x, *whole, i32(0), i32(0), i32(7)], x.value[1:2, 2, 3])
    check(O.STRIDED_SLICE, [x, *whole, i32(3), i32(1), i32(4)], x.value[:, :3, 3])


def test_what_a_strided_slice_drops_is_one_element():
    x = counting(T.TENSOR_FLOAT32, 4)
    for begin, end, stride in ((0, 2, 1), (2, 2, 1), (1, 0, -1)):
        inputs = [x, vector([begin]), vector([end]), vector([stride]), i32(0), i32(0), i32(1)]
        with pytest.raises(InvalidOperationError, match="must be one element"):
            run_one(O.STRIDED_SLICE, inputs, like(x))
    with pytest.raises(InvalidOperationError, match="stride must not be 0"):
        run_one(O.STRIDED_SLICE, [x, vector([0]), vector([1]), vector([0]), i32(0), i32(0), i32(0)], like(x))


@pytest.mark.parametrize("kind", ALSO_INTEGERS)
@pytest.mark.parametrize(("axis", "parts"), [(0, 2), (1, 3), (-1, 4), (-3, 1)])
def test_split(kind, axis, parts):
    x = counting(kind, 2, 3, 4)
    arrays = run(O.SPLIT, [x, i32(axis), i32(parts)], [like(x)] * parts)
    for array, wanted in zip(arrays, np.split(x.value, parts, axis), strict=True):
        np.testing.assert_array_equal(array, wanted)


@pytest.mark.parametrize("kind", MOVED)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concatenation(kind, axis):
    shapes = [[2, 3, 1], [2, 3, 1], [2, 3, 1]]
    shapes[1][axis] += 2
    xs = [counting(kind, *shape) for shape in shapes]
    wanted = np.concatenate([x.value for x in xs], axis)
    check(O.CONCATENATION, [*xs, i32(axis)], wanted)
    check(O.CONCATENATION, [xs[0], i32(axis)], xs[0].value)


@pytest.mark.parametrize("kind", QUANT8)
def test_concatenation_requantises(kind):
    xs = [holding(kind, [[1.0, 2.0, 20.0]], scale, zero) for scale, zero in ((0.5, 1), (0.25, -9), (0.2, 20))]
    y = result(kind, 0.25, -9)
    array = run_one(O.CONCATENATION, [*xs, i32(0)], y)
    assert_close(array, np.concatenate([real(x) for x in xs]), y)
    np.testing.assert_array_equal(array[1], xs[1].value[0])


@pytest.mark.parametrize("kind", ALSO_INTEGERS)
@pytest.mark.parametrize("multiples", [(1, 1, 1), (2, 1, 3), (1, 4, 1), (0, 1, 2)])
def test_tile(kind, multiples):
    x = counting(kind, 2, 1, 3)
    check(O.TILE, [x, vector(multiples)], np.tile(x.value, multiples))
    check(O.TILE, [x, given(T.TENSOR_INT32, multiples)], np.tile(x.value, multiples))


def test_tile_of_many_dimensions():
    x = counting(T.TENSOR_FLOAT32, 2, 1, 2, 1, 2, 2)
    multiples = (2, 1, 3, 2, 1, 2)
    check(O.TILE, [x, vector(multiples)], np.tile(x.value, multiples))


@pytest.mark.parametrize("kind", ALSO_INTEGERS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather(kind, axis):
    x = counting(kind, 3, 3, 3)
    for index in ([2], [0, 2, 2, 1], [[1, 0], [0, 2]]):
        for indices in (vector(index), given(T.TENSOR_INT32, index)):
            check(O.GATHER, [x, i32(axis), indices], np.take(x.value, index, axis))


@pytest.mark.parametrize("bad", [-1, -3, 3, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_from_out_of_bounds_fails(axis, bad):
    x = counting(T.TENSOR_FLOAT32, 3, 3, 3)
    inputs = [x, i32(axis), given(T.TENSOR_INT32, [0, bad])]
    with pytest.raises(InputError):
        run_one(O.GATHER, inputs, like(x))
    with pytest.raises(DeviceFaultError):
        run_one(O.GATHER, inputs, like(x), "tiny")


@pytest.mark.parametrize(
    ("tensor", "kind", "value"),
    [(T.TENSOR_FLOAT32, T.FLOAT32, 2.5), (T.TENSOR_FLOAT16, T.FLOAT16, -0.5), (T.TENSOR_INT32, T.INT32, 2**31 - 1)],
)
def test_fill(tensor, kind, value):
    for shape in ([3], [2, 1, 3], [2, 0]):
        for dims, filling in ((vector(shape), scalar(kind, value)), (given(T.TENSOR_INT32, shape), given(kind, value))):
            array = run_one(O.FILL, [dims, filling], result(tensor))
            np.testing.assert_array_equal(array, np.full(shape, value, array.dtype))


@pytest.mark.parametrize("kind", [kind for kind in T if kind.name.startswith("TENSOR_") and kind < T.OEM])
def test_rank(kind):
    for shape in ((3,), (2, 1, 1, 3, 1)):
        channels = ((0.5,) * shape[0], 0) if kind is T.TENSOR_QUANT8_SYMM_PER_CHANNEL else None
        x = given(kind, np.zeros(shape), 0.5 * ("QUANT" in kind.name and channels is None), channels=channels)
        array = run_one(O.RANK, [x], result(T.INT32))
        assert array.shape == ()
        assert array == len(shape)


@pytest.mark.parametrize("kind", [T.TENSOR_FLOAT16, T.TENSOR_QUANT8_ASYMM_SIGNED])
def test_on_a_device(kind):
    x = counting(kind, 3, 4, 2)
    other = counting(kind, 3, 4, 2)
    other.scale *= 2
    for operation, inputs in (
        (O.TRANSPOSE, [x, vector([2, 0, 1])]),
        (O.STRIDED_SLICE, [x, *map(vector, ([2, 0, 0], [-9, 4, 2], [-1, 2, 1])), i32(0), i32(0), i32(0)]),
        (O.CONCATENATION, [x, other, i32(1)]),
        (O.TILE, [x, vector([2, 1, 3])]),
        (O.GATHER, [x, i32(1), given(T.TENSOR_INT32, [[3, 0]])]),
    ):
        np.testing.assert_array_equal(run_one(operation, inputs, like(x), "edge"), run_one(operation, inputs, like(x)))


def test_rules():
    x, q = counting(T.TENSOR_FLOAT32, 2, 3), counting(T.TENSOR_QUANT8_ASYMM, 2, 3)
    deep = given(T.TENSOR_FLOAT32, np.zeros((1,) * 5))
    y, other = result(T.TENSOR_FLOAT32), result(T.TENSOR_QUANT8_ASYMM, 0.5, 4)
    same = "input 0 and output 0 must have the same scale and zero point"
    each = "input 1 must be 1-D with one entry for each dimension of input 0"
    assert problem(O.RESHAPE, [q, vector([6])], [other]) == same
    assert problem(O.GATHER, [q, i32(0), vector([1])], [other]) == same
    assert problem(O.RESHAPE, [deep, vector([1])], [y]) == "input 0 must have at most rank 4"
    assert problem(O.TRANSPOSE, [x, vector([0])], [y]) == each
    assert problem(O.TILE, [x, vector([[1, 1]])], [y]) == each
    assert problem(O.TRANSPOSE, [omitted(T.TENSOR_FLOAT32), vector([0])], [y]) == "input 0 must have a value"
    assert problem(O.SPLIT, [x, i32(0), i32(3)], [y, y]) == "input 2 must be the number of outputs"
    assert "every output" in str(problem(O.SPLIT, [q, i32(0), i32(2)], [like(q), other]))
    assert problem(O.SPLIT, [x, i32(2), i32(1)], [y]) == "input 1 must be in [-n, n), n being the rank of input 0"
    assert "axis must be in [0, n)" in str(problem(O.CONCATENATION, [x, x, i32(-1)], [y]))
    assert "axis must be in [0, n)" in str(problem(O.CONCATENATION, [x, x, i32(2)], [y]))
    for inputs in ([i32(0)], [x, x], [x, q, i32(0)], [x, i32(0), i32(0)], []):
        assert "one or more tensors" in str(problem(O.CONCATENATION, inputs, [y]))
    for inputs in ([x, i32(0)], [x, i32(0), i32(1), i32(1)], [x, i32(0), x]):
        assert "two INT32" in str(problem(O.SPLIT, inputs, [y]))
    assert "two INT32" in str(problem(O.SPLIT, [x, i32(0), i32(2)], [y, result(T.TENSOR_INT32)]))
    for index in (-1, 2):
        assert "indices must be within" in str(problem(O.GATHER, [x, i32(0), vector([index])], [y]))
    assert problem(O.FILL, [vector([[1]]), scalar(T.FLOAT32, 1)], [y]) == "input 0 must have rank 1"
