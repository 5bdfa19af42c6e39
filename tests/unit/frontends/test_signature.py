"""Shapes that a model leaves open: how they are shown, and filled in."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from npusim.dtypes import DType
from npusim.errors import ModelError, OpenInputsError, UsageError
from npusim.frontends.onnx.signature import declared_dims, declared_inputs


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
    """A symbol that is fixed for one input is fixed for all."""
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
