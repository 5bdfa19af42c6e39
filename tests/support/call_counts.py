"""What work costs the host, in calls of functions: that number does not depend on the machine or its load."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def calls_of(work: Callable[[], object]) -> int:
    """How many functions of Python and C the work calls, on the caller's thread."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def lines_of(work: Callable[[], object], folder: str) -> int:
    """How many lines of Python in files below a folder the work goes through, on the caller's thread; a loop's lines
    count as often as they are gone through, wherever they call nothing."""
    lines = 0

    def count(frame: FrameType, event: str, argument: object) -> object:
        nonlocal lines
        if event == "call" and folder not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines
