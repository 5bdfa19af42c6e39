"""The fit: free keys of a device that make simulated times agree with measured ones.

The error of a point is ln(simulated / measured). The objective is the sum of a loss that grows linearly for large
errors, so that a few bad measurements do not decide the result; its scale is the typical error at the start. Times are
steps of the keys wherever the compiler chooses another schedule, so the search uses no derivatives: points of a Sobol
sequence in boxes that become smaller around the best one. It uses estimates, which are corrected at the best device
that has been simulated, as far as they follow the keys. Robust least squares on differences of simulations refine its
result.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from npusim.errors import ConfigError, NpusimError, UsageError
from npusim.explore.fit.parameters import FreeKey
from npusim.explore.fit.points import MeasuredPoint
from npusim.hw.config import Config

if TYPE_CHECKING:
    from multiprocessing.pool import Pool
    from types import ModuleType

    from npusim.explore.estimate import Estimator

Floats = npt.NDArray[np.float64]
CONFIDENCE = 0.95
FOLDS = 5
_IMPOSSIBLE = math.log(1e6)
"""The error of a point on a device that cannot run it."""
_FIRST, _LATER = 16, 8
"""Places that are looked at for each free key: in all of the bounds, then in each smaller box."""
_SHRINKS = 0.35
_BOXES = 4
"""How a box becomes smaller, and boxes of a search."""
_NEAR = 0.7
"""Half the first box of a search that follows another one, as a logarithm of a factor."""
_LINE = tuple(sign * step for step in (0.35, 0.7, 1.4, 2.1) for sign in (-1, 1))
"""Steps along each key behind these searches, as logarithms of factors."""
_SEARCHES = 3
"""Searches with estimates, each of which is corrected at the result of the one before."""
_MOST_STEPS = 6
_MOST_ROUNDS = 6
"""Steps of a refinement behind a search, and refinements."""
_SHORT, _SAME = 1e-3, 0.02
"""The loss that short values may add, and a given value in place of one without effect; the typical error adds 0.16."""
_TUNING = 2.5
"""Errors larger than this many times the scale count as bad measurements: with normal errors little is lost."""
_LEAST_SCALE = 1e-6
"""The least scale of errors, those of times that were simulated."""
_STEPS = 0.7, 0.2, 0.02
"""Steps of differences, as logarithms of factors: wide ones look beyond values between which a key has no effect. The
last is the first of the intervals."""
_WIDEST, _INTERVALS = 1.4, 3
"""The widest step of the differences for intervals, as a logarithm, and how often they are computed: each time with the
intervals of the one before as steps."""
_WITHOUT_EFFECT = 0.005
"""A key without effect: a factor of two changes no time by more than this, at steps of ``_WIDEST``."""
_ALIKE = 0.05
"""Keys cannot be told apart if a combination of them changes the times by less than this, relative to the combination
that changes them most."""


@dataclass(frozen=True)
class FittedKey:
    """A key with its given and its fitted value, both as TOML; ``low`` and ``high``: the interval of CONFIDENCE."""

    key: str
    given: str
    value: str
    low: str
    high: str
    problem: str = ""


@dataclass(frozen=True)
class Fit:
    """The result. Errors are fractions of the measured times, by point; ``left_out``: with the point not fitted to.

    ``alike``: groups of keys that the points cannot tell apart.
    """

    config: Config
    keys: tuple[FittedKey, ...]
    points: tuple[MeasuredPoint, ...]
    given_errors: tuple[float, ...]
    errors: tuple[float, ...]
    left_out: tuple[float, ...]
    alike: tuple[tuple[str, ...], ...]
    devices: int


def fit(config: Config, points: Sequence[MeasuredPoint], keys: Sequence[FreeKey], jobs: int = 1) -> Fit:
    """Fit keys to points, with ``jobs`` processes. The result does not depend on their number.

    Raises UsageError for too few points, or if SciPy is missing.
    """
    if len(points) <= len(keys):
        raise UsageError(f"{len(points)} points cannot determine {len(keys)} keys: at least {len(keys) + 1} are needed")
    optimize = _scipy("optimize")
    with _pool(points, jobs) as pool:
        return _fit(optimize, _Problem(config, points, keys, pool), keys)


@contextlib.contextmanager
def _pool(points: Sequence[MeasuredPoint], jobs: int) -> Iterator[Pool | None]:
    if jobs == 1:
        yield None
        return
    # Spawned, not forked: a process with threads must not be copied.
    with multiprocessing.get_context("spawn").Pool(jobs, _begin, (points,)) as pool:
        yield pool


def _fit(optimize: ModuleType, problem: _Problem, keys: Sequence[FreeKey]) -> Fit:
    given = np.array([key.coordinate(key.given) for key in keys])
    scale = _spread(problem.errors(given))
    best = problem.search(given, scale)
    for step in (*_STEPS, *_STEPS[-1:] * _MOST_ROUNDS):
        # Bad measurements have less weight with the scale of the errors that are left. It falls in steps, or the points
        # that happen to fit first would turn the others into bad measurements.
        before, spread = best, _spread(problem.errors(best))
        scale = max(spread, scale / 4)
        best = problem.refine(optimize, before, scale, step)
        if best is before and scale == spread and step == _STEPS[-1]:
            break
    best = min(best, given, key=problem.simulated_loss(scale))
    # Short values, unless they fit less well.
    short = np.array([key.rounded(at) for key, at in zip(keys, best, strict=True)])
    if problem.loss(problem.errors(short), scale) <= problem.loss(problem.errors(best), scale) + _SHORT:
        best = short
    jacobian, half = problem.intervals(best, scale)
    alike, useless = _indistinct(jacobian, keys)
    kept = np.where([key.key in useless for key in keys], given, best)
    if useless and problem.loss(problem.errors(kept), scale) <= problem.loss(problem.errors(best), scale) + _SAME:
        best = kept  # what the points do not depend on has no reason to change
        jacobian, half = problem.intervals(best, scale)
        alike, useless = _indistinct(jacobian, keys)
    return Fit(
        config=problem.device(best),
        keys=tuple(_fitted(key, at, width, alike, useless) for key, at, width in zip(keys, best, half, strict=True)),
        points=tuple(problem.points),
        given_errors=_relative(problem.errors(given)),
        errors=_relative(problem.errors(best)),
        left_out=_relative(problem.left_out(optimize, best, jacobian, scale)),
        alike=tuple(alike),
        devices=problem.devices,
    )


def _scipy(module: str) -> ModuleType:
    import importlib

    try:
        return importlib.import_module(f"scipy.{module}")
    except ImportError:
        raise UsageError("fit needs SciPy: pip install 'npusim[fit]'") from None


class _Problem:
    """Errors of devices; each device is simulated once."""

    def __init__(
        self, config: Config, points: Sequence[MeasuredPoint], keys: Sequence[FreeKey], pool: Pool | None
    ) -> None:
        self.points = points
        self._config, self._keys, self._pool = config, keys, pool
        self._known: dict[tuple[Any, ...], Floats] = {}
        self._low, self._high = (np.array(ends) for ends in zip(*(key.bounds for key in keys), strict=True))
        self._estimators: list[Estimator] | None = None

    @property
    def devices(self) -> int:
        """The devices simulated so far."""
        return len(self._known)

    def device(self, at: Floats) -> Config:
        """The device at a place of the search. Raises ConfigError if its values contradict each other."""
        return self._config.with_(**{key.key: key.raw(each) for key, each in zip(self._keys, at, strict=True)})

    def errors(self, at: Floats) -> Floats:
        """ln(simulated / measured) of each point."""
        return self.errors_at([at])[0]

    def errors_at(self, places: Sequence[Floats]) -> list[Floats]:
        """The same for several places. Points of a place, and places, are simulated in parallel."""
        names = [tuple(key.value(each) for key, each in zip(self._keys, at, strict=True)) for at in places]
        count, devices = len(self.points), {}
        for values, at in zip(names, places, strict=True):
            if values not in self._known:
                self._known[values] = np.full(count, _IMPOSSIBLE)
                with contextlib.suppress(ConfigError):  # values that contradict each other
                    devices[values] = self.device(at)
        tasks = [(number, device) for device in devices.values() for number in range(count)]
        if self._pool is not None:
            found = self._pool.map(_simulated, tasks, chunksize=1)
        else:
            found = [_error(self.points[number], device) for number, device in tasks]
        for number, values in enumerate(devices):
            self._known[values] = np.array(found[number * count : (number + 1) * count])
        return [self._known[values] for values in names]

    def loss(self, errors: Floats, scale: float) -> float:
        """The robust sum over the points (soft L1): squares of small errors, twice the size of large ones."""
        relative = errors / (_TUNING * scale)
        return float(np.sum(2 * (np.sqrt(1 + relative**2) - 1)))

    def search(self, given: Floats, scale: float) -> Floats:
        """The place of least loss that is found by estimates, or by simulations if estimates do not follow the keys."""
        best = np.clip(given, self._low, self._high)
        if self.estimated([best]) is None:
            return self._boxes(self.errors_at, best, scale, self._high - self._low)
        tried, half = [best], self._high - self._low
        for _ in range(_SEARCHES):
            best = min(tried, key=self.simulated_loss(scale))
            tried.append(self._boxes(self._corrected(tried[-1]), best, scale, half))
            half = np.full(len(self._keys), _NEAR)
            if np.abs(tried[-1] - tried[-2]).max() < _STEPS[-1]:
                break
        return self._along_keys(min(tried, key=self.simulated_loss(scale)))

    def _along_keys(self, best: Floats) -> Floats:
        """The place of least loss on a line for each key through a place, at the scale of its errors: out of a region
        where a key has no effect, differences show no way."""
        scale = _spread(self.errors(best))
        for number in range(len(self._keys)):
            places = []
            for step in _LINE:
                place = best.copy()
                place[number] = np.clip(best[number] + step, self._low[number], self._high[number])
                places.append(place)
            losses = [self.loss(each, scale) for each in self.errors_at([best, *places])]
            best = [best, *places][int(np.argmin(losses))]
        return best

    def simulated_loss(self, scale: float) -> Callable[[Floats], float]:
        """The loss as a function of the place."""
        return lambda at: self.loss(self.errors(at), scale)

    def _corrected(self, anchor: Floats) -> Callable[[Sequence[Floats]], Sequence[Floats]]:
        """Errors by estimates times factors that make them exact at a place."""

        def errors(places: Sequence[Floats]) -> Sequence[Floats]:
            found = self.estimated([anchor, *places])
            assert found is not None
            return [each + (self.errors(anchor) - found[0]) for each in found[1:]]

        return errors

    def _boxes(
        self, errors: Callable[[Sequence[Floats]], Sequence[Floats]], best: Floats, scale: float, half: Floats
    ) -> Floats:
        """The place of least loss of a Sobol sequence in boxes that become smaller around the best place."""
        sampler = _scipy("stats").qmc.Sobol(len(self._keys), scramble=False)
        (least,) = (self.loss(each, scale) for each in errors([best]))
        for number in range(_BOXES):
            count = 1 << math.ceil(math.log2((_FIRST if number == 0 else _LATER) * len(self._keys)))
            low, high = np.maximum(self._low, best - half), np.minimum(self._high, best + half)
            places = list(low + sampler.random(count) * (high - low))
            losses = [self.loss(each, scale) for each in errors(places)]
            if min(losses) < least:
                best, least = places[int(np.argmin(losses))], min(losses)
            half = half * _SHRINKS
        return best

    def estimated(self, places: Sequence[Floats]) -> list[Floats] | None:
        """ln(estimated / measured) of each point at some places; None if estimates do not follow all keys."""
        if self._estimators is None:
            self._estimators = self._new_estimators()
        if not self._estimators:
            return None
        values = [[key.value(each) for key, each in zip(self._keys, at, strict=True)] for at in places]
        columns = {key.key: [row[number] for row in values] for number, key in enumerate(self._keys)}
        found = {id(each): each.estimate(columns) for each in self._estimators}
        rows = []
        for each, point in zip(self._estimators, self.points, strict=True):
            estimates = found[id(each)]
            known = estimates.fits & (estimates.time_ps > 0)
            times = np.where(known, estimates.time_ps, point.measured_ps)
            rows.append(np.where(known, np.log(times / point.measured_ps), _IMPOSSIBLE))
        return list(np.stack(rows, axis=1))

    def _new_estimators(self) -> list[Estimator]:
        """An estimator of each point; none if a point has no estimate, or a key is not followed."""
        from npusim.explore.estimate import Estimator

        graphs: dict[int, Estimator] = {}
        try:
            for point in self.points:
                if id(point.graph) not in graphs:
                    found = graphs[id(point.graph)] = Estimator(point.graph.graph, self._config)
                    first = found.estimate({key.key: [key.given] for key in self._keys})
                    if not (
                        first.fits[0] and first.time_ps[0] > 0 and all(found.varies(key.key) for key in self._keys)
                    ):
                        return []
        except NpusimError:
            return []
        return [graphs[id(point.graph)] for point in self.points]

    def refine(self, optimize: ModuleType, start: Floats, scale: float, step: float) -> Floats:
        """The place of least loss near a place, by robust least squares on differences of ``step``."""
        margin = 1e-6 * (self._high - self._low)
        result = optimize.least_squares(
            self.errors,
            np.clip(start, self._low + margin, self._high - margin),
            jac=lambda at: self.jacobian(at, step),
            bounds=(self._low, self._high),
            loss="soft_l1",
            f_scale=_TUNING * scale,
            max_nfev=_MOST_STEPS,
        )
        return min(start, np.asarray(result.x, np.float64), key=self.simulated_loss(scale))

    def left_out(self, optimize: ModuleType, best: Floats, jacobian: Floats, scale: float) -> Floats:
        """The error of each point on a device that was fitted to the points of other folds only, by differences."""
        errors = self.errors(best)
        fold = np.arange(len(errors)) % FOLDS
        found = np.empty(len(errors))
        for number in range(min(FOLDS, len(errors))):
            kept, behind = fold != number, fold == number
            result = optimize.least_squares(
                lambda moved, kept=kept: errors[kept] + jacobian[kept] @ moved,
                np.zeros(len(self._keys)),
                loss="soft_l1",
                f_scale=_TUNING * scale,
            )
            place = np.clip(best + np.clip(result.x, -_NEAR, _NEAR), self._low, self._high)
            found[behind] = self.errors(place)[behind]
        return found

    def jacobian(self, at: Floats, steps: float | Floats) -> Floats:
        """Change of each point's error by the coordinate of each key, by differences of a step to both sides."""
        each = np.broadcast_to(steps, (len(self._keys),))
        ends = [[self._beside(at, number, sign * step) for sign in (-1, 1)] for number, step in enumerate(each)]
        errors = self.errors_at([place for both in ends for place in both])
        columns = []
        for number, (key, both) in enumerate(zip(self._keys, ends, strict=True)):
            low, high = (key.coordinate(key.value(place[number])) for place in both)
            change = errors[2 * number + 1] - errors[2 * number]
            columns.append(change / (high - low) if high > low else np.zeros(len(self.points)))
        return np.stack(columns, axis=1)

    def intervals(self, at: Floats, scale: float) -> tuple[Floats, Floats]:
        """Differences over the intervals of the keys, and half of each interval: at the place itself a key may have no
        effect, and a twofold value have one."""
        steps = np.full(len(self._keys), _STEPS[-1])
        for _ in range(_INTERVALS):
            jacobian = self.jacobian(at, steps)
            half = _half_widths(jacobian, self.errors(at), scale)
            wide = np.where(np.abs(jacobian).max(axis=0) * math.log(2) > _WITHOUT_EFFECT, half, _WIDEST)
            steps = np.clip(wide, _STEPS[-1], _WIDEST)
        return jacobian, half

    def _beside(self, at: Floats, number: int, step: float) -> Floats:
        """A place with the coordinate of one key changed by a step, or by more if that gives no other value."""
        key, changed = self._keys[number], at.copy()
        changed[number] = np.clip(at[number] + step, self._low[number], self._high[number])
        if key.value(changed[number]) == key.value(at[number]) and abs(step) < 1:
            return self._beside(at, number, 2 * step)
        return changed


