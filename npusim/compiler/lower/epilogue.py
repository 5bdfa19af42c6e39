"""The epilogue of the matrix unit, applied to the sums before they are stored: bias, scale, bounds, requantisation.

It absorbs the first operators of a group's chain, as long as the result is bit-identical.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.compiler.grouping.groups import Group
from npusim.dtypes import DType, bfloat16_to_float32
from npusim.errors import CompileError
from npusim.graph import Op, Tensor
from npusim.isa.functions import Binary, Unary

_INTEGER_OUTPUTS = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.UINT16})
_SUMS = frozenset({DType.INT32, DType.INT64})

Row = npt.NDArray[Any] | Tensor
"""One value per output channel. A computed tensor may also have one value for all channels."""


@dataclass(slots=True)
class Epilogue:
    """((acc + bias) * scale + shift) / out_scale, then rounded and + out_zero for integers, clamped to [low, high].

    ``bias``: int32 or float32. ``scale``, ``shift``: float32. ``result``: the tensor that this computes. ``rest``: the
    remaining operators of the chain.
    """

    result: Tensor
    rest: tuple[Op, ...]
    bias: Row | None = None
    scale: Row | None = None
    shift: npt.NDArray[np.float32] | None = None
    out_scale: float = 1.0
    out_zero: int = 0
    low: float = -inf
    high: float = inf

    def rows(self) -> list[npt.NDArray[Any]]:
        """The constant ones among bias, scale and shift, in this order."""
        return [row for row in (self.bias, self.scale, self.shift) if isinstance(row, np.ndarray)]

    def computed(self) -> list[tuple[str, Tensor]]:
        """The computed ones among bias and scale, with their names."""
        return [(name, row) for name, row in (("b", self.bias), ("s", self.scale)) if isinstance(row, Tensor)]

    @property
    def out_type(self) -> DType:
        """The element type of the result."""
        return self.result.dtype


def absorb(group: Group) -> Epilogue:
    """The epilogue of a group's matrix operator, with the rest of the chain."""
    anchor = group.anchor
    assert anchor is not None
    rank = len(anchor.output.shape)
    axis = 1 if anchor.kind == "conv" and anchor.attrs["layout"] == "NCHW" else rank - 1
    channels = anchor.output.shape[axis]
    epilogue = Epilogue(anchor.output, group.chain, _bias(anchor, channels))
    # In the order of the hardware, and only while the value has a single reader; otherwise it must be stored in SRAM.
    while True:
        users = [op for op in epilogue.rest if epilogue.result in op.inputs]
        if len(users) != 1 or not _take(epilogue, users[0], channels, axis):
            return epilogue
        epilogue.rest = tuple(op for op in epilogue.rest if op is not users[0])
        epilogue.result = users[0].output


def _bias(anchor: Op, channels: int) -> npt.NDArray[Any] | None:
    bias = anchor.optional(2)
    if bias is None:
        return None
    if bias.data is None:
        raise CompileError(f"internal: {anchor.name}: the bias is not constant")
    data = bias.data.reshape(channels)
    if anchor.output.dtype in _SUMS:
        # For 64-bit sums too: their biases fit into 32 bits.
        return data.astype(np.int32)
    return bfloat16_to_float32(data) if bias.dtype is DType.BFLOAT16 else data.astype(np.float32)


def _row(tensor: Tensor | None, channels: int, axis: int, rank: int) -> npt.NDArray[Any] | None:
    """A constant that varies only along the channel axis, as one value per channel; None for anything else."""
    if tensor is None or tensor.data is None:
        return None
    shape = (1,) * (rank - len(tensor.shape)) + tensor.shape
    if any(dim != 1 for index, dim in enumerate(shape) if index != axis):
        return None
    return np.broadcast_to(tensor.data.reshape(-1), (channels,))


def _computed_row(epilogue: Epilogue, tensor: Tensor | None, channels: int, axis: int, rank: int) -> Tensor | None:
    """A tensor that another group computes, with one value or one per channel; None for anything else."""
    if tensor is None or tensor.data is not None or len(tensor.shape) > rank:
        return None
    if any(tensor in op.outputs for op in epilogue.rest):
        return None
    shape = (1,) * (rank - len(tensor.shape)) + tensor.shape
    wanted = tuple(channels if index == axis else 1 for index in range(rank))
    return tensor if tensor.size == 1 or shape == wanted else None


