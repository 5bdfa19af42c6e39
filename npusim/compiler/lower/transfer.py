"""DMA items: strided transfers between views and slots, in as few instructions as their dimensions allow."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import product
from math import prod
from operator import mul
from typing import Any

from npusim.compiler.buffers import View, ordered_strides, pad4
from npusim.compiler.codegen.issue import Item, Resource, Slot
from npusim.compiler.lower.base import TooManyError
from npusim.isa.base import MAX_ITEMS, is_outside
from npusim.isa.dma import Copy, Fetch, Fill, reorderable
from npusim.units import ceil_div
from npusim.work import DmaWork, walked_runs

MAX_TRANSFERS = 1 << 18
"""Maximum number of instructions for one tile. More would mean that dimensions do not merge and elements move one by
one."""


Strided = tuple[int, Sequence[int], Resource]
"""One side of a transfer: (address, byte strides, the memory that they refer to)."""


def copy_items(
    dst: Strided,
    src: Strided,
    dims: Sequence[int],
    itemsize: int,
    before: Sequence[int] | None = None,
    after: Sequence[int] | None = None,
    pattern: int = 0,
) -> list[Item]:
    """Copy elements ``dims`` from src to dst, and write padding around them.

    A copy that is too large for one instruction is halved along its longest side. Raises TooManyError above
    ``MAX_TRANSFERS``.
    """
    (dst_address, dst_strides, dst_resource), (src_address, src_strides, src_resource) = dst, src
    nothing = (0,) * len(dims)
    low, high = (tuple(before or nothing), tuple(after or nothing)) if before or after else (nothing, nothing)
    outside = is_outside(dst_address), is_outside(src_address)
    walk = _walk(tuple(dims), tuple(dst_strides), tuple(src_strides), low, high, itemsize, outside)
    if walk is None:
        return []
    looped, walked, begins, works = walk
    if not walked:
        whole = list(map(sum, zip(low, dims, high, strict=True)))
        axis = whole.index(max(whole))
        halves: list[Item] = []
        for begin, end in ((0, whole[axis] // 2), (whole[axis] // 2, whole[axis])):
            first, past = (min(max(at - low[axis], 0), dims[axis]) for at in (begin, end))
            lead = max(min(low[axis], end) - begin, 0)
            to = dst_address + begin * dst_strides[axis], dst_strides, dst_resource
            source = src_address + first * src_strides[axis], src_strides, src_resource
            part, tail = _with(dims, axis, past - first), _with(high, axis, end - begin - lead - (past - first))
            halves += copy_items(to, source, part, itemsize, _with(low, axis, lead), tail, pattern)
        return halves
    size, to_strides, from_strides, low, high = walked
    dst_address += begins[0]
    src_address += begins[1]
    reads, writes, items = (src_resource,), (dst_resource,), []
    if not looped:  # nearly always
        copy = Copy(dst_address, to_strides, src_address, from_strides, size, itemsize, low, high, pattern)
        copy.alike(works)
        return [Item(copy, reads, writes)]
    for index in product(*(range(row[0]) for row in looped)):
        to_at, from_at = (sum(i * row[side] for i, row in zip(index, looped, strict=True)) for side in (1, 2))
        sides = dst_address + to_at, to_strides, src_address + from_at, from_strides
        instruction = Copy(*sides, size, itemsize, low, high, pattern)
        items.append(Item(instruction, reads, writes))
    return items


def pad_items(
    dst: Strided, dims: Sequence[int], itemsize: int, before: Sequence[int], after: Sequence[int], pattern: int
) -> list[Item]:
    """Write only the padding of :func:`copy_items`: strips before and after the elements along each dimension, as runs
    of the destination."""
    address, strides, resource = dst
    items: list[Item] = []
    whole = list(map(sum, zip(before, dims, after, strict=True)))
    for axis, (low, size, high) in enumerate(zip(before, dims, after, strict=True)):
        for first, count in ((0, low), (low + size, high)):
            strip = (*dims[:axis], count, *whole[axis + 1 :])
            at = address + sum(map(mul, before[:axis], strides)) + first * strides[axis]
            items += _fill_items((at, strides, resource), strip, itemsize, pattern)
    return items


def _fill_items(dst: Strided, dims: Sequence[int], itemsize: int, pattern: int) -> list[Item]:
    """Set elements, split so that no instruction exceeds its limit."""
    address, strides, resource = dst
    if not prod(dims):
        return []
    if prod(dims) <= MAX_ITEMS:
        return [Item(Fill(address, pad4(strides, 0), pad4(dims, 1), itemsize, pattern), (), (resource,))]
    axis = dims.index(max(dims))
    half = dims[axis] // 2
    rest = address + half * strides[axis], strides, resource
    return [
        *_fill_items(dst, _with(dims, axis, half), itemsize, pattern),
        *_fill_items(rest, _with(dims, axis, dims[axis] - half), itemsize, pattern),
    ]


def transfer_works(
    dst: tuple[int, Sequence[int]],
    src: tuple[int, Sequence[int]],
    dims: Sequence[int],
    itemsize: int,
    before: Sequence[int] | None = None,
    after: Sequence[int] | None = None,
) -> list[tuple[DmaWork, int]]:
    """The work of the transfers of :func:`copy_items`, and how often each occurs.

    Sides are (address, byte strides); the address only determines the memory.
    """
    low, high = tuple(before or (0,) * len(dims)), tuple(after or (0,) * len(dims))
    outside = is_outside(dst[0]), is_outside(src[0])
    walk = _walk(tuple(dims), tuple(dst[1]), tuple(src[1]), low, high, itemsize, outside)
    if walk is None:
        return []
    looped, walked, begins, _ = walk
    if not walked:
        whole = list(map(sum, zip(low, dims, high, strict=True)))
        axis = whole.index(max(whole))
        half = _with(dims, axis, ceil_div(dims[axis], 2))
        return [(work, 2 * count) for work, count in transfer_works(dst, src, half, itemsize, before, after)]
    size, to, source, low, high = walked
    copy = Copy(dst[0] + begins[0], to, src[0] + begins[1], source, size, itemsize, low, high, 0)
    return [(copy.work(), prod(row[0] for row in looped))]


def is_transposing(dst: Sequence[int], src: Sequence[int], dims: Sequence[int], itemsize: int) -> bool:
    """Whether a transfer between two sides in DRAM with these byte strides must break up the runs of one of them."""
    none = (0,) * len(dims)
    rows, _ = _ordered(list(zip(dims, dst, src, none, none, strict=True)), (True, True))
    sizes, to, source, _, _ = zip(*rows, strict=True) if rows else ((),) * 5
    return bool(reorderable(sizes, to, source, itemsize))


_Row = tuple[int, int, int, int, int]
"""(items, dst stride, src stride, padding before, padding after) of one dimension."""

_Walk = tuple[Sequence[_Row], Sequence[tuple[int, ...]], tuple[int, int], dict[Any, DmaWork]]
"""How instructions walk the dimensions of a transfer: (looped, rows, begins, works).

