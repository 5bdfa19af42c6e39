"""DMA items: strided transfers between views and slots, in as few instructions as their dimensions allow."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from npusim.compiler.buffers import View, ordered_strides, pad4
from npusim.compiler.codegen.issue import Item, Resource, Slot
from npusim.compiler.lower.base import TooManyError
from npusim.isa.base import MAX_ITEMS, is_outside
from npusim.isa.dma import Copy, Fetch, reorderable
from npusim.units import ceil_div
from npusim.work import DmaWork, walked_runs

MAX_TRANSFERS = 1 << 18
"""Instructions that move one tile: what has so many dimensions that nobody walks alike is moved by the element."""


Strided = tuple[int, Sequence[int], Resource]
"""One side of a transfer: address, byte strides, and the memory that these are in."""


def copy_items(
    dst: Strided,
    src: Strided,
    dims: Sequence[int],
    itemsize: int,
    before: Sequence[int] | None = None,
    after: Sequence[int] | None = None,
    pattern: int = 0,
) -> list[Item]:
    """Copy ``dims`` from src to dst - each (address, byte strides, resource) - with padding written around them.

    What one instruction may not move is halved along its longest side until each may.
    """
    (dst_address, dst_strides, dst_resource), (src_address, src_strides, src_resource) = dst, src
    nothing = (0,) * len(dims)
    low, high = (tuple(before or nothing), tuple(after or nothing)) if before or after else (nothing, nothing)
    outside = is_outside(dst_address), is_outside(src_address)
    walk = _walk(tuple(dims), tuple(dst_strides), tuple(src_strides), low, high, itemsize, outside)
    if walk is None:
        return []
    if walk.is_too_large:
        whole = list(map(sum, zip(low, dims, high, strict=True)))
        axis = whole.index(max(whole))
        halves: list[Item] = []
        for begin, end in ((0, whole[axis] // 2), (whole[axis] // 2, whole[axis])):
            first, past = (min(max(at - low[axis], 0), dims[axis]) for at in (begin, end))
            lead = max(min(low[axis], end) - begin, 0)
            halves += copy_items(
                (dst_address + begin * dst_strides[axis], dst_strides, dst_resource),
                (src_address + first * src_strides[axis], src_strides, src_resource),
                _with(dims, axis, past - first), itemsize, _with(low, axis, lead),
                _with(high, axis, end - begin - lead - (past - first)), pattern,
            )  # fmt: skip
        return halves
    looped, (size, to, source, low, high) = walk.looped, walk.rows
    dst_address += walk.begins[0]
    src_address += walk.begins[1]
    reads, writes, items = (src_resource,), (dst_resource,), []
    if not looped:  # nearly always
        copy = Copy(dst_address, to, src_address, source, size, itemsize, low, high, pattern)
        copy.alike(walk.works)
        return [Item(copy, reads, writes)]
    for index in product(*(range(row[0]) for row in looped)):
        instruction = Copy(
            dst_address + sum(i * row[1] for i, row in zip(index, looped, strict=True)), to,
            src_address + sum(i * row[2] for i, row in zip(index, looped, strict=True)), source,
            size, itemsize, low, high, pattern,
        )  # fmt: skip
        items.append(Item(instruction, reads, writes))
    return items


def transfer_works(
    dst: tuple[int, Sequence[int]], src: tuple[int, Sequence[int]], dims: Sequence[int], itemsize: int,
    before: Sequence[int] | None = None, after: Sequence[int] | None = None,
) -> list[tuple[DmaWork, int]]:  # fmt: skip
    """What the transfers of :func:`copy_items` ask of the hardware, and how many there are of each; of sides that are
    (address, byte strides), as far as addresses are known."""
    low, high = tuple(before or (0,) * len(dims)), tuple(after or (0,) * len(dims))
    outside = is_outside(dst[0]), is_outside(src[0])
    walk = _walk(tuple(dims), tuple(dst[1]), tuple(src[1]), low, high, itemsize, outside)
    if walk is None:
        return []
    if walk.is_too_large:
        # As many as are needed, of equal halves.
        whole = list(map(sum, zip(low, dims, high, strict=True)))
        axis = whole.index(max(whole))
        half = _with(dims, axis, ceil_div(dims[axis], 2))
        return [(work, 2 * count) for work, count in transfer_works(dst, src, half, itemsize, before, after)]
    size, to, source, low, high = walk.rows
    copy = Copy(dst[0] + walk.begins[0], to, src[0] + walk.begins[1], source, size, itemsize, low, high, 0)
    return [(copy.work(), prod(row[0] for row in walk.looped))]


def is_transposing(dst: Sequence[int], src: Sequence[int], dims: Sequence[int], itemsize: int) -> bool:
    """Whether two sides in DRAM, of these byte strides, cannot both have the runs that each has by itself."""
    none = (0,) * len(dims)
    rows, _ = _ordered(list(zip(dims, dst, src, none, none, strict=True)), (True, True))
    sizes, to, source, _, _ = zip(*rows, strict=True) if rows else ((),) * 5
    return bool(reorderable(sizes, to, source, itemsize))


class _Walk(NamedTuple):
    """The dimensions beyond the four of an instruction, and of those four items, strides of dst and of src, padding
    before and after; how far the first elements of dst and src are from where they were, as dimensions may be walked
    from their other end; what transfers of this shape have said of their work, by what else it depends on. Of one that
    is too large for an instruction nothing else is known."""

    looped: Sequence[_Row]
    rows: Sequence[tuple[int, ...]]
    begins: tuple[int, int]
    works: dict[Any, DmaWork]
    is_too_large: bool = False


# Tiles are alike, in a layer and in the next design.
@functools.lru_cache(maxsize=1 << 13)
def _walk(
    dims: tuple[int, ...], dst: tuple[int, ...], src: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...],
    itemsize: int, outside: tuple[bool, bool],
) -> _Walk | None:  # fmt: skip
    """None if there is nothing to write."""
    if prod([size + low + high for size, low, high in zip(dims, before, after, strict=True)]) > MAX_ITEMS:
        return _Walk((), (), (0, 0), {}, is_too_large=True)
    rows, begins = _ordered(list(zip(dims, dst, src, before, after, strict=True)), outside)
    rows = _merge(rows)
    # Zero elements with padding around them are a fill, which the instruction does by itself.
    if any(b + d + a == 0 for d, _, _, b, a in rows):
        return None
    looped, inner = _split(rows, itemsize, outside)
    if (transfers := prod(row[0] for row in looped)) > MAX_TRANSFERS:
        raise TooManyError(f"{list(dims)} would be moved by {transfers} transfers, at most {MAX_TRANSFERS} are made")
    columns = [[row[column] for row in inner] for column in range(5)]
    return _Walk(
        looped, [pad4(column, filler) for column, filler in zip(columns, (1, 0, 0, 0, 0), strict=True)], begins, {}
    )


def fetch_items(
    dst: Strided,
    src: Strided,
    dims: Sequence[int],
    itemsize: int,
    before: Sequence[int] | None = None,
    after: Sequence[int] | None = None,
    pattern: int = 0,
) -> list[Item]:
    """What :func:`copy_items` does, of features for a unit that fetches for itself: the last dimension is that of a
    pixel's channels, and is not joined to those before it."""
    none = (0,) * len(dims)
    low, high = before or none, after or none
    elements = prod(map(sum, zip(low, dims, high, strict=True)))
    # Padding around nothing is a fill.
    if len(dims) > 4 or elements > MAX_ITEMS or not prod(dims):
        return copy_items(dst, src, dims, itemsize, before, after, pattern)
    (dst_address, dst_strides, dst_resource), (src_address, src_strides, src_resource) = dst, src
    fetch = Fetch(
        dst_address, pad4(dst_strides, 0), src_address, pad4(src_strides, 0), pad4(dims, 1), itemsize,
        pad4(low, 0), pad4(high, 0), pattern,
    )  # fmt: skip
    return [Item(fetch, (src_resource,), (dst_resource,))]


