"""RESIZE_BILINEAR, RESIZE_NEAREST_NEIGHBOR."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from npusim.errors import UnsupportedError
from npusim.ops.geometry import bilinear_taps, nearest_pixels, resize_positions

from ..types import OperandType, OperationType
from .definition import define
from .lowering import InvalidOperationError, Lowering, operation_label
from .rules import input_types, inputs_beyond, positive, ranks, same_quantisation
from .signature import F16, F32, QUANT8, forms
from .versions import V1_2, V1_3
from .view import Array, OpView
from .windows import image_of, layout_of

_MOST_PIXELS = 1 << 20
"""Largest height and width of an output: a table has an entry for each."""
_ALIGN, _HALF_PIXEL = 4, 5
"""Optional inputs that select how positions are counted."""


def _resize_bilinear(op: Lowering) -> None:
    """The pixels on both sides of a position, weighted by distance; along height, then along width."""
    x = op.real(0)
    for axis, positions in _positions(op):
        index, weight = bilinear_taps(x.shape[axis], positions, bool(op.scalar(_HALF_PIXEL, False)))
        x = op.add("resample", [x, op.i32(index), op.f32(weight)], {"axis": axis})
    op.give_real(x)


def _resize_nearest_neighbor(op: Lowering) -> None:
    """The pixel that contains a position, or with aligned corners the nearest one."""
    x = op.tensor(0)
    for axis, positions in _positions(op):
        index = nearest_pixels(x.shape[axis], positions, bool(op.scalar(_ALIGN, False)))
        x = op.add("gather", [x, op.i32(index)], {"axis": axis})
    op.give(x)


def _positions(op: Lowering) -> Iterator[tuple[int, Array]]:
    """Along height, then width: the dimension, and the position of each output element in the input."""
    image = image_of(op.shape(0), layout_of(op, 3))
    first = 2 if image.layout == "NCHW" else 1
    for axis, size, asked in ((first, image.height, 2), (first + 1, image.width, 1)):
        count = _output_size(op, size, asked)
        yield axis, resize_positions(size, count, bool(op.scalar(_ALIGN, False)), bool(op.scalar(_HALF_PIXEL, False)))


def _output_size(op: Lowering, size: int, index: int) -> int:
    """Height or width of the output, which input ``index`` gives as a number or as a factor."""
    asked = op.scalar(index)
    count = int(asked) if op.type(index) == OperandType.INT32 else int(np.float32(size) * np.float32(asked))
    if count < 1:
        raise InvalidOperationError(f"input {index} must make an output of >= 1 pixels of {size}, got {asked}")
    if count > _MOST_PIXELS:
        reason = f"images of at most {_MOST_PIXELS} pixels in each direction are supported, got {count}"
        raise UnsupportedError([(operation_label(op.view), "resize", reason)])
    return count


def _one_convention(view: OpView) -> bool:
    """align_corners and half_pixel_centers must not both be true"""
    return not (view.scalar(_ALIGN) and view.scalar(_HALF_PIXEL))


_SIZES = [{"T": kind, "n": OperandType.INT32} for kind in (F32, F16, *QUANT8)]
_SCALES = [{"T": F16, "n": OperandType.FLOAT16}, *({"T": kind, "n": OperandType.FLOAT32} for kind in (F32, *QUANT8))]
_RULES = (ranks(0, 4), positive(1, 2), _one_convention, same_quantisation(0))

define(
    OperationType.RESIZE_BILINEAR,
    forms("T n n [ b [ b [ b ] ] ]", "T", _SIZES + _SCALES),
    _resize_bilinear,
    *_RULES,
    later=[
        inputs_beyond(4, V1_3),
        input_types(0, V1_2, *QUANT8),
        input_types(1, V1_2, OperandType.FLOAT32, OperandType.FLOAT16),
    ],
)
define(
    OperationType.RESIZE_NEAREST_NEIGHBOR,
    forms("T n n b [ b [ b ] ]", "T", _SIZES + _SCALES),
    _resize_nearest_neighbor,
    *_RULES,
    later=[inputs_beyond(4, V1_3)],
)
