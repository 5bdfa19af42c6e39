"""Host cost in function calls, which does not depend on the machine or its load."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from npusim.polling import polled

ROOT = Path(__file__).resolve().parents[2]


def calls_of(work: Callable[[], object]) -> int:
    """Return the number of Python and C function calls of the work on the caller's thread."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    _profiled(work, count)
    return calls


def functions_of(work: Callable[[], object]) -> Counter[str]:
    """Return the number of calls of this project's Python functions per package."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            calls[path.relative_to(ROOT).parts[0]] += 1

    _profiled(work, count)
    return calls


def longest_gap(work: Callable[[], object]) -> tuple[int, int]:
    """Return the most Python and C function calls between two polls of :mod:`npusim.polling`, and the total, on the
    caller's thread."""
    calls = before = longest = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    def check() -> None:
        nonlocal before, longest
        longest, before = max(longest, calls - before), calls

    def whole() -> None:
        with polled(check):
            work()
        check()

    _profiled(whole, count)
    return longest, calls


def _profiled(work: Callable[[], object], count: Callable[[FrameType, str, object], None]) -> None:
    # Hypothesis hooks every garbage collection with calls of its own, at times that the work does not control.
    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()


def lines_of(work: Callable[[], object], folder: str) -> int:
    """Return the number of executed Python lines in files below a folder, on the caller's thread. Lines in a loop count
    once per iteration, even if they call nothing."""
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
