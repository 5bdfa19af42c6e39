"""Operations of NNAPI feature levels 6 and 7 compute what numpy does, with every operand type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from hal.nnapi.operations.lowering import InvalidOperationError
from hal.nnapi.operations.view import QUANTISED, STORAGE, Array
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O
from tests.support.examples import examples
from tests.support.nnapi.one_operation import (
    Given,
    assert_close,
    given,
    i32,
    omitted,
    real,
    result,
    run_one,
    scalar,
    vector,
)

TYPES = (
    T.TENSOR_FLOAT32, T.TENSOR_FLOAT16, T.TENSOR_INT32, T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED,
)  # fmt: skip
KIND, SIZE = st.sampled_from(TYPES), st.integers(1, 5)
SHAPE = st.lists(SIZE, min_size=1, max_size=4)
DEVICE = st.sampled_from([None, None, None, "edge"])
"""Most cases are computed by the reference operators, which is faster."""
SCALES = st.sampled_from([0.5, 0.25, 0.02, 1.0])


def numbers(kind: T, shape: Sequence[int], data: Any, *, scale: float = 0.5, zero: int = 3) -> Given:
    """Return an operand with random contents."""
    chance = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    storage = STORAGE[kind]
    if storage.kind == "f":
        return given(kind, chance.normal(size=shape))
    info = np.iinfo(storage)
    low, high = (-1000, 1000) if kind is T.TENSOR_INT32 else (info.min, info.max)
    array = chance.integers(low, high, size=shape, endpoint=True)
    return given(kind, array, *((scale, zero) if kind in QUANTISED else ()))


def like(operand: Given) -> Given:
    """Return an output of an operand's type and quantisation."""
    return result(operand.type, operand.scale, operand.zero)


def moved(operation: O, inputs: Sequence[Given], output: Given, wanted: Array, config: str | None) -> None:
    """Check an operation that only moves stored elements."""
    np.testing.assert_array_equal(run_one(operation, inputs, output, config), wanted)


@settings(max_examples=examples(40))
@drawn(KIND, SHAPE, DEVICE, st.data())
def test_reverse_is_flip(kind: T, shape: list[int], config: str | None, data: Any) -> None:
    x, axis = numbers(kind, shape, data), data.draw(st.integers(0, len(shape) - 1))
    assert x.value is not None
    moved(O.REVERSE, [x, vector([axis])], like(x), np.flip(x.value, axis), config)


@settings(max_examples=examples(40))
@drawn(KIND, SHAPE, st.integers(1, 4), DEVICE, st.data())
def test_pack_is_stack(kind: T, shape: list[int], count: int, config: str | None, data: Any) -> None:
    parts = [numbers(kind, shape, data) for _ in range(count)]
    axis = data.draw(st.integers(0, len(shape)))
    wanted = np.stack([np.asarray(part.value) for part in parts], axis)
    moved(O.PACK, [i32(axis), *parts], like(parts[0]), wanted, config)


@settings(max_examples=examples(40))
@drawn(KIND, SHAPE, st.sampled_from([0, 1]), DEVICE, st.data())
def test_mirror_pad_is_pad(kind: T, shape: list[int], mode: int, config: str | None, data: Any) -> None:
    x = numbers(kind, shape, data)
    most = [size - (mode == 0) for size in shape]
    pads = [[data.draw(st.integers(0, size)), data.draw(st.integers(0, size))] for size in most]
    wanted = np.pad(np.asarray(x.value), pads, "symmetric" if mode else "reflect")
    moved(O.MIRROR_PAD, [x, vector(pads), i32(mode)], like(x), wanted, config)


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("side", [0, 1])
def test_mirror_pad_reaches_as_far_as_there_are_elements(mode: int, side: int) -> None:
    x = given(T.TENSOR_FLOAT32, [[1, 2, 3]])
    for size, fits in ((3 - (mode == 0), True), (4 - (mode == 0), False)):
        pads = [[0, 0], [0, 0]]
        pads[1][side] = size
        operands = [x, vector(pads), i32(mode)]
        if fits:
            assert run_one(O.MIRROR_PAD, operands, like(x)).shape == (1, 3 + size)
        else:
            with pytest.raises(InvalidOperationError, match="do not fit"):
                run_one(O.MIRROR_PAD, operands, like(x))


