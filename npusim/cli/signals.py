"""Signals that terminate a command. They act like Ctrl-C, so that incomplete files are removed."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn

_NAMES = ("SIGTERM", "SIGHUP")  # the second is not everywhere
_seen: list[int] = [signal.SIGINT]
"""The last one is what the command is ended by."""


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
    """The exit code of a command that was interrupted: as shells have it, 128 and the number of the signal."""
    return 128 + _seen[-1]


def message() -> str:
    """A line that says so."""
    return "npusim: interrupted" if _seen[-1] == signal.SIGINT else "npusim: terminated"
