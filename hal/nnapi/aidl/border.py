"""The border of the driver towards clients of the AIDL interface: they get a result, or a ServiceSpecificException."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ..border import said, status_of
from .types import ServiceSpecificException

P = ParamSpec("P")
R = TypeVar("R")


def raises_status(method: Callable[P, R]) -> Callable[P, R]:
    """Decorator for methods of the AIDL interface: any exception becomes a ServiceSpecificException with its status."""

    @functools.wraps(method)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except ServiceSpecificException:
            raise
        except Exception as error:
            raise ServiceSpecificException(status_of(error, method.__name__), said(error)) from error

    return guarded
