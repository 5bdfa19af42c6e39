"""Shared parts of convolutions and pools: image layout, strides, padding, and their input indexes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from npusim.errors import UnsupportedError
from npusim.ops.geometry import same_pads

from ..types import OperandType
from .definition import Rule
from .lowering import InvalidOperationError, Lowering, operation_label
from .view import OpView, Shape

NONE, SAME, VALID = 0, 1, 2
"""Implicit padding schemes; NONE adds no padding, like VALID."""
_SCHEMES = "0 (NONE), 1 (SAME) or 2 (VALID)"
_MOST = 0xFFFF
"""Limits of instruction fields."""

Pair = tuple[int, int]
"""One number for the height, one for the width."""


class Image(NamedTuple):
    """The dimensions of an image by name."""

    batches: int
    height: int
    width: int
    channels: int
    layout: str

    @property
    def hw(self) -> Pair:
        """Height and width."""
        return self.height, self.width


def layout_of(op: Lowering, index: int) -> str:
    """The data layout that BOOL input ``index`` selects; NHWC if it is omitted."""
    return "NCHW" if op.scalar(index, False) else "NHWC"


def image_of(shape: Shape, layout: str) -> Image:
    """The dimensions of an image of this shape; only its batches may be 0."""
    if len(shape) != 4:
        raise InvalidOperationError(f"an image must have rank 4, got {list(shape)}")
    n, h, w, c = shape if layout == "NHWC" else (shape[0], shape[2], shape[3], shape[1])
    if min(h, w, c) < 1:
        raise InvalidOperationError(f"height, width and depth of an image must be >= 1, got {list(shape)} ({layout})")
    return Image(n, h, w, c, layout)


def channel_axis(layout: str) -> int:
    """The channel dimension of an image."""
    return 1 if layout == "NCHW" else 3


class Geometry(NamedTuple):
    """Movement of a window. ``pads``: top, left, bottom, right."""

    stride: Pair
    dilation: Pair
    pads: tuple[int, int, int, int]

    def attrs(self, layout: str) -> dict[str, Any]:
        """As attributes of the graph's operators."""
        return {"layout": layout, "stride": self.stride, "dilation": self.dilation, "pads": self.pads}


