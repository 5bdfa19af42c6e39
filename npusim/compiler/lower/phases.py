"""Dilated convolutions by phases: outputs that share inputs become neighbours, as in a convolution without dilation.

With dilation d, output rows r, r + d, r + 2d ... read the same input rows, and no other output rows read these. Tiles
of such rows need no more input than tiles of neighbouring rows without dilation. The rows of one phase are treated as
an image. For a signal (an image with one row), the pixels form rows of d columns, and the kernel spans these rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import groupby, product
from math import gcd
from operator import mul

from npusim.compiler.buffers import View
from npusim.compiler.codegen.issue import Item, Slot
from npusim.compiler.lower.base import Box, Context
from npusim.compiler.lower.conv import ConvLowering, Window, padded
from npusim.compiler.lower.matrix_tiling import Extent, OutputTile
from npusim.compiler.lower.matrix_weights import Part
from npusim.graph import Op
from npusim.timing.tile_problem import input_window
from npusim.units import ceil_div


def phased(op: Op) -> type[ConvLowering] | None:
    """The class that lowers a convolution by phases; None without dilation or with too few outputs."""
    attrs = op.attrs
    if attrs["phases"]:  # phases of a transposed convolution, by rows and columns of the kernel
        return None
    rows, cols = (2, 3) if attrs["layout"] == "NCHW" else (1, 2)
    x, y, kernel = op.input(0).shape, op.output.shape, op.input(1).shape[2:]
    (sh, sw), (dh, dw) = attrs["stride"], attrs["dilation"]
    if kernel[0] > 1 and dh > 1 and y[rows] > dh // gcd(sh, dh):
        return RowPhases
    signal = x[rows] == y[rows] == kernel[0] == 1 and not (attrs["pads"][0] or attrs["pads"][2])
    return PixelPhases if signal and kernel[1] > 1 and dw > 1 and y[cols] > dw // gcd(sw, dw) else None


class PhaseConvLowering(ConvLowering):
    """A convolution by phases: changes the views of its result and of its chain's operands."""

    def views(self, context: Context, window: Window) -> Context | None:
        out = self._out.permute(self._axes)
        axes, plain = self._axes, self._out.shape
        chain = {each: self.folded(context.view(each).broadcast(plain).permute(axes)) for each in self.group.loads()}
        self._out = self.folded(out)
        self._axes = self._places = tuple(range(len(self._out.shape)))
        return Context(context.config, context.constants, chain, memo=context.memo, facts=context.facts)

    @abstractmethod
    def folded(self, view: View) -> View:
        """A view [image, row, column, channel] by phases.

        The last row of some phases is past the end of the view. No tile uses it.
        """


