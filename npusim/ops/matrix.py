"""conv, conv_transpose and matmul: the operators of the matrix unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from npusim.dtypes import DType, bfloat16_to_float32
from npusim.errors import ModelError
from npusim.graph import Op, Tensor
from npusim.isa.base import Unit
from npusim.isa.matrix_types import weight_zeros
from npusim.ops.base import (
    REQUIRED,
    Array,
    Attrs,
    Folding,
    Inputs,
    Lowered,
    Result,
    Shape,
    broadcast,
    define,
    narrow,
    operand,
    optional,
    same_dtype,
    widened,
)
from npusim.units import ceil_div

SMALL_INTEGERS = (DType.INT8, DType.UINT8, DType.INT16)
"""Integer operands of the matrix unit, and uint16 for the first one; their products are summed in int32, which wraps,
or in int64."""
_PIXELS = (*SMALL_INTEGERS, DType.UINT16)


def accumulator(a: Tensor, b: Tensor, attrs: Attrs | None = None, scale: Tensor | None = None) -> DType:
    """The type of a sum of products of two operands."""
    if a.dtype in _PIXELS and b.dtype in SMALL_INTEGERS:
        return DType.INT64 if attrs and attrs["wide"] else DType.INT32
    return a.dtype if scale is not None else same_dtype(a, b)


def _check_scales(inputs: Inputs, attrs: Attrs, depth: int, channel: int) -> Tensor | None:
    """The scale of weights. Raises ModelError unless scale and zero point are constants with one entry, or one per
    output channel and ``block`` of input channels."""
    w, scale, zero = operand(inputs, 1), optional(inputs, 3), optional(inputs, 4)
    if scale is None:
        if zero is not None or attrs["block"]:
            raise ModelError("a zero point and a block of weights must have a scale")
        return None
    block = attrs["block"]
    wanted = [1] * len(w.shape)
    wanted[depth] = ceil_div(w.shape[depth], block) if block > 0 else 1
    shapes = (tuple(wanted), tuple(w.shape[channel] if axis == channel else dim for axis, dim in enumerate(wanted)))
    for tensor, dtype in ((scale, DType.FLOAT32), (zero or scale, DType.INT32 if zero else DType.FLOAT32)):
        if tensor.data is None or tensor.dtype is not dtype or tensor.shape not in shapes or block < 0:
            raise ModelError(f"scale and zero point of weights {list(w.shape)} must be constants {list(shapes[1])}")
    if zero is not None and zero.shape != scale.shape:
        raise ModelError(f"scale {list(scale.shape)} and zero {list(zero.shape)} of weights must have one shape")
    return scale


def _over(op: Op, parameter: Array) -> Array:
    """A parameter per block, repeated for each weight."""
    w, block = op.input(1).shape, op.attrs["block"]
    depth = 1 if op.kind == "conv" else len(w) - 2
    return np.repeat(parameter, block, depth).take(range(w[depth]), depth) if block else parameter


def spatial(shape: Shape, layout: str) -> tuple[int, int, int, int]:
    """(batch, channels, height, width) of an image tensor."""
    if len(shape) != 4:
        raise ModelError(f"an image must have 4 dimensions, got {list(shape)}")
    n, c, h, w = shape if layout == "NCHW" else (shape[0], shape[3], shape[1], shape[2])
    return n, c, h, w


def image(n: int, c: int, hw: tuple[int, int], layout: str) -> Shape:
    """The shape of an image tensor."""
    return (n, c, *hw) if layout == "NCHW" else (n, *hw, c)


def check_window(attrs: Attrs) -> None:
    """Raise ModelError unless layout, stride, dilation and pads are legal."""
    if attrs["layout"] not in ("NCHW", "NHWC"):
        raise ModelError(f"layout must be NCHW or NHWC, got {attrs['layout']!r}")
    for name, count, least in (("stride", 2, 1), ("dilation", 2, 1), ("pads", 4, 0)):
        if len(attrs[name]) != count or min(attrs[name]) < least:
            raise ModelError(f"{name} must be {count} integers >= {least}, got {list(attrs[name])}")


def window_extent(kernel: int, dilation: int) -> int:
    """Input positions from the first to the last tap of a window."""
    return (kernel - 1) * dilation + 1


def _check_bias(bias: Tensor | None, channels: int, dtype: DType) -> None:
    if bias is not None and (bias.shape != (channels,) or bias.dtype is not dtype):
        raise ModelError(f"bias must be {dtype.label}[{channels}], got {bias.dtype.label}{list(bias.shape)}")


class Blocks(NamedTuple):
    """Block-diagonal weights of a convolution: within each group, output channels are in blocks of ``oc``, each with
    weights for a block of ``ic`` input channels. ``first``: output channels of the group before the first one."""

    ic: int
    oc: int
    first: int = 0


class Phases(NamedTuple):
    """Output channels of a convolution as phases of a transposed one. Within each group, each ``oc`` channels are a
    phase, in ``rows`` rows of ``cols``. The first kernel row of phases from row ``full_rows`` on is not multiplied, nor
    is the last one of phases before row ``low_rows``. The same applies to columns. ``first``: output channels of the
    group before the first one."""

    oc: int
    rows: int
    cols: int
    full_rows: int
    full_cols: int
    low_rows: int
    low_cols: int
    first: int = 0


def on_diagonal(w: Array, groups: int, blocks: Blocks) -> Array:
    """The blocks of complete block-diagonal weights, as the weights of more groups."""
    oc, ic = w.shape[0] // groups, w.shape[1]
    split = w.reshape(groups, oc // blocks.oc, blocks.oc, ic // blocks.ic, blocks.ic, *w.shape[2:])
    each = np.arange(oc // blocks.oc)
    # Advanced indices separated by a slice come first in the result.
    return np.moveaxis(split[:, each, :, each], 0, 1).reshape(w.shape[0], blocks.ic, *w.shape[2:])


def _infer_conv(inputs: Inputs, attrs: Attrs) -> list[Result]:
    x, w = operand(inputs, 0), operand(inputs, 1)
    check_window(attrs)
    n, c, h, wd = spatial(x.shape, attrs["layout"])
    if len(w.shape) != 4 or min(w.shape) < 1:
        raise ModelError(f"weights must be [O, I/groups, KH, KW], got {list(w.shape)}")
    groups = attrs["groups"]
    if groups < 1 or c != w.shape[1] * groups or w.shape[0] % groups:
        raise ModelError(f"weights {list(w.shape)} do not fit {c} channels in {groups} groups")
    if attrs["blocks"]:
        blocks = Blocks(*attrs["blocks"])
        shape = w.shape[1], w.shape[0] // groups
        counts = [size // block if block > 0 else 0 for size, block in zip(shape, blocks, strict=False)]
        if not counts[0] or counts[0] != counts[1] or (counts[0] * blocks.ic, counts[1] * blocks.oc) != shape:
            raise ModelError(f"blocks {list(blocks[:2])} do not tile the {list(shape)} channels of a group")
    if attrs["phases"]:
        phases = Phases(*attrs["phases"])
        count = attrs["blocks"][1] if attrs["blocks"] else w.shape[0] // groups
        if phases.oc < 1 or count != phases.oc * phases.rows * phases.cols:
            raise ModelError(f"phases {list(phases)} are not the {count} output channels of a group")
    top, left, bottom, right = attrs["pads"]
    extent = [window_extent(k, d) for k, d in zip(w.shape[2:], attrs["dilation"], strict=True)]
    size = (h + top + bottom - extent[0], wd + left + right - extent[1])
    if min(size) < 0:
        raise ModelError(f"a window of {extent} does not fit into {h} x {wd} with pads {list(attrs['pads'])}")
    out = (size[0] // attrs["stride"][0] + 1, size[1] // attrs["stride"][1] + 1)
    dtype = accumulator(x, w, attrs, _check_scales(inputs, attrs, 1, 0))
    _check_bias(optional(inputs, 2), w.shape[0], dtype)
    return [(image(n, w.shape[0], out, attrs["layout"]), dtype)]


def _conv_types(inputs: Inputs, attrs: Attrs) -> bool:
    """operands are both floats of one type, or both int8, uint8 or int16; the first may be uint16"""
    x, w = operand(inputs, 0).dtype, operand(inputs, 1).dtype
    return (x.is_float and x is w) or (x in _PIXELS and w in SMALL_INTEGERS)


def _scaled_types(inputs: Inputs, attrs: Attrs) -> bool:
    """as for conv_transpose; constant int8 or uint8 weights with a scale stand for floats"""
    x, w = operand(inputs, 0).dtype, operand(inputs, 1).dtype
    if optional(inputs, 3) is not None:
        return x.is_float and w in (DType.INT8, DType.UINT8) and operand(inputs, 1).data is not None
    return _conv_types(inputs, attrs)


def _zero_in_range(inputs: Inputs, attrs: Attrs) -> bool:
    """x_zero is 0 for floats and int32, and a value of x's type for small integers"""
    dtype, zero = operand(inputs, 0).dtype, attrs["x_zero"]
    if dtype not in _PIXELS:
        return bool(zero == 0)
    info = np.iinfo(dtype.storage)
    return bool(info.min <= zero <= info.max)


