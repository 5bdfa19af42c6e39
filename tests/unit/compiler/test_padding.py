"""Where padding that repeats elements takes them from, for any cut of the axis."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from npusim.compiler.lower.pad import pieces

MOST = {"edge": 3, "reflect": -1, "wrap": 0}
"""Largest padding a mode allows, relative to the number of elements."""


@pytest.mark.parametrize("mode", MOST)
@pytest.mark.parametrize("size", range(1, 6))
def test_pieces_of_any_cut_give_what_numpy_pads(mode: str, size: int) -> None:
    for before, after in product(range(size + MOST[mode] + 1), repeat=2):
        wanted = np.pad(np.arange(size), (before, after), mode)
        for first, second in product(range(size + 1), repeat=2):
            made = np.full_like(wanted, -1)
            for start, end in pairwise(sorted({0, first, second, size})):
                for target, source, step, count in pieces(mode, size, before, after, start, end):
                    places = np.arange(count)
                    assert (made[target + places] == -1).all(), "written twice"
                    made[target + places] = source + step * places
                    assert count > 0
                    assert start <= made[target + places].min() <= made[target + places].max() < end
            np.testing.assert_array_equal(made, wanted)
