"""Rounds of jobs that are repeated without events."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from npusim.errors import DeviceFaultError
from npusim.faults import AtJob, Fault, Flip
from npusim.isa.base import region
from npusim.program import CONSTANTS, FIRST_IO, Program
from npusim.runtime import DeviceBuffer, Executor, Job, Request
from tests.support.programs.streams import Stream, add, copy, gather, round_trip
from tests.support.programs.timed_jobs import TINY

pytestmark = pytest.mark.unwatched

SIZE = 4
LAST = 200
"""The body looks up an entry of a table with LAST entries; an index beyond its end is a fault."""


def counting(step: bytes) -> Program:
    """Return y0 = x0 + step, byte by byte; x0, as an int32, is also looked up in a table."""
    stream = Stream()
    stream.dma(copy(0, region(FIRST_IO), SIZE))
    loaded = stream.dma(copy(SIZE, region(CONSTANTS), SIZE))
    added = stream.vector(add(2 * SIZE, 0, SIZE, SIZE), loaded)
    stream.dma(gather(3 * SIZE, region(CONSTANTS), 0, 1, LAST), loaded)
    stream.dma(copy(region(FIRST_IO + 1), 2 * SIZE, SIZE), added)
    return stream.program([SIZE], [SIZE], constants=step + bytes(LAST))


class Loop:
    """while x: x = x + step, in two alternating buffers."""

    def __init__(self, executor: Executor, step: int, start: int) -> None:
        self.executor = executor
        fingerprint = executor.config.fingerprint()
        steps = bytes([step % 256, 0, 0, 0])
        self.programs = [
            dataclasses.replace(each, config_fingerprint=fingerprint) for each in (round_trip(SIZE), counting(steps))
        ]
        self.buffers = [executor.buffer(SIZE), executor.buffer(SIZE)]
        executor.write(self.buffers[0], bytes([start, 0, 0, 0]))
        self.rounds: list[list[Job]] = []

    def step(self, rounds: int) -> None:
        """Continue as long as the condition is true."""
        check, body = self.programs
        for _ in range(rounds):
            source, target = self.turn()
            first = self.executor.submit(Request(check, {"x0": source}))
            if not first.wait().outputs["y0"].any():
                return
            second = self.executor.submit(Request(body, {"x0": source}, {"y0": target}))
            second.wait()
            self.rounds.append([first, second])

    def turn(self) -> tuple[DeviceBuffer, DeviceBuffer]:
        source = len(self.rounds) % 2
        return self.buffers[source], self.buffers[1 - source]

    def repeat(self, most: int) -> int:
        """Repeat the last two rounds; return the number of rounds executed."""
        count = self.executor.repeat(self.rounds[-2:], most)
        self.rounds += [self.rounds[-2 + number % 2] for number in range(count)]
        return len(self.rounds)

    def value(self) -> int:
        return self.executor.read(self.turn()[0], 1)[0]


def seen(executor: Executor) -> tuple[Any, ...]:
    return executor.device.now_ps, executor.counters


@pytest.fixture
def executor() -> Iterator[Executor]:
    with Executor(TINY) as executor:
        yield executor


@pytest.mark.parametrize("rounds", [0, 1, 6, 7, 100])
def test_everything_is_as_if_they_had_been_submitted(executor: Executor, rounds: int) -> None:
    loop = Loop(executor, -1, 50)
    loop.step(4)
    assert loop.repeat(rounds) == min(4 + rounds, 50)
    loop.step(3)  # as far as there are
    with Executor(TINY) as other:
        slow = Loop(other, -1, 50)
        slow.step(4 + rounds + 3)
        assert loop.value() == slow.value() == max(0, 50 - 4 - rounds - 3)
        assert seen(executor) == seen(other)


def test_inputs_of_the_host_are_told_again(executor: Executor) -> None:
    """Another job of the same program has used the memory in between."""
    loop = Loop(executor, -1, 50)
    check, body = loop.programs
    past: list[Job] = []
    for target in loop.buffers:
        for program, outputs in ((check, {}), (body, {"y0": target})):
            request = Request(program, {"x0": np.array([9, 0, 0, 0], np.uint8)}, outputs)
            executor.submit(request).wait()
            past.append(executor.submit(request))
            past[-1].wait()
    executor.submit(Request(body, {"x0": np.zeros(SIZE, np.uint8)}, {"y0": loop.buffers[0]})).wait()
    assert executor.repeat([past[:2], past[2:]], 2) == 2
    assert [executor.read(buffer, 1)[0] for buffer in loop.buffers] == [8, 8]


def test_a_fault_ends_them_and_is_left_to_a_job(executor: Executor) -> None:
    loop = Loop(executor, 1, 1)
    loop.step(4)
    assert loop.repeat(1000) == LAST - 1
    with pytest.raises(DeviceFaultError, match="DATA"):
        loop.step(1)


def test_none_while_another_job_waits(executor: Executor) -> None:
    loop = Loop(executor, -1, 50)
    loop.step(4)
    counts: list[int] = []
    with executor.paused():
        first = executor.submit(loop.rounds[-1][0].request)
        second = executor.submit(loop.rounds[-1][0].request)
        first.add_done_callback(lambda job: counts.append(executor.repeat(loop.rounds[-2:], 10)))
    second.wait()
    assert counts == [0]
    assert loop.repeat(10) == 14


def test_none_of_rounds_that_did_not_take_the_same_times(executor: Executor) -> None:
    loop = Loop(executor, -1, 50)
    loop.step(2)  # the first one brought the programs to the device
    assert loop.repeat(10) == 2


def test_none_of_a_program_that_has_left_the_device(executor: Executor) -> None:
    loop = Loop(executor, -1, 50)
    loop.step(4)
    executor.unload(loop.programs[1])
    assert loop.repeat(10) == 4
    loop.step(4)
    assert loop.repeat(10) == 18


def test_none_of_a_device_that_is_told_to_break(executor: Executor) -> None:
    loop = Loop(executor, -1, 50)
    loop.step(4)
    executor.faults.add([Fault(AtJob(job=1), Flip(flip="dram", address=loop.buffers[0].block.address, bit=7))])
    assert loop.repeat(10) == 4
    loop.step(1)
    assert loop.value() == 50 - 5 + 128
    executor.faults.clear()
    loop.step(1)
    assert loop.repeat(10) == 16
