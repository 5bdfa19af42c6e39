"""Algebraic rewriting: batch normalisation goes into weights, quantise-dequantise pairs become integer operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.compiler.grouping.groups import ANCHORS
from npusim.compiler.passes.integer_movement import (
    convert_on_the_way,
    gather_neighbours,
    per_tensor,
    raise_quantize,
    sink_dequantize,
)
from npusim.compiler.passes.rewrite import Rewriter
from npusim.dtypes import DType
from npusim.graph import Graph, Op, Tensor
from npusim.hw.config import Config
from npusim.isa.functions import Binary
from npusim.isa.matrix_types import weight_zeros
from npusim.ops.base import REGISTRY

_BIAS_SLACK = 1e-3
"""Tolerance, in multiples of its scale, within which a float bias counts as quantised."""


def integerize(graph: Graph, config: Config) -> Graph:
    """Compute on quantised values where the model dequantises and quantises around an operator.

    Returns the same graph if it contains no dequantisation.
    """
    if not [op for op in graph.ops if op.kind == "dequantize"]:
        return graph
    matrix = config.matrix
    # A unit with floats but without 16-bit integers computes on the dequantised floats.
    pixels = _PIXELS if matrix is None or matrix.rate("int16") or not matrix.rate("float32") else _BYTES
    # Movement first: a reshape between the dequantisation and the product would hide it from the second rule.
    widened: dict[Tensor, Tensor] = {}
    for rule in (
        sink_dequantize,
        convert_on_the_way,
        raise_quantize,
        gather_neighbours,
        lambda rewriter, op: _integer_matrix(rewriter, op, pixels, widened) or _widened(rewriter, op, widened),
        _raise_rank,
    ):
        graph = Rewriter(graph).run(rule)
    return _without_parameters(graph)


def _without_parameters(graph: Graph) -> Graph:
    """Fold biases and scales that follow from constants.

    Weights of products are not folded: quantised and packed, they are fewer bytes to load.
    """
    weights = {op.inputs[1] for op in graph.ops if op.kind in ANCHORS}

    def fold(rewriter: Rewriter, op: Op) -> bool:
        tensors = [tensor for tensor in (*op.inputs, *op.outputs) if tensor is not None]
        # Weights have more than one dimension, even if they are moved on their way to a product.
        row = all(t.size <= _LONGEST_PARAMETER and sum(dim > 1 for dim in t.shape) <= 1 for t in tensors)
        constant = all(tensor is None or (tensor.data is not None and not tensor.bound) for tensor in op.inputs)
        if not row or not constant or len(op.outputs) != 1 or op.output in weights:
            return False
        arrays = [None if tensor is None else tensor.data for tensor in op.inputs]
        (value,) = REGISTRY[op.kind].reference(op, arrays)
        rewriter.substitute(op.output, rewriter.const(f"{op.name}.known", value, op.output.dtype))
        return True

    return Rewriter(graph).run(fold)


_LONGEST_PARAMETER = 1 << 16
"""In elements: more than the channels of any layer."""


def fold_affine(graph: Graph) -> Graph:
    """Fold scales and shifts per channel into weights and biases. Results differ only by rounding."""
    return Rewriter(graph).run(_fold_affine)


def _raise_rank(rewriter: Rewriter, op: Op) -> bool:
    """Give a quantised matrix product the dimensions that a following reshape gives its result.

    Exporters flatten the operands. The operators after the reshape could not be fused with a product of another shape.
    """
    if op.kind != "reshape":
        return False
    quantize = rewriter.made_by(op.input(0), "quantize")
    dequantize = rewriter.made_by(quantize.input(0), "dequantize") if quantize else None
    product = rewriter.made_by(dequantize.input(0), "matmul") if dequantize else None
    if quantize is None or dequantize is None or product is None or len(product.output.shape) != 2:
        return False
    *outer, rows, columns = op.output.shape if len(op.output.shape) > 2 else (0, 0)
    alone = all(rewriter.uses.get(each.output) == 1 for each in (product, dequantize, quantize))
    parameters = (*dequantize.inputs[1:], *quantize.inputs[1:])
    # Per tensor or per column, so that they also broadcast with more outer dimensions.
    plain = all(tensor is None or tensor.size in (1, *tensor.shape[-1:]) for tensor in parameters)
    if not alone or not plain or set(outer) != {1} or (rows, columns) != product.output.shape:
        return False
    a, *others = product.inputs
    assert a is not None
    a = rewriter.add(f"{product.name}.matrix", "reshape", (a,), {"shape": (*outer, *a.shape)})
    value = rewriter.add(product.name, "matmul", (a, *others), product.attrs)
    value = rewriter.add(dequantize.name, "dequantize", (value, *dequantize.inputs[1:]), dequantize.attrs)
    rewriter.substitute(
        op.output, rewriter.add(quantize.name, "quantize", (value, *quantize.inputs[1:]), quantize.attrs)
    )
    return True


def _integer_matrix(rewriter: Rewriter, op: Op, pixels: frozenset[DType], widened: dict[Tensor, Tensor]) -> bool:
    """Replace matmul(dequantize(x), dequantize(w)) by the integer product, dequantised with the product of the scales.

    ``widened``: for each result that is rounded to a narrower float, its float32 value. Results are added.
    """
    operands = _dequantized_operands(rewriter, op, pixels)
    if operands is None:
        return False
    x, w, scales = operands
    weights, w_zero = _weights(rewriter, w)
    if weights is None:
        return False
    bias = op.optional(2)
    exact = None if bias is None else _integer_bias(bias, scales, rewriter)
    attrs = {**op.attrs, "x_zero": int(_data(x.input(2)).item()), "w_zero": w_zero}
    wide = _is_wide(op, x.input(0).dtype, attrs["x_zero"], w, weights, w_zero, exact)
    if op.kind in ANCHORS:
        attrs["wide"] = wide
    elif wide:
        return False
    inputs: tuple[Tensor, ...] = (x.input(0), weights)
    if exact is not None:
        data = exact.astype(np.int64) if wide else exact
        inputs = (*inputs, rewriter.const(f"{op.name}.bias", data))
    total = rewriter.add(op.name, op.kind, inputs, attrs)
    # A bias that is not a multiple of the scales stays a float addition: rounding it would change results.
    value = _float_result(rewriter, op, total, scales, None if exact is not None else bias)
    rewriter.substitute(op.output, _narrowed(rewriter, op, value, widened))
    return True


def _narrowed(rewriter: Rewriter, op: Op, value: Tensor, widened: dict[Tensor, Tensor]) -> Tensor:
    """Cast a float32 value to the type of an operator's result."""
    if op.output.dtype is DType.FLOAT32:
        return value
    narrow = rewriter.add(f"{op.name}.narrow", "cast", (value,), {"to": op.output.dtype})
    widened[narrow] = value
    return narrow


