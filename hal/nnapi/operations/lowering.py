"""Lowering of one operation to graph operators, with all shapes known."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from npusim.dtypes import DType, dtype_of
from npusim.graph import Tensor
from npusim.isa.functions import Unary
from npusim.ops.build import GraphBuilder
from npusim.ops.emit import Emitter
from npusim.plan import ValueNeededError

from ..types import FusedActivationFunc, Operand, OperandType
from .signature import type_name
from .view import QUANTISED, STORAGE, Array, OpView, Shape

_PRODUCTS = ("conv", "conv_transpose", "matmul")
"""Operators of the matrix unit."""


class InvalidOperationError(Exception):
    """The operands contradict each other in shapes or values that became known only at execution."""


class Lowering(Emitter):
    """One operation being lowered into the graph of ``builder``.

    Tensors are in storage form: a quantised operand is a tensor of integers with a scale and a zero point.
    ``read(operand)`` gives an operand as a tensor, ``look(operand)`` its value or None while it is unknown; ``absent``:
    operands without a value in this execution. ``half``: products of FLOAT32 are computed as FLOAT16, also within
    operations that widen their operands.
    """

    def __init__(
        self,
        view: OpView,
        builder: GraphBuilder,
        shapes: Mapping[int, Shape],
        read: Callable[[int], Tensor],
        look: Callable[[int], Array | None],
        *,
        half: bool = False,
        absent: Collection[int] = (),
    ) -> None:
        super().__init__(builder, operation_label(view))
        self.view = view
        self.results: dict[int, Tensor] = {}
        self.counts: dict[int, Tensor] = {}
        self._shapes = shapes
        self._read = read
        self._look = look
        self._absent = absent
        self._half = half

    # Inputs

    @property
    def input_count(self) -> int:
        """Number of listed inputs."""
        return len(self.view.inputs)

    @property
    def output_count(self) -> int:
        """Number of listed outputs."""
        return len(self.view.outputs)

    def omitted(self, index: int) -> bool:
        """Whether input ``index`` has no value in the model or in this execution, or is not listed."""
        return self.view.omitted(index) or self.view.operation.inputs[index] in self._absent

    def type(self, index: int) -> int:
        """Operand type of input ``index``."""
        return self.view.inputs[index].type

    def out_type(self, index: int = 0) -> int:
        """Operand type of output ``index``."""
        return self.view.outputs[index].type

    def out_dtype(self, index: int = 0) -> DType:
        """Storage type of output ``index``; not for types of extensions."""
        return dtype_of(np.empty(0, STORAGE[self.view.outputs[index].type]))

    def shape(self, index: int) -> Shape:
        """Shape of input ``index``: every dimension known."""
        return self._shapes[self.view.operation.inputs[index]]

    def tensor(self, index: int) -> Tensor:
        """Input ``index`` as a tensor of its storage type."""
        return self._read(self.view.operation.inputs[index])

    def value(self, index: int) -> Array:
        """The value of input ``index``, which determines shapes or operators. If it is unknown, the execution stops to
        read it."""
        number = self.view.operation.inputs[index]
        array = self._look(number)
        if array is None:
            # The plan runs the previous operations, reads the value and lowers this operation again.
            raise ValueNeededError(number)
        return array

    def known(self, index: int) -> Array | None:
        """The value of input ``index``, if it is already known."""
        return None if self.omitted(index) else self._look(self.view.operation.inputs[index])

    def scalar(self, index: int, default: Any = None) -> Any:
        """The value of a scalar input as a Python number; ``default`` if it is omitted."""
        return default if self.omitted(index) else self.value(index).reshape(-1)[0].item()

    def axis(self, index: int, rank: int) -> int:
        """The dimension of a tensor of this rank that an INT32 scalar names; -1 is the last one."""
        return normal_axis(self.scalar(index), rank)

    def ints(self, index: int) -> tuple[int, ...]:
        """The value of an INT32 tensor input as Python integers."""
        return tuple(int(number) for number in self.value(index).reshape(-1))

    def real(self, index: int) -> Tensor:
        """Input ``index`` as FLOAT32: dequantised, or widened."""
        return self.to_real(self.tensor(index), self.view.inputs[index])

    def numbers(self, index: int) -> Tensor:
        """Input ``index`` as numbers: as stored unless it is quantised, then as FLOAT32."""
        operand = self.view.inputs[index]
        encoded = operand.type in QUANTISED or operand.type == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
        return self.real(index) if encoded else self.tensor(index)

    def alike(self, *indexes: int) -> bool:
        """Whether equal stored elements of these inputs and of output 0 represent equal numbers."""
        operands = [*(self.view.inputs[index] for index in indexes), self.view.outputs[0]]
        # Then elements can be moved as stored; otherwise they are converted to numbers and back.
        return operands[0].type not in QUANTISED or len({(o.type, o.scale, o.zeroPoint) for o in operands}) == 1

    def to_real(self, tensor: Tensor, operand: Operand) -> Tensor:
        """A tensor in the storage form of ``operand`` as FLOAT32."""
        if operand.type in QUANTISED:
            zero = operand.zeroPoint
            return self.add("dequantize", [tensor, self.f32(operand.scale), self.i32(zero)], {"to": DType.FLOAT32})
        if operand.type == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL:
            scales = self.f32(channel_scales(operand, tensor.shape))
            return self.add("dequantize", [tensor, scales, self.i32(0)], {"to": DType.FLOAT32})
        return self.cast(tensor, DType.FLOAT32)

    def from_real(self, tensor: Tensor, operand: Operand) -> Tensor:
        """Real numbers in the storage form of ``operand``: quantised, or rounded."""
        dtype = dtype_of(np.empty(0, STORAGE[operand.type]))
        if operand.type not in QUANTISED:
            return self.cast(tensor, dtype)
        return self.add("quantize", [tensor, self.f32(operand.scale), self.i32(operand.zeroPoint)], {"to": dtype})

    # Operators

    def add(self, kind: str, inputs: Sequence[Tensor | None], attrs: Mapping[str, Any] | None = None) -> Tensor:
        """Add an operator and return its output."""
        if self._half and kind in _PRODUCTS and all(each is None or each.dtype is DType.FLOAT32 for each in inputs):
            halves = [None if each is None else self.cast(each, DType.FLOAT16) for each in inputs]
            return self.cast(self.emit(kind, halves, attrs), DType.FLOAT32)
        return self.emit(kind, inputs, attrs)

    def add_all(self, kind: str, inputs: Sequence[Tensor | None], attrs: Mapping[str, Any]) -> list[Tensor]:
        """Add an operator with several outputs."""
        return self.builder.add_all(kind, inputs, attrs, self.name)

    def f32(self, value: Any) -> Tensor:
        """A FLOAT32 constant."""
        return self.const(np.asarray(value, np.float32))

    def i32(self, value: Any) -> Tensor:
        """An INT32 constant."""
        return self.const(np.asarray(value, np.int32))

    def activate(self, tensor: Tensor, index: int) -> Tensor:
        """The fused activation that input ``index`` names, on real numbers."""
        function = self.scalar(index, FusedActivationFunc.NONE)
        bounds = activation_bounds(function)
        return tensor if bounds is None else self.unary(Unary.CLIP, tensor, *bounds)

    # Outputs

    def give(self, tensor: Tensor, index: int = 0) -> None:
        """Set output ``index`` to a tensor that already has its storage type."""
        operand = self.view.outputs[index]
        storage = STORAGE.get(operand.type)
        if storage is not None and tensor.dtype is not dtype_of(np.empty(0, storage)):
            raise InvalidOperationError(
                f"output {index} is {type_name(operand.type)}, the operation makes {tensor.dtype.label}"
            )
        self.results[self.view.operation.outputs[index]] = tensor

    def give_real(self, tensor: Tensor, index: int = 0) -> None:
        """Set output ``index`` to a tensor of real numbers, quantised or rounded to the output's type."""
        self.give(self.from_real(tensor, self.view.outputs[index]), index)

    def give_counted(self, tensor: Tensor, count: Tensor, index: int = 0) -> None:
        """Set output ``index`` to the first ``count`` (INT32, one element) entries of dimension 0 of a tensor.

        The operation computes ``count``.
        """
        self.give(tensor, index)
        self.counts[self.view.operation.outputs[index]] = count