@settings(max_examples=examples(20))
@drawn(st.lists(SIZE, min_size=1, max_size=4), DEVICE, st.data())
def test_integers_are_reshaped(shape: list[int], config: str | None, data: Any) -> None:
    x = numbers(T.TENSOR_INT32, shape, data)
    order = data.draw(st.permutations(shape))
    moved(O.RESHAPE, [x, vector(order)], like(x), np.reshape(np.asarray(x.value), order), config)


@settings(max_examples=examples(60))
@drawn(
    st.sampled_from([each for each in TYPES if each is not T.TENSOR_QUANT8_ASYMM]),
    st.lists(SIZE, max_size=2), st.tuples(SIZE, SIZE, SIZE), st.tuples(st.booleans(), st.booleans()), DEVICE, st.data(),
)  # fmt: skip
def test_batch_matmul_is_matmul(
    kind: T, batch: list[int], sizes: tuple[int, int, int], adjoint: tuple[bool, bool], config: str | None, data: Any
) -> None:
    m, k, n = sizes
    a = numbers(kind, [*batch, *((k, m) if adjoint[0] else (m, k))], data, scale=0.25, zero=-7)
    b = numbers(kind, [*batch, *((n, k) if adjoint[1] else (k, n))], data, scale=0.02, zero=9)
    flags = [scalar(T.BOOL, flag) if flag else data.draw(st.sampled_from([scalar(T.BOOL, False), omitted(T.BOOL)]))
             for flag in adjoint]  # fmt: skip
    output = result(kind, *((2.0, 5) if kind in QUANTISED else ()))
    left, right = (np.swapaxes(real(x), -1, -2) if flag else real(x) for x, flag in zip((a, b), adjoint, strict=True))
    assert_close(run_one(O.BATCH_MATMUL, [a, b, *flags], output, config), left @ right, output)


@pytest.mark.parametrize("shapes", [([2, 1, 3], [3, 3, 1]), ([1, 2, 3], [2, 3, 1]), ([2, 3], [2, 3])])
def test_batch_matmul_refuses_other_batches_and_inner_sizes(shapes: tuple[list[int], list[int]]) -> None:
    a, b = (given(T.TENSOR_FLOAT32, np.ones(shape)) for shape in shapes)
    no = scalar(T.BOOL, False)
    with pytest.raises(InvalidOperationError, match=r"batches|inner dimensions"):
        run_one(O.BATCH_MATMUL, [a, b, no, no], result(T.TENSOR_FLOAT32))


@settings(max_examples=examples(30))
@drawn(st.sampled_from([T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED]), SCALES, SCALES, DEVICE, st.data())
def test_rsqrt_of_bytes(kind: T, scale: float, made: float, config: str | None, data: Any) -> None:
    low, high = np.iinfo(STORAGE[kind]).min, np.iinfo(STORAGE[kind]).max
    zero = data.draw(st.integers(low, high - 1))
    x = given(kind, np.arange(zero + 1, high + 1), scale, zero)
    output = result(kind, made, data.draw(st.integers(low, high)))
    assert_close(run_one(O.RSQRT, [x], output, config), 1 / np.sqrt(real(x)), output)


@pytest.mark.parametrize("config", [None, "edge"])
def test_rsqrt_of_zero_is_the_largest_number(config: str | None) -> None:
    x = given(T.TENSOR_QUANT8_ASYMM, [3, 3], 0.5, 3)
    assert run_one(O.RSQRT, [x], result(T.TENSOR_QUANT8_ASYMM, 0.5, 0), config).tolist() == [255, 255]