def _widened(rewriter: Rewriter, op: Op, widened: dict[Tensor, Tensor]) -> bool:
    """Compute elementwise operators and the quantisation after an integer product with float16 scales in float32.

    Without it, the value would be rounded to float16 after each operator, and the epilogue could not absorb them."""
    if op.kind not in ("unary", "binary", "quantize") or not any(tensor in widened for tensor in op.inputs):
        return False
    if op.kind == "quantize":
        rewriter.substitute(op.output, rewriter.add(op.name, op.kind, (widened[op.input(0)], *op.inputs[1:]), op.attrs))
        return True
    if op.output.dtype not in _NARROW:
        return False
    inputs = [_wide(rewriter, op.input(index), widened) for index in range(len(op.inputs))]
    value = rewriter.add(op.name, op.kind, inputs, op.attrs)
    rewriter.substitute(op.output, _narrowed(rewriter, op, value, widened))
    return True


def _wide(rewriter: Rewriter, tensor: Tensor, widened: dict[Tensor, Tensor]) -> Tensor:
    """Return the value of a narrower float before rounding, as float32."""
    source = rewriter.made_by(tensor, "dequantize")
    if tensor in widened:
        return widened[tensor]
    if source is not None:
        return rewriter.add(source.name, "dequantize", source.inputs, {"to": DType.FLOAT32})
    if tensor.dtype is DType.FLOAT32:
        return tensor
    return rewriter.add(f"{tensor.name}.wide", "cast", (tensor,), {"to": DType.FLOAT32})


_NARROW = frozenset({DType.FLOAT16, DType.BFLOAT16})


def _dequantized_operands(
    rewriter: Rewriter, op: Op, pixels: frozenset[DType]
) -> tuple[Op, Op, npt.NDArray[np.float32]] | None:
    """The dequantisations of both operands, and the scales of the integer product; None if it cannot use integers."""
    if op.kind not in _PRODUCTS or op.output.dtype not in _NARROW | {DType.FLOAT32}:
        return None
    x, w = (rewriter.made_by(tensor, "dequantize") for tensor in op.inputs[:2])
    # One scale for all of x: scales per input channel cannot be factored out of a sum over them.
    if x is None or w is None or not per_tensor(x) or w.input(1).data is None or w.input(2).data is None:
        return None
    row = _weight_scales(op, w)
    if row is None or x.input(0).dtype not in pixels or w.input(0).dtype not in pixels - {DType.UINT16}:
        return None
    scales = np.float32(_data(x.input(1)).item()) * row
    # The product of two small scales may underflow to 0, and a bias cannot be divided by that.
    return (x, w, scales) if np.isfinite(scales).all() and (scales > 0).all() else None