def _take(epilogue: Epilogue, op: Op, channels: int, axis: int) -> bool:
    """Add an operator to the epilogue. Returns False, and changes nothing, if that is impossible."""
    rank = len(op.output.shape)
    untouched = epilogue.low == -inf and epilogue.high == inf
    match op.kind:
        # Bounds clamp the float result. After a requantisation the value is an integer, which they cannot clamp.
        case "unary" if epilogue.out_type.is_float:
            return _take_bounds(epilogue, op)
        case "binary" if op.attrs["fn"] == Binary.ADD and untouched and op.inputs[0] is not op.inputs[1]:
            return _take_sum(epilogue, op, op.inputs[1 if op.inputs[0] is epilogue.result else 0], channels, axis)
        case "dequantize" if (
            epilogue.out_type in _SUMS and op.output.dtype is DType.FLOAT32 and op.inputs[0] is epilogue.result
        ):
            row, zero = _row(op.inputs[1], channels, axis, rank), op.inputs[2]
            # The zero points of the factors have been removed before (x_zero, w_zero). The epilogue cannot subtract one
            # of the sum.
            if zero is None or zero.data is None or zero.data.any():
                return False
            computed = _computed_row(epilogue, op.inputs[1], channels, axis, rank)
            if row is None and computed is None:
                return False
            # A scale of one is dropped.
            if row is None:
                epilogue.scale = computed
            elif (row != 1).any():
                epilogue.scale = np.ascontiguousarray(row, np.float32)
            return True
        case "quantize" if epilogue.out_type is DType.FLOAT32 and op.inputs[0] is epilogue.result:
            return _take_quantize(epilogue, op)
    return False


def _take_sum(epilogue: Epilogue, op: Op, other: Tensor | None, channels: int, axis: int) -> bool:
    """Add one value per channel: to the sums, or after their scale."""
    rank = len(op.output.shape)
    row = _row(other, channels, axis, rank)
    # A computed bias is only possible for integers, where the order of additions does not matter.
    if epilogue.out_type is DType.INT32:
        computed = _computed_row(epilogue, other, channels, axis, rank)
        if epilogue.bias is not None or computed is None or computed.size != channels:
            return False
        epilogue.bias = computed
        return True
    if row is None or epilogue.out_type is not DType.FLOAT32 or epilogue.shift is not None:
        return False
    if epilogue.scale is not None:
        epilogue.shift = np.ascontiguousarray(row, np.float32)
        return True
    if epilogue.bias is not None:
        return False
    epilogue.bias = np.ascontiguousarray(row, np.float32)
    return True


def _take_bounds(epilogue: Epilogue, op: Op) -> bool:
    if op.attrs["fn"] == Unary.RELU:
        low, high = 0.0, inf
    elif op.attrs["fn"] == Unary.CLIP:
        low, high = float(op.attrs["p0"]), float(op.attrs["p1"])
    else:
        return False
    if not low <= high:
        return False
    epilogue.low, epilogue.high = min(max(epilogue.low, low), high), max(min(epilogue.high, high), low)
    return True


def _take_quantize(epilogue: Epilogue, op: Op) -> bool:
    scale, zero = op.inputs[1], op.inputs[2]
    if op.output.dtype not in _INTEGER_OUTPUTS or scale is None or zero is None:
        return False
    if scale.data is None or zero.data is None or scale.data.size != 1 or zero.data.size != 1:
        return False
    step, offset = np.float32(scale.data.item()), int(zero.data.item())
    if not step > 0 or np.isinf(step):
        return False
    # Rounding is monotonic, so rounded bounds can clamp the integers instead.
    epilogue.out_scale, epilogue.out_zero = float(step), offset
    with np.errstate(over="ignore"):
        epilogue.low, epilogue.high = (
            float(np.rint(np.float32(bound) / step)) + offset for bound in (epilogue.low, epilogue.high)
        )
    return True
