"""The border of the driver: methods of the interface return a status, whatever happens inside."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from npusim.errors import NpusimError

from .._edge import nnapi_status
from .errors import InvalidArgumentError, StatusError
from .operations.lowering import InvalidOperationError
from .plan import LoopTimeoutError
from .types import ErrorStatus
from .validation.fields import MalformedError

P = ParamSpec("P")
R = TypeVar("R")
_EXPECTED = (
    StatusError, InvalidArgumentError, MalformedError, InvalidOperationError, LoopTimeoutError, NpusimError,
    MemoryError,
)  # fmt: skip
_log = logging.getLogger("hal.nnapi")


def status_of(error: BaseException, what: str) -> ErrorStatus:
    """The status for an error, which is logged: quietly if it is one that clients cause, else with its trace."""
    status = nnapi_status(error)
    if isinstance(error, _EXPECTED):
        _log.info("%s: %s: %s", what, status.name, str(error))  # an error that is kept keeps frames
    else:
        _log.error("%s: %s: %s: %s", what, status.name, type(error).__name__, error, exc_info=error)
    return status


def never_raises(*others: Callable[[], Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A method of the interface. An exception becomes its status; ``others`` make the rest of the results.

    With ``others`` the method returns a tuple, without them the status alone.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return method(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - this is the border
                status = status_of(error, method.__name__)
                failure: Any = (status, *(other() for other in others)) if others else status
                return failure  # type: ignore[no-any-return]

        return guarded

    return decorate


def nothing() -> None:
    """What a method gives instead of an object when it fails."""
