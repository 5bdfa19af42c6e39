"""Small models for driver tests, and requests for them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from hal.nnapi.memory import allocate_ashmem
from hal.nnapi.types import (
    DataLocation,
    MemoryPool,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Request,
    RequestArgument,
    Subgraph,
)

F32, I32, BOOL8 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_INT32, OperandType.TENSOR_BOOL8
IN, OUT, TEMP = OperandLifeTime.SUBGRAPH_INPUT, OperandLifeTime.SUBGRAPH_OUTPUT, OperandLifeTime.TEMPORARY_VARIABLE


def tensor(lifetime: OperandLifeTime, dims: Sequence[int], consumers: int = 1, kind: OperandType = F32) -> Operand:
    """Return a tensor that is not a constant."""
    return Operand(kind, tuple(dims), 0 if lifetime == OUT else consumers, lifetime=lifetime)


def scalar(offset: int, consumers: int = 1) -> Operand:
    """Return an INT32 stored in the model's values."""
    where = DataLocation(0, offset, 4)
    return Operand(OperandType.INT32, (), consumers, lifetime=OperandLifeTime.CONSTANT_COPY, location=where)


def add(dims: Sequence[int] = (4,), out_dims: Sequence[int] | None = None) -> Model:
    """Build y = a + b."""
    operands = [tensor(IN, dims), tensor(IN, dims), scalar(0), tensor(OUT, dims if out_dims is None else out_dims)]
    return Model(
        Subgraph(operands, [Operation(OperationType.ADD, (0, 1, 2), (3,))], (0, 1), (3,)), operandValues=bytes(4)
    )


def add_of(version: ModuleType) -> Any:
    """Return the model of ``add`` in an older interface."""
    newest = add()
    operands = [
        version.Operand(o.type, o.dimensions, o.numberOfConsumers, o.scale, o.zeroPoint, o.lifetime, o.location)
        for o in newest.main.operands
    ]
    return version.Model(operands, newest.main.operations, (0, 1), (3,), newest.operandValues)


def chain(length: int, dims: Sequence[int] = (4,), function: OperationType = OperationType.ADD) -> Model:
    """Build y = a + b + b + ... + b, or the same with another operation."""
    operands = [tensor(IN, dims), tensor(IN, dims, length), scalar(0, length)]
    operations = []
    before = 0
    for number in range(length):
        operands.append(tensor(OUT if number == length - 1 else TEMP, dims))
        operations.append(Operation(function, (before, 1, 2), (len(operands) - 1,)))
        before = len(operands) - 1
    return Model(Subgraph(operands, operations, (0, 1), (before,)), operandValues=bytes(4))


def loop() -> Model:
    """Build an endless WHILE: its condition is the first input, which the body does not change; then a + a."""
    condition = Subgraph([tensor(IN, (1,), 1, BOOL8), tensor(IN, (2,), 0), tensor(OUT, (1,), 0, BOOL8)],
                         [Operation(OperationType.LOGICAL_AND, (0, 0), (2,))], (0, 1), (2,))  # fmt: skip
    condition.operands[0].numberOfConsumers = 2
    body = Subgraph(
        [tensor(IN, (1,), 2, BOOL8), tensor(IN, (2,), 2), scalar(0), tensor(OUT, (1,), 0, BOOL8), tensor(OUT, (2,))],
        [Operation(OperationType.LOGICAL_AND, (0, 0), (3,)), Operation(OperationType.ADD, (1, 1, 2), (4,))],
        (0, 1), (3, 4),
    )  # fmt: skip
    graphs = [
        Operand(OperandType.SUBGRAPH, (), 1, lifetime=OperandLifeTime.SUBGRAPH, location=DataLocation(0, index, 0))
        for index in range(2)
    ]
    operands = [
        *graphs, tensor(IN, (1,), 1, BOOL8), tensor(IN, (2,)), tensor(OUT, (1,), 0, BOOL8), tensor(OUT, (2,)),
    ]  # fmt: skip
    main = Subgraph(operands, [Operation(OperationType.WHILE, (0, 1, 2, 3), (4, 5))], (2, 3), (4, 5))
    return Model(main, [condition, body], struct.pack("<i", 0))


def dense(inputs: int, units: int) -> Model:
    """Build y = x * w + b with constant w and b: one matrix product with many bytes of constants."""
    rng = np.random.default_rng(inputs)
    weights, bias = rng.standard_normal((units, inputs), np.float32), np.zeros(units, np.float32)
    values = b"".join([struct.pack("<i", 0), bias.tobytes(), weights.tobytes()])
    constant = OperandLifeTime.CONSTANT_COPY
    operands = [
        tensor(IN, (1, inputs)),
        Operand(F32, (units, inputs), 1, lifetime=constant, location=DataLocation(0, 4 + bias.nbytes, weights.nbytes)),
        Operand(F32, (units,), 1, lifetime=constant, location=DataLocation(0, 4, bias.nbytes)),
        scalar(0),
        tensor(OUT, (1, units)),
    ]
    main = Subgraph(operands, [Operation(OperationType.FULLY_CONNECTED, (0, 1, 2, 3), (4,))], (0,), (4,))
    return Model(main, operandValues=values)


class Case:
    """One pool with the inputs and space for the outputs, and a request that uses it."""

    def __init__(self, inputs: Sequence[Any], output_bytes: Sequence[int], dims: Sequence[Sequence[int]] = ()) -> None:
        arrays = [np.ascontiguousarray(array) for array in inputs]
        sizes = [*(array.nbytes for array in arrays), *output_bytes]
        offsets = [sum(-(-size // 64) * 64 for size in sizes[:index]) for index in range(len(sizes))]
        self.memory = allocate_ashmem(max(64, sum(-(-size // 64) * 64 for size in sizes)))
        self.bytes = self.memory.map()
        self._places = [DataLocation(0, offset, size) for offset, size in zip(offsets, sizes, strict=True)]
        for array, place in zip(arrays, self._places, strict=False):
            self.bytes[place.offset : place.offset + place.length] = array.reshape(-1).view(np.uint8)
        count = len(arrays)
        ins = [RequestArgument(False, place, array.shape) for array, place in zip(arrays, self._places, strict=False)]
        shapes = [*dims, *[()] * (len(output_bytes) - len(dims))]
        outs = [RequestArgument(False, place, dims) for place, dims in zip(self._places[count:], shapes, strict=True)]
        self.request = Request(ins, outs, [MemoryPool(self.memory)])

    def output(self, index: int = 0, dtype: Any = np.float32) -> Any:
        """Return the values of an output."""
        place = self.request.outputs[index].location
        return np.frombuffer(bytes(self.bytes[place.offset : place.offset + place.length]), dtype)


def add_case(dims: Sequence[int] = (4,)) -> Case:
    """Return a case with inputs 0, 1, 2, ... and all tens, so the sum is 10, 11, 12, ..."""
    count = int(np.prod(dims))
    return Case([np.arange(count, dtype=np.float32).reshape(dims), np.full(dims, 10, np.float32)], [4 * count], [dims])
