"""Simulated time in integer picoseconds; the only module that uses SimPy.

Events are ordered by (time, serial number), so a run never depends on hashes, addresses or host time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from heapq import heapify
from typing import Any

import simpy
from simpy.events import URGENT, Event, Timeout

from npusim.errors import CheckpointError
from npusim.turns import DrivingLock, exclusive, in_use

__all__ = ["Callback", "Clock", "Environment", "Event"]

Callback = Callable[[Event], Any]


class Environment(simpy.Environment):
    """A SimPy environment in whole picoseconds."""

    @property
    def now(self) -> int:
        """The current time in ps."""
        return self._now  # type: ignore[return-value]

    def run_until(self, done: Callable[[], object], time: int) -> bool:
        """Process events up to and including ``time`` until ``done()``. Returns whether it is done; the clock stops
        there."""
        queue = self._queue
        while not done():
            if not queue or queue[0][0] > time:
                self._now = time
                return False
            self.step()
        return True


class _UrgentTimeout(Event):
    """A timeout that is processed before all other events at its time. SimPy's own has no priority."""

    def __init__(self, env: Environment, delay: int, value: object) -> None:
        super().__init__(env)
        self._ok, self._value = True, value
        env.schedule(self, URGENT, delay)


class Clock:
    """A SimPy environment, driven from outside by :meth:`advance` and :meth:`run_until`.

    ``turn``: held by the driving thread; a second driving thread gets UsageError.
    """

    __slots__ = ("_until", "env", "turn")

    def __init__(self) -> None:
        self.env = Environment()
        self.turn = DrivingLock()
        self._until = 0  # time up to which the clock runs without interruption from outside

    @property
    def now(self) -> int:
        """Picoseconds since power-on."""
        return self.env._now  # type: ignore[return-value]  # what .now is, without a call: it is asked all the time

    @property
    def coming(self) -> int | None:
        """The time of the next event; None if there is none."""
        queue = self.env._queue
        return queue[0][0] if queue else None  # type: ignore[return-value]

    def after(self, delay: int, callback: Callback, value: object = None) -> None:
        """Call ``callback(event)`` in ``delay`` ps, with ``event.value == value``. Uses a bare event, not a process."""
        Timeout(self.env, delay, value).callbacks.append(callback)

    def before(self, delay: int, callback: Callback, value: object = None) -> None:
        """Like :meth:`after`, but before all other events at that time."""
        _UrgentTimeout(self.env, delay, value).callbacks.append(callback)

    def is_quiet(self, duration: int) -> bool:
        """For events: whether no other event comes in the next ``duration`` ps, and the clock runs that long without
        interruption."""
        end = self.env.now + duration
        return end <= self._until and self.env.peek() > end

    def is_empty(self, duration: int) -> bool:
        """Whether no other event comes in the next ``duration`` ps."""
        return self.env.peek() > self.env.now + duration

    def relive(self, since: int, begin: Callable[[], object]) -> None:
        """Go back to a time since which nothing has happened, call ``begin()`` there, and process its events up to the
        current time. Other pending events stay pending."""
        env = self.env
        now, held = env.now, env._queue
        env._queue, env._now = [], since
        begin()
        while env._queue and env._queue[0][0] <= now:
            env.step()
        env._queue += held
        heapify(env._queue)
        env._now = now

    def pending(self) -> list[tuple[int, Callback, object]]:
        """The pending events in order: time, callback, value."""
        events = []
        for time, _, _, event in sorted(self.env._queue, key=lambda item: item[:3]):
            for callback in event.callbacks or ():
                events.append((int(time), callback, event.value))
        return events

    def jump(self, now: int) -> None:
        """Set the time and drop all events."""
        self.env._queue.clear()
        self.env._now = self._until = now

    def check_outside(self, what: str) -> None:
        """Raise CheckpointError while an event is being processed, because its remaining work is on Python's stack
        only."""
        # The stack is inspected here, because a flag would slow down every event.
        frame = sys._getframe()
        while frame is not None:
            if frame.f_code is simpy.Environment.step.__code__ and frame.f_locals.get("self") is self.env:
                raise CheckpointError(f"{what} is not possible during an event: stop the clock first")
            frame = frame.f_back  # type: ignore[assignment]

    @exclusive
    def run_looked_at(self, done: Callable[[], object], time: int) -> bool:
        """Process events up to and including ``time`` until ``done()``, which may inspect the machine after each
        event."""
        self._until = self.now  # an event may not assume that nobody looks
        return self.env.run_until(done, time)

    def advance(self, delay: int) -> None:
        """Let ``delay`` ps pass: all events up to and including that time are processed."""
        if delay < 0:
            raise ValueError(f"time must not go back, by {delay} ps")
        if not self.turn.lock.acquire(False) and not self.turn.enter_after_visitors():
            raise in_use("Clock", "advance")
        try:
            env = self.env
            queue = env._queue  # direct access, because SimPy's methods cost a call per event
            # The clock runs to this time without interruption, see is_quiet().
            self._until = target = env._now + delay  # type: ignore[assignment]
            while queue and queue[0][0] <= target:
                env.step()
            env._now = target
        finally:
            self.turn.lock.release()

    def run_until(self, done: Callable[[], object], timeout: int) -> bool:
        """Process events until ``done()``, for at most ``timeout`` ps. Returns whether it is done.

        The clock stops at the event that made it done, or at the end of the timeout.
        """
        if not self.turn.lock.acquire(False) and not self.turn.enter_after_visitors():
            raise in_use("Clock", "run_until")
        try:
            self._until = deadline = self.now + timeout
            return self.env.run_until(done, deadline)
        finally:
            self.turn.lock.release()
