"""Where values live in memory: buffers, and strided views of them.

A reshape, transpose, slice or expand is a new view of the same bytes wherever strides can say it; only what they cannot
say is copied. A tensor's memory order is therefore the compiler's choice: convolutions keep channels innermost whatever
order the model's dimensions have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import prod
from operator import mul

from npusim.dtypes import DType
from npusim.errors import CompileError
from npusim.isa.base import l2, region, sram
from npusim.program import CONSTANTS, SCRATCH

ALIGNMENT = 64
"""Every buffer starts at a multiple of this many bytes: a DRAM burst on all configs that ship."""


@dataclass(eq=False, slots=True)
class Buffer:
    """Bytes in one region of DRAM, in the SRAM of ``core``, or, ``in_l2``, in the L2, at ``offset`` once laid out.

    ``born`` and ``dies``: first and last group that uses it.
    """

    name: str
    region: int
    nbytes: int
    offset: int = 0
    born: int = -1
    dies: int = -1
    core: int | None = None
    is_window: bool = False
    """It holds some rows of a value, and around them the padding that those who read it want."""
    in_l2: bool = False

    @property
    def is_constant(self) -> bool:
        return self.region == CONSTANTS

    @property
    def is_scratch(self) -> bool:
        """It is a value between operators, and not in SRAM: in DRAM or L2."""
        return self.region == SCRATCH and self.core is None

    @property
    def on_chip(self) -> bool:
        """Units reach it."""
        return self.core is not None


Moves = Mapping[Buffer, tuple[Buffer, int]]
"""Where bytes of buffers are instead: the buffer, and how much further on in it."""


@dataclass(frozen=True, slots=True)
class View:
    """Elements of ``dtype`` at ``offset + sum(index * stride)`` bytes of a buffer."""

    buffer: Buffer
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType

    @property
    def address(self) -> int:
        """Address of element 0; only after layout."""
        start = self.buffer.offset + self.offset
        if self.buffer.in_l2:
            return l2(start)
        return sram(start) if self.buffer.on_chip else region(self.buffer.region, start)

    def moved(self, by: Moves) -> View:
        """The view where its buffer's bytes are elsewhere."""
        if self.buffer not in by:
            return self
        buffer, further = by[self.buffer]
        return View(buffer, self.offset + further, self.shape, self.strides, self.dtype)

    def permute(self, perm: Sequence[int]) -> View:
        shape, strides = self.shape, self.strides
        return View(
            self.buffer, self.offset, tuple([shape[p] for p in perm]), tuple([strides[p] for p in perm]), self.dtype
        )

    def slice(self, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int] | None = None) -> View:
        """Element i of a dimension is element start + i * step of this view's."""
        offset, strides = self.offset, self.strides
        # An empty slice may start behind the last element; keeping the old offset keeps its address inside the buffer.
        if all(sizes):
            offset += sum(map(mul, starts, strides))
        if steps is not None:
            strides = tuple(map(mul, strides, steps))
        return View(self.buffer, offset, tuple(sizes), strides, self.dtype)

    def broadcast(self, shape: Sequence[int]) -> View:
        """numpy's broadcast: new and stretched dimensions get stride 0, those of one element any other."""
        lead = len(shape) - len(self.shape)
        item = self.dtype.itemsize
        # A stride of 0 means "broadcast" to those who tile and load; one element is never that, so it gets any other.
        strides = [item if target == 1 else 0 for target in shape[:lead]]
        for dim, stride, target in zip(self.shape, self.strides, shape[lead:], strict=True):
            strides.append(item if target == 1 else stride if dim == target else 0)
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def reshape(self, shape: Sequence[int]) -> View | None:
        """The view with these dimensions in row-major order, or None when strides cannot say it."""
        if not prod(self.shape):
            return replace(self, shape=tuple(shape), strides=(0,) * len(shape))
        source = [(dim, stride) for dim, stride in zip(self.shape, self.strides, strict=True) if dim != 1]
        strides: list[int] = []
        position, remaining = 0, list(shape)
        while remaining:
            if remaining[0] == 1:
                strides.append(0)
                remaining.pop(0)
                continue
            taken = _match(source, position, remaining)
            if taken is None:
                return None
            position, block = taken
            strides.extend(block)
            del remaining[: len(block)]
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def is_dense(self) -> bool:
        """Row-major without gaps."""
        return self.strides_match(dense_strides(self.shape, self.dtype.itemsize))

    def strides_match(self, strides: Sequence[int]) -> bool:
        """The same placement, dimensions of one element aside."""
        return all(
            dim == 1 or mine == other for dim, mine, other in zip(self.shape, self.strides, strides, strict=True)
        )

    def extent(self) -> tuple[int, int]:
        """(first byte, byte after the last) within the buffer."""
        low, high = self.offset, self.offset + self.dtype.itemsize
        for dim, stride in zip(self.shape, self.strides, strict=True):
            reach = (dim - 1) * stride
            if reach < 0:
                low += reach
            else:
                high += reach
        return low, high

    def order(self) -> tuple[int, ...]:
        """Dimensions from the outermost in memory to the innermost; broadcast and single ones keep their place."""
        return memory_order(self.shape, self.strides)