_points: Sequence[MeasuredPoint] = ()
"""In a process of a pool: the points."""


def _begin(points: Sequence[MeasuredPoint]) -> None:
    global _points  # noqa: PLW0603 sent once to each process
    _points = points


def _simulated(task: tuple[int, Config]) -> float:
    number, device = task
    return _error(_points[number], device)


def _error(point: MeasuredPoint, device: Config) -> float:
    try:
        return math.log(point.simulated_ps(device) / point.measured_ps)
    except NpusimError:
        return _IMPOSSIBLE


def _spread(errors: Floats) -> float:
    """The typical size of errors, as the standard deviation of a normal distribution."""
    return max(_LEAST_SCALE, 1.4826 * float(np.median(np.abs(errors))))


def _relative(errors: Floats) -> tuple[float, ...]:
    return tuple(float(error) for error in np.expm1(errors))


def _indistinct(jacobian: Floats, keys: Sequence[FreeKey]) -> tuple[list[tuple[str, ...]], set[str]]:
    """Groups of keys that the points cannot tell apart, and the keys without effect."""
    sizes = np.abs(jacobian).max(axis=0) * math.log(2)
    used = np.flatnonzero(sizes > _WITHOUT_EFFECT)
    useless = {key.key for number, key in enumerate(keys) if number not in used}
    if len(used) < 2:
        return [], useless
    unit = jacobian[:, used] / np.linalg.norm(jacobian[:, used], axis=0)
    _, strengths, directions = np.linalg.svd(unit, full_matrices=False)
    groups = []
    for strength, direction in zip(strengths, directions, strict=True):
        if strength < _ALIKE * strengths[0]:
            groups.append(tuple(keys[used[number]].key for number in np.flatnonzero(np.abs(direction) > 0.2)))
    return groups, useless


