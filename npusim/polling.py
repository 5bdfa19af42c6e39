"""Cancellation of work: the caller supplies a check, which the work calls repeatedly.

A check belongs to one thread. It returns to continue, or raises an error to stop the work. Without a check,
:func:`poll` takes some tens of nanoseconds.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

Check = Callable[[], object]
_checks: dict[int, Check] = {}
"""Checks by thread."""


def poll() -> None:
    """A cancellation point of this thread: raises the error of its check."""
    if _checks:
        check = _checks.get(threading.get_ident())
        if check is not None:
            check()


@contextlib.contextmanager
def polled(check: Check) -> Iterator[None]:
    """Let :func:`poll` call ``check`` in this thread, after checks that are active already."""
    thread = threading.get_ident()
    outer = _checks.get(thread)

    def both() -> None:
        if outer is not None:
            outer()
        check()

    _checks[thread] = both
    try:
        yield
    finally:
        if outer is None:
            del _checks[thread]
        else:
            _checks[thread] = outer
