"""CONV_2D, DEPTHWISE_CONV_2D, GROUPED_CONV_2D, TRANSPOSE_CONV_2D compared with sums written out tap by tap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given as property_of
from hypothesis import settings
from hypothesis import strategies as st

from hal.nnapi.operations.lowering import InvalidOperationError
from hal.nnapi.operations.view import Array
from hal.nnapi.types import OperandType, OperationType
from npusim.dtypes import DType
from npusim.errors import UnsupportedError
from tests.support.nnapi.image_operands import (
    F16,
    F32,
    KINDS,
    Q8,
    Q8C,
    Q8S,
    Kind,
    activated,
    bias_numbers,
    biases,
    boolean,
    filters,
    laid_out,
    nhwc,
    output,
    programs,
    same_pads,
    taps,
    tensor,
)
from tests.support.nnapi.one_operation import Given, assert_close, given, i32, problem, real, result, run_one, vector

CONV, DEPTHWISE = OperationType.CONV_2D, OperationType.DEPTHWISE_CONV_2D
GROUPED, TRANSPOSE = OperationType.GROUPED_CONV_2D, OperationType.TRANSPOSE_CONV_2D
FLOAT, QUANT, CHANNELS = KINDS[0], KINDS[2], KINDS[3]


def convolved(
    x: Array, w: Array, groups: int, stride: Sequence[int], dilation: Sequence[int], pads: Sequence[int]
) -> Array:
    """Return an NHWC convolution with a filter [O, KH, KW, I / groups]."""
    parts = []
    for channels, kernels in zip(np.split(x, groups, axis=3), np.split(w, groups), strict=True):
        seen = taps(channels, w.shape[1:3], stride, dilation, pads)
        parts.append(sum(np.einsum("nhwi,oi->nhwo", part, kernels[:, r, q]) for (r, q), part in seen.items()))
    return np.concatenate(parts, axis=3)


def spread(x: Array, w: Array, stride: Sequence[int], pads: Sequence[int], out: Sequence[int]) -> Array:
    """Return an NHWC transposed convolution with a filter [O, KH, KW, I]: every pixel adds its window to the output."""
    (n, height, width, _), (depth, kh, kw, _) = x.shape, w.shape
    full = np.zeros((n, 64, 64, depth))
    for i in range(height):
        for j in range(width):
            rows, cols = slice(i * stride[0], i * stride[0] + kh), slice(j * stride[1], j * stride[1] + kw)
            full[:, rows, cols] += np.einsum("ni,ohwi->nhwo", x[:, i, j], w)
    return full[:, pads[0] : pads[0] + out[0], pads[1] : pads[1] + out[1]]


def arguments(pads: Any, steps: Sequence[int], nchw: bool | None, dilation: Sequence[int] | None = None) -> list[Given]:
    """Return padding (0, 1, 2, or top, left, bottom, right), strides and other scalars, layout and dilation."""
    side = [pads] if isinstance(pads, int) else [pads[1], pads[3], pads[0], pads[2]]
    scalars = [i32(value) for value in (*side, *steps)]
    rest = [] if nchw is None else [boolean(nchw)]
    return scalars + rest + [i32(value) for value in (dilation or ())][::-1]


def padding(pads: Any, size: Sequence[int], stride: Sequence[int], extent: Sequence[int]) -> Sequence[int]:
    """Return top, left, bottom, right."""
    if not isinstance(pads, int):
        return pads  # type: ignore[no-any-return]
    if pads != 1:
        return 0, 0, 0, 0
    (top, bottom), (left, right) = (same_pads(*each) for each in zip(size, stride, extent, strict=True))
    return top, left, bottom, right


PADDINGS = pytest.mark.parametrize("pads", [0, 1, 2, (1, 0, 2, 1)], ids=["none", "same", "valid", "explicit"])
LAYOUTS = pytest.mark.parametrize("nchw", [False, True], ids=["nhwc", "nchw"])
TYPES = pytest.mark.parametrize("kind", KINDS, ids=str)


@TYPES
@LAYOUTS
@PADDINGS
def test_conv(kind: Kind, nchw: bool, pads: Any) -> None:
    x, w = tensor(kind.x, (2, 7, 6, 3), 1), filters(kind, (4, 3, 2, 3), 0, 2)
    b, y = biases(kind, x, w, 4, 3), output(kind.x)
    inputs = [laid_out(x, nchw=nchw), w, b, *arguments(pads, (2, 1, 0), nchw, (2, 3))]
    got = run_one(CONV, inputs, y)
    sides = padding(pads, (7, 6), (1, 2), (5, 4))
    wanted = convolved(real(x), real(w), 1, (1, 2), (2, 3), sides) + bias_numbers(x, w, b)
    assert_close(nhwc(got, nchw=nchw), wanted, y)


@TYPES
@LAYOUTS
@PADDINGS
def test_depthwise_conv(kind: Kind, nchw: bool, pads: Any) -> None:
    x, w = tensor(kind.x, (1, 6, 7, 3), 4), filters(kind, (1, 2, 3, 6), 3, 5)
    b, y = biases(kind, x, w, 6, 6), output(kind.x, 0.2)
    inputs = [laid_out(x, nchw=nchw), w, b, *arguments(pads, (1, 2, 2, 1), nchw, (2, 1))]
    got = run_one(DEPTHWISE, inputs, y)
    sides = padding(pads, (6, 7), (2, 1), (3, 3))
    wanted = convolved(real(x), real(w).transpose(3, 1, 2, 0), 3, (2, 1), (2, 1), sides) + bias_numbers(x, w, b)
    assert_close(nhwc(got, nchw=nchw), activated(wanted, 1), y)


@TYPES
@LAYOUTS
@PADDINGS
def test_grouped_conv(kind: Kind, nchw: bool, pads: Any) -> None:
    x, w = tensor(kind.x, (2, 5, 4, 6), 7), filters(kind, (4, 2, 2, 3), 0, 8)
    b, y = biases(kind, x, w, 4, 9), output(kind.x)
    inputs = [laid_out(x, nchw=nchw), w, b, *arguments(pads, (2, 1, 2, 3), nchw)]
    got = run_one(GROUPED, inputs, y)
    wanted = convolved(real(x), real(w), 2, (1, 2), (1, 1), padding(pads, (5, 4), (1, 2), (2, 2)))
    assert_close(nhwc(got, nchw=nchw), activated(wanted + bias_numbers(x, w, b), 3), y)


@TYPES
@LAYOUTS
def test_transpose_conv_with_explicit_padding(kind: Kind, nchw: bool) -> None:
    x, w = tensor(kind.x, (2, 3, 4, 2), 10), filters(kind, (3, 3, 2, 2), 0, 11)
    b, y = biases(kind, x, w, 3, 12), output(kind.x)
    inputs = [laid_out(x, nchw=nchw), w, b, *arguments((1, 0, 0, 1), (3, 2, 2), nchw)]
    got = run_one(TRANSPOSE, inputs, y)
    wanted = spread(real(x), real(w), (2, 3), (1, 0), (2 * 2 + 3 - 1, 3 * 3 + 2 - 1)) + bias_numbers(x, w, b)
    assert_close(nhwc(got, nchw=nchw), activated(wanted, 2), y)


@TYPES
@LAYOUTS
@pytest.mark.parametrize(
    ("scheme", "out", "before"),
    [
        (1, (6, 11), (0, 0)),
        (1, (5, 12), (1, 0)),
        (2, (7, 11), (0, 0)),
        (2, (8, 12), (0, 0)),
        (2, (4, 9), (0, 0)),
        (1, (4, 7), (0, 0)),
        (2, (9, 13), (0, 0)),
        (0, (20, 25), (0, 0)),
        (1, (13, 11), (1, 0)),
        (1, (2, 24), (0, 0)),
    ],
)
def test_transpose_conv_into_a_shape(
    kind: Kind, nchw: bool, scheme: int, out: tuple[int, int], before: tuple[int, int]
) -> None:
    """The output after the last window is only the bias."""
    x, w = tensor(kind.x, (2, 3, 4, 2), 13), filters(kind, (3, 3, 2, 2), 0, 14)
    b, y = biases(kind, x, w, 3, 15), output(kind.x)
    shape = (2, 3, *out) if nchw else (2, *out, 3)
    inputs = [laid_out(x, nchw=nchw), w, b, vector(shape), *arguments(scheme, (3, 2, 0), nchw)]
    got = run_one(TRANSPOSE, inputs, y)
    wanted = spread(real(x), real(w), (2, 3), before, out) + bias_numbers(x, w, b)
    assert_close(nhwc(got, nchw=nchw), wanted, y)


@settings(max_examples=40)
@property_of(
    st.sampled_from([FLOAT, QUANT, CHANNELS]),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.tuples(st.integers(5, 8), st.integers(5, 8)),
    st.one_of(st.integers(1, 2), st.tuples(*[st.integers(0, 3)] * 4)),
    st.booleans(),
)
def test_any_window(kind: Kind, kernel: Any, stride: Any, dilation: Any, size: Any, pads: Any, const: bool) -> None:
    x, w = tensor(kind.x, (1, *size, 2), 16), filters(kind, (3, *kernel, 2), 0, 17, const=const)
    b, y = biases(kind, x, w, 3, 18, const=const), output(kind.x)
    inputs = [x, w, b, *arguments(pads, (*stride[::-1], 0), False, dilation)]
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    wanted = convolved(real(x), real(w), 1, stride, dilation, padding(pads, size, stride, extent))
    assert_close(run_one(CONV, inputs, y), wanted + bias_numbers(x, w, b), y)


@pytest.mark.parametrize("kind", [FLOAT, QUANT, CHANNELS], ids=str)
@pytest.mark.parametrize("const", [True, False], ids=["constant", "given"])
def test_on_a_device(kind: Kind, const: bool) -> None:
    x, w = tensor(kind.x, (1, 6, 5, 3), 19), filters(kind, (5, 3, 3, 3), 0, 20, const=const)
    b, y = biases(kind, x, w, 5, 21, const=const), output(kind.x)
    inputs = [x, w, b, *arguments(1, (1, 1, 1), False)]
    got = run_one(CONV, inputs, y, "tiny")
    wanted = convolved(real(x), real(w), 1, (1, 1), (1, 1), (1, 1, 1, 1)) + bias_numbers(x, w, b)
    assert_close(got, activated(wanted, 1), y)


@TYPES
@LAYOUTS
@pytest.mark.parametrize("out", [(6, 11), (4, 7), (8, 12)])
def test_transpose_conv_on_a_device(kind: Kind, nchw: bool, out: tuple[int, int]) -> None:
    x, w = tensor(kind.x, (2, 3, 4, 2), 38), filters(kind, (3, 3, 2, 2), 0, 39, const=kind.w != Q8)
    b, y = biases(kind, x, w, 3, 40), output(kind.x)
    shape = (2, 3, *out) if nchw else (2, *out, 3)
    inputs = [laid_out(x, nchw=nchw), w, b, vector(shape), *arguments(2, (3, 2, 1), nchw)]
    got = run_one(TRANSPOSE, inputs, y, "tiny")
    wanted = spread(real(x), real(w), (2, 3), (0, 0), out) + bias_numbers(x, w, b)
    assert_close(nhwc(got, nchw=nchw), activated(wanted, 1), y)


@pytest.mark.parametrize("operation", [CONV, DEPTHWISE, GROUPED])
@pytest.mark.parametrize("kind", KINDS[2:], ids=str)
def test_quantised_convolutions_are_one_operator_of_the_matrix_unit(operation: OperationType, kind: Kind) -> None:
    depthwise, grouped = operation == DEPTHWISE, operation == GROUPED
    shape = (1, 3, 3, 8) if depthwise else (8, 3, 3, 4 if grouped else 8)
    x, w = tensor(kind.x, (1, 8, 8, 8), 22), filters(kind, shape, 3 if depthwise else 0, 23)
    steps = (1, 1, *([1] if depthwise else [2] if grouped else []), 1)
    inputs = [x, w, biases(kind, x, w, 8, 24), *arguments(1, steps, False)]
    [program] = programs(operation, inputs, output(kind.x), "edge")
    assert [entry.kind for entry in program.ops] == ["conv+dequantize+clip+quantize"]
    [(dtype, macs)] = program.macs
    assert macs == 8 * 8 * 8 * 9 * shape[3] // (8 if depthwise else 1)
    assert dtype == (DType.UINT8 if kind.x == Q8 else DType.INT8)  # whatever the filter's zero point


def test_filters_that_fit_into_8_bits_without_their_zero_point_stay_there() -> None:
    x = tensor(Q8, (1, 4, 4, 2), 25)
    w = given(Q8, np.random.default_rng(0).integers(100, 200, (3, 2, 2, 2)), 0.1, 150, const=True)
    inputs = [x, w, biases(QUANT, x, w, 3, 26), *arguments(2, (1, 1, 0), None)]
    [program] = programs(CONV, inputs, output(Q8), "edge")
    assert [dtype for dtype, _ in program.macs] == [DType.UINT8]
    wanted = convolved(real(x), real(w), 1, (1, 1), (1, 1), (0, 0, 0, 0)) + bias_numbers(x, w, inputs[2])
    assert_close(run_one(CONV, inputs, output(Q8)), wanted, output(Q8))


@pytest.mark.parametrize("kind", [QUANT, CHANNELS], ids=str)
def test_quantised_transposed_convolutions_multiply_integers(kind: Kind) -> None:
    x, w = tensor(kind.x, (1, 4, 4, 2), 27), filters(kind, (3, 3, 3, 2), 0, 28)
    inputs = [x, w, biases(kind, x, w, 3, 29), vector((1, 8, 8, 3)), *arguments(1, (2, 2, 1), False)]
    [program] = programs(TRANSPOSE, inputs, output(kind.x), "edge")
    # One convolution gives the pixels of all phases, which are then interleaved.
    assert [entry.kind for entry in program.ops] == ["conv+dequantize+clip+quantize", "transpose"]
    assert all(dtype.is_integer for dtype, _ in program.macs)


@pytest.mark.parametrize("operation", [CONV, DEPTHWISE, GROUPED, TRANSPOSE])
@TYPES
def test_no_images(operation: OperationType, kind: Kind) -> None:
    depthwise, transposed = operation == DEPTHWISE, operation == TRANSPOSE
    w = filters(kind, (1, 2, 2, 3) if depthwise else (3, 2, 2, 3), 3 if depthwise else 0, 30)
    x = tensor(kind.x, (0, 4, 4, 3), 31)
    steps = (1, 1, 0) if operation in (CONV, TRANSPOSE) else (1, 1, 1, 0)
    out = [vector((0, 5, 5, 3))] if transposed else []
    inputs = [x, w, biases(kind, x, w, 3, 32), *out, *arguments(2, steps, False)]
    got = run_one(operation, [replace(x, dims=(0, 4, 4, 3)), *inputs[1:]], output(kind.x), "tiny")
    assert got.shape == ((0, 5, 5, 3) if transposed else (0, 3, 3, 3))


def operands(kind: Kind = FLOAT, operation: OperationType = CONV) -> list[Given]:
    """Return a valid operation in which tests change something."""
    shape = (1, 2, 2, 2) if operation == DEPTHWISE else (2, 2, 2, 2)
    x, w = tensor(kind.x, (1, 4, 4, 2), 33), filters(kind, shape, 3 if operation == DEPTHWISE else 0, 34)
    steps = (1, 1, 0) if operation in (CONV, TRANSPOSE) else (1, 1, 1, 0)
    return [x, w, biases(kind, x, w, 2, 35), *arguments((0, 0, 0, 0), steps, False)]


@pytest.mark.parametrize(
    ("operation", "place", "value", "message"),
    [
        (CONV, 0, tensor(F32, (4, 4, 2), 0), "input 0 must have rank 4"),
        (CONV, 1, tensor(F32, (2, 2, 2), 0), "input 1 must have rank 4"),
        (CONV, 2, tensor(F32, (1, 2), 0), "input 2 must have rank 1"),
        (CONV, 1, tensor(F16, (2, 2, 2, 2), 0), "input 1 must be TENSOR_FLOAT32"),
        (CONV, 3, i32(-1), "explicit padding >= 0"),
        (CONV, 6, i32(-1), "explicit padding >= 0"),
        (CONV, 7, i32(0), "strides"),
        (CONV, 8, i32(0), "strides"),
        (CONV, 9, i32(4), "FusedActivationFunc"),
        (DEPTHWISE, 9, i32(0), "strides"),
        (DEPTHWISE, 10, i32(-1), "FusedActivationFunc"),
        (GROUPED, 9, i32(0), "strides"),
        (TRANSPOSE, 8, i32(0), "strides"),
        (TRANSPOSE, 9, i32(4), "FusedActivationFunc"),
    ],
)
def test_rules_of_explicit_forms(operation: OperationType, place: int, value: Given, message: str) -> None:
    inputs = operands(FLOAT, operation)
    assert problem(operation, inputs, [output(F32)]) is None
    inputs[place] = value
    assert message in str(problem(operation, inputs, [output(F32)]))


@pytest.mark.parametrize(
    ("scheme", "strides", "function", "dilation", "message"),
    [
        (-1, (1, 1), 0, (1, 1), "padding scheme"),
        (3, (1, 1), 0, (1, 1), "padding scheme"),
        (1, (1, 0), 0, (1, 1), "strides"),
        (1, (1, 1), 5, (1, 1), "FusedActivationFunc"),
        (1, (1, 1), 0, (0, 1), "dilation"),
        (1, (1, 1), 0, (1, -1), "dilation"),
    ],
)
def test_rules_of_implicit_forms(scheme: int, strides: Any, function: int, dilation: Any, message: str) -> None:
    inputs = [*operands()[:3], *arguments(scheme, (*strides, function), True, dilation)]
    assert message in str(problem(CONV, inputs, [output(F32)]))


@pytest.mark.parametrize("operation", [CONV, DEPTHWISE, GROUPED, TRANSPOSE])
def test_scales_of_bias_and_channels(operation: OperationType) -> None:
    out = [output(Q8)]
    for kind in (QUANT, CHANNELS):
        assert problem(operation, operands(kind, operation), out) is None
        inputs = operands(kind, operation)
        inputs[2] = replace(inputs[2], scale=0.5)
        assert "scale input scale * filter scale" in str(problem(operation, inputs, out))
    inputs = operands(CHANNELS, operation)
    assert inputs[1].channels is not None
    wrong = 0 if operation == DEPTHWISE else 3
    inputs[1] = replace(inputs[1], channels=([0.1] * inputs[1].dims[wrong], wrong))
    assert "channel dimension" in str(problem(operation, inputs, out))


@pytest.mark.parametrize(("x", "w"), [(Q8, Q8S), (Q8S, Q8), (F32, Q8C), (F16, F32), (Q8, F32)])
def test_types_that_do_not_mix(x: OperandType, w: OperandType) -> None:
    inputs = operands(Kind(x, w, OperandType.TENSOR_INT32 if x in (Q8, Q8S) else x))
    assert "input 1 must be" in str(problem(CONV, inputs, [output(x)]))


def test_numbers_of_inputs() -> None:
    """A layout, a layout with both dilation factors, or neither."""
    legal = {7, 8, 10, 11, 13}
    full = [*operands()[:3], *arguments(1, (1, 1, 0), True, (1, 1))]
    explicit = [*operands()[:3], *arguments((0, 0, 0, 0), (1, 1, 0), True, (1, 1))]
    for inputs in (full, explicit):
        for count in range(3, len(inputs) + 1):
            known = problem(CONV, inputs[:count], [output(F32)]) is None
            assert known == (count in legal - ({7, 8} if inputs is explicit else set()))


@pytest.mark.parametrize(
    ("operation", "inputs", "message"),
    [
        (CONV, [tensor(F32, (1, 4, 4, 3), 0), *operands()[1:]], "depth 2"),
        (CONV, [tensor(F32, (1, 1, 4, 2), 0), *operands()[1:]], "does not fit"),
        (CONV, [tensor(F32, (1, 0, 4, 2), 0), *operands()[1:]], "must be >= 1"),
        (DEPTHWISE, [tensor(F32, (1, 4, 4, 3), 0), *operands(FLOAT, DEPTHWISE)[1:]], "the filter must be"),
        (GROUPED, [*operands(FLOAT, GROUPED)[:9], i32(3), *operands(FLOAT, GROUPED)[10:]], "groups must divide"),
        (TRANSPOSE, [*operands()[:3], vector((1, 5, 2)), *arguments(1, (1, 1, 0), False)], "4 numbers"),
        (TRANSPOSE, [*operands()[:3], vector((1, 4, 4, 9)), *arguments(1, (1, 1, 0), False)], "9 channels"),
        (TRANSPOSE, [*operands()[:3], *arguments((9, 0, 0, 0), (1, 1, 0), False)], "leaves nothing"),
    ],
)
def test_shapes_that_contradict_each_other_fail_at_execution(
    operation: OperationType, inputs: list[Given], message: str
) -> None:
    with pytest.raises(InvalidOperationError, match=message.replace("[", r"\[")):
        run_one(operation, inputs, result(F32))


@pytest.mark.parametrize(
    ("place", "shape", "message"),
    [(0, (4, 4, 2), "input 0 must have rank 4"), (1, (2, 2, 2), "input 1 must have rank 4"), (2, (1, 2), "rank 1")],
)
def test_ranks_that_the_model_leaves_open(place: int, shape: tuple[int, ...], message: str) -> None:
    """They are checked when they are known, and accepted if they are right."""
    inputs = [replace(tensor(F32, each.dims, 36), dims=()) for each in operands()[:3]] + operands()[3:]
    x, w, b = (real(each) for each in inputs[:3])
    wanted = convolved(x, w, 1, (1, 1), (1, 1), (0, 0, 0, 0)) + b
    assert_close(run_one(CONV, inputs, result(F32)), wanted, result(F32))
    inputs[place] = replace(tensor(F32, shape, 37), dims=())
    assert problem(CONV, inputs, [result(F32)]) is None
    with pytest.raises(InvalidOperationError, match=message):
        run_one(CONV, inputs, result(F32))


def test_strides_beyond_the_image() -> None:
    inputs = [*operands()[:3], *arguments(1, (2**31 - 1, 2**31 - 1, 0), False)]
    x, w, b = (real(each) for each in inputs[:3])
    wanted = convolved(x[:, :2, :2], w, 1, (1, 1), (1, 1), (0, 0, 0, 0)) + b
    assert_close(run_one(CONV, inputs, result(F32), "tiny"), wanted, result(F32))


def test_windows_beyond_what_instructions_say_are_refused() -> None:
    inputs = [*operands()[:3], *arguments(1, (1, 1, 0), False, (1, 2**30))]
    with pytest.raises(UnsupportedError, match="dilation factors of at most 65535 are supported, got 1073741824"):
        run_one(CONV, inputs, result(F32))
