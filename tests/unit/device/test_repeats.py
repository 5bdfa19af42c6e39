"""Rounds of jobs repeated on the host's side of the bus: their number, and the time that passes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from npusim.device.bus import Turn
from npusim.device.npu import NpuDevice
from npusim.hw.config import load_config

READ, WRITTEN = 4096, 8192


class Course:
    """Stands in for the device's knowledge of jobs: each job decrements a byte, and faults when told to."""

    def __init__(self, value: int, fault: int | None = None) -> None:
        self.device = NpuDevice(load_config("tiny"))
        self.bus = self.device.bus
        self.bus.write_memory(READ, bytes([value]))
        self.calls: list[int] = []
        self.known = True
        self._fault = fault
        self.device.arithmetic = self.arithmetic  # type: ignore[method-assign]

    def arithmetic(self, turn: Turn) -> Callable[[], bool] | None:
        def compute() -> bool:
            self.calls.append(turn.code)
            left = self.device.bus.read_memory(READ, 1)[0]
            self.device.bus.write_memory(READ, bytes([left - 1]))
            return len(self.calls) != self._fault

        return compute if self.known else None

    def repeat(self, rounds: list[list[Turn]], most: int) -> tuple[int, int]:
        """Return the number of executed rounds and their time, without the counting above."""
        before = self.device.now_ps
        count = self.bus.repeat(rounds, most)
        copies = 2 * len(self.calls) * self.device.config.host.copy_ps(1)
        return count, self.device.now_ps - before - copies


def turn(code: int, spent_ps: int = 10, reads: bool = True) -> Turn:
    written = [(WRITTEN, np.full(4, code, np.uint8))]
    return Turn(code, 0, (), written, [(READ, 1)] if reads else [], spent_ps)


@pytest.mark.parametrize("most", [0, 1, 4])
def test_no_more_rounds_than_wanted(most: int) -> None:
    course = Course(100)
    assert course.repeat([[turn(1, 10)], [turn(2, 300)]], most) == (most, (most + 1) // 2 * 10 + most // 2 * 300)
    assert course.calls == [1, 2, 1, 2][:most]


def test_a_round_whose_result_is_zeros_is_the_last_and_does_not_count() -> None:
    course = Course(3)
    assert course.repeat([[turn(1)]], 9) == (2, 20)
    assert course.calls == [1, 1, 1]


def test_a_fault_is_the_last_and_does_not_count() -> None:
    course = Course(100, fault=4)
    assert course.repeat([[turn(1)], [turn(2)]], 9) == (3, 30)
    assert course.calls == [1, 2, 1, 2]


def test_the_jobs_of_a_round_are_done_in_turn_until_one_says_no() -> None:
    course = Course(3)
    assert course.repeat([[turn(1, reads=False), turn(2), turn(3, 1000)]], 9) == (0, 0)
    assert course.calls == [1, 2, 3]
    course = Course(2)
    assert course.repeat([[turn(1, reads=False), turn(2), turn(3)]], 9) == (0, 0)
    assert course.calls == [1, 2]


def test_nothing_is_done_where_one_course_is_not_known_or_the_device_is_gone() -> None:
    course = Course(100)
    course.known = False
    assert course.repeat([[turn(1)]], 9) == (0, 0)
    course.known = True
    course.device.unplug()
    assert course.bus.repeat([[turn(1)]], 9) == 0
    assert course.calls == []


def test_what_software_writes_is_written_once() -> None:
    course = Course(100)
    course.repeat([[turn(7)]], 3)
    assert course.bus.read_memory(WRITTEN, 5) == bytes([7, 7, 7, 7, 0])