@dataclass(frozen=True, slots=True)
class Window:
    """The parameter inputs of an operation with a window.

    ``first``: the first padding input, one scheme or pads of left, right, top and bottom. It is followed by strides
    (width, height) and other INT32 scalars, ``scalars`` in all, the last of them the fused activation; then the
    optional layout and dilation factors (width, height).
    """

    first: int
    scalars: int

    def explicit(self, view: OpView) -> bool:
        """Whether the padding is given per side."""
        # The interface distinguishes the two forms only by this input's type: BOOL is a layout, INT32 one more number.
        behind = self.first + 1 + self.scalars  # end of an implicit form, or position of its layout
        return len(view.inputs) > behind and view.type(behind) == OperandType.INT32

    def stride(self, view: OpView) -> int:
        """The first input of strides."""
        return self.first + (4 if self.explicit(view) else 1)

    def activation(self, view: OpView) -> int:
        """The input that names the fused activation."""
        return self.stride(view) + self.scalars - 1

    def layout(self, view: OpView) -> int:
        """The input that selects the layout."""
        return self.stride(view) + self.scalars

    def strides(self, op: Lowering) -> Pair:
        """The strides of a valid operation."""
        at = self.stride(op.view)
        width, height = _at_least(op, at, 1), _at_least(op, at + 1, 1)
        return height, width

    def dilation(self, op: Lowering) -> Pair:
        """The dilation factors; 1 where they are not given."""
        at = self.layout(op.view) + 1
        if op.omitted(at):
            return 1, 1
        width, height = _at_least(op, at, 1), _at_least(op, at + 1, 1)
        return height, width

    def scheme(self, op: Lowering) -> int:
        """The implicit padding scheme."""
        value = int(op.scalar(self.first))
        if value not in (NONE, SAME, VALID):
            raise InvalidOperationError(f"input {self.first} must be a padding scheme, {_SCHEMES}, got {value}")
        return value

    def explicit_pads(self, op: Lowering) -> tuple[int, int, int, int]:
        """The explicit pads: top, left, bottom, right."""
        left, right, top, bottom = (_at_least(op, self.first + side, 0) for side in range(4))
        return top, left, bottom, right

    def geometry(self, op: Lowering, hw: Pair, kernel: Pair) -> Geometry:
        """The movement of a window of ``kernel`` taps over ``hw`` pixels."""
        stride, dilation = self.strides(op), self.dilation(op)
        extent = _each(lambda taps, factor: (taps - 1) * factor + 1, kernel, dilation)
        if self.explicit(op.view):
            pads = self.explicit_pads(op)
        else:
            scheme = self.scheme(op)
            top, bottom = implicit_pads(hw[0], stride[0], extent[0], scheme)
            left, right = implicit_pads(hw[1], stride[1], extent[1], scheme)
            pads = (top, left, bottom, right)
        padded = hw[0] + pads[0] + pads[2], hw[1] + pads[1] + pads[3]
        # Strides beyond the image, and distances between taps of a kernel of one, are never used.
        stride = _each(min, stride, padded)
        dilation = _each(lambda taps, factor: factor if taps > 1 else 1, kernel, dilation)
        most = max(*kernel, *stride, *dilation)
        if most > _MOST:
            reason = f"windows, strides and dilation factors of at most {_MOST} are supported, got {most}"
            raise UnsupportedError([(operation_label(op.view), "window", reason)])
        return Geometry(stride, dilation, pads)


def _each(function: Callable[[int, int], int], a: Pair, b: Pair) -> Pair:
    return function(a[0], b[0]), function(a[1], b[1])


def implicit_pads(size: int, stride: int, extent: int, scheme: int) -> Pair:
    """Return the padding before and after one dimension: SAME gives ceil(size / stride) windows, with the odd element
    at the end."""
    if scheme != SAME:
        return 0, 0
    return same_pads(size, stride, extent)


def output_size(size: int, pads: Pair, stride: int, extent: int) -> int:
    """Number of windows in one dimension. Raises InvalidOperationError if none fits."""
    room = size + sum(pads) - extent
    if room < 0:
        raise InvalidOperationError(f"a window of {extent} does not fit into {size} elements with padding {list(pads)}")
    return room // stride + 1


def _at_least(op: Lowering, index: int, least: int) -> int:
    value = int(op.scalar(index))
    if value < least:
        raise InvalidOperationError(f"input {index} must be >= {least}, got {value}")
    return value


def window_rules(window: Callable[[OpView], Window]) -> tuple[Rule, ...]:
    """The rules of the parameters of operations with windows; ``window``: their input indexes."""

    def padding(view: OpView) -> bool:
        """the implicit padding scheme must be 0 (NONE), 1 (SAME) or 2 (VALID), each explicit padding >= 0"""
        at = window(view)
        if not at.explicit(view):
            return view.scalar(at.first) in (None, NONE, SAME, VALID)
        sides = [view.scalar(at.first + side) for side in range(4)]
        return all(side is None or side >= 0 for side in sides)

    def steps(view: OpView) -> bool:
        """strides, dilation factors, sizes of windows and numbers of groups must be >= 1"""
        at = window(view)
        first, layout = at.stride(view), at.layout(view)
        counts = [*range(first, layout - 1), *range(layout + 1, len(view.inputs))]
        return all((value := view.scalar(index)) is None or value >= 1 for index in counts)

    def fused_activation(view: OpView) -> bool:
        """the fused activation must be a FusedActivationFunc: 0 to 3"""
        return view.scalar(window(view).activation(view)) in (None, 0, 1, 2, 3)

    return padding, steps, fused_activation
