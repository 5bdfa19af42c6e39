"""Contradictory nodes and unsupported requests: an error for each rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npusim.errors import ModelError, UnsupportedError
from npusim.frontends.onnx import load
from tests.support.onnx_models.small import Array, node_model

MICROSOFT = "com.microsoft"


def f(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def i(*values: Any) -> Array:
    return np.array(values, np.int64)


IMAGE = f(1, 4, 6, 6)
Q = np.ones((2, 6), np.uint8)

# operator, inputs (those after the first are constants), attributes, error text
DAMAGED: list[tuple[str, list[Array | None], dict[str, Any], str]] = [
    ("GridSample", [IMAGE, f(2, 3, 3, 2)], {}, r"grid \[2, 3, 3, 2\] does not fit input"),
    ("GridSample", [IMAGE, f(1, 3, 3, 3)], {}, r"grid \[1, 3, 3, 3\] does not fit input"),
    ("GridSample", [IMAGE, f(1, 3, 3, 2)], {"mode": "best"}, "mode 'best' or padding_mode 'zeros' is unknown"),
    ("GridSample", [IMAGE, f(1, 3, 3, 2)], {"padding_mode": "x"}, "padding_mode 'x' is unknown"),
    ("MaxPool", [IMAGE], {"kernel_shape": [7, 1]}, "a window of 7 does not fit into 6 pixels"),
    ("MaxPool", [IMAGE], {"kernel_shape": [4, 1], "dilations": [2, 1]}, "a window of 7 does not fit into 6 pixels"),
    ("MaxPool", [IMAGE], {}, "attribute kernel_shape is required"),
    ("MaxPool", [IMAGE], {"kernel_shape": [2]}, "must describe 2 dimensions"),
    ("MaxPool", [IMAGE], {"kernel_shape": [2, 2], "strides": [1]}, "must describe 2 dimensions"),
    ("MaxPool", [IMAGE], {"kernel_shape": [2, 2], "dilations": [1]}, "must describe 2 dimensions"),
    ("MaxPool", [IMAGE], {"kernel_shape": [2, 2], "pads": [1, 1]}, "must describe 2 dimensions"),
    ("MaxPool", [IMAGE], {"kernel_shape": [2, 0]}, "kernel_shape, strides and dilations must be >= 1"),
    ("MaxPool", [IMAGE], {"kernel_shape": [2, 2], "strides": [0, 1]}, "strides and dilations must be >= 1"),
    ("MaxPool", [IMAGE], {"kernel_shape": [2, 2], "dilations": [1, 0]}, "strides and dilations must be >= 1"),
    ("MaxPool", [IMAGE], {"kernel_shape": [2, 2], "auto_pad": "SAME"}, "auto_pad must be one of NOTSET"),
    ("GlobalMaxPool", [f(2, 3)], {}, r"the input must have spatial dimensions, is \[2, 3\]"),
    ("GlobalAveragePool", [f(3)], {}, r"the input must have spatial dimensions, is \[3\]"),
    ("Conv", [IMAGE, f(2, 4, 3, 3)], {"kernel_shape": [3, 2]}, r"kernel_shape \[3, 2\] differs from the weights'"),
    ("Conv", [IMAGE, f(2, 4, 3)], {}, "must have the same rank"),
    ("ConvTranspose", [IMAGE, f(4, 2, 3, 3)], {"output_padding": [1]}, "must describe 2 dimensions"),
    ("ConvTranspose", [IMAGE, f(4, 2, 3, 3)], {"output_shape": [8]}, "must describe 2 dimensions"),
    ("Gemm", [f(2, 3, 4), f(4, 5)], {}, "operands must be matrices"),
    ("Gemm", [f(3, 4), f(4)], {}, "operands must be matrices"),
    ("MatMul", [f(), f(4, 4)], {}, "operands must have at least one dimension"),
    ("MatMul", [f(4, 4), f()], {}, "operands must have at least one dimension"),
    ("Einsum", [f(2, 3)], {"equation": "ij,jk->ik"}, "has 2 operands, the node has 1 inputs"),
    ("Einsum", [f(2, 3)], {"equation": "ijk->ik"}, r"does not fit operands of \[2\] dimensions"),
    ("Einsum", [f(2, 3)], {"equation": "ij->ik"}, "every letter of the output must come from an operand, once"),
    ("Einsum", [f(2, 3)], {"equation": "ij->ii"}, "every letter of the output must come from an operand, once"),
    ("ConstantOfShape", [i(2)], {"value": np.ones(2, np.float32)}, "attribute value must have one element, has 2"),
    ("Range", [i(0), i(5), i(0)], {}, "delta must not be 0"),
    ("EyeLike", [f(2, 3, 4)], {}, "the input must be a matrix"),
    ("LSTM", [f(2, 1, 3), f(1, 15, 3), f(1, 16, 4)], {"hidden_size": 4}, "do not fit 4 gates of 4"),
    ("LSTM", [f(2, 1, 3), f(1, 16, 3), f(1, 16, 5)], {"hidden_size": 4}, "do not fit 4 gates of 4"),
    ("LSTM", [f(2, 1, 3), f(1, 16, 3), f(1, 16, 4)], {"hidden_size": 4, "direction": "up"}, "bidirectional, is 'up'"),
    ("RNN", [f(2, 3), f(1, 4, 3), f(1, 4, 4)], {"hidden_size": 4}, r"input 0 must have 3 dimensions, is \[2, 3\]"),
    ("GatherND", [f(2, 3), i([[0, 0, 0]])], {}, "do not fit data"),
    ("GatherND", [f(2, 3), i([0], [1])], {"batch_dims": 2}, "do not fit data"),
    ("GatherND", [f(2, 3), i([0], [1])], {"batch_dims": -1}, "do not fit data"),
    ("GatherND", [f(2, 3), i([0], [1], [1])], {"batch_dims": 1}, "the batch dimensions of .* differ"),
    ("GatherND", [f(2, 3), np.array([[0]], np.int16)], {}, r"input 1 \('x1'\) is int16, must be int64"),
    ("ScatterND", [f(2, 3), i([0, 0, 0]), f(1)], {}, r"indices \[1, 3\] do not fit data \[2, 3\]"),
    ("ScatterND", [f(2, 3), i([0]), f(1, 2)], {}, r"updates \[1, 2\] must be \[1, 3\]"),
    ("TensorScatter", [f(2, 3, 4), f(2, 1, 4), i(0, 0)], {"axis": 0}, "axis 0, mode 'linear' or update"),
    ("TensorScatter", [f(2, 3, 4), f(2, 1, 4), i(0, 0)], {"mode": "x"}, "mode 'x' or update"),
    ("TensorScatter", [f(2, 3, 4), f(2, 4), i(0, 0)], {}, r"update \[2, 4\] is illegal"),
    ("TensorScatter", [f(2, 3, 4), f(2, 4, 4), i(0, 0)], {}, "does not fit cache"),
    ("TensorScatter", [f(2, 3, 4), f(2, 1, 3), i(0, 0)], {}, "does not fit cache"),
    ("ReverseSequence", [f(3, 2), i(1, 2, 3)], {}, r"lengths \[1, 2, 3\] do not fit \[3, 2\]"),
    ("ReverseSequence", [f(3, 2), i(1, 4)], {}, r"lengths \[1, 4\] do not fit \[3, 2\]"),
    ("ReverseSequence", [f(3, 2), i(1, -1)], {}, r"lengths \[1, -1\] do not fit \[3, 2\]"),
    ("ReverseSequence", [f(3, 3), i(1, 1, 1)], {"time_axis": 1}, "do not fit"),
    ("QuantizeLinear", [f(2, 6), f(3), np.zeros(3, np.uint8)], {}, r"scale and zero point \[3\] must fit axis 1"),
    (
        "QuantizeLinear", [f(2, 6), f(2, 4), np.zeros((2, 4), np.uint8)], {"block_size": 2},
        "must have one entry per 2 of axis 1",
    ),
    (
        "QuantizeLinear", [f(2, 6), f(2, 3), np.zeros((2, 3), np.uint8)], {"block_size": -2},
        "must have one entry per -2 of axis 1",
    ),
    ("QuantizeLinear", [f(2, 6), f(), np.uint8(0)], {"output_dtype": 3}, "output_dtype int8 differs from the zero"),
    ("MatMulInteger", [Q, np.ones((6, 2), np.int8), np.int8(0)], {}, r"input 2 .* is int8, must be uint8 as another"),
    ("Gelu", [f(2)], {"approximate": "x"}, "approximate must be none or tanh, is 'x'"),
    ("BitShift", [np.ones(2, np.uint8)] * 2, {"direction": "UP"}, "direction must be LEFT or RIGHT, is 'UP'"),
    ("BatchNormalization", [f(3), *[f(3)] * 4], {}, "the input must have a channel dimension"),
    ("InstanceNormalization", [f(2, 3), f(3), f(3)], {}, "the input must have spatial dimensions"),
    ("GroupNormalization", [IMAGE, f(4), f(4)], {"num_groups": 3}, "cannot be divided into 3 groups"),
    ("GroupNormalization", [IMAGE, f(4), f(4)], {"num_groups": 0}, "cannot be divided into 0 groups"),
    ("LpNormalization", [f(2, 3)], {"p": 3}, "attribute p must be 1 or 2, is 3"),
    ("LRN", [f(3)], {"size": 3}, "the input must have a channel dimension"),
    ("Reshape", [f(2, 3), i(0, 0, 0)], {}, "copies dimension 2, which .* does not have"),
    ("Reshape", [f(2, 3), i(-1, -1)], {}, "must have one -1 at most"),
    ("Reshape", [f(2, 3), i(-2, 3)], {}, "must have one -1 at most and no other negative"),
    ("Reshape", [f(2, 3), i(-1, 4)], {}, r"\[2, 3\] cannot be reshaped to \[-1, 4\]"),
    ("Flatten", [f(2, 3)], {"axis": 3}, "axis 3 is outside a tensor of 2 dimensions"),
    ("Flatten", [f(2, 3)], {"axis": -3}, "axis -3 is outside a tensor of 2 dimensions"),
    ("Squeeze", [f(2, 1), i(0)], {}, r"axes \[0\] of \[2, 1\] are not all of size 1"),
    ("Unsqueeze", [f(2, 1)], {"opset": 11}, "axes are required"),
    ("Concat", [], {"axis": 0}, "has no inputs"),
    ("Split", [f(6), i(2, 3)], {"outputs": 2, "axis": 0}, "do not add up to axis 0"),
    ("Split", [f(6), i(7, -1)], {"outputs": 2, "axis": 0}, "do not add up to axis 0"),
    ("Split", [f(6), i(2, 2, 2)], {"outputs": 2, "axis": 0}, "3 outputs are asked for, 2 are named|do not add up"),
    ("Split", [f(6)], {"outputs": 2, "axis": 0, "num_outputs": 3}, "3 outputs are asked for, 2 are named"),
    ("Split", [f(7)], {"outputs": 2, "opset": 13}, r"axis 0 of \[7\] cannot be split into 2 equal parts"),
    ("Slice", [f(6), i(0, 0), i(1)], {}, "axis 1 is outside a tensor of 1 dimensions"),
    ("Slice", [f(6), i(0), i(1, 2), i(0)], {}, "do not describe a slice"),
    ("Slice", [f(6), i(0), i(3), i(0), i(0)], {}, "do not describe a slice"),
    ("Slice", [f(6, 6), i(0, 0), i(3, 3), i(0, 0)], {}, r"axes \[0, 0\] name the same dimension twice"),
    ("Pad", [f(6), i(1, 1, 1)], {}, r"pads \[1, 1, 1\] do not describe 1 dimensions"),
    ("Tile", [f(6), i(2, 2)], {}, "repeats .* do not describe"),
    ("Tile", [f(6), i(-1)], {}, "repeats .* do not describe"),
    ("DepthToSpace", [f(4, 6, 6)], {"blocksize": 2}, "needs a 4-dimensional input and blocksize >= 1"),
    ("DepthToSpace", [IMAGE], {"blocksize": 0}, "needs a 4-dimensional input and blocksize >= 1"),
    ("DepthToSpace", [IMAGE], {"blocksize": 3}, "4 channels must make blocks of 3"),
    ("DepthToSpace", [IMAGE], {"blocksize": 2, "mode": "X"}, "mode 'X' must be DCR or CRD"),
    ("SpaceToDepth", [IMAGE], {"blocksize": 4}, "an image of 6 x 6 cannot be divided into blocks of 4"),
    ("Trilu", [f(6)], {}, "the input must have at least 2 dimensions"),
    ("OneHot", [i(0, 1), i(0), f(2)], {}, "depth 0 or values"),
    ("OneHot", [i(0, 1), i(3), f(3)], {}, r"values \[3\] are out of range"),
    ("OneHot", [i(0, 1), i(3), f(2)], {"axis": 2}, "axis 2, depth 3"),
    ("OneHot", [i(0, 1), i(3), f(2)], {"axis": -3}, "axis -3, depth 3"),
    ("Resize", [IMAGE, f(0), f(3)], {}, "must be positive, one for each of 4 dimensions"),
    ("Resize", [IMAGE, f(0), np.float32([1, 1, 0, 1])], {}, "must be positive, one for each of 4 dimensions"),
    ("Resize", [IMAGE, f(0), np.float32([1, 1, np.inf, 1])], {}, "must be positive, one for each of 4 dimensions"),
    ("Resize", [IMAGE, f(0), f(0), i(1, 4, 3)], {}, "must be >= 0, one for each of 4 dimensions"),
    ("Resize", [IMAGE, f(0), f(0), i(1, 4, -1, 3)], {}, "must be >= 0, one for each of 4 dimensions"),
    (
        "Resize", [IMAGE, f(0), f(0), i(1, 4, 3, 3)], {"keep_aspect_ratio_policy": "x"},
        "keep_aspect_ratio_policy 'x' must be stretch",
    ),
    (
        "Resize", [IMAGE, f(3), f(0), i(1, 4, 3, 3)], {"coordinate_transformation_mode": "tf_crop_and_resize"},
        "must have two entries for each of 4 dimensions",
    ),
]  # fmt: skip

REFUSED: list[tuple[str, list[Array | None], dict[str, Any], str]] = [
    ("GridSample", [f(1, 0, 6, 6), f(1, 3, 3, 2)], {}, "an empty input is not supported"),
    ("MaxPool", [IMAGE], {"kernel_shape": [2, 2], "pads": [0, 0, 0, -1]}, "negative padding .* is not supported"),
    ("LpPool", [IMAGE], {"kernel_shape": [2, 2], "p": 0}, "p=0 is supported without ceil_mode and for p >= 1 only"),
    ("LpPool", [IMAGE], {"kernel_shape": [2, 2], "p": 3, "ceil_mode": 1}, "p=3 is supported without ceil_mode"),
    ("GlobalLpPool", [IMAGE], {"p": 3}, "p=3 is not supported; it must be 1 or 2"),
    ("Conv", [f(1, 4, 3, 3, 3, 3), f(2, 4, 1, 1, 1, 1)], {}, "one to three spatial dimensions are supported"),
    ("Conv", [f(2, 3), f(4, 3)], {}, r"one to three spatial dimensions are supported, the operand is \[2, 3\]"),
    ("Gemm", [np.ones((2, 2), np.int32), np.ones((2, 2), np.int32)], {"alpha": 0.5}, "a factor of 0.5 on int32"),
    ("Einsum", [f(2, 1), f(3, 4)], {"equation": "ij,jk->ik"}, "dimension 'j' is 1 and 3: it must not broadcast"),
    ("Dropout", [f(2), f(), np.bool_(True)], {}, "it drops elements at random in training mode"),
    ("BatchNormalization", [IMAGE, *[f(4)] * 4], {"spatial": 0}, "attribute spatial=0"),
    (
        "LSTM", [f(2, 1, 3), f(1, 16, 3), f(1, 16, 4)], {"hidden_size": 4, "activation_alpha": [1.0]},
        "parameters of activations are not supported",
    ),
    (
        "RNN", [f(2, 1, 3), f(1, 4, 3), f(1, 4, 4)], {"hidden_size": 4, "activations": ["Sin"]},
        r"activations \['Sin'\] are not supported; supported: ",
    ),
    (
        "RNN", [f(2, 1, 3), f(1, 4, 3), f(1, 4, 4)], {"hidden_size": 4, "activations": ["Tanh", "Tanh"]},
        "are not supported; supported: ",
    ),
    ("RNN", [f(0, 1, 3), f(1, 4, 3), f(1, 4, 4)], {"hidden_size": 4}, "0 steps of 1 sequences; 1 to"),
    ("RNN", [f(2, 0, 3), f(1, 4, 3), f(1, 4, 4)], {"hidden_size": 4}, "2 steps of 0 sequences; 1 to"),
    ("Resize", [f(1, 0, 6, 6), f(0), np.float32([1, 2, 1, 1])], {}, "dimension 1 is empty"),
    ("Resize", [IMAGE, f(0), f(4)], {"mode": "best"}, "attribute mode must be one of nearest, .* is 'best'"),
    ("Resize", [IMAGE, f(0), f(4)], {"coordinate_transformation_mode": "x"}, "coordinate_transformation_mode must be"),
    ("Resize", [IMAGE, f(0), f(4)], {"nearest_mode": "x"}, "attribute nearest_mode must be one of"),
]  # fmt: skip


def loaded(op_type: str, inputs: list[Array | None], attrs: dict[str, Any]) -> None:
    named: dict[str, Any] = {f"x{index}": None if x is None else np.asarray(x) for index, x in enumerate(inputs)}
    if isinstance(attrs.get("value"), np.ndarray):
        from onnx import numpy_helper

        attrs = attrs | {"value": numpy_helper.from_array(attrs["value"])}
    constants = [name for name in named if name != "x0" or op_type in ("Range", "ConstantOfShape")]
    load(node_model(op_type, named, constants, **attrs))


@pytest.mark.parametrize(("op_type", "inputs", "attrs", "message"), DAMAGED)
def test_nodes_that_contradict_themselves(
    op_type: str, inputs: list[Array | None], attrs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        loaded(op_type, inputs, attrs)


@pytest.mark.parametrize(("op_type", "inputs", "attrs", "message"), REFUSED)
def test_nodes_that_ask_for_what_there_is_not(
    op_type: str, inputs: list[Array | None], attrs: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        loaded(op_type, inputs, attrs)


def wide(*shape: int, dtype: Any = np.float32) -> Array:
    """Return any number of elements in the memory of one."""
    return np.broadcast_to(np.zeros((), dtype), shape)


# operator, inputs, names of those that are constants, attributes, elements of the table
TABLES: list[tuple[str, list[Array], list[str], dict[str, Any], int]] = [
    ("Range", [i(0)[0], i((1 << 24) + 1)[0], i(1)[0]], ["x0", "x1", "x2"], {}, (1 << 24) + 1),
    ("EyeLike", [wide(4097, 4097)], [], {}, 4097 * 4097),
    ("HannWindow", [i((1 << 24) + 1)[0]], ["x0"], {}, (1 << 24) + 1),
    ("Trilu", [wide(2, 4097, 4097)], [], {}, 4097 * 4097),
    ("ReverseSequence", [wide(1 << 21, 9), i(*[1] * 9)], ["x1"], {}, 9 << 21),
    (
        "GatherND", [wide((1 << 24) + 1, 2), wide((1 << 24) + 1, 1, dtype=np.int64)], [], {"batch_dims": 1},
        (1 << 24) + 1,
    ),
    ("GridSample", [wide((1 << 24) + 1, 1, 2, 2), wide((1 << 24) + 1, 1, 1, 2)], [], {}, (1 << 24) + 1),
    ("Resize", [f(1, 1, 1, 6), f(0), f(0), i(1, 1, 1, 1 << 20)], ["x1", "x2", "x3"], {}, 8 * 4 << 20),
    # a window of four pixels, six times as wide because the image shrinks, and its ends
    (
        "Resize", [wide(1, 1, 1, 600_000), f(0), f(0), i(1, 1, 1, 100_000)], ["x1", "x2", "x3"],
        {"mode": "linear", "antialias": 1}, 8 * 100_000 * 26,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("op_type", "inputs", "constants", "attrs", "elements"), TABLES)
def test_tables_that_are_too_large(
    op_type: str, inputs: list[Array], constants: list[str], attrs: dict[str, Any], elements: int
) -> None:
    """The limit is checked before the table is made."""
    model = node_model(op_type, {f"x{index}": x for index, x in enumerate(inputs)}, constants, **attrs)
    with pytest.raises(UnsupportedError, match=f"needs a table of {elements} elements; at most 16777216"):
        load(model)
