"""Deadlines and durations, to the nanosecond."""

from __future__ import annotations

import pytest

from hal.nnapi.errors import StatusError
from hal.nnapi.execution.deadline import INT64_MAX, Deadline, deadline_of, duration_ns, loop_timeout_ps
from hal.nnapi.types import ErrorStatus, LoopTimeoutDurationNs, OptionalTimeoutDuration, OptionalTimePoint


def at(now):
    return lambda: now


def status(call, *args):
    with pytest.raises(StatusError) as caught:
        call(*args)
    return caught.value.status


@pytest.mark.parametrize(
    "value", [None, OptionalTimePoint(), INT64_MAX, INT64_MAX + 1, (1 << 64) - 1, OptionalTimePoint(INT64_MAX)]
)
def test_no_deadline(value):
    assert deadline_of(value, at(5)) is None


@pytest.mark.parametrize("value", [1000, OptionalTimePoint(1000)])
def test_a_deadline_leaves_a_budget(value):
    deadline = deadline_of(value, at(400))
    assert deadline is not None
    assert deadline.budget_ps() == 600_000


@pytest.mark.parametrize("value", [-1, 1 << 64, 1.5, "soon", True])
def test_what_is_no_time_is_refused(value):
    assert status(deadline_of, value, at(0)) is ErrorStatus.INVALID_ARGUMENT
    assert status(duration_ns, value) is ErrorStatus.INVALID_ARGUMENT
    assert status(loop_timeout_ps, value) is ErrorStatus.INVALID_ARGUMENT


def test_a_deadline_has_passed_when_the_clock_reaches_it():
    assert not Deadline(100, at(99)).passed()
    assert Deadline(100, at(100)).passed()
    assert status(Deadline(100, at(100)).check, "x") is ErrorStatus.MISSED_DEADLINE_PERSISTENT
    Deadline(100, at(99)).check("x")


def test_what_fits_to_the_picosecond():
    deadline = Deadline(100, at(90))  # a budget of 10 000 ps
    deadline.check_fit(10_000, 0)
    deadline.check_fit(4_000, 6_000)
    assert status(deadline.check_fit, 10_001, 0) is ErrorStatus.MISSED_DEADLINE_PERSISTENT
    assert status(deadline.check_fit, 4_000, 6_001) is ErrorStatus.MISSED_DEADLINE_TRANSIENT


def test_seconds_left_are_never_negative():
    assert Deadline(3_000_000_000, at(1_000_000_000)).seconds_left() == 2.0
    assert Deadline(1, at(5)).seconds_left() == 0.0


def test_the_loop_timeout_has_a_default_and_a_maximum():
    most = int(LoopTimeoutDurationNs.MAXIMUM)
    assert loop_timeout_ps(None) == 2_000_000_000_000
    assert loop_timeout_ps(OptionalTimeoutDuration(7)) == 7000
    assert loop_timeout_ps(most) == most * 1000
    assert status(loop_timeout_ps, most + 1) is ErrorStatus.INVALID_ARGUMENT
