"""Times and shares in tests, and comparisons that explain their result."""

from __future__ import annotations

import re
from fractions import Fraction

from npusim.errors import UsageError, shown
from npusim.units import Dimension, cycles_to_ps, parse

_CYCLES = re.compile(r"([0-9][0-9_ ]*)\s*cycles?", re.ASCII)
_SHARE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,9})?)\s*%", re.ASCII)


def picoseconds(value: int | str, clock_hz: int) -> int:
    """A time as picoseconds: ``2 ms``, ``1500 cycles`` of the device clock, or a number of picoseconds. Raises
    UsageError."""
    if type(value) is int:  # excludes bool
        return value
    if not isinstance(value, str):
        raise UsageError(f"must be a time such as '2 ms' or '1500 cycles', or picoseconds as int, got {shown(value)}")
    if match := _CYCLES.fullmatch(value.strip()):
        return cycles_to_ps(int(re.sub("[_ ]", "", match[1])), clock_hz)
    return parse(value, Dimension.TIME)


def share(value: float | str) -> Fraction:
    """``10 %`` or 0.1 as a share of a whole. Raises UsageError."""
    if isinstance(value, str):
        if match := _SHARE.fullmatch(value.strip()):
            return Fraction(match[1]) / 100
    elif type(value) in (int, float) and value >= 0:
        return Fraction(str(value))
    raise UsageError(f"must be a share such as '10 %' or 0.1, got {shown(value)}")


class Answer:
    """A boolean with a reason, which pytest shows for a failed assertion."""

    __slots__ = ("_holds", "_reason")

    def __init__(self, holds: bool, reason: str) -> None:
        self._holds, self._reason = holds, reason

    def __bool__(self) -> bool:
        return self._holds

    def __repr__(self) -> str:
        return self._reason


class Share:
    """A share of the time of a run, to be compared with ``"10 %"`` or 0.1; its repr names the whole."""

    __slots__ = ("_text", "value")

    def __init__(self, part: int, whole: int, text: str) -> None:
        self.value = Fraction(part, whole) if whole else Fraction(0)
        self._text = text

    def __float__(self) -> float:
        return float(self.value)

    def __repr__(self) -> str:
        return f"{self._text} is {float(100 * self.value):.2f} %"

    def __lt__(self, other: float | str) -> Answer:
        return Answer(self.value < share(other), f"{self!r}, which is not less than {other}")

    def __le__(self, other: float | str) -> Answer:
        return Answer(self.value <= share(other), f"{self!r}, which is more than {other}")

    def __gt__(self, other: float | str) -> Answer:
        return Answer(self.value > share(other), f"{self!r}, which is not more than {other}")

    def __ge__(self, other: float | str) -> Answer:
        return Answer(self.value >= share(other), f"{self!r}, which is less than {other}")
