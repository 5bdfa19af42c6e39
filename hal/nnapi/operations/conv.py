"""CONV_2D, DEPTHWISE_CONV_2D, GROUPED_CONV_2D, TRANSPOSE_CONV_2D."""

from __future__ import annotations

from collections.abc import Sequence

from npusim.graph import Tensor

from ..types import OperandType, OperationType
from .definition import define
from .lowering import InvalidOperationError, Lowering
from .products import BIAS, FILTER, X, bias_scale, channel_dim, factors, give_product
from .rules import ranks
from .signature import F16, F32, I32, Q8, Q8C, Q8S, forms
from .view import OpView
from .windows import Image, Pair, Window, channel_axis, image_of, implicit_pads, layout_of, window_rules

_ROWS = [
    {"T": F32, "W": F32, "B": F32},
    {"T": F16, "W": F16, "B": F16},
    *({"T": kind, "W": filters, "B": I32} for kind in (Q8, Q8S) for filters in (kind, Q8C)),
]
_CONV, _MULTIPLIED = Window(3, 3), Window(3, 4)
"""Padding, strides and activation; a depth multiplier or a number of groups is between the last two."""


def _image(op: Lowering, window: Window) -> Image:
    return image_of(op.shape(X), layout_of(op, window.layout(op.view)))


def _convolve(op: Lowering, window: Window, image: Image, groups: int, to_weights: Sequence[int]) -> None:
    """A convolution whose filter becomes [O, I / groups, KH, KW] by a transposition."""
    x, filters, attrs = factors(op)
    # A view of the constants, which the compiler repacks anyway.
    weights = op.transpose(filters, to_weights)
    _, height, width, _ = op.shape(FILTER)
    geometry = window.geometry(op, image.hw, (height, width))
    attrs |= geometry.attrs(image.layout) | {"groups": groups}
    product = op.add("conv", [x, weights, op.tensor(BIAS)], attrs)
    give_product(op, product, channel_axis(image.layout), window.activation(op.view))


def _conv(op: Lowering) -> None:
    image = _image(op, _CONV)
    _check_depth(op, image, 1)
    _convolve(op, _CONV, image, 1, (0, 3, 1, 2))


def _grouped_conv(op: Lowering) -> None:
    image = _image(op, _MULTIPLIED)
    groups = int(op.scalar(_MULTIPLIED.activation(op.view) - 1))
    if groups < 1 or op.shape(FILTER)[0] % groups:
        raise InvalidOperationError(f"{groups} groups must divide the {op.shape(FILTER)[0]} output channels")
    _check_depth(op, image, groups)
    _convolve(op, _MULTIPLIED, image, groups, (0, 3, 1, 2))


def _check_depth(op: Lowering, image: Image, groups: int) -> None:
    depth = op.shape(FILTER)[3]
    if depth * groups != image.channels:
        raise InvalidOperationError(f"a filter of depth {depth} and {groups} groups must fit {image.channels} channels")


def _depthwise_conv(op: Lowering) -> None:
    """Output channel c * multiplier + m depends on input channel c alone."""
    image = _image(op, _MULTIPLIED)
    first, _, _, depth = op.shape(FILTER)
    multiplier = int(op.scalar(_MULTIPLIED.activation(op.view) - 1))
    if first != 1 or depth != image.channels * multiplier:
        raise InvalidOperationError(
            f"the filter must be [1, height, width, {image.channels} * {multiplier}], got {list(op.shape(FILTER))}"
        )
    _convolve(op, _MULTIPLIED, image, image.channels, (3, 0, 1, 2))


_TRANSPOSED, _TRANSPOSED_INTO = Window(3, 3), Window(4, 3)
"""With explicit padding; with the output's shape as input 3."""


def _transposed(view: OpView) -> Window:
    return _TRANSPOSED_INTO if view.type(_TRANSPOSED.first) == OperandType.TENSOR_INT32 else _TRANSPOSED