def _weight_zero_in_range(inputs: Inputs, attrs: Attrs) -> bool:
    """w_zero is 0 unless the weights are int8 or uint8 without a scale, and a value of their type"""
    low, high = weight_zeros(operand(inputs, 1).dtype)
    if len(inputs) > 3 and inputs[3] is not None:
        return bool(attrs["w_zero"] == 0)
    return bool(low <= attrs["w_zero"] <= high)


def _factors(op: Op, arrays: Sequence[Array | None]) -> tuple[Array, Array]:
    """The factors of products: small integers less their zero points, x as int32, and weights with a zero point as
    int16."""
    x, w = widened(op, arrays, 0), widened(op, arrays, 1)
    if len(arrays) > 3 and arrays[3] is not None:
        zero = 0 if len(arrays) < 5 or arrays[4] is None else _over(op, arrays[4])
        with np.errstate(all="ignore"):
            product = (w.astype(np.int64) - zero).astype(np.float32) * _over(op, arrays[3])
        return x, _rounded(product, op.input(0).dtype)
    if op.input(0).dtype in _PIXELS:
        x = x.astype(np.int32) - np.int32(op.attrs["x_zero"])
    if op.attrs["w_zero"]:
        w = w.astype(np.int16) - np.int16(op.attrs["w_zero"])
    return x, w