class RowPhases(PhaseConvLowering):
    """The rows of each phase as an image."""

    def walked(self, window: Window) -> Window:
        common = gcd(window.sh, window.dh)
        self._dilation, self._count = window.dh, window.dh // common
        self._stride, self._height = window.sh, self._out.permute(self._axes).shape[1]
        return window._replace(sh=window.sh // common, dh=1)

    def folded(self, view: View) -> View:
        (images, height, *shape), (image, row, *strides) = view.shape, view.strides
        sizes = (images, self._count, ceil_div(height, self._count), *shape)
        return View(view.buffer, view.offset, sizes, (image, row, row * self._count, *strides), view.dtype)

    def extents(self) -> tuple[int, ...]:
        images, count, *sizes = super().extents()
        return images * count, *sizes

    def box(self, task: OutputTile, extent: Extent) -> Box:
        channel = task.group * self.problem.oc + task.channel
        sizes = (1, 1, extent.rows, extent.cols, extent.groups * extent.channels)
        return (*divmod(task.image, self._count), task.row, task.col, channel), sizes

    def padding(self, window: Window, out: Sequence[int]) -> tuple[int, int, int, int] | None:
        (top, left, *_), (_, height, width, _) = self._pads, self._x.shape
        return padded(window, out, (ceil_div(height, self._dilation), width, ceil_div(top, self._dilation), left))

    def spatial(self) -> list[tuple[int, int, int]]:
        return [each for each in super().spatial() if each[1] < self._rows_of(each[0])]

    def _rows_of(self, phase: int) -> int:
        """Rows of a phase of any image."""
        return ceil_div(self._height - phase % self._count, self._count)

    def extent(self, task: OutputTile) -> Extent:
        extent = super().extent(task)
        return extent._replace(rows=min(extent.rows, self._rows_of(task.image) - task.row))

    def _start(self, task: OutputTile, part: Part) -> tuple[int, int, int, int]:
        """Image, row, column and channel of the input at the corner of a part of a tile."""
        _, col = self._corner(task, part)
        image, phase = divmod(task.image, self._count)
        row = (phase + task.row * self._count) * self._stride - self._pads[0] + part.row * self._dilation
        return image, row, col, task.group * self.problem.ic + part.channel

    def x_part(self, task: OutputTile, extent: Extent, part: Part) -> View:
        rows, cols = self._reached(extent, part)
        sizes = (1, rows, cols, extent.groups * part.channels)
        return self._x.slice(self._start(task, part), sizes, (1, self._dilation, 1, 1))

    def load_x(self, task: OutputTile, extent: Extent, part: Part, slot: Slot) -> list[Item]:
        window = input_window(self.problem, self.tile, (extent.rows, extent.cols), (part.rows, part.cols))
        window = window._replace(row_step=window.row_step * self._dilation)
        return self.load_window(self._start(task, part), window, extent.groups * part.channels, slot)


class PixelPhases(PhaseConvLowering):
    """The pixels of a signal as rows with one column for each phase. The columns of the kernel become rows.

    Outputs of one row read pixels that are a stride apart. Taps, and with them rows of the input, are a dilation apart.
    """

    both_ways = True

    def walked(self, window: Window) -> Window:
        common = gcd(window.sw, window.dw)
        self._stride, self._dilation, self._count = window.sw, window.dw, window.dw // common
        self._width = self._out.permute(self._axes).shape[2]
        return Window(window.kw, 1, window.sw // common, 1, 1, 1)

    def folded(self, view: View) -> View:
        (images, _, width, channels), (image, _, pixel, channel) = view.shape, view.strides
        sizes = (images, ceil_div(width, self._count), self._count, channels)
        return View(view.buffer, view.offset, sizes, (image, pixel * self._count, pixel, channel), view.dtype)

    def padding(self, window: Window, out: Sequence[int]) -> tuple[int, int, int, int] | None:
        rows, before = (ceil_div(pixels, self._dilation) for pixels in (self._x.shape[2], self._pads[1]))
        return padded(window, out, (rows, self._count, before, 0))

    def spatial(self) -> list[tuple[int, int, int]]:
        # Pixels after the last whole row are separate tiles.
        rows, rest = divmod(self._width, self._count)
        whole = product(range(0, rows, self.tile.oh), range(0, self._count, self.tile.ow))
        places = [*whole, *((rows, col) for col in range(0, rest, self.tile.ow))]
        return [(image, *place) for image in range(self.problem.images) for place in places]

    def extent(self, task: OutputTile) -> Extent:
        extent = super().extent(task)
        rows, rest = divmod(self._width, self._count)
        if task.row == rows:
            return extent._replace(cols=min(extent.cols, rest - task.col))
        return extent._replace(rows=min(extent.rows, rows - task.row))

    def _first(self, task: OutputTile, part: Part) -> int:
        """The input pixel at the corner of a part of a tile; negative in the padding."""
        left: int = self._pads[1]
        return (task.row * self._count + task.col) * self._stride + part.row * self._dilation - left

    def _pixels(self, start: tuple[int, int, int], sizes: tuple[int, int, int], row_step: int = 1) -> View:
        """Every ``row_step``-th row, columns and channels of the input from an image, a pixel and a channel on."""
        image, _, pixel, channel = self._x.strides
        offset = self._x.offset + sum(map(mul, start, (image, pixel, channel)))
        strides = image, pixel * self._dilation * row_step, pixel * self._stride, channel
        return View(self._x.buffer, offset, (1, *sizes), strides, self._x.dtype)

    def x_part(self, task: OutputTile, extent: Extent, part: Part) -> View:
        start = task.image, self._first(task, part), task.group * self.problem.ic + part.channel
        return self._pixels(start, (*self._reached(extent, part), extent.groups * part.channels))

    def load_x(self, task: OutputTile, extent: Extent, part: Part, slot: Slot) -> list[Item]:
        window = input_window(self.problem, self.tile, (extent.rows, extent.cols), (part.rows, part.cols))
        rows, cols, row_step, _ = window
        first, limit, count = self._first(task, part), self._x.shape[2], extent.groups * part.channels
        channel = task.group * self.problem.ic + part.channel

        def inside(row: int) -> tuple[int, int]:
            start = first + row * row_step * self._dilation
            low, high = (min(max(ceil_div(end - start, self._stride), 0), cols) for end in (0, limit))
            return (low, high) if low < high else (cols, cols)

        items: list[Item] = []
        # Rows in which the signal begins or ends have their own padding.
        for (low, high), alike in groupby(range(rows), key=inside):
            row, *more = alike
            pixel = first + row * row_step * self._dilation + low * self._stride if low < high else 0
            source = self._pixels((task.image, pixel, channel), (1 + len(more), high - low, count), row_step)
            items += self.bring_rows(slot, row * cols, cols, source, (0, low, 0, cols - high))
        return items

    def load_weights(self, task: OutputTile, extent: Extent, part: Part, slot: Slot) -> list[Item]:
        turned = part._replace(row=part.col, rows=part.cols, col=part.row, cols=part.rows)
        return super().load_weights(task, extent, turned, slot)
