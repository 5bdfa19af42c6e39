"""A network with the layers and weights of MobileNet v1: 28 layers, 4.2 million weights."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from hal.nnapi.types import (
    DataLocation,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
)

F32, INT32 = OperandType.TENSOR_FLOAT32, OperandType.INT32
STAGES = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
"""Channels and stride of each separable convolution."""


class Builder:
    """Collects operands, operations and constants."""

    def __init__(self, seed: int) -> None:
        self.operands: list[Operand] = []
        self.operations: list[Operation] = []
        self.values = bytearray()
        self._rng = np.random.default_rng(seed)
        self._integers: dict[int, int] = {}

    def tensor(self, dims: tuple[int, ...], lifetime: OperandLifeTime) -> int:
        """Add a tensor that is not a constant."""
        self.operands.append(Operand(F32, dims, 0, lifetime=lifetime))
        return len(self.operands) - 1

    def weights(self, dims: tuple[int, ...], scale: float) -> int:
        """Add constants around 0."""
        raw = (self._rng.standard_normal(dims, np.float32) * np.float32(scale)).tobytes()
        return self._constant(F32, dims, raw)

    def integer(self, value: int) -> int:
        """Add a constant INT32."""
        if value not in self._integers:
            self._integers[value] = self._constant(INT32, (), struct.pack("<i", value))
        return self._integers[value]

    def add(self, kind: OperationType, inputs: list[int], dims: tuple[int, ...], last: bool = False) -> int:
        """Add an operation and return its output."""
        output = self.tensor(dims, OperandLifeTime.SUBGRAPH_OUTPUT if last else OperandLifeTime.TEMPORARY_VARIABLE)
        for number in inputs:
            self.operands[number].numberOfConsumers += 1
        self.operations.append(Operation(kind, tuple(inputs), (output,)))
        return output

    def _constant(self, kind: OperandType, dims: tuple[int, ...], raw: bytes) -> int:
        place = DataLocation(0, len(self.values), len(raw))
        self.values += raw
        self.operands.append(Operand(kind, dims, 0, lifetime=OperandLifeTime.CONSTANT_COPY, location=place))
        return len(self.operands) - 1


def mobilenet(size: int = 224, classes: int = 1000, seed: int = 0) -> Model:
    """Build the model: an image [1, size, size, 3] to class scores; float32, NHWC."""
    build = Builder(seed)
    image = build.tensor((1, size, size, 3), OperandLifeTime.SUBGRAPH_INPUT)
    side, channels = size // 2, 32
    x = _convolution(build, image, 3, channels, side, 3, 2)
    for wider, stride in STAGES:
        side //= stride
        x = _depthwise(build, x, channels, side, stride)
        x = _convolution(build, x, channels, wider, side, 1, 1)
        channels = wider
    no, valid = build.integer(0), build.integer(2)
    pool = [x, valid, build.integer(1), build.integer(1), build.integer(side), build.integer(side), no]
    x = build.add(OperationType.AVERAGE_POOL_2D, pool, (1, 1, 1, channels))
    weights, bias = build.weights((classes, channels), 0.03), build.weights((classes,), 0.1)
    x = build.add(OperationType.FULLY_CONNECTED, [x, weights, bias, no], (1, classes), last=True)
    main = Subgraph(build.operands, build.operations, (image,), (x,))
    return Model(main, operandValues=bytes(build.values))


def _convolution(build: Builder, x: int, ins: int, outs: int, side: int, kernel: int, stride: int) -> int:
    weights = build.weights((outs, kernel, kernel, ins), (2 / (ins * kernel * kernel)) ** 0.5)
    return _layer(build, OperationType.CONV_2D, [x, weights, build.weights((outs,), 0.1)], [stride], side, outs)


def _depthwise(build: Builder, x: int, channels: int, side: int, stride: int) -> int:
    weights = build.weights((1, 3, 3, channels), 0.5)
    operands = [x, weights, build.weights((channels,), 0.1)]
    return _layer(build, OperationType.DEPTHWISE_CONV_2D, operands, [stride, 1], side, channels)


def _layer(build: Builder, kind: OperationType, operands: list[int], steps: list[int], side: int, outs: int) -> Any:
    """Add a layer with SAME padding and RELU6. ``steps``: the stride, and the multiplier of a depthwise convolution."""
    scalars = [1, steps[0], steps[0], *steps[1:], 3]
    return build.add(kind, [*operands, *(build.integer(value) for value in scalars)], (1, side, side, outs))