def _rounded(values: Array, dtype: DType) -> Array:
    """Round float32 to another float type; the result is float32 again."""
    stored = narrow(values, dtype)
    return bfloat16_to_float32(stored) if dtype is DType.BFLOAT16 else stored.astype(np.float32)


def multiply(a: Array, b: Array, dtype: DType) -> Array:
    """np.matmul whose integer sums are exact and wrap to int32, or are int64."""
    if dtype is DType.INT64:
        return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64))).astype(np.int64)
    if dtype is not DType.INT32:
        with np.errstate(all="ignore"):
            return np.asarray(np.matmul(a, b))
    if a.dtype.itemsize <= 4 and b.dtype.itemsize <= 2:
        # Products of up to 17 by 16 bits: a double represents sums of less than 2**20 of them exactly.
        return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64))).astype(np.int64).astype(np.int32)
    return np.asarray(np.matmul(a.astype(np.int64), b.astype(np.int64))).astype(np.int32)


def _columns(x: Array, kernel: Shape, attrs: Attrs, out: Shape) -> Array:
    """[N, G, C/G * KH * KW, OH * OW] of a padded NCHW image."""
    n, c = x.shape[:2]
    (sh, sw), (dh, dw), groups = attrs["stride"], attrs["dilation"], attrs["groups"]
    b, ch, row, pixel = x.strides
    # Windows as a view of overlapping bytes, therefore read-only; the reshape below copies them.
    view = np.lib.stride_tricks.as_strided(
        x, (n, c, *kernel, *out), (b, ch, row * dh, pixel * dw, row * sh, pixel * sw), writeable=False
    )
    return view.reshape(n, groups, c // groups * kernel[0] * kernel[1], out[0] * out[1])


def _of_phases(columns: Array, w: Array, groups: int, phases: Phases, dtype: DType) -> Array:
    """[G, O/G, OH * OW]: each phase with its own kernel rows and columns. columns: see :func:`_columns`. 289 Pixels are
    the first factor: without their zero point they are int32, and only the second factor may be limited to 16 bits."""
    _, ic, kh, kw = w.shape
    columns, w = columns.reshape(groups, ic, kh, kw, -1), w.reshape(groups, -1, ic, kh, kw)
    y = np.zeros((groups, w.shape[1], columns.shape[-1]), dtype.storage if dtype.is_integer else columns.dtype)
    for at in range(0, w.shape[1], phases.oc):
        row, col = divmod(at // phases.oc, phases.cols)
        rows = slice(int(row >= phases.full_rows), kh - (row < phases.low_rows))
        cols = slice(int(col >= phases.full_cols), kw - (col < phases.low_cols))
        taps = columns[:, :, rows, cols].reshape(groups, -1, columns.shape[-1])
        weights = w[:, at : at + phases.oc, :, rows, cols].reshape(groups, phases.oc, -1)
        product = multiply(taps.transpose(0, 2, 1), weights.transpose(0, 2, 1), dtype)
        y[:, at : at + phases.oc] = product.transpose(0, 2, 1)
    return y


def _conv(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    x, w = _factors(op, arrays)
    attrs, dtype = op.attrs, op.output.dtype
    if attrs["layout"] == "NHWC":
        x = x.transpose(0, 3, 1, 2)
    top, left, bottom, right = attrs["pads"]
    # The zero point was subtracted, so padding is 0.
    x = np.ascontiguousarray(np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right))))
    n, _, oh, ow = spatial(op.output.shape, attrs["layout"])
    groups, oc = attrs["groups"], w.shape[0]
    if attrs["blocks"]:
        w = on_diagonal(w, groups, Blocks(*attrs["blocks"]))
        groups = x.shape[1] // w.shape[1]
    y = np.empty((n, oc, oh, ow), dtype.storage if dtype.is_integer else x.dtype)
    weights = w.reshape(groups, oc // groups, -1)
    # One image at a time: columns repeat every pixel for each tap, kh * kw times the image.
    for index in range(n):
        columns = _columns(x[index : index + 1], w.shape[2:], {**attrs, "groups": groups}, (oh, ow))[0]
        if attrs["phases"]:
            y[index] = _of_phases(columns, w, groups, Phases(*attrs["phases"]), dtype).reshape(oc, oh, ow)
            continue
        if dtype.is_integer:
            # Pixels first: without their zero point they are int32, and only the second factor may be limited to 16
            # bits.
            product = multiply(columns.transpose(0, 2, 1), weights.transpose(0, 2, 1), dtype).transpose(0, 2, 1)
        else:
            product = multiply(weights, columns, dtype)
        y[index] = product.reshape(oc, oh, ow)
    if op.optional(2) is not None:
        y = y + widened(op, arrays, 2)[:, None, None]
    return [narrow(y if attrs["layout"] == "NCHW" else y.transpose(0, 2, 3, 1), dtype)]


def _infer_conv_transpose(inputs: Inputs, attrs: Attrs) -> list[Result]:
    x, w = operand(inputs, 0), operand(inputs, 1)
    check_window(attrs)
    n, c, h, wd = spatial(x.shape, attrs["layout"])
    groups = attrs["groups"]
    if len(w.shape) != 4 or min(w.shape) < 1 or w.shape[0] != c or groups < 1 or c % groups:
        raise ModelError(f"weights must be [{c}, O/{groups}, KH, KW], got {list(w.shape)}")
    out = attrs["output_hw"]
    top, left, bottom, right = attrs["pads"]
    for size, extent, stride, dilation, kernel, pads in zip(
        out, (h, wd), attrs["stride"], attrs["dilation"], w.shape[2:], ((top, bottom), (left, right)), strict=True
    ):
        least = (extent - 1) * stride + window_extent(kernel, dilation) - sum(pads)
        # ONNX forbids it too: more output padding would add rows that no input pixel reaches.
        most = least + max(stride, dilation) - 1
        if size < 1 or not least <= size <= most:
            raise ModelError(f"output_hw {list(out)}: must be >= 1 and from {least} to {most}, got {size}")
    dtype = accumulator(x, w)
    _check_bias(optional(inputs, 2), w.shape[1] * groups, dtype)
    return [(image(n, w.shape[1] * groups, out, attrs["layout"]), dtype)]


def _conv_transpose(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    x, w = _factors(op, arrays)
    attrs = op.attrs
    if attrs["layout"] == "NHWC":
        x = x.transpose(0, 3, 1, 2)
    (n, c, h, wd), groups = x.shape, attrs["groups"]
    (sh, sw), (dh, dw), (top, left, _, _) = attrs["stride"], attrs["dilation"], attrs["pads"]
    oh, ow = attrs["output_hw"]
    kh, kw = w.shape[2:]
    # Large enough for all taps and for the output: outputs that no tap reaches stay 0, and the rest is cut off.
    full = np.zeros(
        (
            n,
            groups,
            w.shape[1],
            max((h - 1) * sh + window_extent(kh, dh), top + oh),
            max((wd - 1) * sw + window_extent(kw, dw), left + ow),
        ),
        x.dtype,
    )
    pixels = x.reshape(n, groups, c // groups, h * wd)
    for r in range(kh):
        for q in range(kw):
            taps = w[:, :, r, q].reshape(groups, c // groups, -1).transpose(0, 2, 1)
            part = multiply(taps, pixels, op.output.dtype).reshape(n, groups, w.shape[1], h, wd)
            rows = slice(r * dh, r * dh + (h - 1) * sh + 1, sh)
            with np.errstate(all="ignore"):
                full[:, :, :, rows, q * dw : q * dw + (wd - 1) * sw + 1 : sw] += part
    y = full.reshape(n, groups * w.shape[1], *full.shape[3:])[:, :, top : top + oh, left : left + ow]
    if op.optional(2) is not None:
        y = y + widened(op, arrays, 2)[:, None, None]
    return [narrow(y if attrs["layout"] == "NCHW" else y.transpose(0, 2, 3, 1), op.output.dtype)]


def _infer_matmul(inputs: Inputs, attrs: Attrs) -> list[Result]:
    a, b = operand(inputs, 0), operand(inputs, 1)
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise ModelError(f"operands must have at least 2 dimensions, got {list(a.shape)} and {list(b.shape)}")
    if a.shape[-1] != b.shape[-2]:
        raise ModelError(f"inner dimensions differ: {list(a.shape)} x {list(b.shape)}")
    dtype = accumulator(a, b, attrs, _check_scales(inputs, attrs, len(b.shape) - 2, len(b.shape) - 1))
    _check_bias(optional(inputs, 2), b.shape[-1], dtype)
    return [((*broadcast(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), dtype)]


def _matmul_types(inputs: Inputs, attrs: Attrs) -> bool:
    """as for conv; or both operands are int32"""
    a, b = operand(inputs, 0).dtype, operand(inputs, 1).dtype
    return _scaled_types(inputs, attrs) or (a is DType.INT32 and b is DType.INT32)


def _matmul(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    a, b = _factors(op, arrays)
    dtype = op.output.dtype
    y = multiply(a, b, dtype)
    if op.optional(2) is not None:
        y = y + widened(op, arrays, 2)
    return [narrow(y, dtype)]


_WINDOW = {"layout": REQUIRED, "stride": REQUIRED, "dilation": REQUIRED, "pads": REQUIRED, "groups": REQUIRED}
_ZEROS = {"x_zero": 0, "w_zero": 0}
_NARROW = {"wide": False, "w_bits": 0, "block": 0}
define(
    "conv",
    "x, w, bias*, scale*, zero*",
    "w is [O, I/groups, KH, KW] in either layout; pads: top, left, bottom, right. Of integers y is int32, the sum of "
    "(x - x_zero) * (w - w_zero), and padding counts as x_zero; wide: y is int64; w_bits: constant weights fit so many "
    "bits, 0: those of their type. bias: [O], of y's type. With a scale "
    "w stands for (w - zero) * scale, of one entry or one for each output channel, for each block input channels. "
    "blocks: only weights in blocks along the diagonal of each group are multiplied; phases: some phases of output "
    "channels have no first or no last kernel row or column; () means that all weights are multiplied",
    infer=_infer_conv,
    reference=_conv,
    unit=Unit.MATRIX,
    form=Lowered.TILES,
    attrs={**_WINDOW, **_ZEROS, **_NARROW, "blocks": (), "phases": ()},
    constraints=(_scaled_types, _zero_in_range, _weight_zero_in_range),
    folding=Folding.HEAVY,
)
define(
    "conv_transpose",
    "x, w, bias*",
    "w is [I, O/groups, KH, KW]; output_hw includes output padding; integers as in conv",
    infer=_infer_conv_transpose,
    reference=_conv_transpose,
    unit=Unit.MATRIX,
    form=Lowered.REWRITTEN,
    attrs={**_WINDOW, "output_hw": REQUIRED, **_ZEROS},
    constraints=(_conv_types, _zero_in_range, _weight_zero_in_range),
    folding=Folding.HEAVY,
)
define(
    "matmul",
    "a, b, bias*, scale*, zero*",
    "[..., M, K] x [..., K, N], the rest broadcast; integers as in conv, int32 x int32 wraps. bias: [N], of y's type",
    infer=_infer_matmul,
    reference=_matmul,
    unit=Unit.MATRIX,
    form=Lowered.TILES,
    attrs={**_ZEROS, **_NARROW},
    constraints=(_matmul_types, _zero_in_range, _weight_zero_in_range),
    folding=Folding.HEAVY,
)
