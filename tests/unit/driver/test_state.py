"""A saved driver: a new one goes on with its programs and jobs, and refuses a state that was changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from npusim.device.checkpoint import Checkpoint
from npusim.device.npu import NpuDevice
from npusim.driver import Driver, DriverJob, LoadedProgram, Priority, header
from npusim.driver.state import driver_state, resume_driver
from npusim.errors import CheckpointError
from npusim.program import Program
from tests.support.nested import Path, changed, leaves
from tests.support.programs.executor_jobs import TINY, adder, values
from tests.support.programs.saved_states import WRONG

PROGRAMS = [adder(), adder(2, slow=200), adder(3, size=96)]
Saved = tuple[Checkpoint, dict[str, Any]]


class Bench:
    """A driver with one program that has run, one that runs and waits, and one that only is loaded."""

    def __init__(self) -> None:
        self.device = NpuDevice(TINY)
        self.driver = Driver(self.device.bus)
        self.loaded = [self.driver.load(program) for program in PROGRAMS]
        self.driver.run(self.loaded[0], {"x0": values()})
        place = self.driver.allocate(values(3).nbytes)
        self.driver.write(place, values(3).tobytes())
        self.jobs = [
            self.driver.submit(self.loaded[1], {"x0": values(1)}),
            self.driver.submit(self.loaded[0], {"x0": values(2)}, priority=Priority.HIGH),
            self.driver.submit(self.loaded[1], {}, bound=_bound(PROGRAMS[1], place)),
            self.driver.submit(self.loaded[1], {"x0": values(4)}, timing_only=True),
        ]

    def saved(self) -> Saved:
        """As it comes from a file."""
        state = driver_state(self.driver, self.loaded, self.jobs)
        return self.device.checkpoint(), json.loads(json.dumps(state))


def _bound(program: Program, place: int) -> dict[int, int]:
    """The input at an address of the client's."""
    return {program.inputs[0].region: place}


def resumed(saved: Saved, programs: list[Program]) -> tuple[Driver, list[LoadedProgram], list[DriverJob]]:
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    loaded, jobs = resume_driver(driver, saved[1], programs)
    device.restore(saved[0])
    return driver, loaded, jobs


def ended(driver: Driver, jobs: list[DriverJob]) -> list[tuple[int, bytes]]:
    """Cycles and outputs of each."""
    done = [driver.wait(job) for job in jobs]
    return [(job.cycles, b"".join(array.tobytes() for array in job.outputs.values())) for job in done]


@pytest.fixture(scope="module")
def saved() -> Saved:
    return Bench().saved()


def test_a_new_driver_ends_the_jobs_as_the_first_does() -> None:
    bench = Bench()
    driver, loaded, jobs = resumed(bench.saved(), PROGRAMS[::-1])
    assert [each.program for each in loaded] == PROGRAMS
    assert [job.program for job in jobs] == [job.program for job in bench.jobs]
    assert driver.free_bytes == bench.driver.free_bytes
    wanted = ended(bench.driver, bench.jobs)
    assert ended(driver, jobs) == wanted
    assert [outputs for _, outputs in wanted[:3]] == [
        (values(number) + constant).tobytes() for number, constant in ((1, 2), (2, 1), (3, 2))
    ]
    assert driver.counters == bench.driver.counters


def test_both_go_on_alike() -> None:
    """With the same addresses, numbers and free memory."""
    bench = Bench()
    driver, loaded, jobs = resumed(bench.saved(), PROGRAMS)
    free, seen = [], []
    for each, programs, open_jobs in ((bench.driver, bench.loaded, bench.jobs), (driver, loaded, jobs)):
        ended(each, open_jobs)
        job = each.submit(programs[2], {"x0": values(5, 96)})
        seen.append((job.seqno, job.addresses, ended(each, [job])))
        for program in programs:
            each.unload(program)
        free.append(each.free_bytes)
    assert seen[0] == seen[1]
    assert free[0] == free[1]


def test_a_state_is_saved_as_it_was_resumed(saved: Saved) -> None:
    driver, loaded, jobs = resumed(saved, PROGRAMS)
    assert json.loads(json.dumps(driver_state(driver, loaded, jobs))) == saved[1]


def test_values_of_other_kinds_are_refused(saved: Saved) -> None:
    for path, leaf in leaves(saved[1]):
        if path[-1] == "name":
            continue  # for messages
        for wrong in WRONG:
            if type(wrong) is not type(leaf) or isinstance(leaf, int):
                with pytest.raises(CheckpointError):
                    _resume(saved[1], (path, wrong))


def _resume(state: dict[str, Any], *changes: tuple[Path, Any]) -> None:
    for path, value in changes:
        state = changed(state, path, value)
    resume_driver(Driver(NpuDevice(TINY).bus), state, PROGRAMS)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("programs", 1, "digest"), "0" * 64, "is in the checkpoint, but was not given"),
        (("programs", 0, "sizes", 0), 1, "must have its sizes"),
        (("programs", 0, "number"), header.MOST_RESIDENTS + 1, "number must be at most"),
        (("jobs", 0, "addresses"), [], "must be those of all regions"),
        (("jobs", 0, "slot", "own"), [], "a block for each region that is not bound"),
        (("jobs", 0, "program"), 7, "IndexError"),
        (("jobs", 2, "bound"), [[2, 0], [2, 64]], "a region occurs twice"),
    ],
)
def test_what_does_not_fit_is_named(saved: Saved, path: Path, value: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        _resume(saved[1], (path, value))


def test_a_job_that_has_failed_or_has_no_program_is_not_saved() -> None:
    bench = Bench()
    with pytest.raises(CheckpointError, match="not among those that are loaded"):
        driver_state(bench.driver, bench.loaded[:1], bench.jobs)
    bench.driver.reset()
    with pytest.raises(CheckpointError, match="has failed"):
        driver_state(bench.driver, bench.loaded, bench.jobs)
