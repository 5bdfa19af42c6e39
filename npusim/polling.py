"""Work that can be stopped from outside: whoever starts it supplies a check, and the work calls it again and again.

The check belongs to one thread and to what runs in it meanwhile. It returns to let the work go on, or raises whatever
is to end it. Without one, :func:`poll` costs some tens of nanoseconds.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

Check = Callable[[], object]
_checks: dict[int, Check] = {}
"""By thread."""


def poll() -> None:
    """A point at which this thread's work may end: raises what its check raises."""
    if _checks:
        check = _checks.get(threading.get_ident())
        if check is not None:
            check()


@contextlib.contextmanager
def polled(check: Check) -> Iterator[None]:
    """Have ``check`` called by :func:`poll` in this thread, after those that are in force already."""
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