def forget() -> None:
    """Forget how tiles are gone through: for who changes the limits of this module."""
    _walk.cache_clear()


def _with(values: Sequence[int], axis: int, value: int) -> list[int]:
    return [value if index == axis else old for index, old in enumerate(values)]


def load_items(slot: Strided, view: View) -> list[Item]:
    """Copy a whole view into a slot with the slot's strides."""
    return copy_items(slot, (view.address, view.strides, view), view.shape, view.dtype.itemsize)


def store_items(view: View, slot: Strided) -> list[Item]:
    """Copy a slot into a whole view."""
    return copy_items((view.address, view.strides, view), slot, view.shape, view.dtype.itemsize)


def load_packed(slot: Slot, view: View, order: Sequence[int]) -> list[Item]:
    """Copy a whole view into a slot without gaps, its dimensions in ``order``, the outermost first."""
    return load_items(_packed(slot, view, order), view.permute(order))


def store_packed(view: View, slot: Slot, order: Sequence[int]) -> list[Item]:
    """Copy a slot that is laid out as by :func:`load_packed` into a whole view."""
    return store_items(view.permute(order), _packed(slot, view, order))


def _packed(slot: Slot, view: View, order: Sequence[int]) -> Strided:
    strides = ordered_strides(view.shape, order, view.dtype.itemsize)
    return slot.address, [strides[axis] for axis in order], slot


