"""2-D convolution on the matrix unit, including grouped and depthwise."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy.typing as npt

from npusim.compiler.buffers import Moves, View
from npusim.compiler.codegen.issue import Item, Slot
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Box, Context
from npusim.compiler.lower.chain import Chain
from npusim.compiler.lower.matrix import MatrixLowering
from npusim.compiler.lower.matrix_tiling import Extent, OutputTile
from npusim.compiler.lower.matrix_weights import Columns, Part
from npusim.compiler.lower.pixel_run import pixel_run
from npusim.compiler.lower.rows import clip
from npusim.compiler.lower.transfer import load_items
from npusim.isa.matrix_extras import NO_EXTRAS, Extras
from npusim.isa.matrix_types import CHANNEL_BLOCK
from npusim.ops.matrix import Blocks, Phases
from npusim.timing.tile_problem import InputWindow, MatrixProblem, ic_unit, input_window
from npusim.units import ceil_div

_PADDED = 1.5
"""If the input with its padding exceeds the input by this factor, estimates take padding into account."""


class Window(NamedTuple):
    """Rows and columns of a kernel, its strides and dilations."""

    kh: int
    kw: int
    sh: int
    sw: int
    dh: int
    dw: int


def padded(window: Window, out: Sequence[int], around: tuple[int, int, int, int]) -> tuple[int, int, int, int] | None:
    """``around``, if the window is so large that most of a tile's input may be padding; else None.

    ``around``: rows and columns of the input, and rows and columns of padding before them.
    """
    rows = (out[1] - 1) * window.sh + (window.kh - 1) * window.dh + 1
    cols = (out[2] - 1) * window.sw + (window.kw - 1) * window.dw + 1
    return around if rows * cols > _PADDED * around[0] * around[1] else None


class ConvLowering(MatrixLowering, kind="conv"):
    """A 2-D convolution, including grouped and depthwise ones."""

    both_ways = False
    """Whether tiles are cut along columns as well as rows."""

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        attrs = self.op.attrs
        x, w = self.op.input(0), self.op.input(1)
        # Channels innermost, whatever the layout of the model: the unit reads the channels of a pixel as one run.
        self._axes: tuple[int, ...] = (0, 2, 3, 1) if attrs["layout"] == "NCHW" else (0, 1, 2, 3)
        self._places: tuple[int, ...] = tuple([self._axes.index(axis) for axis in range(4)])
        self._x = context.view(x).permute(self._axes)
        self._w = w
        self._out = context.view(group.outputs[0])
        self._pads = tuple(attrs["pads"])
        self.x_zero, self.w_zero = int(attrs["x_zero"]), int(attrs["w_zero"])
        groups = attrs["groups"]
        oc, ic, kh, kw = w.shape
        (sh, sw), (dh, dw) = attrs["stride"], attrs["dilation"]
        plain = Window(kh, kw, sh, sw, dh, dw)
        window = self.walked(plain)
        inner = self.views(context, plain) or context
        self.flat = inner is not context
        self._in_rows: ConvLowering | None = None
        out_shape = self.extents()
        self.chain = Chain(inner, self.epilogue.rest, self._out, self._axes, self.epilogue.result)
        self.height = out_shape[1]
        rows, held = self._at_once()
        sizes = out_shape[0], rows, out_shape[2], groups, oc // groups, ic
        # A single group is an ordinary convolution, because depthwise tiles are cut by groups.
        depthwise, shared_weights = ic == 1 and groups > 1 and not attrs["phases"], True
        types = x.dtype, w.dtype, self.epilogue.out_type
        in_place = self.epilogue.out_type.itemsize == self._sum.itemsize
        out = self._out.permute(self._axes)
        homes = self.homes(self._x, out, whole=not any(self._pads))
        serving = context.beside, context.served(x), context.served(w)
        self._blocks = Blocks(*attrs["blocks"]) if attrs["blocks"] else None
        self._phases = Phases(*attrs["phases"]) if attrs["phases"] else None
        unit = ic_unit(self._blocks.ic, x.dtype) if self._blocks else CHANNEL_BLOCK
        self.problem = MatrixProblem(
            *sizes, *window, depthwise, shared_weights, *types, self.chain.epilogue(), in_place, *homes,
            held, self._pinned, *serving, **self.narrow(self._x, out), padded=self.padding(window, out_shape),
            ic_unit=unit, both_ways=self.both_ways,
        )  # fmt: skip
        self.tile = self.choose_tile()

    def extents(self) -> tuple[int, ...]:
        """Images, rows, columns and channels of the result."""
        return tuple([self._out.shape[axis] for axis in self._axes])

    def walked(self, window: Window) -> Window:
        """The window of the convolution in the dimensions of the tiles."""
        return window

    def views(self, context: Context, window: Window) -> Context | None:
        """Merge the rows of all images into one image if no kernel spans rows, and into one row if none spans columns.

        Returns the context of the chain; None if nothing changes.
        """
        top, left, bottom, right = self._pads
        single = window.kh == window.sh == 1 and not (top or bottom)
        along = window.kw == window.sw == 1 and not (left or right)
        depthwise = self._w.shape[1] == 1 and self.op.attrs["groups"] > 1
        # A cascade computes rows of images.
        if not single or depthwise or context.rows:
            return None
        out = self._out.permute(self._axes)
        found = pixel_run(context, self.group, self._x, out, self._axes, int(not along))
        if found is None or (1, *found[1].shape) == out.shape:
            return None
        self._x, self._out = (view.broadcast((1, *view.shape)) for view in found[:2])
        self._axes = self._places = (0, 1, 2, 3)
        return found[2]

    def padding(self, window: Window, out: Sequence[int]) -> tuple[int, int, int, int] | None:
        """The input and its padding for estimates: see :func:`padded`."""
        return padded(window, out, (*self._x.shape[1:3], *self._pads[:2]))

    def _at_once(self) -> tuple[int, int]:
        """(rows per stripe or in all, copies of all weights that stay meanwhile)."""
        rows = self.context.rows
        return min(rows or self.height, self.height), int(bool(rows) or self._pinned)

    def in_rows(self) -> ConvLowering | None:
        if not self.context.rows:
            return None
        if self.flat:
            # A cascade computes rows of images, which needs another form of the lowering. All cascades share it.
            if self._in_rows is None:
                self._in_rows = ConvLowering(self.context, self.group)
                return self._in_rows
            return self._in_rows.in_rows()
        rows, held = self._at_once()
        return self.for_problem(self.problem._replace(oh=rows, held=held))

    def out_view(self) -> View:
        return self._out

    def box(self, task: OutputTile, extent: Extent) -> Box:
        starts = (task.image, task.row, task.col, task.group * self.problem.oc + task.channel)
        sizes = (1, extent.rows, extent.cols, extent.groups * extent.channels)
        place = self._places
        return tuple([starts[at] for at in place]), tuple([sizes[at] for at in place])

    def out_part(self, box: Box) -> View:
        return self._out.slice(*box).permute(self._axes)

    def x_part(self, task: OutputTile, extent: Extent, part: Part) -> View:
        start = (task.image, *self._corner(task, part), task.group * self.problem.ic + part.channel)
        return self._x.slice(start, (1, *self._reached(extent, part), extent.groups * part.channels))

    def _reached(self, extent: Extent, part: Part) -> tuple[int, int]:
        """Rows and columns of the input that a part of a tile spans."""
        p = self.problem
        rows = (extent.rows - 1) * p.sh + (part.rows - 1) * p.dh + 1
        return rows, (extent.cols - 1) * p.sw + (part.cols - 1) * p.dw + 1

    def _corner(self, task: OutputTile, part: Part) -> tuple[int, int]:
        """First row and column of the input for a part of a tile's sums; negative in the padding."""
        p, (top, left, *_) = self.problem, self._pads
        return task.row * p.sh - top + part.row * p.dh, task.col * p.sw - left + part.col * p.dw

    def stripe(self, image: int, rows: tuple[int, int], moved: Moves) -> ConvLowering:
        lowering = self.of_rows(image, rows, moved)
        lowering._x, lowering._out = self._x.moved(moved), self._out.moved(moved)
        return lowering

    def load_x(self, task: OutputTile, extent: Extent, part: Part, slot: Slot) -> list[Item]:
        window = input_window(self.problem, self.tile, (extent.rows, extent.cols), (part.rows, part.cols))
        start = (task.image, *self._corner(task, part), task.group * self.problem.ic + part.channel)
        return self.load_window(start, window, extent.groups * part.channels, slot)

    def load_window(self, start: Sequence[int], window: InputWindow, channels: int, slot: Slot) -> list[Item]:
        """Load rows and columns of the input. ``start``: image, row, column and channel; negative in the padding."""
        image, row, col, channel = start
        _, height, width, _ = self._x.shape
        top, above, rows, below = clip(row, window.rows, height, window.row_step)
        left, before, cols, after = clip(col, window.cols, width, window.col_step)
        steps = (1, window.row_step, window.col_step, 1)
        inner = self._x.slice((image, top, left, channel), (1, rows, cols, channels), steps)
        return self.bring_rows(slot, 0, window.cols, inner, (above, before, below, after))

    def bring_rows(self, slot: Slot, first: int, cols: int, inner: View, pads: tuple[int, int, int, int]) -> list[Item]:
        """Load a part of the input with ``pads`` (top, left, bottom, right) into a slot with ``cols`` pixels per row,
        from pixel ``first`` on."""
        item, channels = inner.dtype.itemsize, inner.shape[3]
        strides = (0, cols * channels * item, channels * item, item)
        # Padding is written as bytes: a negative zero point in two's complement of the element's width.
        zero = self.x_zero & ((1 << 8 * item) - 1)
        top, left, bottom, right = pads
        to = slot.address + first * channels * item, strides, slot
        return self.bring(to, inner, ((0, top, left, 0), (0, bottom, right, 0)), zero)

    def load_weights(self, task: OutputTile, extent: Extent, part: Part, slot: Slot) -> list[Item]:
        if self._w.data is None:
            return self._load_dynamic(task, extent, part, slot)
        p = self.problem
        if p.depthwise:
            columns, blocks = [(task.group * p.oc, extent.groups * p.oc)], 1
        else:
            columns = [((task.group + i) * p.oc + task.channel, extent.channels) for i in range(extent.groups)]
            blocks = ceil_div(part.channels, CHANNEL_BLOCK)
        cut = functools.partial(_depthwise if p.depthwise else _blocks, columns, part)
        key = (task.group, task.channel, part)
        return self.packed(key, cut, part, columns, len(columns) * blocks).load(slot)

    def skipped(self, task: OutputTile, part: Part) -> Extras | None:
        found = None if self._phases is None else self._phases_of(self._phases, task, part)
        if self._blocks is None:
            return found
        (ic, oc, first), plain = self._blocks, found or NO_EXTRAS
        out = task.channel + first
        # Whole blocks before the tile have no effect. Without them, tiles share instructions.
        before = min(part.channel // ic, out // oc)
        ends = part.channel - before * ic, out - before * oc
        return replace(plain, block_ic=ic, block_oc=oc, first_ic=ends[0], first_oc=ends[1])

    def _phases_of(self, phases: Phases, task: OutputTile, part: Part) -> Extras | None:
        """The phase fields for a part of the kernel; None if no taps are missing.

        The first part may lack the first tap, and the last part the last one.
        """
        rows, cols = phases.rows, phases.cols
        full = rows if part.row else phases.full_rows, cols if part.col else phases.full_cols
        ends = part.row + part.rows == self.problem.kh, part.col + part.cols == self.problem.kw
        low = phases.low_rows if ends[0] else 0, phases.low_cols if ends[1] else 0
        if full == (rows, cols) and low == (0, 0):
            return None
        return Extras(
            first_oc=task.channel + phases.first, phase_oc=phases.oc, phase_rows=rows, phase_cols=cols,
            full_rows=full[0], full_cols=full[1], low_rows=low[0], low_cols=low[1],
        )  # fmt: skip

    def _load_dynamic(self, task: OutputTile, extent: Extent, part: Part, slot: Slot) -> list[Item]:
        """Load computed weights. The loads convert [O, I, KH, KW] to [group][channel block][KH][KW][I][O]."""
        p, item = self.problem, self.problem.w_type.itemsize
        view = self.context.view(self._w)
        items: list[Item] = []
        if p.depthwise:
            low, count = task.group * p.oc, extent.groups * p.oc
            taps = view.slice((low, 0, part.row, part.col), (count, 1, part.rows, part.cols)).permute((2, 3, 1, 0))
            return load_items((slot.address, (part.cols * count * item, count * item, 0, item), slot), taps)
        address = slot.address
        for index, low in product(range(extent.groups), range(0, part.channels, CHANNEL_BLOCK)):
            block = min(CHANNEL_BLOCK, part.channels - low)
            start = ((task.group + index) * p.oc + task.channel, part.channel + low, part.row, part.col)
            taps = view.slice(start, (extent.channels, block, part.rows, part.cols)).permute((2, 3, 1, 0))
            row = extent.channels * item
            strides = (part.cols * block * row, block * row, row, item)
            items.extend(load_items((address, strides, slot), taps))
            address += part.taps * block * row
        return items


# Weights of some columns and input channels, as views of all [O, I, KH, KW].


def _blocks(columns: Columns, part: Part, weights: npt.NDArray[Any]) -> list[list[npt.NDArray[Any]]]:
    """Elements in the order [group][I block][KH][KW][I][O]. The unit sums in this order, so it reads the tile
    sequentially."""
    moved = _taps(part, weights)[:, :, part.channel : part.channel + part.channels]
    return [
        [moved[:, :, at : at + CHANNEL_BLOCK, first : first + many] for at in range(0, part.channels, CHANNEL_BLOCK)]
        for first, many in columns
    ]


def _depthwise(columns: Columns, part: Part, weights: npt.NDArray[Any]) -> list[list[npt.NDArray[Any]]]:
    """Elements in the order [KH][KW][channel * multiplier]."""
    return [[_taps(part, weights)[..., first : first + many]] for first, many in columns]


def _taps(part: Part, weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The taps of a part, as [KH, KW, I, O]."""
    return weights.transpose(2, 3, 1, 0)[part.row : part.row + part.rows, part.col : part.col + part.cols]
