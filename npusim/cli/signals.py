"""Signals that terminate a command. They act like Ctrl-C, so that incomplete files are removed."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn

_NAMES = ("SIGTERM", "SIGHUP")  # the second does not exist on all systems
_seen: list[int] = [signal.SIGINT]
"""The last signal determines the exit code."""


def install() -> None:
    """Make the signals raise KeyboardInterrupt, except those that the parent process has set to be ignored."""
    for name in _NAMES:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    _seen.append(number)
    raise KeyboardInterrupt


def code() -> int:
    """The exit code of an interrupted command, as in shells: 128 plus the number of the signal."""
    return 128 + _seen[-1]


def message() -> str:
    """The message of an interrupted command."""
    return "npusim: interrupted" if _seen[-1] == signal.SIGINT else "npusim: terminated"
