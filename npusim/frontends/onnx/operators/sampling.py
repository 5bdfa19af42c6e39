"""GridSample: each output pixel is a weighted sum of input pixels at computed positions."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from npusim.dtypes import DType
from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.registry import handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Unary

CUBIC = -0.75
"""The coefficient of the cubic convolution kernel, as fixed by the standard."""
PADDINGS = ("zeros", "border", "reflection")


@dataclass(frozen=True)
class SampleTap:
    """One sample along one dimension: the INT64 index of each output element and its weight (None: 1)."""

    index: Tensor
    weight: Tensor | None


def _integers(node: Node, fn: Binary, x: Tensor, value: int) -> Tensor:
    return node.binary(fn, x, node.const(np.int64(value)))


def _scaled(node: Node, x: Tensor, factor: float, offset: float) -> Tensor:
    """x * factor + offset."""
    return node.binary(Binary.ADD, node.binary(Binary.MUL, x, node.like(factor, x)), node.like(offset, x))


def _position(node: Node, grid: Tensor, component: int, size: int, align: bool) -> Tensor:
    """A component of the grid as a position in pixels: -1 and 1 are the centres, or the outer edges, of the border
    pixels."""
    column = node.slice(grid, len(grid.shape) - 1, component, 1)
    position = node.reshape(column, grid.shape[:-1])
    half = (size - 1) / 2 if align else size / 2
    return _scaled(node, position, half, half if align else half - 0.5)


def _polynomial(node: Node, x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """A polynomial by Horner's rule, highest power first."""
    y = node.expand(node.like(coefficients[0], x), x.shape)
    for coefficient in coefficients[1:]:
        y = node.binary(Binary.ADD, node.binary(Binary.MUL, y, x), node.like(coefficient, x))
    return y


def _weights(node: Node, fraction: Tensor, mode: str) -> list[Tensor]:
    """Weights of the neighbours: two for linear, four for cubic interpolation."""
    if mode == "linear":
        return [_scaled(node, fraction, -1.0, 1.0), fraction]
    rest = _scaled(node, fraction, -1.0, 1.0)
    # The cubic kernel at distance t is (a + 2) t^3 - (a + 3) t^2 + 1, and at distance 2 - t it is a (t^2 - t^3).
    near, far = (CUBIC + 2, -(CUBIC + 3), 0.0, 1.0), (-CUBIC, CUBIC, 0.0, 0.0)
    steps = ((rest, far), (fraction, near), (rest, near), (fraction, far))
    return [_polynomial(node, t, coefficients) for t, coefficients in steps]


def _inside(node: Node, index: Tensor, size: int, padding: str, align: bool) -> Tensor:
    """Map indices outside [0, size) to the inside."""
    if padding != "reflection":
        return _integers(node, Binary.MIN, _integers(node, Binary.MAX, index, 0), size - 1)
    period = 2 * (size - 1) if align else 2 * size
    if period == 0:
        return _integers(node, Binary.MUL, index, 0)
    # MOD has the sign of the divisor, so pixels left of the image are reflected like those right of it.
    folded = _integers(node, Binary.MOD, index, period)
    mirrored = node.binary(Binary.SUB, node.const(np.int64(period if align else period - 1)), folded)
    return node.binary(Binary.MIN, folded, mirrored)


def taps_along(node: Node, position: Tensor, size: int, mode: str, padding: str, align: bool) -> list[SampleTap]:
    """The neighbours of a position along one dimension."""
    base = node.unary(Unary.ROUND if mode == "nearest" else Unary.FLOOR, position)
    first = node.cast(base, DType.INT64)
    offsets = {"nearest": [0], "linear": [0, 1], "cubic": [-1, 0, 1, 2]}[mode]
    weights: list[Tensor | None] = [None]
    if mode != "nearest":
        weights = [*_weights(node, node.binary(Binary.SUB, position, base), mode)]
    taps = []
    for offset, weight in zip(offsets, weights, strict=True):
        index = _integers(node, Binary.ADD, first, offset)
        inside = _inside(node, index, size, padding, align)
        if padding == "zeros":
            there = node.cast(node.binary(Binary.EQ, index, inside), position.dtype)
            weight = there if weight is None else node.binary(Binary.MUL, weight, there)
        taps.append(SampleTap(inside, weight))
    return taps


def weighted_pixels(
    node: Node, rows: Tensor, start: Tensor, sizes: Sequence[int], options: Sequence[Sequence[SampleTap]]
) -> Iterator[Tensor]:
    """The pixels at each combination of taps, times their weights.

    ``rows``: pixels of all images with their channels, [n, channels]. ``start``: the row of the first pixel of the
    image of each position. ``sizes``: of an image. ``options``: the taps along each of its dimensions.
    """
    for taps in itertools.product(*options):
        place, weight = start, None
        for axis, tap in enumerate(taps):
            place = node.binary(Binary.ADD, place, _integers(node, Binary.MUL, tap.index, math.prod(sizes[axis + 1 :])))
            if tap.weight is not None:
                weight = tap.weight if weight is None else node.binary(Binary.MUL, weight, tap.weight)
        pixels = node.add("gather", rows, place, axis=0)
        if weight is not None:
            factor = node.reshape(node.cast(weight, rows.dtype), (*weight.shape, 1))
            pixels = node.binary(Binary.MUL, pixels, factor)
        yield pixels


def interpolated(
    node: Node, rows: Tensor, start: Tensor, sizes: Sequence[int], options: Sequence[Sequence[SampleTap]]
) -> Tensor:
    """The sum of :func:`weighted_pixels`."""
    first, *rest = weighted_pixels(node, rows, start, sizes, options)
    return functools.reduce(functools.partial(node.binary, Binary.ADD), rest, first)


@handles("GridSample")
def grid_sample(node: Node) -> Tensor:
    """Import GridSample as gathers with weights."""
    x, grid = node.input(0), node.input(1)
    mode = node.text_attr("mode", "linear").removeprefix("bi")
    padding, align = node.text_attr("padding_mode", "zeros"), bool(node.int_attr("align_corners", 0))
    rank = len(x.shape) - 2
    if rank < 1 or len(grid.shape) != rank + 2 or grid.shape[-1] != rank or grid.shape[0] != x.shape[0]:
        node.damaged(f"grid {list(grid.shape)} does not fit input {list(x.shape)}")
    if mode not in ("nearest", "linear", "cubic") or padding not in PADDINGS:
        node.damaged(f"mode {mode!r} or padding_mode {padding!r} is unknown")
    n, channels, sizes = x.shape[0], x.shape[1], x.shape[2:]
    if not x.size:
        node.refuse("an empty input is not supported")
    # Channels last, so that a pixel with all channels is one row of a gather.
    rows = node.reshape(node.transpose(x, (0, *range(2, rank + 2), 1)), (n * math.prod(sizes), channels))
    # The last component of the grid belongs to the first spatial dimension.
    positions = [_position(node, grid, rank - 1 - axis, size, align) for axis, size in enumerate(sizes)]
    options = [taps_along(node, p, size, mode, padding, align) for p, size in zip(positions, sizes, strict=True)]
    node.limit(n)
    start = node.const(np.arange(n).reshape(n, *[1] * rank) * math.prod(sizes), DType.INT64)
    total = interpolated(node, rows, start, sizes, options)
    return node.transpose(total, (0, rank + 1, *range(1, rank + 1)))