``looped``: dimensions with one instruction per element. ``rows``: items, dst strides, src strides, padding before and
after, for the four dimensions of an instruction; empty if the transfer is too large for one instruction. ``begins``:
offsets of the first elements of dst and src, because a dimension may be walked backwards. ``works``: a cache for the
instructions.
"""


# Cached, because tiles repeat within a layer and from one design to the next.
@functools.lru_cache(maxsize=1 << 13)
def _walk(
    dims: tuple[int, ...],
    dst: tuple[int, ...],
    src: tuple[int, ...],
    before: tuple[int, ...],
    after: tuple[int, ...],
    itemsize: int,
    outside: tuple[bool, bool],
) -> _Walk | None:
    """How to walk a transfer; None if there is nothing to write."""
    if prod([size + low + high for size, low, high in zip(dims, before, after, strict=True)]) > MAX_ITEMS:
        return (), (), (0, 0), {}
    rows, begins = _ordered(list(zip(dims, dst, src, before, after, strict=True)), outside)
    rows = _merge(rows)
    # A copy of no elements with padding around them is a fill, which the instruction supports.
    if any(b + d + a == 0 for d, _, _, b, a in rows):
        return None
    looped, inner = _split(rows, itemsize, outside)
    if (transfers := prod(row[0] for row in looped)) > MAX_TRANSFERS:
        raise TooManyError(f"{list(dims)} needs {transfers} transfers, the limit is {MAX_TRANSFERS}")
    columns = [[row[column] for row in inner] for column in range(5)]
    return looped, [pad4(column, filler) for column, filler in zip(columns, (1, 0, 0, 0, 0), strict=True)], begins, {}


def fetch_items(
    dst: Strided,
    src: Strided,
    dims: Sequence[int],
    itemsize: int,
    before: Sequence[int] | None = None,
    after: Sequence[int] | None = None,
    pattern: int = 0,
) -> list[Item]:
    """:func:`copy_items` for the features of a unit that fetches them itself.

    The last dimension is the channels of a pixel and is not merged with others.
    """
    none = (0,) * len(dims)
    low, high = before or none, after or none
    elements = prod(map(sum, zip(low, dims, high, strict=True)))
    if len(dims) > 4 or elements > MAX_ITEMS or not prod(dims):
        return copy_items(dst, src, dims, itemsize, before, after, pattern)
    (dst_address, dst_strides, dst_resource), (src_address, src_strides, src_resource) = dst, src
    sides = dst_address, pad4(dst_strides, 0), src_address, pad4(src_strides, 0)
    fetch = Fetch(*sides, pad4(dims, 1), itemsize, pad4(low, 0), pad4(high, 0), pattern)
    return [Item(fetch, (src_resource,), (dst_resource,))]


def forget() -> None:
    """Clear the cache of walks, for tests that change the limits of this module."""
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
    """Copy a whole view into a slot without gaps, with its dimensions in ``order``, outermost first."""
    return load_items(_packed(slot, view, order), view.permute(order))


def store_packed(view: View, slot: Slot, order: Sequence[int]) -> list[Item]:
    """Copy a slot with the layout of :func:`load_packed` into a whole view."""
    return store_items(view.permute(order), _packed(slot, view, order))


def _packed(slot: Slot, view: View, order: Sequence[int]) -> Strided:
    strides = ordered_strides(view.shape, order, view.dtype.itemsize)
    return slot.address, [strides[axis] for axis in order], slot


def _ordered(rows: list[_Row], outside: tuple[bool, bool]) -> tuple[list[_Row], tuple[int, int]]:
    """Sort the dimensions for the DMA engine, outermost first, each walked towards higher addresses.

    The order follows the side outside SRAM, where bursts cost more than words; if both are outside, the destination.
    Also returns the offsets of the first elements of dst and src.
    """
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
    # A stable sort, so that dimensions with one element keep their position.
    found = sorted((row for row in turned if row[leading]), key=lambda row: -row[leading])
    for row in (row for row in turned if not row[leading]):
        # A dimension without a stride on the leading side is placed by its stride on the other side.
        at = next((at for at, each in enumerate(found) if abs(each[other]) < abs(row[other])), len(found))
        found.insert(at, row)
    return found, (begins[0], begins[1])


def _merge(rows: Sequence[_Row]) -> list[_Row]:
    """Merge neighbouring dimensions that are contiguous on both sides. Padded dimensions are not merged."""
    joined: list[_Row] = []
    for row in rows:
        size, to, source, low, high = row
        if size == 1 and not low and not high:
            continue
        if joined and not low and not high:
            outer_size, outer_to, outer_source, outer_low, outer_high = joined[-1]
            if not outer_low and not outer_high and outer_to == to * size and outer_source == source * size:
                joined[-1] = (outer_size * size, to, source, 0, 0)
                continue
        joined.append(row)
    return joined


def _split(rows: list[_Row], itemsize: int, outside: tuple[bool, bool]) -> tuple[list[_Row], list[_Row]]:
    """Split dimensions into (looped, inner), because an instruction has at most four.

    Dimensions are looped one after another: always the one that leaves the longest runs in the fewest transfers, or the
    shortest of equals.
    """
    inner = list(rows)
    looped: list[_Row] = []
    while len(inner) > 4:
        # Only the instruction writes padding, so padded dimensions stay inner. There are at most four (legalize).
        plain = [index for index, row in enumerate(inner) if not row[3] and not row[4]]
        costs = [inner[i][0] * (_START + _pieces(inner[:i] + inner[i + 1 :], itemsize, outside)) for i in plain]
        _, _, index = min(zip(costs, [inner[index][0] for index in plain], plain, strict=True))
        looped.append(inner.pop(index))
    return looped, inner


_START = 32
"""The cost of one more transfer, in short runs: a latency of 120 ns equals the time of 32 bursts of 64 bytes at 17
GB/s. The choice is the same for all devices."""


def _pieces(rows: Sequence[_Row], itemsize: int, outside: tuple[bool, bool]) -> int:
    """The number of runs of one transfer on the side outside SRAM that has more, plus the words of the other side
    divided by ``_WORDS``."""
    dims = [low + size + high for size, _, _, low, high in rows]
    runs = [walked_runs(dims, [row[column] for row in rows], itemsize).pieces for column in (1, 2)]
    far = max((count for count, is_far in zip(runs, outside, strict=True) if is_far), default=1)
    near = max((count for count, is_far in zip(runs, outside, strict=True) if not is_far), default=1)
    return far + near // _WORDS


_WORDS = 4
"""Words in SRAM that take as long as one burst: one word per cycle at 1 GHz, compared with 64 bytes at 17 GB/s."""
