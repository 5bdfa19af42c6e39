"""Test results in the log of a kernel: KTAP, as printed by KUnit and kselftest, and TAP.

https://docs.kernel.org/dev-tools/ktap.html: results are nested by indentation. A plan ``1..N`` precedes the results of
its level. A level ends with the result of its parent test.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_STAMP = re.compile(r"^(?:<\d+>)?(?:\[[^\]]*\] ?)*")
"""The prefix of a log line: level, time, caller."""
_HEADER = re.compile(r"(?:KTAP|TAP) version \d+|# Subtest: .*")
_PLAN = re.compile(r"1\.\.(\d{1,9})(?:\s*#.*)?")
_RESULT = re.compile(r"(not )?ok\b(?:\s+(\d{1,9})\b)?(.*)")
_KNOWN = re.compile(r"#\s*TODO\b", re.IGNORECASE)
"""A directive for tests that are known to fail."""
_BAIL = re.compile(r"Bail out!")
MOST_FAILURES = 1000


@dataclass
class _Level:
    plan: int | None = None
    seen: int = 0
    open: bool = False
    """Whether a header was read, without a plan or result after it."""


class Ktap:
    """Parses a log line by line. ``failures``: failed or missing tests, one line each."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self._levels: dict[int, _Level] = {}

    def line(self, raw: bytes) -> None:
        """Process the next line of the log."""
        text = _STAMP.sub("", raw.decode(errors="replace").rstrip())
        rest = text.lstrip(" \t")
        depth = len(text.expandtabs(4)) - len(rest.expandtabs(4))
        if _HEADER.fullmatch(rest):
            self._end(depth + 1)
            level = self._levels.get(depth)
            if level is not None and not level.open:
                self._end(depth)
            self._levels.setdefault(depth, _Level(open=True))
        elif plan := _PLAN.fullmatch(rest):
            self._end(depth + 1)
            level = self._levels.get(depth)
            if level is not None and level.plan is None and level.seen == int(plan[1]) > 0:
                level.plan = level.seen  # a plan after the results, which TAP allows
                self._end(depth)
                return
            if level is not None and not level.open:
                self._end(depth)
            self._levels[depth] = _Level(int(plan[1]))
        elif result := _RESULT.fullmatch(rest):
            self._result(depth, rest, result)
        elif _BAIL.match(rest):
            self._fail(rest)

    def end(self) -> None:
        """Process the end of the log."""
        self._end(0)

    def _result(self, depth: int, rest: str, result: re.Match[str]) -> None:
        failed, number, text = result.groups()
        if number is None and text and not re.match(r"\s+(-|#)", text):
            return  # a log line that begins with these words
        self._end(depth + 1)
        level = self._levels.setdefault(depth, _Level())
        level.seen, level.open = level.seen + 1, False
        if failed and not _KNOWN.search(text):
            self._fail(rest)
        elif level.plan is not None and number is not None and int(number) != level.seen:
            self._fail(f"{rest}: must be result {level.seen} of {level.plan}")

    def _end(self, depth: int) -> None:
        """End all levels from ``depth`` on."""
        for each in sorted((each for each in self._levels if each >= depth), reverse=True):
            level = self._levels.pop(each)
            if level.plan is not None and level.seen != level.plan:
                self._fail(f"a plan of {level.plan} tests has {level.seen} results")
            elif level.open:
                self._fail("a test has begun, but has no results")

    def _fail(self, what: str) -> None:
        if len(self.failures) < MOST_FAILURES:
            self.failures.append(what)
