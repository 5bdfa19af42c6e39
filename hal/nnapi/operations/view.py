"""OpView: one operation of a model, for rules of validation and for lowering."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..types import ExtraParams, Operand, OperandLifeTime, OperandType, Operation, Subgraph

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

STORAGE: dict[int, np.dtype[Any]] = {
    OperandType.FLOAT32: np.dtype(np.float32),
    OperandType.INT32: np.dtype(np.int32),
    OperandType.UINT32: np.dtype(np.uint32),
    OperandType.TENSOR_FLOAT32: np.dtype(np.float32),
    OperandType.TENSOR_INT32: np.dtype(np.int32),
    OperandType.TENSOR_QUANT8_ASYMM: np.dtype(np.uint8),
    OperandType.BOOL: np.dtype(np.bool_),
    OperandType.TENSOR_QUANT16_SYMM: np.dtype(np.int16),
    OperandType.TENSOR_FLOAT16: np.dtype(np.float16),
    OperandType.TENSOR_BOOL8: np.dtype(np.bool_),
    OperandType.FLOAT16: np.dtype(np.float16),
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL: np.dtype(np.int8),
    OperandType.TENSOR_QUANT16_ASYMM: np.dtype(np.uint16),
    OperandType.TENSOR_QUANT8_SYMM: np.dtype(np.int8),
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: np.dtype(np.int8),
}
"""Storage of elements; extension types define their own."""

QUANTISED = frozenset(
    {
        OperandType.TENSOR_QUANT8_ASYMM,
        OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
        OperandType.TENSOR_QUANT8_SYMM,
        OperandType.TENSOR_QUANT16_ASYMM,
        OperandType.TENSOR_QUANT16_SYMM,
    }
)
"""Types with one scale; per-channel types have their own."""

SCALARS = frozenset({OperandType.FLOAT32, OperandType.INT32, OperandType.UINT32, OperandType.BOOL, OperandType.FLOAT16})

_CONSTANT = (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE)

Constants = Callable[[Operand], Array | None]
"""The value of a constant operand in its storage type and shape; None if the operand is none."""


class OpView:
    """Inputs and outputs of one operation. Inputs left out at the end count as omitted."""

    __slots__ = ("_constants", "index", "inputs", "operation", "outputs", "subgraph")

    def __init__(self, subgraph: Subgraph, operation: Operation, constants: Constants, index: int = 0) -> None:
        self.subgraph = subgraph
        self.operation = operation
        self.index = index
        self.inputs: list[Operand] = [subgraph.operands[number] for number in operation.inputs]
        self.outputs: list[Operand] = [subgraph.operands[number] for number in operation.outputs]
        self._constants = constants

    def omitted(self, index: int) -> bool:
        """Whether an input has no value, or is not even listed."""
        return index >= len(self.inputs) or self.inputs[index].lifetime == OperandLifeTime.NO_VALUE

    def type(self, index: int) -> int:
        """Type of an input."""
        return self.inputs[index].type

    def dims(self, index: int) -> Sequence[int] | None:
        """Dimensions of an input (0 = unknown); None if it is a tensor of unknown rank, () for a scalar."""
        return dims_of(self.inputs[index])

    def out_dims(self, index: int = 0) -> Sequence[int] | None:
        """Dimensions of an output, likewise."""
        return dims_of(self.outputs[index])

    def has_rank(self, index: int, *ranks: int) -> bool:
        """Whether the rank of an input is one of these, or unknown; true for an omitted input."""
        if self.omitted(index):
            return True
        dims = self.dims(index)
        return dims is None or len(dims) in ranks

    def constant(self, index: int) -> Array | None:
        """The value of an input if it is known from the model; None otherwise, also for an omitted one."""
        if self.omitted(index):
            return None
        operand = self.inputs[index]
        return self._constants(operand) if operand.lifetime in _CONSTANT else None

    def scalar(self, index: int) -> Any:
        """The value of a constant scalar as a Python number; None if it is not known."""
        array = self.constant(index)
        return None if array is None or array.size != 1 else array.reshape(())[()].item()

    def quantisation(self, index: int) -> tuple[float, int]:
        """(scale, zero point) of an input."""
        return self.inputs[index].scale, self.inputs[index].zeroPoint

    def extra(self, index: int) -> ExtraParams:
        """Extra parameters of an input."""
        return self.inputs[index].extraParams or _NO_EXTRA


_NO_EXTRA = ExtraParams()


def dims_of(operand: Operand) -> Sequence[int] | None:
    """Dimensions of an operand; None if it is a tensor of unknown rank, () for a scalar."""
    if operand.dimensions:
        return operand.dimensions
    return () if operand.type in SCALARS else None
