"""Deadlines: points on the steady clock (CLOCK_MONOTONIC), and checks of modelled times against them.

The time until a deadline is its budget. If the modelled duration on the device alone exceeds it, the miss is persistent
(MISSED_DEADLINE_PERSISTENT); if the duration plus the queue does, it is transient (MISSED_DEADLINE_TRANSIENT). A
deadline in the past leaves no budget: PERSISTENT. Work in progress is stopped with TRANSIENT when the budget is used up
in simulated time or the clock has passed the deadline.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import StatusError, invalid_argument
from ..types import ErrorStatus, LoopTimeoutDurationNs, OptionalTimeoutDuration, OptionalTimePoint

Clock = Callable[[], int]
"""Nanoseconds since the epoch of the steady clock."""
TimePoint = OptionalTimePoint | int | None
Duration = OptionalTimeoutDuration | int | None

INT64_MAX = (1 << 63) - 1
"""A deadline from here on, after 292 years of uptime, means no deadline."""
PS_PER_NS = 1000
LONGEST_WAIT_S = threading.TIMEOUT_MAX // 2

steady_clock: Clock = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point on a clock, in nanoseconds."""

    at_ns: int
    clock: Clock

    def budget_ps(self) -> int:
        """Picoseconds from now to the deadline; 0 or less if it has passed."""
        return (self.at_ns - self.clock()) * PS_PER_NS

    def seconds_left(self) -> float:
        """Seconds from now to the deadline, at least 0, at most the maximum wait of a thread."""
        return min(max(0.0, (self.at_ns - self.clock()) / 1e9), LONGEST_WAIT_S)

    def passed(self) -> bool:
        """Whether the clock has reached it."""
        return self.clock() >= self.at_ns

    def check(self, what: str) -> None:
        """Raise StatusError (PERSISTENT) if it has passed before the work starts."""
        if self.passed():
            raise StatusError(ErrorStatus.MISSED_DEADLINE_PERSISTENT, f"{what}: the deadline has already passed")

    def check_met(self, what: str) -> None:
        """Raise StatusError (TRANSIENT) if it has passed during the work."""
        if self.passed():
            raise StatusError(ErrorStatus.MISSED_DEADLINE_TRANSIENT, f"{what}: the deadline has passed meanwhile")

    def check_fit(self, duration_ps: int, backlog_ps: int) -> None:
        """Raise StatusError unless work with this modelled duration, after this backlog, ends in time."""
        budget = self.budget_ps()
        if duration_ps > budget:
            raise StatusError(
                ErrorStatus.MISSED_DEADLINE_PERSISTENT,
                f"the execution takes {duration_ps} ps on this device, but only {budget} ps are left",
            )
        if duration_ps + backlog_ps > budget:
            raise StatusError(
                ErrorStatus.MISSED_DEADLINE_TRANSIENT,
                f"the execution takes {duration_ps} ps after {backlog_ps} ps of other work, only {budget} ps are left",
            )


def deadline_of(value: TimePoint, clock: Clock) -> Deadline | None:
    """The deadline of a client; None if it set none. Raises StatusError (INVALID_ARGUMENT)."""
    at_ns = value.nanosecondsSinceEpoch if isinstance(value, OptionalTimePoint) else value
    if at_ns is None:
        return None
    _check_time(at_ns, "the deadline")
    return None if at_ns >= INT64_MAX else Deadline(at_ns, clock)


def loop_timeout_ps(value: Duration) -> int:
    """Simulated picoseconds that a WHILE loop may take. Raises StatusError (INVALID_ARGUMENT)."""
    duration = duration_ns(value)
    if duration is None:
        duration = int(LoopTimeoutDurationNs.DEFAULT)
    if duration > LoopTimeoutDurationNs.MAXIMUM:
        raise invalid_argument(
            f"the loop timeout must be at most {int(LoopTimeoutDurationNs.MAXIMUM)} ns, got {duration}"
        )
    return duration * PS_PER_NS


def duration_ns(value: Duration) -> int | None:
    """Nanoseconds of a duration, None for none. Raises StatusError (INVALID_ARGUMENT)."""
    duration = value.nanoseconds if isinstance(value, OptionalTimeoutDuration) else value
    if duration is not None:
        _check_time(duration, "the duration")
    return duration


def _check_time(value: object, what: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        raise invalid_argument(f"{what} must be an unsigned 64-bit integer, got {value!r}")
