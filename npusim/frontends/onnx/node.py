"""The interface for operator importers: one node with its inputs and attributes, and the graph builder."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, NoReturn

import numpy as np
import onnx
from onnx import AttributeProto

from npusim.dtypes import DType, bfloat16_to_float32
from npusim.errors import UndecidedError
from npusim.frontends.onnx.files import Files
from npusim.frontends.onnx.scope import Value
from npusim.frontends.onnx.tensors import read_tensor
from npusim.frontends.operation import ImportedOperation
from npusim.graph import Tensor
from npusim.ops.base import Array
from npusim.ops.build import GraphBuilder

MAX_LIST = 1 << 16
"""Maximum number of elements of a constant list of sizes, axes or lengths."""


class Node(ImportedOperation):
    """One ONNX node during import."""

    def __init__(
        self,
        proto: onnx.NodeProto,
        name: str,
        opset: int,
        builder: GraphBuilder,
        inputs: Sequence[Tensor | None],
        attributes: Mapping[str, AttributeProto],
        wanted: Sequence[bool],
        files: Files | None = None,
        packed: MutableMapping[Tensor, int] | None = None,
        channel_block: int = 0,
    ) -> None:
        super().__init__(builder, name, proto.op_type)
        self.proto = proto
        self.opset = opset
        self.inputs = list(inputs)
        self.wanted = list(wanted)
        """Whether each output is used."""
        self.files = files
        self.packed = {} if packed is None else packed
        """ONNX's codes of the types of tensors that the device stores in bytes, see narrow_formats."""
        self.channel_block = channel_block
        """Channels per block of onnxruntime's blocked layout; 0 in a model without it."""
        self.values: Sequence[Value] = self.inputs
        """The inputs with those that are no tensors."""
        self._attributes = attributes
        self._read: set[str] = set()

    def acting_as(self, op_type: str, inputs: Sequence[Tensor | None], opset: int) -> Node:
        """The node as another operator with other inputs and the same attributes."""
        other = copy.copy(self)
        other.op_type, other.inputs, other.opset = op_type, list(inputs), opset
        return other

    def check_all_read(self) -> None:
        """Refuse the node if it has an attribute that its importer has not read."""
        unread = sorted(set(self._attributes) - self._read)
        if unread:
            self.refuse(f"attribute {', '.join(unread)} is not supported in operator set {self.opset}")

    def wants(self, index: int) -> bool:
        """Whether an output is used."""
        return index < len(self.wanted) and self.wanted[index]

    def leave_to_host(self, reason: str) -> NoReturn:
        """Raise the UndecidedError of an operator that the host executes."""
        error = UndecidedError([(self.name, self.op_type, reason)])
        error.on_host = True
        raise error

    def no_output(self, index: int, reason: str) -> None:
        """Refuse the node if its output ``index`` is used."""
        if self.wants(index):
            self.refuse(f"output {index} is used: {reason}")

    # -- inputs -------------------------------------------------------------------------------------------------------

    def input(self, index: int) -> Tensor:
        """A required input. Raises ModelError if it is absent."""
        tensor = self.optional(index)
        if tensor is None:
            self.damaged(f"input {index} is required")
        return tensor

    def optional(self, index: int) -> Tensor | None:
        """An optional input; None if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def value(self, index: int) -> Array:
        """A required input with a known value, in storage form."""
        return self.decided(self.input(index), f"input {index}", f"input {index} must be a constant")

    def formatted(self, tensor: Tensor, code: int) -> Tensor:
        """The tensor, recorded as one of this format."""
        self.packed[tensor] = code
        return tensor

    def int_values(self, index: int) -> list[int]:
        """A required constant input as a list of integers."""
        array = self.value(index)
        if array.dtype.kind not in "iu":
            self.damaged(f"input {index} must be integers, is {self.input(index).dtype.label}")
        if array.size > MAX_LIST:
            self.refuse(f"input {index} is a list of {array.size} elements; at most {MAX_LIST} are supported")
        return [int(value) for value in array.reshape(-1)]

    def scalar_value(self, index: int) -> float:
        """A required constant input of one element, as a number."""
        array = self.value(index)
        if array.size != 1:
            self.damaged(f"input {index} must have one element, has shape {list(array.shape)}")
        if self.input(index).dtype is DType.BFLOAT16:
            array = bfloat16_to_float32(array)
        number: float = array.reshape(-1)[0].item()
        return number

    # -- attributes ---------------------------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether the node has the attribute."""
        return name in self._attributes

    def attribute(self, name: str, kind: int) -> Any:
        """The value of an attribute, or None. Raises ModelError if it has another type."""
        # Attributes that the importer does not read are refused, so that none is ignored silently.
        self._read.add(name)
        proto = self._attributes.get(name)
        if proto is None:
            return None
        if proto.type not in (kind, AttributeProto.UNDEFINED):
            self.damaged(f"attribute {name} must be of type {AttributeProto.AttributeType.Name(kind)}")
        return onnx.helper.get_attribute_value(proto)

    def ignore(self, *names: str) -> None:
        """Mark attributes that have no effect on inference as read."""
        self._read.update(names)

    def int_attr(self, name: str, default: int | None = None) -> int:
        """An integer attribute. It is required if there is no default."""
        value = self.attribute(name, AttributeProto.INT)
        if value is None and default is None:
            self.damaged(f"attribute {name} is required")
        return int(default if value is None else value)  # type: ignore[arg-type]

    def float_attr(self, name: str, default: float) -> float:
        """A float attribute, exactly as stored (float32)."""
        value = self.attribute(name, AttributeProto.FLOAT)
        # The default is also rounded to float32, so that an explicit 0.01 and the default 0.01 give the same bits.
        return float(np.float32(default) if value is None else value)

    def text_attr(self, name: str, default: str) -> str:
        """A string attribute."""
        value = self.attribute(name, AttributeProto.STRING)
        return default if value is None else value.decode("utf-8", "replace")

    def ints_attr(self, name: str, default: Sequence[int] | None = None) -> list[int] | None:
        """A list of integers, or the default."""
        value = self.attribute(name, AttributeProto.INTS)
        if value is None:
            return None if default is None else list(default)
        return [int(item) for item in value]

    def floats_attr(self, name: str) -> list[float] | None:
        """A list of floats, or None."""
        value = self.attribute(name, AttributeProto.FLOATS)
        return None if value is None else [float(item) for item in value]

    def texts_attr(self, name: str) -> list[str]:
        """A list of strings; empty if it is absent."""
        value = self.attribute(name, AttributeProto.STRINGS)
        return [item.decode("utf-8", "replace") for item in value or ()]

    def tensor_attr(self, name: str) -> tuple[Array, DType] | None:
        """A tensor attribute as (array, DType), or None."""
        value = self.attribute(name, AttributeProto.TENSOR)
        return None if value is None else read_tensor(value, self.files, f"{self.name}.{name}")

    def axis(self, rank: int, name: str = "axis", default: int | None = None) -> int:
        """An axis attribute as a non-negative axis."""
        return self.normal_axis(self.int_attr(name, default), rank)
