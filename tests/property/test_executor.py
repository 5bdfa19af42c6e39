"""Jobs at random simulated times on the dispatcher without its thread: time slices have no visible effect."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.driver import Priority
from npusim.errors import DeadlineError, NpusimError
from npusim.runtime import Executor, Job, Request, Result
from npusim.runtime.dispatcher import Dispatcher
from tests.support.programs.executor_jobs import TINY, adder, values

US = 10**6
PROGRAMS = [adder(number, slow=slow) for number, slow in ((1, 0), (2, 10), (3, 60))]
NOBODY = cast("Executor", SimpleNamespace(forget=lambda job: None))


@dataclass(frozen=True)
class Wish:
    """A request: program, priority, arrival time, and time limit."""

    program: int
    priority: Priority
    after_ps: int
    budget_ps: int | None


WISHES = st.lists(
    st.builds(
        Wish,
        st.integers(0, len(PROGRAMS) - 1),
        st.sampled_from(Priority),
        st.sampled_from((0, 1, 3 * US + 7, 10 * US, 40 * US + 1)),
        st.sampled_from((None, None, None, 20 * US, 60 * US)),
    ),
    min_size=1,
    max_size=8,
)
Outcome = tuple[Result | None, NpusimError | None]


def dispatch(wishes: list[Wish], slice_ps: int) -> list[Outcome]:
    """Return the outcomes if the dispatcher polls at least every ``slice_ps``."""
    dispatcher = Dispatcher(TINY)
    jobs: list[Job] = []
    arrives, start = 0, dispatcher.now_ps
    for number, wish in enumerate(wishes):
        arrives += wish.after_ps
        while dispatcher.now_ps < start + arrives:
            if dispatcher.busy:
                dispatcher.step(min(slice_ps, start + arrives - dispatcher.now_ps))
            else:
                dispatcher.device.machine.clock.advance(start + arrives - dispatcher.now_ps)
        inputs = {"x0": values(number)}
        program = PROGRAMS[wish.program]
        request = Request(program, inputs, priority=wish.priority, budget_ps=wish.budget_ps)
        jobs.append(Job(request, NOBODY))
        dispatcher.admit(jobs[-1])
    while dispatcher.busy:
        dispatcher.step(slice_ps)
    outcomes: dict[int, Outcome] = {}
    for job, done, error in dispatcher.settled:
        if job.settle(done, error):
            outcomes[id(job)] = (done, error)
    return [outcomes[id(job)] for job in jobs]


def facts(outcome: Outcome) -> object:
    done, error = outcome
    if done is None:
        return type(error), str(error)
    times = (done.cycles, done.time_ps, done.queued_ps, done.suspended_ps, done.host_ps, done.total_ps)
    return times, done.timeline.digest(), done.host


@given(WISHES, st.sampled_from((1 * US, 7 * US + 3, 13 * US)))
@settings(max_examples=30)
def test_slices_change_nothing(wishes: list[Wish], slice_ps: int) -> None:
    """All requests arrive at the same time, because the slice does affect when a later one is seen."""
    wishes = [replace(wish, after_ps=0) for wish in wishes]
    whole = dispatch(wishes, 10**12)
    assert [facts(outcome) for outcome in dispatch(wishes, slice_ps)] == [facts(outcome) for outcome in whole]


@given(WISHES)
@settings(max_examples=30)
def test_every_job_has_its_result_or_ran_out_of_time(wishes: list[Wish]) -> None:
    for number, (wish, (done, error)) in enumerate(zip(wishes, dispatch(wishes, 50 * US), strict=True)):
        if done is None:
            assert isinstance(error, DeadlineError)
            assert wish.budget_ps is not None
            continue
        assert np.array_equal(done.outputs["y0"], values(number) + wish.program + 1)
        assert done.total_ps == done.time_ps + done.queued_ps + done.suspended_ps + done.host_ps
        parts = (done.time_ps, done.queued_ps, done.suspended_ps, done.host_ps)
        assert min(parts) >= 0
        assert (done.suspended_ps > 0) == (done.host.preemptions > 0)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(Priority)), min_size=2, max_size=8))
@settings(max_examples=20)
def test_jobs_that_arrive_together_begin_in_the_order_of_their_class(jobs: list[tuple[int, Priority]]) -> None:
    wishes = [Wish(program, priority, 0, None) for program, priority in jobs]
    outcomes = [done for done, _ in dispatch(wishes, 50 * US) if done is not None]
    assert len(outcomes) == len(jobs)
    waited = [(done.queued_ps, wish.priority) for done, wish in zip(outcomes, wishes, strict=True)]
    highest = max(wish.priority for wish in wishes)
    assert min(waited)[1] == highest
    for priority in Priority:
        same = [queued for queued, other in waited if other == priority]
        assert same == sorted(same)
