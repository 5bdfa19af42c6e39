"""Locks for objects that are shared by threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from npusim.errors import UsageError

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Turns:
    """A lock for one thread at a time, reentrant; others wait.

    Work given to :meth:`post` is done when no thread is inside, so that finalizers, which may run anywhere, never wait
    for a lock.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.inside = False
        self.posted: deque[Callable[[], object]] = deque()

    def post(self, work: Callable[[], object]) -> None:
        """Do something now, or when the current thread leaves. Never waits."""
        self.posted.append(work)
        self.do_posted()

    def do_posted(self) -> None:
        """Do the posted work, unless another thread is inside, which does it later."""
        while self.posted and self.lock.acquire(False):
            try:
                if self.inside:
                    return
                self.inside = True
                try:
                    while self.posted:
                        self.posted.popleft()()
                finally:
                    self.inside = False
            finally:
                self.lock.release()


class DrivingLock:
    """A lock for the thread that drives an object, reentrant. A second driving thread is refused.

    A visitor, which may be any thread, only adds or removes something: it waits for the driving thread, and the driving
    thread for it.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._gate = threading.Lock()  # held for moments only
        self._visitors = 0

    def enter_after_visitors(self) -> bool:
        """Take the lock to drive, after ``lock.acquire(False)`` did not. False, and not taken, while another thread
        drives. Callers try the lock itself first, because each access of software would pay for a further call."""
        # A visitor is counted from before it takes the lock until after it has released it. So if there is none, the
        # lock is held by a driving thread.
        with self._gate:
            visited = self._visitors > 0
            taken = self.lock.acquire(False)
        return taken or (visited and self.lock.acquire())

    @contextmanager
    def visit(self) -> Iterator[None]:
        """Hold the lock for moments, after the thread that has it."""
        with self._gate:
            self._visitors += 1
        try:
            with self.lock:
                yield
        finally:
            with self._gate:
                self._visitors -= 1


class Shared(Protocol):
    """An object that several threads may use."""

    turns: Turns


class Owned(Protocol):
    """An object for one thread at a time; others get an error."""

    turn: DrivingLock


_S = TypeVar("_S", bound=Shared)
_O = TypeVar("_O", bound=Owned)


def serialised(method: Callable[Concatenate[_S, _P], _R]) -> Callable[Concatenate[_S, _P], _R]:
    """A thread-safe method: it waits until no other thread is in a method of objects with the same ``turns``."""

    @wraps(method)
    def one_at_a_time(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        turns = self.turns
        try:
            # Only a lock and assignments, so that KeyboardInterrupt between two calls leaves a consistent state.
            with turns.lock:
                outer, turns.inside = turns.inside, True
                try:
                    return method(self, *args, **kwargs)
                finally:
                    turns.inside = outer
        finally:
            if turns.posted:
                turns.do_posted()

    return one_at_a_time


def exclusive(method: Callable[Concatenate[_O, _P], _R]) -> Callable[Concatenate[_O, _P], _R]:
    """A method that raises UsageError while another thread is in such a method of the object."""

    @wraps(method)
    def alone(self: _O, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not self.turn.lock.acquire(False) and not self.turn.enter_after_visitors():
            raise in_use(type(self).__name__, method.__name__)
        try:
            return method(self, *args, **kwargs)
        finally:
            self.turn.lock.release()

    return alone


def in_use(what: str, call: str) -> UsageError:
    """The error for a second thread."""
    return UsageError(f"{what}.{call}: another thread is using the device; use a Session or an Executor instead")
