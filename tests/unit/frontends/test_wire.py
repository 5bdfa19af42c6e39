"""Lifting raw data out of a model's bytes changes nothing else."""

from __future__ import annotations

import onnx
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from npusim.frontends.onnx.wire import SMALLEST, lift_initializers
from tests.support.onnx_models.small import ramp, weighted

BIG = ramp(SMALLEST // 4)


def test_large_raw_data_is_lifted_and_the_rest_stays() -> None:
    model = weighted(numpy_helper.from_array(BIG, "w"))
    rest, blobs = lift_initializers(model.SerializeToString())
    assert {name: bytes(blob) for name, blob in blobs.items()} == {"w": BIG.tobytes()}
    assert len(rest) < 500
    left = onnx.ModelProto.FromString(rest)
    left.graph.initializer[0].raw_data = BIG.tobytes()
    assert left == model


def test_small_data_and_other_tensors_stay() -> None:
    model = weighted(numpy_helper.from_array(BIG[:-1], "w"))
    data = model.SerializeToString()
    assert lift_initializers(data) == (data, {})


def test_of_two_initializers_with_one_name_only_the_first_is_lifted() -> None:
    model = weighted(numpy_helper.from_array(BIG, "w"))
    model.graph.initializer.append(numpy_helper.from_array(-BIG, "w"))
    rest, blobs = lift_initializers(model.SerializeToString())
    assert bytes(blobs["w"]) == BIG.tobytes()
    assert [tensor.HasField("raw_data") for tensor in onnx.ModelProto.FromString(rest).graph.initializer] == [
        False,
        True,
    ]


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_come_back(data: bytes) -> None:
    rest, blobs = lift_initializers(data)
    assert blobs == {}
    assert rest == data or onnx.ModelProto.FromString(rest) == onnx.ModelProto.FromString(data)
