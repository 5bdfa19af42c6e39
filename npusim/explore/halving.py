"""Successive halving by tiers: cheap checks first, exact simulation last.

All designs, or a sample of them, are estimated, and the designs with the best estimates are simulated. Their errors
correct the estimates of neighbouring designs. Then promising designs near the front are simulated, round by round,
until nothing improves or the budget is spent. All reported figures are simulated.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from npusim.explore.figures import OF_MODELS, StudyRow
from npusim.explore.front import Places, layers, non_dominated, spread
from npusim.explore.search import Rounds, neighbours
from npusim.report.html.pareto import Floats, Mask

if TYPE_CHECKING:
    from npusim.explore.objectives import Objectives
    from npusim.explore.screening import EstimateTable, Screen
    from npusim.explore.space import Space

FIRST = 3
"""The first round takes 1 / FIRST of the budget."""
ROUNDS = 12
"""The budget is spent in about this number of rounds."""
LEAST_ROUND = 8
KEPT = 20_000
"""Limit of the designs that are ranked again after each round: the best by estimate."""
NEAR = 6
"""Number of simulated designs whose errors correct an estimate."""


class Halving:
    """The search over one space; ``table`` keeps the estimates."""

    def __init__(self, space: Space, objectives: Objectives, screen: Screen, table: EstimateTable) -> None:
        self._space, self._objectives, self._screen, self.table = space, objectives, screen, table
        self._margin = float(space.search.margin)
        self._rows: dict[int, StudyRow] = {}
        self._random = random.Random(space.search.seed)
        self._known_places: dict[int, list[float]] = {}

    def rounds(self, budget: int) -> Rounds:
        """Yield rounds of designs, at most ``budget`` in total."""
        self._estimate()
        wanted = self._first(max(LEAST_ROUND, budget // FIRST))[:budget]
        while wanted:
            self._rows.update((yield wanted))
            budget -= len(wanted)
            size = min(budget, max(LEAST_ROUND, budget // ROUNDS))
            wanted = self._next(size) if size > 0 else []

    def _estimate(self) -> None:
        space = self._space
        most = space.search.screen
        numbers = range(space.size) if space.size <= most else sorted(self._sample(space.size, most))
        allowed = self._screen.allowed(numbers)
        self.table.add(allowed)

    def _sample(self, size: int, most: int) -> set[int]:
        found: set[int] = set()
        while len(found) < most:  # random.sample takes no ranges beyond 2**63
            found.add(self._random.randrange(size))
        return found

    def _first(self, wanted: int) -> list[int]:
        """The first layers of fronts by estimate, and a tenth of other designs to reveal errors of the estimates."""
        table = self.table
        if not table.numbers:
            return []
        values = table.values({})
        points, lack = table.objectives(values), table.lack(values)
        near = np.flatnonzero(lack <= self._margin)
        near = near if len(near) else np.argsort(lack, kind="stable")[:wanted]
        known = near[~np.isnan(points[near]).any(axis=1)]
        chosen = [int(known[place]) for place in layers(points[known], wanted - wanted // 10, self._margin)]
        others = sorted(set(map(int, near)) - set(chosen))
        chosen += self._random.sample(others, min(len(others), wanted - len(chosen)))
        self._keep(points, near, chosen)
        return [table.numbers[place] for place in chosen]

    def _keep(self, points: Floats, near: Places, chosen: list[int]) -> None:
        """Choose the designs whose estimates are ranked again after each round."""
        if len(near) <= KEPT:
            kept = near
        else:
            best = near[layers(points[near], KEPT // 2, self._margin)]
            rest = np.setdiff1d(near, best)
            kept = np.concatenate([best, self._random.sample(rest.tolist(), min(len(rest), KEPT - len(best)))])
        self._kept = set(map(int, kept)) | set(chosen)

    def _next(self, wanted: int) -> list[int]:
        """Designs that may be better than the current front: by corrected estimates, and neighbours of the front."""
        front = self._front()
        beside = {n for number in front for n in neighbours(self._space, number)} - self._rows.keys()
        known_before = len(self.table.numbers)
        allowed = self._screen.allowed(sorted(beside))
        self.table.add(allowed)
        self._kept |= set(range(known_before, len(self.table.numbers)))
        places = np.array(sorted(p for p in self._kept if self.table.numbers[p] not in self._rows), np.intp)
        if not len(places):
            return []
        values = self.table.values(self._corrections(places))
        points, lack = self.table.objectives(values)[places], self.table.lack(values)[places]
        promising = (lack <= self._margin) & ~np.isnan(points).any(axis=1)
        exact = self._points(front)
        adjacent = np.isin(places, [self.table.place[number] for number in allowed])
        # Next to the front, an estimate may be better by the margin; elsewhere it must be better without one.
        hopeful = promising & ~_beaten(points * np.where(adjacent, 1 - self._margin, 1.0)[:, None], exact)
        candidates = np.flatnonzero(hopeful)
        if not len(candidates):
            return []
        return [self.table.numbers[places[candidates[i]]] for i in _best(points[candidates], wanted)]

    def _front(self) -> list[int]:
        """The numbers of the designs on the current front."""
        fit = [number for number, row in self._rows.items() if not self._objectives.broken(row)]
        if not fit:
            return self._nearly()
        mask = non_dominated(self._points(fit))
        return [number for number, on in zip(fit, mask, strict=True) if on]

    def _nearly(self) -> list[int]:
        """If nothing fulfils the constraints yet: the design with the smallest violation."""
        known = [row for row in self._rows.values() if row.known]
        lacks = {row.number: max(self._objectives.lacks(row), default=0.0) for row in known}
        return sorted(lacks, key=lambda number: (lacks[number], number))[:LEAST_ROUND]

    def _points(self, numbers: list[int]) -> Floats:
        points = [self._objectives.of(self._rows[number]) for number in numbers]
        return np.array(points, float).reshape(len(points), len(self._space.objectives))

    def _corrections(self, places: Places) -> Mapping[tuple[str, str], Floats]:
        """Correction factors of estimates by model and figure, from the errors of simulated neighbours."""
        rows = [row for row in self._rows.values() if row.known]
        count = len(self.table.numbers)
        if not rows:
            return {}
        here = self._coordinates([row.number for row in rows])
        there = self._coordinates([self.table.numbers[place] for place in places])
        weights, nearest = _weights(there, here)
        found = {}
        done = np.array([self.table.place[row.number] for row in rows])
        for index, model in enumerate(self.table.models):
            for figure in OF_MODELS:
                exact = np.array([_known(getattr(row.figures[index], figure)) for row in rows])
                error = np.log(np.maximum(exact, 1e-9)) - np.log(self.table.column(model, figure)[done])
                error = np.where(np.isnan(error), 0.0, error)  # no correction for designs estimated not to fit
                factor = np.full(count, np.nan)
                factor[places] = np.exp((weights * error[nearest]).sum(axis=1))
                found[model, figure] = factor
        return found

    def _coordinates(self, numbers: list[int]) -> Floats:
        """Positions on the axes, scaled to 0 to 1. Different names are as far apart as the ends of an axis."""
        for number in numbers:
            if number not in self._known_places:
                self._known_places[number] = self._coordinate(number)
        return np.array([self._known_places[number] for number in numbers], float)

    def _coordinate(self, number: int) -> list[float]:
        found: list[float] = []
        for place, radix, ordered in zip(
            self._space.places(number), self._space.radices, self._space.ordered, strict=True
        ):
            found += [place / (radix - 1)] if ordered else [(place == value) * HALF for value in range(radix)]
        return found


HALF = 0.5
"""Two names differ in two coordinates."""


def _known(value: float | None) -> float:
    return np.nan if value is None else float(value)


def _beaten(points: Floats, front: Floats) -> Mask:
    """The mask of points that a point of the front equals or beats in every objective."""
    if not len(front):
        return np.zeros(len(points), np.bool_)
    beaten: Mask = np.any(np.all(front[None] <= points[:, None], axis=2), axis=1)
    return beaten


def _best(points: Floats, wanted: int) -> list[int]:
    """Indices of the best points, spread over their front."""
    chosen = layers(points, min(wanted, len(points)))
    return chosen if chosen else spread(points, wanted).tolist()


def _weights(there: Floats, here: Floats) -> tuple[Floats, Places]:
    """For each point of ``there``, the nearest points of ``here``, and their weights."""
    count = min(NEAR, len(here))
    nearest = np.empty((len(there), count), np.intp)
    weights = np.empty((len(there), count))
    for start in range(0, len(there), 1024):
        block = there[start : start + 1024]
        distance = np.abs(block[:, None] - here[None]).sum(axis=2)
        # At equal distance the first point is taken. The order is fixed, so that sums are the same on every machine.
        distance += np.arange(len(here)) * 1e-9
        order = np.sort(np.argpartition(distance, count - 1, axis=1)[:, :count], axis=1)
        near = 1 / (np.take_along_axis(distance, order, 1) + 1e-3) ** 2
        nearest[start : start + 1024] = order
        weights[start : start + 1024] = near / near.sum(axis=1, keepdims=True)
    return weights, nearest