def _match(source: list[tuple[int, int]], position: int, shape: Sequence[int]) -> tuple[int, list[int]] | None:
    """Cover a prefix of shape by whole source dimensions: (next source dimension, strides), None when impossible."""
    if position == len(source):
        return None
    size, stride = source[position]
    position += 1
    covered, dims = 1, []
    for dim in shape:
        dims.append(dim)
        covered *= dim
        while covered > size:
            if position == len(source):
                return None
            next_size, next_stride = source[position]
            # Two source dimensions are one only if the outer one starts where the inner one ends.
            if stride != next_size * next_stride:
                return None
            size, stride, position = size * next_size, next_stride, position + 1
        if covered == size:
            strides, step = [], stride
            for inner in reversed(dims):
                strides.append(step)
                step *= inner
            return position, strides[::-1]
    return None


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Dimension numbers sorted from outermost to innermost in memory; those that do not move stay where they are."""
    moving = [axis for axis in range(len(shape)) if shape[axis] > 1 and strides[axis]]
    # Ties by number: an order that depended on anything else would make two compilations differ.
    by_stride = iter(sorted(moving, key=lambda axis: (-abs(strides[axis]), axis)))
    fixed = set(range(len(shape))) - set(moving)
    return tuple(axis if axis in fixed else next(by_stride) for axis in range(len(shape)))


def row_axis(view: View) -> int | None:
    """The dimension of images that is outermost in memory but for the batch; None if they have one row only."""
    if len(view.shape) != 4:
        return None
    order = view.order()
    if view.shape[0] > 1 and order[0]:
        return None
    axis = next((axis for axis in order if axis), 0)
    return axis if axis in (1, 2) and view.shape[axis] > 1 else None


def dense_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Row-major byte strides."""
    strides, step = [], itemsize
    for dim in reversed(shape):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))


def ordered_strides(shape: Sequence[int], order: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Dense byte strides with the dimensions laid out in ``order``, outermost first."""
    strides, step = [0] * len(shape), itemsize
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def collapse(dims: Sequence[int], *operands: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Merge neighbouring dimensions that every operand walks as one; drop dimensions of one element."""
    merged: list[int] = []
    strides: list[list[int]] = [[] for _ in operands]
    for axis, dim in enumerate(dims):
        if dim == 1:
            continue
        if merged and all(out[-1] == operand[axis] * dim for out, operand in zip(strides, operands, strict=True)):
            merged[-1] *= dim
            for out, operand in zip(strides, operands, strict=True):
                out[-1] = operand[axis]
        else:
            merged.append(dim)
            for out, operand in zip(strides, operands, strict=True):
                out.append(operand[axis])
    return merged, strides


def pad4(values: Sequence[int], filler: int) -> tuple[int, ...]:
    """Four values, with ``filler`` in front."""
    if len(values) > 4:
        raise CompileError(f"internal: an instruction walks 4 dimensions, got {len(values)}")
    return (filler,) * (4 - len(values)) + tuple(values)


class Arena:
    """First-fit allocation of scratch buffers by lifetime: two buffers that live at once never overlap.

    ``nbytes``: where the highest so far ends.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._living: list[tuple[int, int, int]] = []  # heap of (dies, offset, size)
        self._size_at: dict[int, int] = {}  # free runs: size by offset
        self._start_of: dict[int, int] = {}  # offset by end
        # Offsets by size, in heaps, with runs that are free no more: the lowest run of every size is looked at, not
        # every run, because thousands of free runs are of a few dozen sizes.
        self._offsets: dict[int, list[int]] = {}

    def place(self, buffer: Buffer) -> None:
        """Set the buffer's offset; ``born`` and ``dies`` must be known, and none may have been born after it."""
        # Both ends count: the group in which one value dies and another is born reads the first and writes the second.
        while self._living and self._living[0][0] < buffer.born:
            self._free(*heappop(self._living)[1:])
        size = align(max(buffer.nbytes, 1))
        buffer.offset = self._lowest(size)
        self._take(buffer.offset, size)
        heappush(self._living, (buffer.dies, buffer.offset, size))

    def _lowest(self, size: int) -> int:
        """The lowest offset with so many free bytes; behind what is left at the end there are always more."""
        found = [offset for run in list(self._offsets) if run >= size for offset in self._lowest_of(run)]
        return min(found, default=self._start_of.get(self.nbytes, self.nbytes))

    def _lowest_of(self, run: int) -> list[int]:
        offsets = self._offsets[run]
        while offsets and self._size_at.get(offsets[0]) != run:
            heappop(offsets)
        if not offsets:
            del self._offsets[run]
        return offsets[:1]

    def _take(self, offset: int, size: int) -> None:
        run = self._size_at.pop(offset, 0)
        self._start_of.pop(offset + run, None)
        if run > size:
            self._free(offset + size, run - size)
        self.nbytes = max(self.nbytes, offset + size)

    def _free(self, offset: int, size: int) -> None:
        """Make one run of these bytes and the free ones at both sides."""
        start = self._start_of.pop(offset, offset)
        end = offset + size
        end += self._size_at.pop(end, 0)
        self._size_at[start], self._start_of[end] = end - start, start
        heappush(self._offsets.setdefault(end - start, []), start)


def align(offset: int, to: int = ALIGNMENT) -> int:
    """The next multiple of ``to``."""
    return -(-offset // to) * to
