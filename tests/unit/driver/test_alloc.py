"""The allocator of device memory: no overlaps and no leaks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.driver.alloc import ALIGNMENT, Allocator
from npusim.errors import DeviceMemoryError

SIZE = 64 * ALIGNMENT


@given(st.lists(st.tuples(st.integers(0, 5000), st.booleans(), st.integers(0, 100)), max_size=60))
def test_blocks_never_overlap_and_everything_comes_back(steps: list[tuple[int, bool, int]]) -> None:
    memory = Allocator(ALIGNMENT, SIZE)
    live: dict[int, int] = {}
    for size, release, which in steps:
        if release and live:
            address = sorted(live)[which % len(live)]
            memory.free(address)
            del live[address]
        else:
            try:
                address = memory.allocate(size, "test")
            except DeviceMemoryError:
                assert memory.largest < size
                continue
            rounded = max(-(-size // ALIGNMENT), 1) * ALIGNMENT
            assert address % ALIGNMENT == 0
            assert address >= ALIGNMENT
            assert address + rounded <= ALIGNMENT + SIZE
            assert all(address + rounded <= other or other + used <= address for other, used in live.items())
            live[address] = rounded
        assert memory.available == SIZE - sum(live.values())
    for address in live:
        memory.free(address)
    assert memory.available == memory.largest == SIZE


def test_first_fit_takes_the_lowest_hole() -> None:
    memory = Allocator(0, SIZE)
    blocks = [memory.allocate(ALIGNMENT, "test") for _ in range(4)]
    memory.free(blocks[2])
    memory.free(blocks[0])
    assert memory.allocate(1, "test") == blocks[0]
    assert memory.allocate(2 * ALIGNMENT, "test") == blocks[3] + ALIGNMENT


def test_exhaustion_says_what_was_required_and_available() -> None:
    memory = Allocator(0, 4 * ALIGNMENT)
    memory.allocate(ALIGNMENT, "first")
    middle = memory.allocate(ALIGNMENT, "second")
    memory.allocate(ALIGNMENT, "third")
    memory.free(middle)
    with pytest.raises(DeviceMemoryError) as caught:
        memory.allocate(300, "weights")
    assert str(caught.value) == "weights: 512 bytes of device memory required, 512 available, 256 of them in one piece"


def test_freeing_what_is_no_block_is_an_error() -> None:
    memory = Allocator(0, SIZE)
    address = memory.allocate(1, "test")
    memory.free(address)
    with pytest.raises(ValueError, match="free of 0x0: no block starts there"):
        memory.free(address)


def test_an_unaligned_range_is_trimmed() -> None:
    memory = Allocator(1, 2 * ALIGNMENT)
    assert memory.available == ALIGNMENT
    assert memory.allocate(1, "test") == ALIGNMENT
