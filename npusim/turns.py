"""One thread at a time: locks for objects that several threads share."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from npusim.errors import UsageError

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Turns:
    """One thread at a time is ``inside`` of what has this, as often as it likes; others wait.

    What :meth:`post` is given is done when nobody is in the midst of anything: finalizers, which may run at any place
    in any thread, wait for no lock.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.inside = False
        self.posted: deque[Callable[[], object]] = deque()

    def post(self, work: Callable[[], object]) -> None:
        """Do something now, or as soon as the thread that is inside has left. Waits for nobody."""
        self.posted.append(work)
        self.do_posted()

    def do_posted(self) -> None:
        """Do what was posted, unless somebody is inside: that one does it."""
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


class Shared(Protocol):
    """What several threads may use."""

    turns: Turns


class Owned(Protocol):
    """What one thread may use at a time, and others not meanwhile. ``turn``: a threading.RLock."""

    turn: Any


_S = TypeVar("_S", bound=Shared)
_O = TypeVar("_O", bound=Owned)


def serialised(method: Callable[Concatenate[_S, _P], _R]) -> Callable[Concatenate[_S, _P], _R]:
    """A method for any thread: it waits until no other is in a method of the object, or of those that share its
    ``turns``."""

    @wraps(method)
    def one_at_a_time(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        turns = self.turns
        try:
            # A lock and assignments: an interrupt from the keyboard, which comes between two calls, leaves them right.
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
    """A method that raises UsageError, and does nothing, while another thread is in one of its kind."""

    @wraps(method)
    def alone(self: _O, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not self.turn.acquire(False):
            raise in_use(type(self).__name__, method.__name__)
        try:
            return method(self, *args, **kwargs)
        finally:
            self.turn.release()

    return alone


def in_use(what: str, call: str) -> UsageError:
    """The error for a second thread."""
    return UsageError(f"{what}.{call}: another thread is using the device; use a Session or an Executor instead")
