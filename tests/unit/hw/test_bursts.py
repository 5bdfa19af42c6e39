"""Transfers in whole bursts: what runs off a border takes one more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.hw.config import load_config
from npusim.hw.dram.fixed import FixedDram
from npusim.isa.base import region, sram
from npusim.isa.dma import Copy
from npusim.work import PLACE_BYTES, DmaWork

MODEL = FixedDram(load_config("tiny"))  # bursts of 64 bytes


@pytest.mark.parametrize(
    ("run", "stride", "offset", "runs", "bursts"),
    [
        (64, 0, 0, 1, 1),
        (64, 0, 1, 1, 2),
        (8, 0, 56, 1, 1),
        (8, 0, 57, 1, 2),
        (48, 96, 0, 4, 6),  # at 0, 96, 192, 288: the second and the fourth start 32 into a burst and cross its end
        (128, 256, 32, 3, 9),
    ],
)  # fmt: skip
def test_bursts_by_hand(run: int, stride: int, offset: int, runs: int, bursts: int) -> None:
    work = DmaWork(run * runs, runs, run, run * runs, 0, stride, offset)
    assert MODEL.transfer_bytes(work) == bursts * 64


@given(st.integers(1, 300), st.integers(0, 1000), st.integers(0, PLACE_BYTES - 1), st.integers(1, 200))
def test_bursts_are_those_that_the_addresses_touch(run: int, gap: int, offset: int, runs: int) -> None:
    stride = run + gap
    touched = sum((offset + k * stride + run - 1) // 64 - (offset + k * stride) // 64 + 1 for k in range(runs))
    assert MODEL.transfer_bytes(DmaWork(run * runs, runs, run, 0, run * runs, stride, offset)) == touched * 64


def test_a_longer_burst_is_taken_from_its_border() -> None:
    config = load_config("tiny").with_(**{"dma.burst_bytes": "256 B"})
    assert FixedDram(config).transfer_bytes(DmaWork(300, 1, 300, 300, 0, 0, 60)) == 512


def test_a_copy_says_where_its_side_in_dram_starts() -> None:
    def place(offset: int, stride: int) -> int:
        src = (region(1, offset), (0, 0, stride, 4))
        work = Copy(sram(0), (0, 0, 16, 4), *src, (1, 1, 3, 4), 4, (0,) * 4, (0,) * 4, 0).work()
        assert isinstance(work, DmaWork)
        return work.offset

    assert place(0, 80) == 0
    assert place(100, 80) == 36
    assert place(500, -80) == (500 - 160) % 64
