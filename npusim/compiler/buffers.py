"""Where values are in memory: buffers, and strided views of them.

A reshape, transpose, slice or expand is a new view of the same bytes if strides can express it, and a copy otherwise.
So the memory order of a tensor is the compiler's choice: convolutions keep channels innermost, whatever the order of
the model's dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from npusim.compiler._views import Buffer, View, collapse, dense_strides, memory_order, ordered_strides
from npusim.errors import CompileError
from npusim.hw.memory import align

__all__ = [
    "Arena",
    "Buffer",
    "Moves",
    "View",
    "collapse",
    "dense_strides",
    "memory_order",
    "ordered_strides",
    "pad4",
    "row_axis",
]

Moves = Mapping[Buffer, tuple[Buffer, int]]
"""Where the bytes of buffers have moved: (new buffer, added offset)."""


def row_axis(view: View) -> int | None:
    """The outermost dimension of images in memory besides the batch; None if they have only one row."""
    if len(view.shape) != 4:
        return None
    order = view.order()
    if view.shape[0] > 1 and order[0]:
        return None
    axis = next((axis for axis in order if axis), 0)
    return axis if axis in (1, 2) and view.shape[axis] > 1 else None


def pad4(values: Sequence[int], filler: int) -> tuple[int, ...]:
    """Pad to four values with ``filler`` in front."""
    if len(values) > 4:
        raise CompileError(f"internal: an instruction walks 4 dimensions, got {len(values)}")
    return (filler,) * (4 - len(values)) + tuple(values)


class Arena:
    """First-fit allocation of scratch buffers by lifetime: buffers that live at the same time never overlap.

    ``nbytes``: the end of the highest buffer so far.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._living: list[tuple[int, int, int]] = []  # a heap of (dies, offset, size)
        self._size_at: dict[int, int] = {}  # free runs: size by offset
        self._start_of: dict[int, int] = {}  # offset by end
        # Heaps of offsets by size, which may contain runs that are no longer free. Only the lowest run of each size is
        # inspected, because thousands of free runs have a few dozen sizes.
        self._offsets: dict[int, list[int]] = {}

    def place(self, buffer: Buffer) -> None:
        """Set the buffer's offset. ``born`` and ``dies`` must be set, and buffers must be placed in the order of
        ``born``."""
        # Both ends are inclusive: the group in which one value dies and another is born reads the first and writes the
        # second.
        while self._living and self._living[0][0] < buffer.born:
            self._free(*heappop(self._living)[1:])
        size = align(max(buffer.nbytes, 1))
        buffer.offset = self._lowest(size)
        self._take(buffer.offset, size)
        heappush(self._living, (buffer.dies, buffer.offset, size))

    def _lowest(self, size: int) -> int:
        """The lowest offset with ``size`` free bytes. There is always space at the end."""
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
        """Merge these bytes with the free runs on both sides."""
        start = self._start_of.pop(offset, offset)
        end = offset + size
        end += self._size_at.pop(end, 0)
        self._size_at[start], self._start_of[end] = end - start, start
        heappush(self._offsets.setdefault(end - start, []), start)
