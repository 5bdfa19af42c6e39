"""Simulated time in integer picoseconds: the one door to SimPy.

Events run in the order of (time, serial number of their scheduling), so that a run never depends on hashes, addresses
or the host's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy
from simpy.events import Event, Timeout

Callback = Callable[[Event], Any]


class Environment(simpy.Environment):
    """SimPy's environment, in whole picoseconds."""

    @property
    def now(self) -> int:
        """The current time in ps."""
        return self._now  # type: ignore[return-value]


class Clock:
    """One SimPy environment, driven from outside by :meth:`advance` and :meth:`run_until`."""

    __slots__ = ("env",)

    def __init__(self) -> None:
        self.env = Environment()

    @property
    def now(self) -> int:
        """Picoseconds since the machine was switched on."""
        return self.env.now

    def after(self, delay: int, callback: Callback, value: object = None) -> None:
        """Call ``callback(event)`` in ``delay`` ps, ``event.value`` being ``value``: a bare event, no process."""
        Timeout(self.env, delay, value).callbacks.append(callback)

    def advance(self, delay: int) -> None:
        """Let ``delay`` ps pass: every event up to and including that time has run when this returns."""
        env = self.env
        target = env.now + delay
        Timeout(env, delay)  # brings the clock to the target even if nothing else happens there
        while env.peek() <= target:
            env.step()

    def run_until(self, done: Callable[[], bool], timeout: int) -> bool:
        """Run events until ``done()``, for at most ``timeout`` ps; says whether it is done.

        The clock stops at the event that made it done, or else at the end of the timeout.
        """
        env = self.env
        deadline = env.now + timeout
        while not done():
            if env.peek() > deadline:
                self.advance(deadline - env.now)
                return done()
            env.step()
        return True