def _float_result(
    rewriter: Rewriter, op: Op, total: Tensor, scales: npt.NDArray[np.float32], bias: Tensor | None
) -> Tensor:
    """The dequantised result of an integer product, with a float bias added."""
    shape = _channel_shape(op, scales.size)
    zero = rewriter.const(f"{op.name}.zero", np.zeros((1,) * len(shape), np.int32))
    scale = rewriter.const(f"{op.name}.scale", scales.reshape(shape))
    value = rewriter.add(f"{op.name}.dequantize", "dequantize", (total, scale, zero), {"to": DType.FLOAT32})
    if bias is not None:
        row = _wide(rewriter, bias, {})
        flat = rewriter.add(f"{op.name}.bias", "reshape", (row,), {"shape": _channel_shape(op, bias.size)})
        value = rewriter.add(f"{op.name}.add", "binary", (value, flat), {"fn": Binary.ADD})
    return value


_PRODUCTS = ANCHORS | {"conv_transpose"}
_BYTES = frozenset({DType.INT8, DType.UINT8})
_PIXELS = _BYTES | {DType.INT16, DType.UINT16}


def _is_wide(
    op: Op, dtype: DType, x_zero: int, w: Op, weights: Tensor, w_zero: int, bias: npt.NDArray[np.int32] | None
) -> bool:
    """Whether a sum may exceed int32 for some pixels. Sums of products of bytes always wrap around in int32."""
    if dtype in _BYTES and w.input(0).dtype in _BYTES:
        return False
    info = np.iinfo(dtype.storage)
    pixel = max(x_zero - int(info.min), int(info.max) - x_zero)
    if weights.data is None:
        # Computed weights: assume the full range of their type.
        least, most = (np.iinfo(w.input(0).dtype.storage).min, np.iinfo(w.input(0).dtype.storage).max)
        depth = weights.shape[-2] if op.kind == "matmul" else weights.size // weights.shape[op.kind != "conv"]
        reach = depth * (int(most) - int(least))
    else:
        size = np.abs(weights.data.astype(np.int64) - w_zero)
        axes = {"conv": (1, 2, 3), "conv_transpose": (0, 2, 3)}.get(op.kind, (-2,))
        reach = int(size.sum(axis=axes).max(initial=0))
    offset = 0 if bias is None else int(np.abs(bias.astype(np.int64)).max(initial=0))
    return pixel * reach + offset >= 1 << 31


def _channel_shape(op: Op, channels: int) -> tuple[int, ...]:
    """The shape of per-channel parameters that broadcasts against the operator's output."""
    rank = len(op.output.shape)
    axis = 1 if op.attrs.get("layout") == "NCHW" else rank - 1
    return tuple(channels if index == axis and channels > 1 else 1 for index in range(rank))


def _weight_scales(op: Op, w: Op) -> npt.NDArray[np.float32] | None:
    """One scale, or one per output channel; None if they vary along anything else."""
    scale, value = w.input(1), w.input(0)
    data = scale.data
    assert data is not None
    if data.size == 1:
        return data.reshape(1).astype(np.float32)
    rank = len(value.shape)
    axis = {"conv": 0, "conv_transpose": 1}.get(op.kind, rank - 1)
    shape = (1,) * (rank - len(scale.shape)) + scale.shape
    # Scales along input channels or taps vary within a sum and cannot be applied after it.
    wanted = tuple(value.shape[index] if index == axis else 1 for index in range(rank))
    # The weights of a transposed convolution list the output channels of one group, and repeat for the next.
    groups = op.attrs["groups"] if op.kind == "conv_transpose" else 1
    return np.tile(data.reshape(-1).astype(np.float32), groups) if shape == wanted else None


def _weights(rewriter: Rewriter, w: Op) -> tuple[Tensor | None, int]:
    """Integer weights, and the zero point that the matrix unit subtracts from all of them.

    If zero points differ, they are subtracted from the weights. Returns None for weights that the unit cannot multiply.
    """
    value, zeros = w.input(0), _data(w.input(2))
    first = int(zeros.flat[0]) if zeros.size else 0
    low, high = weight_zeros(value.dtype)
    if (zeros == first).all() and low <= first <= high:
        return value, first
    return _centred(rewriter, w), 0


