"""Damaged models through the ONNXIFI engine: always a status from the function's list."""

from __future__ import annotations

import logging
import random

import onnx
import pytest
from onnx import AttributeProto, helper

from hal.onnxifi import engine
from hal.onnxifi.status import RETURNS, OnnxifiError, Status
from tests.support.onnxifi import models

NUMBERS = (0, 1, 2, 3, -1, -2, 7, 100, 1 << 20, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63))
OPERATORS = (
    "Relu",
    "Add",
    "Conv",
    "Gemm",
    "Reshape",
    "Cast",
    "MaxPool",
    "Softmax",
    "Concat",
    "Slice",
    "LSTM",
    "Nothing",
)
DAMAGED = 120
"""Models for each kind of damage and seed."""


def network() -> bytes:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1], strides=[1, 1], group=1),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["c"], ["d"], axis=1),
        helper.make_node("Gemm", ["d", "f"], ["e"], alpha=0.5, transB=1),
        helper.make_node("Softmax", ["e"], ["y"], axis=-1),
    ]
    inputs = [models.tensor("x", (1, 2, 4, 4)), models.tensor("w", (3, 2, 3, 3)), models.tensor("f", (5, 12))]
    return models.model(nodes, inputs, [models.tensor("y", (1, 5))])


BASES = (network(), models.lstm(), models.add(initializer=True), models.symbolic(), models.bad_attribute())


def damage_bytes(rng: random.Random, data: bytes) -> bytes:
    """Change, remove or add a few bytes."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at, kind = rng.randrange(len(changed)), rng.randrange(4)
        if kind == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at] = rng.choice((0, 1, 8, 127, 128, 255))
        elif kind == 2 and len(changed) > 8:
            del changed[at : at + rng.randint(1, 4)]
        else:
            changed[at:at] = rng.randbytes(rng.randint(1, 3))
    return bytes(changed)


def damage_message(rng: random.Random, data: bytes) -> bytes:
    """Change a few fields, keeping a valid message."""
    model = onnx.ModelProto()
    model.ParseFromString(data)
    for _ in range(rng.randint(1, 3)):
        rng.choice((_operator, _dimension, _type, _attribute, _operand, _version))(rng, model)
    return bytes(model.SerializeToString())


def _operator(rng: random.Random, model: onnx.ModelProto) -> None:
    rng.choice(model.graph.node).op_type = rng.choice(OPERATORS)


def _dimension(rng: random.Random, model: onnx.ModelProto) -> None:
    dims = rng.choice([*model.graph.input, *model.graph.output]).type.tensor_type.shape.dim
    if dims and rng.random() < 0.7:
        rng.choice(dims).dim_value = rng.choice(NUMBERS)
    else:
        dims.add().dim_param = "N"


def _type(rng: random.Random, model: onnx.ModelProto) -> None:
    rng.choice([*model.graph.input, *model.graph.output]).type.tensor_type.elem_type = rng.randrange(26)


def _attribute(rng: random.Random, model: onnx.ModelProto) -> None:
    found = [attribute for node in model.graph.node for attribute in node.attribute]
    if not found:
        return
    attribute = rng.choice(found)
    if attribute.type == AttributeProto.INT:
        attribute.i = rng.choice(NUMBERS)
    elif attribute.type == AttributeProto.INTS and attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)
    else:
        attribute.type = rng.randrange(15)


def _operand(rng: random.Random, model: onnx.ModelProto) -> None:
    node = rng.choice(model.graph.node)
    node.input[rng.randrange(len(node.input))] = rng.choice(["", "x", "w", "y", "nobody"])


def _version(rng: random.Random, model: onnx.ModelProto) -> None:
    model.opset_import[0].version = rng.choice((1, 6, 7, 9, 11, 13, 18, 28, 29))


@pytest.mark.parametrize("damage", [damage_bytes, damage_message])
@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_model_has_a_status_and_both_functions_agree(damage, seed, caplog) -> None:
    rng = random.Random(seed)
    backend = engine.init_backend(0, ())
    seen = set()
    with caplog.at_level(logging.ERROR, logger="npusim.onnxifi"):
        for _ in range(DAMAGED):
            data = damage(rng, rng.choice(BASES))
            status = answer(data)
            seen.add(status)
            assert status in RETURNS["onnxGetBackendCompatibility"]
            assert status is not Status.INTERNAL_ERROR
            if status in (Status.SUCCESS, Status.FALLBACK):
                # Only missing values and insufficient memory may be detected later.
                assert initialise(backend, data) in (status, Status.UNSUPPORTED_SHAPE, Status.NO_DEVICE_MEMORY)
    assert caplog.records == [], "what nobody foresaw is logged with its traceback"
    assert len(seen) > 2


def answer(data: bytes) -> Status:
    try:
        return Status(engine.compatibility(0, data))
    except OnnxifiError as error:
        return error.status


def initialise(backend: object, data: bytes) -> Status:
    try:
        status, graph = engine.init_graph(backend, (), data, None)  # type: ignore[arg-type]
    except OnnxifiError as error:
        return error.status
    engine.release_graph(graph)
    return Status(status)
