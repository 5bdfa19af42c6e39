"""Memories, regions, and cached plans."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence

import numpy as np
import pytest

from npusim.errors import DeviceMemoryError
from npusim.hw.config import load_config
from npusim.isa.base import acc, region, sram
from npusim.sim.job import MachineJob
from npusim.sim.machine import COURSES_KEPT, Machine
from npusim.sim.memory import AddressError, DeviceMemory, JobMemory
from npusim.sim.steps import Step, StepDecoder
from tests.support.programs.streams import Stream, fill

TINY = load_config("tiny")


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_dram_costs_what_is_written_to_it() -> None:
    before = resident_bytes()
    memory = DeviceMemory(TINY.with_(**{"dram.bytes": "64 GiB"}))
    memory.slice(60 << 30, 1 << 20)[:] = 1
    assert memory.dram[(60 << 30) + 5] == 1
    assert memory.dram[(60 << 30) - 1] == 0
    assert resident_bytes() - before < 16 << 20


def test_more_dram_than_the_host_can_address() -> None:
    config = TINY.with_(**{"dram.bytes": 1 << 48})
    with pytest.raises(DeviceMemoryError, match=r"dram\.bytes: the host cannot map 281474976710656 bytes of"):
        DeviceMemory(config)


def test_released_memory_goes_back_to_the_host() -> None:
    memory = DeviceMemory(TINY)
    before = resident_bytes()
    memory.slice(0, 64 << 20)[:] = 1
    assert resident_bytes() - before > 60 << 20
    memory.release()
    assert resident_bytes() - before < 8 << 20
    assert not memory.slice(0, 4096).any()


def test_shared_memory_is_a_file_that_cannot_be_cut() -> None:
    memory = DeviceMemory(TINY, shared=True)
    file = memory.dram_file
    assert file is not None
    memory.store(4096, b"here")
    assert os.pread(file, 4, 4096) == b"here"
    os.pwrite(file, b"there", TINY.dram.bytes - 5)
    assert memory.slice(TINY.dram.bytes - 5, 5).tobytes() == b"there"
    for size in (0, TINY.dram.bytes + 4096):
        with pytest.raises(PermissionError):
            os.ftruncate(file, size)
    memory.release()
    assert os.fstat(file).st_blocks == 0  # the pages are gone for other mappings, too
    assert not memory.slice(4096, 4).any()
    del memory
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def test_addresses_lead_to_their_memories() -> None:
    config = TINY.with_(**{"cores": 2, "matrix.accumulator_bytes": 1024})
    memory = DeviceMemory(config)
    job = JobMemory(memory, [(4096, 100), (8192, 0)])
    place = job.at(1, sram(5))
    assert (place.memory is memory.sram[1], place.offset) == (True, 5)
    place = job.at(0, acc(7))
    assert (place.memory is memory.acc[0], place.offset) == (True, 7)
    place = job.at(0, region(0, 99))
    place.memory[place.offset] = 42
    assert memory.dram[4096 + 99] == 42
    assert len(place.memory) == 100  # an instruction cannot reach beyond its region
    assert job.at(0, region(1, 0)).offset == 0


@pytest.mark.parametrize(
    ("core", "address", "text"),
    [
        (0, region(1), "no such region or core"),
        (3, sram(0), "no such region or core"),
        (0, sram(TINY.sram.bytes + 1), "offset 0x20001: the memory has 0x20000 bytes"),
        (0, region(0, 101), "offset 0x65: the memory has 0x64 bytes"),
        (0, 3 << 48, "there is no memory space 3"),
    ],
)
def test_addresses_that_lead_nowhere(core: int, address: int, text: str) -> None:
    job = JobMemory(DeviceMemory(TINY), [(4096, 100)])
    with pytest.raises(AddressError) as caught:
        job.at(core, address)
    assert caught.value.address == address
    assert text in caught.value.explanation


END = TINY.dram.bytes


@pytest.mark.parametrize(("address", "size"), [(-1, 4), (0, -1), (END, 1), (END - 3, 4), (1 << 63, 8)])
def test_slices_outside_of_dram(address: int, size: int) -> None:
    with pytest.raises(AddressError, match="DRAM has 0x40000000 bytes"):
        DeviceMemory(TINY).slice(address, size)


def test_a_plan_is_made_once_for_the_same_bytes_and_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    steps = StepDecoder.steps

    def counted(self: StepDecoder, code: bytes, sizes: Sequence[int]) -> list[Step]:
        made.append(len(code))
        return steps(self, code, sizes)

    monkeypatch.setattr(StepDecoder, "steps", counted)
    machine = Machine(TINY)

    def start(value: int, size: int = 64) -> None:
        stream = Stream()
        stream.dma(fill(region(1), 8, value))
        code = stream.code()
        machine.memory.dram[: len(code)] = np.frombuffer(code, np.uint8)
        machine.drop(machine.start(MachineJob(0, len(code), ((4096, 0), (4096, size)), 0), lambda _: None))

    start(1)
    start(1)
    assert len(made) == 1
    start(1, size=32)  # other region sizes: verified again
    start(2)
    assert len(made) == 3
    for value in range(3, 3 + COURSES_KEPT):
        start(value)
    assert len(made) == 3 + COURSES_KEPT
    start(2 + COURSES_KEPT)
    assert len(made) == 3 + COURSES_KEPT
    start(1)  # evicted meanwhile
    assert len(made) == 4 + COURSES_KEPT
