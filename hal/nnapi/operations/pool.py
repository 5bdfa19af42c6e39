"""AVERAGE_POOL_2D, MAX_POOL_2D, L2_POOL_2D."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from npusim.graph import Tensor
from npusim.isa.functions import Unary

from ..types import OperationType
from .definition import define
from .lowering import InvalidOperationError, Lowering, activation_bounds
from .rules import ranks, same_quantisation
from .signature import F16, F32, QUANT8, forms, rows
from .view import QUANTISED, STORAGE
from .windows import Window, image_of, layout_of, output_size, window_rules

_POOL = Window(1, 5)
"""Padding, strides, filter width and height, activation."""


def _pool(function: Literal["max", "average"]) -> Callable[[Lowering], None]:
    """Pooling of stored numbers: quantised inputs and outputs have the same scale."""

    def lower(op: Lowering) -> None:
        result = _windows(op, op.tensor(0), function)
        activation = _POOL.activation(op.view)
        if op.type(0) in QUANTISED:
            # Without converting to real numbers: one rounding less, and much faster.
            op.give(_clip_levels(op, result, int(op.scalar(activation))))
        else:
            op.give(op.activate(result, activation))

    return lower


def _l2_pool(op: Lowering) -> None:
    """The root of the mean square of each window."""
    squares = op.unary(Unary.SQUARE, op.real(0))
    mean = _windows(op, squares, "average")
    op.give_real(op.activate(op.unary(Unary.SQRT, mean), _POOL.activation(op.view)))


def _windows(op: Lowering, x: Tensor, function: Literal["max", "average"]) -> Tensor:
    """The largest or the mean element of each window; padding does not count."""
    image = image_of(x.shape, layout_of(op, _POOL.layout(op.view)))
    first = _POOL.stride(op.view) + 2
    kernel = (int(op.scalar(first + 1)), int(op.scalar(first)))
    if min(kernel) < 1:
        raise InvalidOperationError(f"filter width and height must be >= 1, got {kernel[1]} and {kernel[0]}")
    geometry = _POOL.geometry(op, image.hw, kernel)
    top, left, bottom, right = geometry.pads
    if max(top, bottom) >= kernel[0] or max(left, right) >= kernel[1]:
        raise InvalidOperationError(f"padding {list(geometry.pads)} must be less than the window of {list(kernel)}")
    rows = output_size(image.height, (top, bottom), geometry.stride[0], kernel[0])
    columns = output_size(image.width, (left, right), geometry.stride[1], kernel[1])
    attrs = geometry.attrs(image.layout) | {"fn": function, "kernel": kernel, "output_hw": (rows, columns)}
    return op.add("pool", [x], attrs)


def _clip_levels(op: Lowering, tensor: Tensor, function: int) -> Tensor:
    """A fused activation on quantised integers: its bounds are quantised."""
    bounds = activation_bounds(function)
    if bounds is None:
        return tensor
    target = op.view.outputs[0]
    info = np.iinfo(STORAGE[target.type])
    # An infinite bound stays infinite up to here: it becomes the largest integer.
    low, high = (
        np.clip(np.rint(np.float32(bound) / np.float32(target.scale)) + target.zeroPoint, info.min, info.max)
        for bound in bounds
    )
    return op.unary(Unary.CLIP, tensor, low, high)


def _define(kind: OperationType, types: tuple[int, ...], lower: Callable[[Lowering], None]) -> None:
    signatures = forms("T i*6 [ b ]", "T", rows("T", types)) | forms("T i*9 [ b ]", "T", rows("T", types))
    define(kind, signatures, lower, ranks(0, 4), same_quantisation(0), *window_rules(lambda view: _POOL))


_define(OperationType.AVERAGE_POOL_2D, (F32, F16, *QUANT8), _pool("average"))
_define(OperationType.MAX_POOL_2D, (F32, F16, *QUANT8), _pool("max"))
_define(OperationType.L2_POOL_2D, (F32, F16), _l2_pool)
