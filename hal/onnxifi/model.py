"""Parsing and checks of a model, with the statuses of the specification."""

from __future__ import annotations

from dataclasses import dataclass

import onnx
from google.protobuf.message import DecodeError

from npusim.frontends.onnx.source import Model
from npusim.frontends.onnx.wire import lift_initializers

from .rules import check_model
from .status import OnnxifiError, Status


@dataclass(slots=True)
class Weight:
    """A static input given by a descriptor, with its own copy of the bytes."""

    name: str
    data_type: int
    shape: tuple[int, ...]
    data: bytes


def parse(data: bytes, *, lenient: bool) -> Model:
    """Parse a model; the bytes must not change. Raises OnnxifiError: INVALID_PROTOBUF, INVALID_MODEL,
    UNSUPPORTED_VERSION, UNSUPPORTED_OPERATOR, UNSUPPORTED_DATATYPE, MISMATCHING_SHAPE, MISMATCHING_DATATYPE.
    """
    # Weights are not parsed: that would copy them, and gigabytes do not fit in a protobuf.
    rest, blobs = lift_initializers(data)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(rest)
    except (DecodeError, ValueError):
        raise OnnxifiError(Status.INVALID_PROTOBUF, f"{len(data)} bytes are no ModelProto") from None
    check_model(proto, lenient)
    return Model(proto, None, blobs)


def add_weights(model: Model, weights: list[Weight]) -> None:
    """Store weights from descriptors as initializers."""
    for weight in weights:
        tensor = model.proto.graph.initializer.add()
        tensor.name, tensor.data_type = weight.name, weight.data_type
        tensor.dims.extend(weight.shape)
        model.blobs[weight.name] = memoryview(weight.data)
