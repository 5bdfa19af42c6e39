"""Slices as in ONNX: clamped like numpy's, and in one canonical form."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from npusim.frontends.onnx.operators.shapes import slice_range

NUMBERS = st.integers(-9, 9)


@given(NUMBERS, NUMBERS, NUMBERS.filter(bool), st.integers(0, 6))
def test_a_slice_selects_what_numpy_selects(start: int, end: int, step: int, dim: int) -> None:
    first, stride, size = slice_range(start, end, step, dim)
    wanted = list(range(dim))[start:end:step]
    assert [first + stride * number for number in range(size)] == wanted
    if not wanted:
        assert (first, stride) == (0, 1)
    if len(wanted) == 1:
        assert stride == 1


def test_ends_beyond_all_numbers() -> None:
    assert slice_range(0, (1 << 63) - 1, 1, 5) == (0, 1, 5)
    assert slice_range(-1, -(1 << 63), -1, 5) == (4, -1, 5)
    assert slice_range(-(1 << 63), (1 << 63) - 1, 2, 5) == (0, 2, 3)
    assert slice_range(4, 2, 1, 5) == (0, 1, 0)
    assert slice_range(2, 3, 7, 5) == (2, 1, 1)
