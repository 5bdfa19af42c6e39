"""One TFLite operation during import: its operands as stored elements or as real numbers, its options, its results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from npusim.dtypes import DType
from npusim.frontends.operation import ImportedOperation
from npusim.frontends.tflite.reader import OperatorRecord, TensorRecord
from npusim.frontends.tflite.tensors import ELEMENT_TYPES, broadcast_parameters
from npusim.graph import Tensor
from npusim.isa.functions import Unary
from npusim.ops.base import Array
from npusim.ops.build import GraphBuilder

ACTIVATIONS: dict[int, tuple[float, float] | None] = {
    0: None,
    1: (0.0, math.inf),
    2: (-1.0, 1.0),
    3: (0.0, 6.0),
}
"""Bounds of the fused activations NONE, RELU, RELU_N1_TO_1 and RELU6."""
_QUANTISED = frozenset({DType.INT8, DType.UINT8, DType.INT16})
"""Types of which a scale makes quantised numbers; INT32 and INT64 with a scale are biases."""
MOST_LISTED = 1 << 16
"""Most elements of a constant list of sizes, axes or lengths."""


class Operation(ImportedOperation):
    """One operation. Tensors are in storage form: a quantised operand is a tensor of integers with a scale and a zero
    point, which its record holds."""

    def __init__(
        self,
        builder: GraphBuilder,
        name: str,
        record: OperatorRecord,
        tensors: Sequence[TensorRecord],
        inputs: Sequence[Tensor | None],
    ) -> None:
        super().__init__(builder, name, record.name)
        self.record = record
        self.inputs = list(inputs)
        self.types = [tensors[number] if number >= 0 else None for number in record.inputs]
        """The records of the inputs."""
        self.results = [tensors[number] for number in record.outputs]
        """The records of the outputs."""
        self.updates: dict[int, Tensor] = {}
        """New values of inputs that are variables, such as states of recurrent layers."""
        self.intermediates = [tensors[number] if number >= 0 else None for number in record.intermediates]

    # -- inputs -------------------------------------------------------------------------------------------------------

    def optional(self, index: int) -> Tensor | None:
        """An input as stored; None if it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def input(self, index: int) -> Tensor:
        """A required input as stored."""
        tensor = self.optional(index)
        if tensor is None:
            self.damaged(f"input {index} is required")
        return tensor

    def image(self, index: int) -> Tensor:
        """A required input of four dimensions, none of them empty."""
        x = self.input(index)
        if len(x.shape) != 4 or min(x.shape) < 1:
            self.damaged(f"input {index} must have 4 dimensions >= 1, has {list(x.shape)}")
        return x

    def type_of(self, index: int) -> TensorRecord:
        """The record of a required input."""
        self.input(index)
        record = self.types[index]
        assert record is not None
        return record

    def value(self, index: int) -> Array:
        """A required input with a known value, in storage form."""
        return self.decided(self.input(index), f"input {index}", f"input {index} must be a constant")

    def ints(self, index: int) -> list[int]:
        """A required input as a list of integers."""
        array = self.value(index)
        if array.dtype.kind not in "iu":
            self.damaged(f"input {index} must be integers, is {self.input(index).dtype.label}")
        if array.size > MOST_LISTED:
            self.refuse(f"input {index} is a list of {array.size} elements; at most {MOST_LISTED} are supported")
        return [int(number) for number in array.reshape(-1)]

    def scalar(self, index: int) -> Any:
        """A required input of one element, as a number."""
        array = self.value(index)
        if array.size != 1:
            self.damaged(f"input {index} must have one element, has shape {list(array.shape)}")
        return array.reshape(-1)[0].item()

    def quantised(self, record: TensorRecord) -> bool:
        """Whether stored elements are numbers with a scale."""
        return record.quantization is not None and ELEMENT_TYPES.get(record.type) in _QUANTISED

    def parameters(self, record: TensorRecord) -> tuple[float, int]:
        """(scale, zero point) of a quantised tensor that has one of each."""
        if record.quantization is None or len(record.quantization.scale) != 1:
            self.refuse(f"tensor {record.name!r} must have one scale")
        return float(record.quantization.scale[0]), int(record.quantization.zero[0])

    def real(self, index: int) -> Tensor:
        """A required input as float32."""
        return self.to_real(self.input(index), self.type_of(index))

    def numbers(self, index: int) -> Tensor:
        """A required input as numbers: as stored unless it is quantised, then as float32."""
        return self.real(index) if self.quantised(self.type_of(index)) else self.input(index)

    def to_real(self, tensor: Tensor, record: TensorRecord) -> Tensor:
        """Stored elements of a record as float32."""
        if record.quantization is None or not tensor.dtype.is_integer:
            return self.cast(tensor, DType.FLOAT32)
        scale, zero = broadcast_parameters(record.quantization, len(tensor.shape))
        return self.add("dequantize", tensor, self.const(scale), self.const(zero), to=DType.FLOAT32)

    def from_real(self, tensor: Tensor, record: TensorRecord) -> Tensor:
        """Numbers as stored elements of a record: quantised, or rounded to its type."""
        dtype = self.dtype_of(record)
        if not self.quantised(record) or record.quantization is None:
            return self.cast(tensor, dtype)
        if not record.quantization.scale.all():
            self.damaged(f"tensor {record.name!r} has the scale 0")
        scale, zero = broadcast_parameters(record.quantization, len(tensor.shape))
        real = self.cast(tensor, DType.FLOAT32)
        return self.add("quantize", real, self.const(scale), self.const(zero), to=dtype)

    def dtype_of(self, record: TensorRecord) -> DType:
        """The type of stored elements. Refuses types that tensors of a graph cannot have."""
        dtype = ELEMENT_TYPES.get(record.type)
        if dtype is None:
            self.refuse(f"tensor {record.name!r} has an element type that is not supported")
        return dtype

    def alike(self, *indexes: int) -> bool:
        """Whether equal stored elements of these inputs and of output 0 are equal numbers, so that they can move."""
        return len({self._encoding(record) for record in (*map(self.type_of, indexes), self.results[0])}) == 1

    def _encoding(self, record: TensorRecord) -> tuple[Any, ...]:
        if not self.quantised(record) or record.quantization is None:
            return (record.type,)
        found = record.quantization
        return record.type, tuple(found.scale.tolist()), tuple(found.zero.tolist())

    # -- options ------------------------------------------------------------------------------------------------------

    def option(self, kind: str, name: str) -> Any:
        """An option by its name in the schema."""
        return self.record.options.get(kind, name)

    def flag(self, kind: str, name: str) -> bool:
        """An option that is true or false."""
        return bool(self.option(kind, name))

    def positive(self, kind: str, name: str) -> int:
        """An option that must be >= 1."""
        value = int(self.option(kind, name))
        if value < 1:
            self.damaged(f"option {name} must be >= 1, is {value}")
        return value

    # -- results ------------------------------------------------------------------------------------------------------

    def activated(self, real: Tensor, function: int) -> Tensor:
        """Numbers after a fused activation."""
        if function == 4:
            return self.unary(Unary.TANH, real)
        if function not in ACTIVATIONS:
            self.refuse(f"fused activation {function} is not supported")
        bounds = ACTIVATIONS[function]
        return real if bounds is None else self.unary(Unary.CLIP, real, *bounds)

    def give(self, real: Tensor, index: int = 0) -> Tensor:
        """Numbers in the storage form of an output."""
        return self.from_real(real, self.results[index])

    def moved(self, stored: Tensor, index: int = 0) -> Tensor:
        """Elements moved from input 0 as stored, in the storage form of an output: converted if the numbers of output
        and input have different codes."""
        record = self.results[index]
        if not self.quantised(record) or self._encoding(self.type_of(0)) == self._encoding(record):
            return stored
        return self.from_real(self.to_real(stored, self.type_of(0)), record)

    def i32(self, value: Any) -> Tensor:
        """An int32 constant."""
        return self.const(np.asarray(value, np.int32))

    def f32(self, value: Any) -> Tensor:
        """A float32 constant."""
        return self.const(np.asarray(value, np.float32))