def _transpose_conv(op: Lowering) -> None:
    window = _transposed(op.view)
    image = _image(op, window)
    _check_depth(op, image, 1)
    stride, (depth, *kernel, _) = window.strides(op), op.shape(FILTER)
    # Each pixel adds its window to the output; windows start a stride apart and cover ``size`` elements.
    full = [(pixels - 1) * step + taps for pixels, step, taps in zip(image.hw, stride, kernel, strict=True)]
    x, filters, attrs = factors(op)
    if window is _TRANSPOSED:
        pads = window.explicit_pads(op)
        out = (full[0] - pads[0] - pads[2], full[1] - pads[1] - pads[3])
    else:
        out = _asked_size(op, image, depth)
        scheme = window.scheme(op)
        top, left = (implicit_pads(*each, scheme)[0] for each in zip(out, stride, kernel, strict=True))
        over = (full[0] - top - out[0], full[1] - left - out[1])
        # The operator has no outputs that no input reaches. Behind an image padded with zeros such elements are the
        # bias.
        x = _reaching(op, x, image, (-over[0] // stride[0], -over[1] // stride[1]))
        pads = (top, left, max(over[0], 0), max(over[1], 0))
    if min(out) < 1:
        raise InvalidOperationError(f"padding {list(pads)} leaves nothing of {full[0]} x {full[1]} elements")
    attrs |= {"layout": image.layout, "stride": stride, "dilation": (1, 1), "pads": pads, "groups": 1, "output_hw": out}
    operands: list[Tensor | None] = [x, op.transpose(filters, (3, 0, 1, 2)), op.tensor(BIAS)]
    product = op.add("conv_transpose", operands, attrs)
    give_product(op, product, channel_axis(image.layout), window.activation(op.view))


def _reaching(op: Lowering, x: Tensor, image: Image, more: Pair) -> Tensor:
    """Pad the image at its end with ``more`` rows and columns of 0: outputs that no window reaches are the bias."""
    rows, columns = max(more[0], 0), max(more[1], 0)
    if not rows and not columns:
        return x
    after = (0, 0, rows, columns) if image.layout == "NCHW" else (0, rows, columns, 0)
    zero = op.view.inputs[X].zeroPoint
    return op.add("pad", [x], {"before": (0, 0, 0, 0), "after": after, "mode": "constant", "value": zero})


def _asked_size(op: Lowering, image: Image, depth: int) -> Pair:
    """Height and width of the output, from input 3."""
    shape = op.ints(3)
    if len(shape) != 4 or min(shape) < 0:
        raise InvalidOperationError(f"input 3, the output shape, must be 4 numbers >= 0, got {list(shape)}")
    asked = image_of(shape, image.layout)
    if (asked.batches, asked.channels) != (image.batches, depth):
        raise InvalidOperationError(
            f"input 3 asks for {asked.batches} images of {asked.channels} channels, "
            f"the operation makes {image.batches} of {depth}"
        )
    return asked.hw


_RULES = (ranks(X, 4), ranks(FILTER, 4), ranks(BIAS, 1), bias_scale)
define(
    OperationType.CONV_2D,
    forms("T W B i*4 [ b [ i i ] ]", "T", _ROWS) | forms("T W B i*7 [ b [ i i ] ]", "T", _ROWS),
    _conv,
    *_RULES,
    channel_dim(0),
    *window_rules(lambda view: _CONV),
)
define(
    OperationType.DEPTHWISE_CONV_2D,
    forms("T W B i*5 [ b [ i i ] ]", "T", _ROWS) | forms("T W B i*8 [ b [ i i ] ]", "T", _ROWS),
    _depthwise_conv,
    *_RULES,
    channel_dim(3),
    *window_rules(lambda view: _MULTIPLIED),
)
define(
    OperationType.GROUPED_CONV_2D,
    forms("T W B i*5 b", "T", _ROWS) | forms("T W B i*8 b", "T", _ROWS),
    _grouped_conv,
    *_RULES,
    channel_dim(0),
    *window_rules(lambda view: _MULTIPLIED),
)
define(
    OperationType.TRANSPOSE_CONV_2D,
    forms("T W B I32 i*4 b", "T", _ROWS) | forms("T W B i*7 b", "T", _ROWS),
    _transpose_conv,
    *_RULES,
    channel_dim(0),
    ranks(3, 0, 1),
    *window_rules(_transposed),
)
