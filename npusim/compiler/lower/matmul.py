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
from npusim.compiler.lower.transfer import load_items
from npusim.program import CONSTANTS
from npusim.timing.tile import MatrixProblem


class MatMulLowering(MatrixLowering, kind="matmul"):
    """Matmul as a convolution of one row: the columns are M, the channels K and N.

    With one right operand for the whole batch the batch joins M; otherwise each batch item is an image.
    """

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        a, b = self.op.input(0), self.op.input(1)
        self._b = b
        out = context.view(group.outputs[0])
        self.x_zero, self.w_zero = int(self.op.attrs["x_zero"]), int(self.op.attrs["w_zero"])
        self._batch = out.shape[:-2]
        m, n, k = out.shape[-2], out.shape[-1], a.shape[-1]
        # In fused attention rows come a block at a time, each image by itself.
        self._flat = None if context.rows else self._try_flat(out, a.shape[-1])
        images = 1 if self._flat else int(np.prod(self._batch, dtype=np.int64))
        if self._flat:
            self._a, self._out, views = self._flat
            shape: tuple[int, ...] = self._out.shape
            inner = Context(context.config, context.constants, views, memo=context.memo, facts=context.facts)
        else:
            self._a = context.view(a).broadcast((*self._batch, *a.shape[-2:]))
            self._out, shape, inner = out, out.shape, context
        self.chain = Chain(inner, self.epilogue.rest, self._out, range(len(shape)), self.epilogue.result)
        columns = shape[-2] if self._flat else min(context.rows or m, m)
        types = a.dtype, b.dtype, self.epilogue.out_type
        in_place = self.epilogue.out_type.itemsize == self._sum.itemsize
        homes = self.homes(self._a, self._out, whole=True)
        held = 2 if context.rows else int(self._pinned)
        serving = context.beside, context.served(a), context.served(b)
        self.problem = MatrixProblem(
            images, 1, columns, 1, n, k, 1, 1, 1, 1, 1, 1, False, self._shared, *types, self.chain.epilogue(),
            in_place, *homes, held, self._pinned, *serving, **self.narrow(self._a, self._out),
        )  # fmt: skip
        self.tile = self.choose_tile()

    @property
    def _shared(self) -> bool:
        """One right operand serves the whole batch."""
        return all(dim == 1 for dim in self._b.shape[:-2])

    def _try_flat(self, out: View, k: int) -> tuple[View, View, dict[Any, View]] | None:
        """The operands with the batch folded into M, where views allow it."""
        if not self._shared:
            return None
        rows = int(np.prod(out.shape[:-1], dtype=np.int64))
        # The rows of all batch items become one long M, which fills the array better than many short ones. If strides
        # do not allow that, each item is an image of its own.
        a = self.context.view(self.op.input(0)).broadcast((*self._batch, out.shape[-2], k)).reshape((rows, k))
        flat_out = out.reshape((rows, out.shape[-1]))
        views: dict[Any, View] = {}
        for tensor in self.group.loads():
            view = self.context.view(tensor).broadcast(out.shape).reshape((rows, out.shape[-1]))
            if view is None:
                return None
            views[tensor] = view
        return None if a is None or flat_out is None else (a, flat_out, views)

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
        """The right operand; a constant as it is."""
        if self._b.data is None:
            return self.context.view(self._b)
        strides = dense_strides(self._b.shape, self._b.dtype.itemsize)
        return View(Buffer(self._b.name, CONSTANTS, 0), 0, self._b.shape, strides, self._b.dtype)

    def out_view(self) -> View:
        return self._out

    def weights_key(self, task: OutputTile) -> Any:
        return (0 if self._shared else task.image, task.channel)

    def _index(self, image: int, batch: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(int(i) for i in np.unravel_index(image, batch)) if batch else ()

    def box(self, task: OutputTile, extent: Extent) -> Box:
        if self._flat:
            return (task.col, task.channel), (extent.cols, extent.channels)
        index = self._index(task.image, self._batch)
        return (*index, task.col, task.channel), (*(1 for _ in index), extent.cols, extent.channels)

    def out_part(self, box: Box) -> View:
        return self._out.slice(*box)

    def x_part(self, task: OutputTile, extent: Extent, part: Part) -> View:
        index = () if self._flat else self._index(task.image, self._batch)
        return self._a.slice((*index, task.col, part.channel), (*(1 for _ in index), extent.cols, part.channels))

    def load_x(self, task: OutputTile, extent: Extent, part: Part, slot: Slot) -> list[Item]:
        inner, item = self.x_part(task, extent, part), self.problem.x_type.itemsize
        strides = (*(0 for _ in inner.shape[2:]), part.channels * item, item)
        return self.bring((slot.address, strides, slot), inner)

    def load_weights(self, task: OutputTile, extent: Extent, part: Part, slot: Slot) -> list[Item]:
        item = self.problem.w_type.itemsize
        index = tuple(0 for _ in self._b.shape[:-2])
        if not self._shared:
            full = self._index(task.image, self._batch)[len(self._batch) - len(index) :]
            # A dimension of one element in the right operand serves every item of the batch.
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
