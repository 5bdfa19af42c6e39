"""View algebra compared with numpy strides, and the arena."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.compiler.buffers import (
    Arena,
    Buffer,
    View,
    collapse,
    dense_strides,
    memory_order,
    ordered_strides,
    pad4,
)
from npusim.dtypes import DType
from npusim.errors import CompileError
from npusim.hw.memory import ALIGNMENT, align

DATA = np.arange(4096, dtype=np.int16)
BUFFER = Buffer("b", 1, DATA.nbytes)
ITEM = DATA.itemsize


def elements(view: View) -> npt.NDArray[np.int16]:
    """Return the elements of a view as numpy reads them."""
    return np.lib.stride_tricks.as_strided(DATA[view.offset // ITEM :], view.shape, view.strides)


@st.composite
def views(draw: st.DrawFn) -> View:
    """Draw a dense view with random transpositions, slices and broadcasts."""
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=4)))
    view = View(BUFFER, 2 * draw(st.integers(0, 50)), shape, dense_strides(shape, ITEM), DType.INT16)
    for _ in range(draw(st.integers(0, 2))):
        kind = draw(st.sampled_from(["transpose", "slice", "broadcast"]))
        if kind == "transpose":
            view = view.permute(draw(st.permutations(range(len(view.shape)))))
        elif kind == "slice":
            view = view.slice(*draw(cuts(view.shape)))
        else:
            lead = draw(st.lists(st.integers(1, 3), max_size=2))
            view = view.broadcast((*lead, *(draw(st.integers(1, 3)) if dim == 1 else dim for dim in view.shape)))
    return view


@st.composite
def cuts(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[list[int], list[int], list[int]]:
    """Draw (starts, sizes, steps) within a shape whose dimensions are not empty."""
    starts, sizes, steps = [], [], []
    for dim in shape:
        start, step = draw(st.integers(0, dim - 1)), draw(st.sampled_from([1, 2, -1, -2]))
        room = (dim - 1 - start) // step + 1 if step > 0 else start // -step + 1
        starts.append(start)
        steps.append(step)
        sizes.append(draw(st.integers(1, room)))
    return starts, sizes, steps


@given(views(), st.data())
def test_transpose(view: View, data: st.DataObject) -> None:
    perm = data.draw(st.permutations(range(len(view.shape))))
    np.testing.assert_array_equal(elements(view.permute(perm)), elements(view).transpose(perm))


@given(views(), st.data())
def test_slice(view: View, data: st.DataObject) -> None:
    starts, sizes, steps = data.draw(cuts(view.shape))
    index = tuple(
        np.arange(start, start + size * step, step) for start, size, step in zip(starts, sizes, steps, strict=True)
    )
    wanted = elements(view)[np.ix_(*index)] if index else elements(view)
    np.testing.assert_array_equal(elements(view.slice(starts, sizes, steps)), wanted)


@given(views(), st.data())
def test_broadcast(view: View, data: st.DataObject) -> None:
    lead = data.draw(st.lists(st.integers(1, 3), max_size=2))
    shape = (*lead, *(data.draw(st.integers(1, 3)) if dim == 1 else dim for dim in view.shape))
    np.testing.assert_array_equal(elements(view.broadcast(shape)), np.broadcast_to(elements(view), shape))


@settings(max_examples=300)
@given(views(), st.data())
def test_reshape_says_the_same_elements_or_none(view: View, data: st.DataObject) -> None:
    size = math.prod(view.shape)
    dims = [1] * data.draw(st.integers(1, 4))
    rest = size
    for prime in (2, 3, 5, 7):
        while rest % prime == 0:
            rest //= prime
            dims[data.draw(st.integers(0, len(dims) - 1))] *= prime
    assert rest == 1
    found = view.reshape(dims)
    wanted = elements(view).reshape(dims)
    if found is not None:
        np.testing.assert_array_equal(elements(found), wanted)
    else:
        assert not np.shares_memory(wanted, DATA), "numpy found strides where the view did not"


@given(views())
def test_a_dense_view_takes_any_shape(view: View) -> None:
    if view.is_dense():
        assert view.reshape((math.prod(view.shape),)) is not None
        np.testing.assert_array_equal(elements(view).reshape(-1), DATA[view.offset // ITEM :][: math.prod(view.shape)])


@given(views())
def test_extent_is_where_the_elements_are(view: View) -> None:
    low, high = view.extent()
    touched = elements(view).astype(np.int64) * ITEM  # element i has the value i
    assert (low, high) == (touched.min(), touched.max() + ITEM)


def test_reshape_of_nothing() -> None:
    view = View(BUFFER, 0, (0, 3), (6, 2), DType.INT16).reshape((5, 0))
    assert view is not None
    assert view.shape == (5, 0)


@given(st.permutations(range(4)), st.lists(st.integers(1, 4), min_size=4, max_size=4))
def test_memory_order_and_ordered_strides_are_inverse(order: list[int], shape: list[int]) -> None:
    strides = ordered_strides(shape, order, ITEM)
    found = memory_order(shape, strides)
    assert ordered_strides(shape, found, ITEM) == pytest.approx(strides) or 1 in shape
    moving = [axis for axis in order if shape[axis] > 1]
    assert [axis for axis in found if shape[axis] > 1] == moving


@given(views(), st.data())
def test_collapse_keeps_every_operand(view: View, data: st.DataObject) -> None:
    other = dense_strides(view.shape, 4)
    dims, (mine, theirs) = collapse(view.shape, view.strides, other)
    assert math.prod(dims) == math.prod(view.shape)
    assert len(dims) <= len(view.shape)
    for strides, merged in ((view.strides, mine), (other, theirs)):
        full = sum(np.ix_(*(np.arange(d) * s for d, s in zip(view.shape, strides, strict=True))), np.zeros((), int))
        short = sum(np.ix_(*(np.arange(d) * s for d, s in zip(dims, merged, strict=True))), np.zeros((), int))
        np.testing.assert_array_equal(
            np.ravel(np.broadcast_to(full, view.shape)), np.ravel(np.broadcast_to(short, dims))
        )


def test_collapse_joins_what_is_dense() -> None:
    assert collapse((2, 3, 4), dense_strides((2, 3, 4), 2)) == ([24], [[2]])
    assert collapse((2, 1, 4), (100, 7, 2)) == ([2, 4], [[100, 2]])


def test_pad4() -> None:
    assert pad4((5, 6), 1) == (1, 1, 5, 6)
    with pytest.raises(CompileError, match="an instruction walks 4 dimensions, got 5"):
        pad4((1, 2, 3, 4, 5), 0)


# The arena

LIVES = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(0, 20), st.integers(0, 8)).map(
        lambda life: Buffer("b", 1, life[0], 0, life[1], life[1] + life[2])
    ),
    max_size=30,
)


@settings(max_examples=200)
@given(LIVES)
def test_the_arena_never_overlaps_what_lives_at_once(buffers: list[Buffer]) -> None:
    arena = Arena()
    for buffer in sorted(buffers, key=lambda b: b.born):
        arena.place(buffer)
    for index, one in enumerate(buffers):
        assert one.offset % ALIGNMENT == 0
        assert one.offset + one.nbytes <= arena.nbytes
        for other in buffers[:index]:
            if one.born <= other.dies and other.born <= one.dies and one.nbytes and other.nbytes:
                assert one.offset + one.nbytes <= other.offset or other.offset + other.nbytes <= one.offset


@settings(max_examples=200)
@given(LIVES)
def test_the_arena_takes_the_lowest_place_that_is_free(buffers: list[Buffer]) -> None:
    """Compared with a search over all blocks in use during the life of a buffer."""
    arena = Arena()
    buffers.sort(key=lambda b: b.born)
    for index, buffer in enumerate(buffers):
        arena.place(buffer)
        blocks = align(max(buffer.nbytes, 1)) // ALIGNMENT
        taken = {
            block
            for other in buffers[:index]
            if buffer.born <= other.dies
            for block in range(other.offset // ALIGNMENT, (other.offset + align(max(other.nbytes, 1))) // ALIGNMENT)
        }
        places = range(sum(align(max(other.nbytes, 1)) for other in buffers) // ALIGNMENT + 1)
        lowest = next(place for place in places if taken.isdisjoint(range(place, place + blocks)))
        assert buffer.offset == lowest * ALIGNMENT


def test_the_arena_uses_bytes_again() -> None:
    arena = Arena()
    for born in range(0, 20, 2):
        arena.place(Buffer("b", 1, 1000, 0, born, born + 1))
    assert arena.nbytes == align(1000)
