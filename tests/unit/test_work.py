"""The counts of each kind of work."""

from __future__ import annotations

from npusim.dtypes import DType
from npusim.work import PLACE_BYTES, DmaWork, MatrixWork


def test_products_of_a_convolution() -> None:
    """Every output sums its kernel over all input channels; in a depthwise convolution over its own channel."""
    sizes = (2, 3, 5, 14, 7, 11, 13)
    assert MatrixWork(DType.INT8, *sizes, False, True, True, 1).macs == 2 * 3 * 5 * 14 * 7 * 11 * 13
    assert MatrixWork(DType.INT8, *sizes, True, True, True, 1).macs == 2 * 3 * 5 * 14 * 11 * 13


def test_the_place_of_a_transfer_is_not_known_unless_it_is_given() -> None:
    assert (DmaWork(8, 1, 8, 8, 0).stride, DmaWork(8, 1, 8, 8, 0).offset, PLACE_BYTES) == (0, 0, 64)