_Row = tuple[int, int, int, int, int]
"""(items, dst stride, src stride, padding before, padding after) of one dimension."""


def _ordered(rows: list[_Row], outside: tuple[bool, bool]) -> tuple[list[_Row], tuple[int, int]]:
    """The dimensions in the order in which the engine is to walk them, the outermost first, each from its lower end:
    those of the side that is outside of SRAM, where bursts are dearer than words; of the destination, if both sides
    are alike. And how far the first elements of dst and src move by that."""
    leading, other = (1, 2) if outside[0] or not outside[1] else (2, 1)
    begins, turned = [0, 0], []
    for size, to, source, low, high in rows:
        strides = (0, to, source)
        if strides[leading] < 0 or (not strides[leading] and strides[other] < 0):
            begins[0] += (low + size + high - 1) * to
            begins[1] += max(size - 1, 0) * source
            turned.append((size, -to, -source, high, low))
        else:
            turned.append((size, to, source, low, high))
    # Stable, so that dimensions of one element stay where they are.
    found = sorted((row for row in turned if row[leading]), key=lambda row: -row[leading])
    for row in (row for row in turned if not row[leading]):
        # What one side reads again and again goes where the other side has it.
        at = next((at for at, each in enumerate(found) if abs(each[other]) < abs(row[other])), len(found))
        found.insert(at, row)
    return found, (begins[0], begins[1])


def _merge(rows: Sequence[_Row]) -> list[_Row]:
    """Join neighbouring dimensions that both sides walk as one; padded ones stay alone."""
    joined: list[_Row] = []
    for row in rows:
        size, to, source, low, high = row
        if size == 1 and not low and not high:
            continue
        if joined and not low and not high:
            outer_size, outer_to, outer_source, outer_low, outer_high = joined[-1]
            # Both sides must step alike, or the joined dimension would walk one of them wrongly.
            if not outer_low and not outer_high and outer_to == to * size and outer_source == source * size:
                joined[-1] = (outer_size * size, to, source, 0, 0)
                continue
        joined.append(row)
    return joined


def _split(rows: list[_Row], itemsize: int, outside: tuple[bool, bool]) -> tuple[list[_Row], list[_Row]]:
    """Dimensions beyond the four of an instruction become several instructions, one dimension after the other: that
    which leaves the longest runs in few transfers; of equals the shortest."""
    inner = list(rows)
    looped: list[_Row] = []
    while len(inner) > 4:
        # A padded dimension cannot be a loop of instructions: only the instruction writes the padding. No operator pads
        # more than four (legalize).
        plain = [index for index, row in enumerate(inner) if not row[3] and not row[4]]
        costs = [inner[i][0] * (_START + _pieces(inner[:i] + inner[i + 1 :], itemsize, outside)) for i in plain]
        _, _, index = min(zip(costs, [inner[index][0] for index in plain], plain, strict=True))
        looped.append(inner.pop(index))
    return looped, inner


_START = 32
"""What one more transfer costs, in short runs: a latency of 120 ns, in which a DRAM of 17 GB/s gives as many bursts of
64 bytes. Where to loop is chosen once for all devices."""


def _pieces(rows: Sequence[_Row], itemsize: int, outside: tuple[bool, bool]) -> int:
    """Runs of what one transfer moves, on the worse of those sides that are outside of SRAM; words of the other side,
    of which some are as dear as a burst."""
    dims = [low + size + high for size, _, _, low, high in rows]
    runs = [walked_runs(dims, [row[column] for row in rows], itemsize).pieces for column in (1, 2)]
    far = max((count for count, is_far in zip(runs, outside, strict=True) if is_far), default=1)
    near = max((count for count, is_far in zip(runs, outside, strict=True) if not is_far), default=1)
    return far + near // _WORDS


_WORDS = 4
"""Words of SRAM that take as long as a burst of DRAM: one a cycle at 1 GHz, beside 64 bytes at 17 GB/s."""