def _half_widths(jacobian: Floats, errors: Floats, scale: float) -> Floats:
    """Half the width of each key's interval, as a coordinate: Student's t for the linear model around the result."""
    count, free = jacobian.shape
    # The variance of an estimate of least soft L1 loss, P. Huber, Robust Statistics, 7.6; psi: derivative of the loss.
    square = 1 + (errors / (_TUNING * scale)) ** 2
    psi, slope = errors / np.sqrt(square), square**-1.5
    variance = float(np.sum(psi**2)) / (count - free) / float(np.mean(slope)) ** 2
    # For few points: same source, 7.6, equation 6.14.
    variance *= (1 + free / count * float(np.var(slope)) / float(np.mean(slope)) ** 2) ** 2
    inverse = np.linalg.pinv(jacobian.T @ jacobian)
    quantile = float(_scipy("stats").t.ppf((1 + CONFIDENCE) / 2, count - free))
    widths: Floats = quantile * np.sqrt(variance * np.diag(inverse))
    return widths


def _fitted(key: FreeKey, at: float, half: float, alike: Sequence[tuple[str, ...]], useless: set[str]) -> FittedKey:
    given, value = key.kind.text(key.given), key.text(at)
    if key.key in useless:
        return FittedKey(key.key, given, value, "", "", "the points do not depend on it")
    others = dict.fromkeys(name for group in alike if key.key in group for name in group if name != key.key)
    if others:
        return FittedKey(key.key, given, value, "", "", f"cannot be told apart from {', '.join(others)}")
    low, high = (key.text(key.rounded(end)) for end in (at - half, at + half))
    return FittedKey(key.key, given, value, low, high)
