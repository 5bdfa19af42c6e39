"""The effect of each knob of a study, from matched pairs: designs that differ in this knob alone.

Means over all designs with a value would show which designs a search chose, not what the knob does. A pair is two
designs whose other knobs are equal and between whose values no third design of them lies. An effect is the geometric
mean of the ratios of its pairs, so it is within their range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
LEAST_INTERACTION = 0.01
"""An interaction that changes an effect by less is not reported."""


@dataclass(frozen=True, slots=True)
class EffectStep:
    """The relative change of a figure from one value of a knob to another: mean, lowest, highest, and number of pairs.
    ``before``, ``after``: places of the values in the ascending order of the knob."""

    before: int
    after: int
    mean: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True, slots=True)
class KnobEffect:
    """The effect of a knob on a figure.

    ``importance``: the typical ratio of the largest figure to the smallest, minus 1, among designs that differ in this
    knob alone. ``depends_on``: the knob that changes the effect most, empty if none does; ``dependence``: by which
    factor, minus 1. ``steps`` are empty if no two designs differ in this knob alone.
    """

    knob: str
    importance: float
    steps: tuple[EffectStep, ...]
    depends_on: str = ""
    dependence: float = 0.0

    @property
    def pairs(self) -> int:
        """The number of matched pairs."""
        return sum(step.pairs for step in self.steps)


class MatchedPairs:
    """The matched pairs of designs. ``knobs``: for each knob the place of the value of each design, -1 for none."""

    def __init__(self, knobs: Mapping[str, Sequence[int]]) -> None:
        self._columns = {name: np.asarray(rows, np.int64) for name, rows in knobs.items()}
        self._names = [name for name, rows in self._columns.items() if len(set(rows.tolist()) - {-1}) > 1]
        self._others: dict[frozenset[str], Ints] = {}

    def effects(self, figures: Sequence[float | None], chosen: Sequence[int]) -> list[KnobEffect]:
        """The effect of each knob with several values on a figure of the ``chosen`` designs, most important first.

        Only positive figures count, because the effects are ratios.
        """
        known = [(n, value) for n in chosen if (value := figures[n]) is not None and value > 0]
        designs = np.array([n for n, _ in known], np.int64)
        logs = np.log(np.array([value for _, value in known], np.float64))
        found = [self._effect(name, designs, logs) for name in self._names]
        return sorted(found, key=lambda each: (-each.importance, each.knob))

    def _rest(self, *without: str) -> Ints:
        """A number for each design that designs share if they differ in the given knobs alone."""
        key = frozenset(without)
        if key not in self._others:
            ids = np.zeros(len(next(iter(self._columns.values()))), np.int64)
            for name, column in self._columns.items():
                if name not in key:
                    # Renumbered after each knob, so that no product of many knobs overflows.
                    ids = np.unique(ids * (column.max() + 2) + column + 1, return_inverse=True)[1].reshape(-1)
            self._others[key] = ids
        return self._others[key]

    def _effect(self, name: str, designs: Ints, logs: Floats) -> KnobEffect:
        level = self._columns[name][designs]
        rest = self._rest(name)[designs]
        order = np.lexsort((level, rest))
        order = order[level[order] >= 0]
        first, second = order[:-1], order[1:]
        matched = (rest[first] == rest[second]) & (level[first] < level[second])
        first, second = first[matched], second[matched]
        if not len(first):
            return KnobEffect(name, 0.0, ())
        change = logs[second] - logs[first]
        steps = []
        for before, after in sorted(set(zip(level[first].tolist(), level[second].tolist(), strict=True))):
            own = change[(level[first] == before) & (level[second] == after)]
            # A mean may leave the range of its values by rounding.
            mean, low, high = np.expm1([np.clip(own.mean(), own.min(), own.max()), own.min(), own.max()]).tolist()
            steps.append(EffectStep(before, after, mean, low, high, len(own)))
        other, dependence = self._dependence(name, designs, first, second, change)
        return KnobEffect(name, _spread(rest[order], logs[order]), tuple(steps), other, dependence)

    def _dependence(self, name: str, designs: Ints, first: Ints, second: Ints, change: Floats) -> tuple[str, float]:
        """The knob that changes the effect of another most: among pairs with the same two values that differ in it
        alone."""
        level = self._columns[name][designs]
        best, most = "", LEAST_INTERACTION
        for other in self._names:
            if other == name:
                continue
            by, rest = self._columns[other][designs][first], self._rest(name, other)[designs][first]
            order = np.lexsort((by, rest, level[second], level[first]))
            one, two = order[:-1], order[1:]
            alike = (rest[one] == rest[two]) & (by[one] < by[two])
            for end in (level[first], level[second]):
                alike &= end[one] == end[two]
            if alike.any():
                size = float(np.expm1(np.abs(change[two] - change[one])[alike].mean()))
                if size > most:
                    best, most = other, size
        return best, most if best else 0.0


def _spread(rest: Ints, logs: Floats) -> float:
    """The typical ratio of the largest to the smallest value of a group, minus 1; over groups of several."""
    starts = np.flatnonzero(np.r_[True, rest[1:] != rest[:-1]])
    sizes = np.diff(np.r_[starts, len(rest)])
    spans = np.maximum.reduceat(logs, starts) - np.minimum.reduceat(logs, starts)
    return float(np.expm1(spans[sizes > 1].mean()))
