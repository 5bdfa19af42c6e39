"""Open shapes of a model: how they are displayed and filled in."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from npusim.dtypes import DType
from npusim.errors import InputError, ModelError, OpenInputsError, UsageError
from npusim.frontends.onnx.signature import bound_array, declared_dims, declared_inputs, open_shapes


def value(name: str, *dims: int | str | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


RANKLESS = helper.make_tensor_value_info("r", TensorProto.FLOAT, None)


def test_declared_dimensions() -> None:
    assert declared_dims(value("x", 3, "N", None, 0)) == [3, "N", None, 0]
    assert declared_dims(value("x")) == []
    assert declared_dims(RANKLESS) is None
    negative = value("x", 3)
    negative.type.tensor_type.shape.dim[0].dim_value = -1
    assert declared_dims(negative) == [None]


def test_everything_that_is_open_is_named() -> None:
    with pytest.raises(OpenInputsError) as caught:
        declared_inputs([value("x", 3, "N", None), value("y", 2), RANKLESS], {}, [])
    wanted = "the model leaves input shapes open: 'x' is float32[3, N, ?]; 'r' is float32 of unknown rank"
    assert str(caught.value) == wanted


def test_some_names_of_dimensions_are_none() -> None:
    assert declared_dims(value("x", "?", "", "N")) == [None, None, "N"]
    inputs = [value("x", "?", "?"), value("y", "?")]
    assert [shape for _, shape, _ in declared_inputs(inputs, {"x": (2, 3), "y": (4,)}, [])] == [(2, 3), (4,)]


def test_what_is_given_fills_in() -> None:
    """A symbol fixed for one input is fixed for all."""
    inputs = [value("x", 3, "N", None), value("y", "N"), RANKLESS]
    found = declared_inputs(inputs, {"x": (3, 5, 7), "r": (2,)}, [])
    assert found == [("x", (3, 5, 7), DType.FLOAT32), ("y", (5,), DType.FLOAT32), ("r", (2,), DType.FLOAT32)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"z": (1,)}, "a shape is given for 'z', which is not an input; inputs: 'x', 'y'"),
        ({"x": (3, 5)}, r"input 'x' is \[3, N, \?\] in the model; the shape given is \[3, 5\]"),
        ({"x": (4, 5, 7)}, r"the shape given is \[4, 5, 7\]"),
        ({"x": (3, 5, -1)}, r"the shape given is \[3, 5, -1\]"),
        ({"x": (3, 5, 7), "y": (6,)}, "and 'N' is 5 in input 'x'"),
    ],
)
def test_what_contradicts_the_model_is_refused(given: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        declared_inputs([value("x", 3, "N", None), value("y", "N")], given, [])


def test_inputs_that_are_no_tensors_are_reasons() -> None:
    sequence = helper.make_value_info("s", helper.make_sequence_type_proto(value("x", 1).type))
    reasons: list[tuple[str, str, str]] = []
    assert declared_inputs([sequence, value("y", 2)], {}, reasons) == [("y", (2,), DType.FLOAT32)]
    assert reasons == [("s", "input", "inputs of type sequence are not supported")]
    with pytest.raises(ModelError, match="input 'n' has no type"):
        declared_inputs([onnx.ValueInfoProto(name="n")], {}, [])


# What arrays say

X, Y, FIXED = value("x", 3, "N", None), value("y", "N"), value("z", 2)
ARRAYS = {"x": np.zeros((3, 5, 7), np.float32), "y": np.zeros(5, np.float32), "z": np.zeros(2, np.float32)}


def test_arrays_say_what_is_open() -> None:
    rankless = {"r": np.zeros((4, 4), np.float32)}
    assert open_shapes([X, Y, FIXED, RANKLESS], ARRAYS | rankless, {}, ()) == {"x": (3, 5, 7), "y": (5,), "r": (4, 4)}
    assert open_shapes([X, Y, FIXED], ARRAYS, {"x": [3, 6, 7]}, ()) == {"x": (3, 6, 7), "y": (5,)}
    without = {name: array for name, array in ARRAYS.items() if name != "x"}
    assert open_shapes([X, Y, FIXED], without, {}, {"x": 1}) == {"y": (5,)}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"q": np.zeros(1)}, "there is no input 'q'; the model takes 'x', 'y', 'z'"),
        ({"y": None}, "input 'y' is missing: float32[N]"),
        ({"x": np.zeros((3, 5), np.float32)}, "input 'x' must be float32[3, N, ?], got float32[3, 5]"),
        ({"x": np.zeros((4, 5, 7), np.float32)}, "input 'x' must be float32[3, N, ?], got float32[4, 5, 7]"),
        ({"z": np.zeros(3, np.float32)}, "input 'z' must be float32[2], got float32[3]"),
        ({"y": np.zeros(5)}, "input 'y' must be float32[N], got float64[5]"),
        ({"y": ["a"] * 5}, "input 'y' must be float32[N], got <U1[5]"),
        ({"y": np.zeros(6, np.float32)}, "input 'y' must be float32[N], got float32[6], and 'N' is 5 in input 'x'"),
    ],
)
def test_arrays_that_do_not_fit(arrays: dict[str, Any], message: str) -> None:
    given = {name: array for name, array in {**ARRAYS, **arrays}.items() if array is not None}
    with pytest.raises(InputError) as caught:
        open_shapes([X, Y, FIXED], given, {}, ())
    assert str(caught.value) == message


def test_arrays_of_bfloat16() -> None:
    b = helper.make_tensor_value_info("b", TensorProto.BFLOAT16, ["N"])
    for form in (np.zeros(3, ml_dtypes.bfloat16), np.zeros(3, np.uint16)):
        assert open_shapes([b], {"b": form}, {}, ()) == {"b": (3,)}


def test_what_is_no_tensor_is_left_to_the_import() -> None:
    sequence = helper.make_value_info("s", helper.make_sequence_type_proto(value("x", 1).type))
    text = helper.make_tensor_value_info("t", TensorProto.STRING, ["N"])
    assert open_shapes([sequence, text, Y], {"y": ARRAYS["y"], "t": ["a"]}, {}, ()) == {"y": (5,)}


# What is bound


@pytest.mark.parametrize(
    ("kind", "dims", "given", "wanted"),
    [
        (TensorProto.INT64, [], 16000, np.int64(16000)),
        (TensorProto.INT64, [1], 16000, np.int64([16000])),
        (TensorProto.INT64, ["n"], 16000, np.int64([16000])),
        (TensorProto.INT64, None, 16000, np.int64(16000)),
        (TensorProto.INT32, [1, 3], [1, 2, 3], np.int32([[1, 2, 3]])),
        (TensorProto.INT32, ["n"], [1, 2, 3], np.int32([1, 2, 3])),
        (TensorProto.INT64, [2], np.float32([4, -5]), np.int64([4, -5])),
        (TensorProto.FLOAT, [], 1, np.float32(1)),
        (TensorProto.FLOAT, [2], np.array([0.1, 1e60]), np.float32([0.1, np.inf])),
        (TensorProto.BOOL, [], 1, np.bool_(True)),
        (TensorProto.BOOL, [], False, np.bool_(False)),
        (TensorProto.BFLOAT16, [1], 1.5, np.uint16([0x3FC0])),
        (TensorProto.BFLOAT16, [1], np.array([1.5], ml_dtypes.bfloat16), np.uint16([0x3FC0])),
    ],
)
def test_values_take_the_form_of_their_input(kind: int, dims: list[Any] | None, given: Any, wanted: Any) -> None:
    found = bound_array(helper.make_tensor_value_info("n", kind, dims), given)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("kind", "dims", "given", "message"),
    [
        (TensorProto.INT64, [], 1.5, "input 'n' is int64[] and cannot be bound to 1.5"),
        (TensorProto.UINT8, ["k"], [1, 256], "input 'n' is uint8[k] and cannot be bound to [  1, 256]"),
        (TensorProto.INT64, [], float("nan"), "input 'n' is int64[] and cannot be bound to nan"),
        (TensorProto.BOOL, [], 2, "input 'n' is bool[] and cannot be bound to 2"),
        (TensorProto.INT64, [], "fast", "input 'n' is int64[] and cannot be bound to 'fast'"),
        (TensorProto.FLOAT, [], None, "input 'n' is float32[] and cannot be bound to None"),
        (TensorProto.INT64, [2], 5, "input 'n' is [2] in the model; the shape given is []"),
        (TensorProto.INT64, [2], [5], "input 'n' is [2] in the model; the shape given is [1]"),
        (TensorProto.INT64, ["a", "b"], [5, 6], "input 'n' is [a, b] in the model; the shape given is [2]"),
    ],
)
def test_values_that_an_input_cannot_have(kind: int, dims: list[Any], given: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        bound_array(helper.make_tensor_value_info("n", kind, dims), given)
    assert str(caught.value) == message
