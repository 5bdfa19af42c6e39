"""Jobs in any order, preempted, aborted or reset: each computes with its own constants."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.driver import DriverJob, LoadedProgram, Priority
from npusim.errors import NpusimError
from npusim.isa.base import region
from npusim.program import CONSTANTS, FIRST_IO, Program
from tests.support.programs.streams import Stream, copy, fill
from tests.support.programs.timed_jobs import NS, Bench

SIZE = 256


def keeper(value: int, at: int) -> Program:
    """Return y0 = constants of one value, which stay in SRAM at an address; much other memory is overwritten."""
    stream = Stream()
    loaded = stream.dma(copy(at, region(CONSTANTS), SIZE))
    stream.keep(SIZE)
    for other in range(0, 4 * SIZE, SIZE):
        if other != at:
            stream.dma(fill(other, SIZE, value))
    stream.dma(copy(region(FIRST_IO), at, SIZE), loaded)
    return stream.program([], [SIZE], constants=bytes([value]) * SIZE)


PROGRAMS = [keeper(1, 0), keeper(2, 0), keeper(3, SIZE)]
"""Two of them have the same code."""
ACTIONS = st.one_of(
    st.tuples(st.just("submit"), st.integers(0, 2), st.sampled_from(list(Priority)), st.booleans()),
    st.tuples(st.just("submit"), st.just(0), st.just(Priority.LOW), st.just(False)),
    st.tuples(st.just("pass"), st.integers(0, 1500)),
    st.tuples(st.just("wait")),
    st.tuples(st.just("abort")),
    st.tuples(st.just("reset")),
    st.tuples(st.just("reload"), st.integers(0, 2)),
)


class Run:
    def __init__(self) -> None:
        self.bench = Bench()
        self.driver = self.bench.driver
        self.loaded: list[LoadedProgram] = [self.driver.load(program) for program in PROGRAMS]
        self.open: list[tuple[int, DriverJob]] = []
        self.held = 0

    def do(self, what: str, *args: Any) -> None:
        getattr(self, f"do_{what}")(*args)

    def do_submit(self, number: int, priority: Priority, timing_only: bool) -> None:
        job = self.driver.submit(self.loaded[number], priority=priority, timing_only=timing_only)
        self.open.append((number, job))

    def do_pass(self, ns: int) -> None:
        self.bench.device.machine.clock.advance(ns * NS)

    def do_wait(self) -> None:
        for number, job in self.open:
            try:
                self.driver.wait(job)
            except NpusimError:
                continue
            if not job.timing_only:
                assert job.outputs["y0"].tobytes() == bytes([number + 1]) * SIZE
            self.held += self.bench.records[job.seqno].residents_held
        self.open.clear()

    def do_abort(self) -> None:
        if self.open:
            self.driver.abort(self.open[len(self.open) // 2][1])

    def do_reset(self) -> None:
        self.driver.reset()

    def do_reload(self, number: int) -> None:
        self.do_wait()
        self.driver.unload(self.loaded[number])
        self.loaded[number] = self.driver.load(PROGRAMS[number])


def check(actions: list[tuple[Any, ...]]) -> None:
    run = Run()
    for action in actions:
        run.do(*action)
    run.do_wait()


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTIONS, max_size=14))
def test_every_job_computes_with_its_own_constants(actions: list[tuple[Any, ...]]) -> None:
    check(actions)


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(st.lists(ACTIONS, max_size=40))
def test_every_job_computes_with_its_own_constants_at_length(actions: list[tuple[Any, ...]]) -> None:
    check(actions)


def test_such_sequences_find_residents() -> None:
    run = Run()
    for action in [("submit", 0, Priority.LOW, False)] * 3 + [("pass", 700), ("submit", 1, Priority.HIGH, False)]:
        run.do(*action)
    run.do_wait()
    assert run.held == 1
