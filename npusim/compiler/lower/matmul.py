"""Matmul with batch dimensions, on the matrix unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.compiler.buffers import Buffer, Moves, View, dense_strides
from npusim.compiler.codegen.issue import Item, Slot
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Box, Context
from npusim.compiler.lower.chain import Chain
from npusim.compiler.lower.matrix import MatrixLowering
from npusim.compiler.lower.matrix_tiling import Extent, OutputTile
from npusim.compiler.lower.matrix_weights import Part
from npusim.compiler.lower.pixel_run import pixel_run
from npusim.compiler.lower.transfer import load_items
from npusim.program import CONSTANTS
from npusim.timing.tile_problem import MatrixProblem


class MatMulLowering(MatrixLowering, kind="matmul"):
    """Matmul as a 1x1 convolution: pixels are M, channels are K and N.

    If one right operand serves the whole batch, all rows of the batch are pixels, as far as strides allow. Otherwise
    each batch item is an image with one row.
    """

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        a, b = self.op.input(0), self.op.input(1)
        self._b = b
        out = context.view(group.outputs[0])
        self.x_zero, self.w_zero = int(self.op.attrs["x_zero"]), int(self.op.attrs["w_zero"])
        self._batch = out.shape[:-2]
        m, n, k = out.shape[-2], out.shape[-1], a.shape[-1]
        self._a, self._out, inner = context.view(a).broadcast((*self._batch, m, k)), out, context
        # In fused attention, rows come a block at a time, each image separately.
        flat = None if context.rows or not self._shared else pixel_run(context, group, self._a, out)
        self._flat = flat is not None
        images, rows, columns = int(np.prod(self._batch, dtype=np.int64)), 1, min(context.rows or m, m)
        if flat is not None:
            self._a, self._out, inner = flat
            images, (rows, columns) = 1, self._out.shape[:2]
        self.chain = Chain(inner, self.epilogue.rest, self._out, range(len(self._out.shape)), self.epilogue.result)
        self.height = rows
        types = a.dtype, b.dtype, self.epilogue.out_type
        in_place = self.epilogue.out_type.itemsize == self._sum.itemsize
        homes = self.homes(self._a, self._out, whole=True)
        held = 2 if context.rows else int(self._pinned)
        serving = context.beside, context.served(a), context.served(b)
        self.problem = MatrixProblem(
            images, rows, columns, 1, n, k, 1, 1, 1, 1, 1, 1, False, self._shared, *types, self.chain.epilogue(),
            in_place, *homes, held, self._pinned, *serving, **self.narrow(self._a, self._out),
        )  # fmt: skip
        self.tile = self.choose_tile()

    @property
    def _shared(self) -> bool:
        """Whether one right operand serves the whole batch."""
        return all(dim == 1 for dim in self._b.shape[:-2])

    def stripe(self, image: int, rows: tuple[int, int], moved: Moves) -> MatMulLowering:
        lowering = self.of_rows(image, rows, moved)
        lowering._a, lowering._out = self._a.moved(moved), self._out.moved(moved)
        return lowering

    def tasks(self) -> list[OutputTile]:
        if self._rows is None:
            return super().tasks()
        image, first, end = self._rows
        return [OutputTile(image, 0, col, *what) for col in range(first, end, self.tile.ow) for what in self.channels()]

    def extent(self, task: OutputTile) -> Extent:
        if self._rows is None:
            return super().extent(task)
        return Extent(
            1, min(self.tile.ow, self._rows[2] - task.col), 1, min(self.tile.oc, self.problem.oc - task.channel)
        )

    def left(self) -> View:
        """The left operand, for the whole batch."""
        return self._a

    def right(self) -> View:
        """The right operand. A constant is not placed."""
        if self._b.data is None:
            return self.context.view(self._b)
        strides = dense_strides(self._b.shape, self._b.dtype.itemsize)
        return View(Buffer(self._b.name, CONSTANTS, 0), 0, self._b.shape, strides, self._b.dtype)

    def out_view(self) -> View:
        return self._out

    def image_key(self, task: OutputTile) -> int:
        return task.image if any(self._a.strides[:-2]) else 0

    def weights_key(self, task: OutputTile) -> Any:
        return (0 if self._shared else task.image, task.channel)

    def _index(self, image: int, batch: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(int(i) for i in np.unravel_index(image, batch)) if batch else ()

    def box(self, task: OutputTile, extent: Extent) -> Box:
        if self._flat:
            return (task.row, task.col, task.channel), (extent.rows, extent.cols, extent.channels)
        index = self._index(task.image, self._batch)
        return (*index, task.col, task.channel), (*(1 for _ in index), extent.cols, extent.channels)

    def out_part(self, box: Box) -> View:
        return self._out.slice(*box)

    def x_part(self, task: OutputTile, extent: Extent, part: Part) -> View:
        if self._flat:
            return self._a.slice((task.row, task.col, part.channel), (extent.rows, extent.cols, part.channels))
        index = self._index(task.image, self._batch)
        return self._a.slice((*index, task.col, part.channel), (*(1 for _ in index), extent.cols, part.channels))

    def load_x(self, task: OutputTile, extent: Extent, part: Part, slot: Slot) -> list[Item]:
        inner, item = self.x_part(task, extent, part), self.problem.x_type.itemsize
        pixel = part.channels * item
        strides = (*(0 for _ in inner.shape[3:]), extent.cols * pixel, pixel, item)[-len(inner.shape) :]
        return self.bring((slot.address, strides, slot), inner)

    def load_weights(self, task: OutputTile, extent: Extent, part: Part, slot: Slot) -> list[Item]:
        item = self.problem.w_type.itemsize
        index = tuple(0 for _ in self._b.shape[:-2])
        if not self._shared:
            full = self._index(task.image, self._batch)[len(self._batch) - len(index) :]
            # A dimension of size one in the right operand serves every batch item.
            index = tuple(i if dim > 1 else 0 for i, dim in zip(full, self._b.shape[:-2], strict=True))
        if self._b.data is None:
            view = self.context.view(self._b)
            sizes = (*(1 for _ in index), part.channels, extent.channels)
            inner = view.slice((*index, part.channel, task.channel), sizes)
            return load_items((slot.address, (*(0 for _ in index), extent.channels * item, item), slot), inner)
        rows = slice(part.channel, part.channel + part.channels)
        cols = slice(task.channel, task.channel + extent.channels)

        def cut(weights: npt.NDArray[Any]) -> list[list[npt.NDArray[Any]]]:
            return [[weights[index][rows, cols]]]

        columns = [(task.channel, extent.channels)]
        return self.packed((index, task.channel, part), cut, part, columns, 1).load(slot)