def _centred(rewriter: Rewriter, w: Op) -> Tensor | None:
    """The integer weights minus their zero points, one type wider, computed at run time if necessary."""
    value, zero = w.input(0), w.input(2)
    if value.dtype not in (DType.INT8, DType.UINT8):
        return None
    if value.data is not None:
        centred = value.data.astype(np.int16) - np.broadcast_to(_data(zero), value.shape).astype(np.int16)
        fits = centred.min(initial=0) >= -128 and centred.max(initial=0) <= 127
        return rewriter.const(f"{value.name}.centred", centred.astype(np.int8) if fits else centred)
    # Computed weights: the same subtraction at run time, because the unit has one zero point for all channels.
    wide = rewriter.add(f"{w.name}.wide", "cast", (value,), {"to": DType.INT16})
    offset = rewriter.const(f"{w.name}.zero", _data(zero).astype(np.int16))
    return rewriter.add(f"{w.name}.centred", "binary", (wide, offset), {"fn": Binary.SUB})


def _integer_bias(bias: Tensor, scales: npt.NDArray[np.float32], rewriter: Rewriter) -> npt.NDArray[np.int32] | None:
    """The bias as INT32 multiples of the scales, if it is representable."""
    source = rewriter.made_by(bias, "dequantize")
    if source is not None and all(t is not None and t.data is not None for t in source.inputs):
        value, scale, zero = (_data(source.input(index)) for index in range(3))
        same = np.allclose(np.broadcast_to(scale.reshape(-1), (bias.size,)), scales, rtol=1e-5, atol=0)
        if value.dtype == np.int32 and same and not zero.any():
            return value.reshape(-1)
    if bias.data is None or bias.dtype is DType.BFLOAT16:
        return None
    # In float64, because a quotient of up to 31 bits leaves no fraction in float32 to test.
    steps = bias.data.reshape(-1).astype(np.float64) / scales.astype(np.float64)
    rounded = np.rint(steps)
    exact = np.abs(steps - rounded).max(initial=0) <= _BIAS_SLACK and np.abs(rounded).max(initial=0) < 2**31
    return rounded.astype(np.int32) if exact else None


def _data(tensor: Tensor) -> npt.NDArray[Any]:
    assert tensor.data is not None
    return tensor.data


def _fold_affine(rewriter: Rewriter, op: Op) -> bool:
    """Fold a scale or shift per channel after a float convolution into its weights and bias."""
    if op.kind != "binary" or op.output.dtype is not DType.FLOAT32:
        return False
    if op.attrs["fn"] not in (Binary.MUL, Binary.ADD, Binary.SUB):
        return False
    for value, other in ((op.inputs[0], op.inputs[1]), (op.inputs[1], op.inputs[0])):
        # Subtracting the value would require negating its weights.
        if value is None or other is None or (op.attrs["fn"] == Binary.SUB and value is op.inputs[1]):
            continue
        matrix = rewriter.made_by(value, "conv") or rewriter.made_by(value, "matmul")
        # Another reader needs the value without the scale, and folding would compute the product twice.
        if matrix is not None and rewriter.uses.get(value) == 1 and _fold_into(rewriter, matrix, op, other):
            return True
    return False


def _fold_into(rewriter: Rewriter, matrix: Op, op: Op, other: Tensor) -> bool:
    w, bias = matrix.input(1), matrix.optional(2)
    channels = w.shape[0] if matrix.kind == "conv" else w.shape[-1]
    # A factor that broadcasts the result to a larger shape creates elements that the product does not have.
    if w.data is None or other.data is None or op.output.shape != matrix.output.shape:
        return False
    if bias is not None and bias.data is None:
        return False
    if other.bound or w.bound:
        return False
    shape = (1,) * (len(op.output.shape) - len(other.shape)) + other.shape
    if other.size > channels or shape not in (_channel_shape(matrix, other.size), (1,) * len(shape)):
        return False
    if other.size not in (1, channels):
        return False
    # In float64, so that the new bias is rounded once, however many shifts are folded into it.
    row = np.broadcast_to(other.data.reshape(-1), (channels,)).astype(np.float64)
    old = np.zeros(channels) if bias is None else _data(bias).astype(np.float64)
    weights = w
    if op.attrs["fn"] == Binary.MUL:
        along = row.reshape(-1, 1, 1, 1) if matrix.kind == "conv" else row
        weights = rewriter.const(f"{w.name}.scaled", (w.data * along.astype(np.float32)).astype(np.float32))
        new = old * row
    else:
        new = old - row if op.attrs["fn"] == Binary.SUB else old + row
    inputs: tuple[Tensor | None, ...] = (matrix.inputs[0], weights)
    if bias is not None or op.attrs["fn"] != Binary.MUL:
        inputs = (*inputs, rewriter.const(f"{matrix.name}.bias", new.astype(np.float32)))
    # The product moves down to the position of its last operand. Nobody reads it in between, since this is its only
    # use.
    del rewriter.ops[matrix]
    rewriter.keep(Op(matrix.name, matrix.kind, inputs, op.outputs, matrix.attrs, matrix.origin))
    return True
