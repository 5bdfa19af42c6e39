"""PREEMPT requires memory for contexts, and jobs are saved where CONTEXT_BASE pointed when it was written."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.program import Program
from tests.support.bare_device import TINY, BareDevice
from tests.support.programs.streams import Stream, fill, round_trip

JOB = round_trip(64)
AREA = 1 << 24
CONTEXTS = 2 * TINY.sram.bytes
"""Contexts of the two lower priorities, on a device with one core and no accumulators."""
LAST = TINY.dram.bytes - CONTEXTS


def filling() -> Program:
    """Return a program that fills much of the SRAM in a few microseconds."""
    stream = Stream()
    for number in range(8):
        stream.dma(fill(4096 * number, 4096, 7))
    return stream.program()


def enable(bare: BareDevice, base: int) -> int:
    """Write CONTEXT_BASE and PREEMPT, and return PREEMPT."""
    bare["CONTEXT_BASE_LO"] = base & 0xFFFF_FFFF
    bare["CONTEXT_BASE_HI"] = base >> 32
    bare["PREEMPT"] = 1
    return bare["PREEMPT"]


def interrupt(bare: BareDevice) -> int:
    """Submit a HIGH job while a LOW one runs; return how often the latter was preempted."""
    low = bare.submit("LOW", filling())
    bare.advance(1_000_000)
    bare.submit("HIGH", JOB)
    bare.wait()
    bare.wait()
    return bare.records[low.seqno].preemptions


def test_without_a_place_for_contexts_nothing_is_parked_and_nothing_overwritten() -> None:
    bare = BareDevice()
    bare["PREEMPT"] = 1
    assert bare["PREEMPT"] == 0
    assert bare.device.misuse == [
        "write of 0x1 to PREEMPT: CONTEXT_BASE must not be 0 and must leave room for 0x40000 bytes in DRAM of "
        "0x40000000, got 0x0"
    ]
    before = bytes(bare.bus.read_memory(0, CONTEXTS))
    assert interrupt(bare) == 0
    assert bytes(bare.bus.read_memory(0, CONTEXTS)) == before


@pytest.mark.parametrize(("base", "taken"), [(64, 1), (LAST, 1), (LAST + 64, 0), (TINY.dram.bytes, 0), (1 << 40, 0)])
def test_the_contexts_must_have_room_in_dram(base: int, taken: int) -> None:
    bare = BareDevice()
    assert bare["CAP_CONTEXT_LO"] == CONTEXTS
    assert enable(bare, base) == taken
    assert len(bare.device.misuse) == 1 - taken


def test_an_area_at_the_very_end_of_dram_serves() -> None:
    bare = BareDevice()
    enable(bare, LAST)
    assert interrupt(bare) == 1
    assert bare.bus.read_memory(LAST, 64) == b"\7" * 64


def test_a_refused_write_ends_preemption() -> None:
    bare = BareDevice()
    assert enable(bare, AREA) == 1
    assert enable(bare, 0) == 0
    assert interrupt(bare) == 0


def test_the_address_is_taken_over_when_preempt_is_written() -> None:
    bare = BareDevice()
    enable(bare, AREA)
    bare["CONTEXT_BASE_LO"] = 0
    assert interrupt(bare) == 1
    assert np.count_nonzero(np.frombuffer(bare.bus.read_memory(AREA, TINY.sram.bytes), np.uint8)) > 0
    assert bare.bus.read_memory(0, CONTEXTS) == bytes(CONTEXTS)
    assert enable(bare, AREA + CONTEXTS) == 1
    assert interrupt(bare) == 1
    assert np.count_nonzero(np.frombuffer(bare.bus.read_memory(AREA + CONTEXTS, TINY.sram.bytes), np.uint8)) > 0


def test_a_job_that_is_coming_to_a_stop_is_parked_whatever_software_writes_meanwhile() -> None:
    bare = BareDevice()
    enable(bare, AREA)
    low = bare.submit("LOW", filling())
    bare.advance(1_000_000)
    bare.submit("HIGH", JOB)  # the low one is in the midst of a command
    bare["PREEMPT"] = 0
    bare["CONTEXT_BASE_LO"] = 0
    bare.wait()
    bare.wait()
    assert bare.records[low.seqno].preemptions == 1
    assert bare.records[low.seqno].fault is None
    assert bare.bus.read_memory(0, CONTEXTS) == bytes(CONTEXTS)
    assert interrupt(bare) == 0


def test_a_reset_ends_preemption() -> None:
    bare = BareDevice()
    enable(bare, AREA)
    bare["CONTROL"] = 1
    bare.set_up()
    assert bare["PREEMPT"] == bare["CONTEXT_BASE_LO"] == 0
    assert interrupt(bare) == 0