def normal_axis(axis: int, rank: int) -> int:
    """A dimension counted from the front; negative ones count from the end."""
    if not -rank <= axis < rank:
        raise InvalidOperationError(f"an axis must be in [{-rank}, {rank}), got {axis}")
    return axis % rank


def operation_label(view: OpView) -> str:
    """The label of the graph operators of an operation: its number and its name."""
    kind = view.operation.type
    return f"{view.index}:{getattr(kind, 'name', kind)}"


def activation_bounds(function: int) -> tuple[float, float] | None:
    """Lower and upper bound of a fused activation; None for NONE."""
    match function:
        case FusedActivationFunc.NONE:
            return None
        case FusedActivationFunc.RELU:
            return (0.0, float("inf"))
        case FusedActivationFunc.RELU1:
            return (-1.0, 1.0)
        case FusedActivationFunc.RELU6:
            return (0.0, 6.0)
    raise InvalidOperationError(f"fused activation must be 0 to 3, got {function}")


def channel_scales(operand: Operand, shape: Shape) -> Array:
    """The scales of a per-channel operand, in a shape that broadcasts along its channel dimension."""
    quant = operand.extraParams.channelQuant if operand.extraParams else None
    if quant is None:
        raise InvalidOperationError("an operand of TENSOR_QUANT8_SYMM_PER_CHANNEL must have channelQuant")
    dims = [1] * len(shape)
    dims[quant.channelDim] = len(quant.scales)
    return np.asarray(quant.scales, np.float32).reshape(dims)
