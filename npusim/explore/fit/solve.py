"""The fit: free keys of a device that make simulated times agree with measured ones.

The error of a point is ln(simulated / measured). The objective is the sum of a loss that grows linearly for large
errors, so that a few bad measurements do not decide the result; its scale is the typical error at the start. Times are
steps of the keys wherever the compiler chooses another schedule, so the search uses no derivatives (SciPy's COBYQA),
from the best of a few starting points; robust least squares on differences refine its result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from npusim.errors import ConfigError, NpusimError, UsageError
from npusim.explore.fit.parameters import FreeKey
from npusim.explore.fit.points import MeasuredPoint
from npusim.hw.config import Config

if TYPE_CHECKING:
    from types import ModuleType

Floats = npt.NDArray[np.float64]
CONFIDENCE = 0.95
FOLDS = 5
_IMPOSSIBLE = math.log(1e6)
"""The error of a point on a device that cannot run it."""
_STARTS = 8
"""Starting points looked at for each free key; a Sobol sequence between the bounds."""
_SEARCHES = 2
"""Searches, from the best starting points."""
_RADII = 0.3, 1e-2
"""First and last trust radius of a search, as logarithms of factors."""
_MOST_TRIALS = 100
"""Devices that a search may try for each free key."""
_MOST_STEPS = 12
_MOST_ROUNDS = 12
"""Steps of a refinement behind a search, and refinements."""
_TUNING = 2.5
"""Errors larger than this many times the scale count as bad measurements: with normal errors little is lost."""
_LEAST_SCALE = 1e-6
"""The least scale of errors, those of times that were simulated."""
_STEPS = 0.7, 0.2, 0.02
"""Steps of differences, as logarithms of factors: wide ones look beyond values between which a key has no effect. The
last gives the intervals."""
_WITHOUT_EFFECT = 0.005
"""A key without effect: its double changes no time by more than this."""
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


def fit(config: Config, points: Sequence[MeasuredPoint], keys: Sequence[FreeKey]) -> Fit:
    """Fit keys to points.

    Raises UsageError for too few points, or if SciPy is missing.
    """
    if len(points) <= len(keys):
        raise UsageError(f"{len(points)} points cannot determine {len(keys)} keys: at least {len(keys) + 1} are needed")
    optimize = _scipy("optimize")
    problem = _Problem(config, points, keys)
    given = np.array([key.coordinate(key.given) for key in keys])
    every = np.arange(len(points))
    scale = _spread(problem.errors(given))
    best = problem.search(optimize, problem.starts(given, scale), scale)
    for step in (*_STEPS, *_STEPS[-1:] * _MOST_ROUNDS):
        # Bad measurements have less weight with the scale of the errors that are left. It falls in steps, or the points
        # that happen to fit first would turn the others into bad measurements.
        before, spread = best, _spread(problem.errors(best))
        scale = max(spread, scale / 4)
        best = problem.refine(optimize, before, every, scale, step)
        if best is before and scale == spread and step == _STEPS[-1]:
            break
    best = np.array([key.rounded(at) for key, at in zip(keys, best, strict=True)])
    jacobian = problem.jacobian(best, _STEPS[-1])
    alike, useless = _indistinct(jacobian, keys)
    half = _half_widths(jacobian, problem.errors(best), scale)
    return Fit(
        config=problem.device(best),
        keys=tuple(_fitted(key, at, width, alike, useless) for key, at, width in zip(keys, best, half, strict=True)),
        points=tuple(points),
        given_errors=_relative(problem.errors(given)),
        errors=_relative(problem.errors(best)),
        left_out=_relative(_left_out(problem, optimize, best, scale)),
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

    def __init__(self, config: Config, points: Sequence[MeasuredPoint], keys: Sequence[FreeKey]) -> None:
        self._config, self._points, self._keys = config, points, keys
        self._known: dict[tuple[Any, ...], Floats] = {}
        self._low, self._high = (np.array(ends) for ends in zip(*(key.bounds for key in keys), strict=True))

    @property
    def devices(self) -> int:
        """The devices simulated so far."""
        return len(self._known)

    def device(self, at: Floats) -> Config:
        """The device at a place of the search. Raises ConfigError if its values contradict each other."""
        return self._config.with_(**{key.key: key.raw(each) for key, each in zip(self._keys, at, strict=True)})

    def errors(self, at: Floats) -> Floats:
        """ln(simulated / measured) of each point."""
        values = tuple(key.value(each) for key, each in zip(self._keys, at, strict=True))
        if values not in self._known:
            try:
                device = self.device(at)
            except ConfigError:  # values that contradict each other
                self._known[values] = np.full(len(self._points), _IMPOSSIBLE)
            else:
                self._known[values] = np.array([_error(point, device) for point in self._points])
        return self._known[values]

    def loss(self, at: Floats, rows: npt.NDArray[np.intp], scale: float) -> float:
        """The robust sum over some points (soft L1): squares of small errors, twice the size of large ones."""
        relative = self.errors(at)[rows] / (_TUNING * scale)
        return float(np.sum(2 * (np.sqrt(1 + relative**2) - 1)))

    def starts(self, given: Floats, scale: float) -> list[Floats]:
        """The given values, and the best ones of a Sobol sequence between the bounds."""
        sampler = _scipy("stats").qmc.Sobol(len(self._keys), scramble=False)
        count = 1 << math.ceil(math.log2(_STARTS * len(self._keys)))
        places = self._low + sampler.random(count) * (self._high - self._low)
        every = np.arange(len(self._points))
        return [given, *sorted(places, key=lambda at: self.loss(at, every, scale))[: _SEARCHES - 1]]

    def search(self, optimize: ModuleType, starts: Sequence[Floats], scale: float) -> Floats:
        """The place of least loss that searches from some places find."""
        first, last = _RADII
        every = np.arange(len(self._points))
        found = list(starts)
        for start in starts:
            result = optimize.minimize(
                lambda at: self.loss(at, every, scale),
                np.clip(start, self._low, self._high),
                method="COBYQA",
                bounds=optimize.Bounds(self._low, self._high),
                options={"initial_tr_radius": first, "final_tr_radius": last, "maxfev": _MOST_TRIALS * len(self._keys)},
            )
            found.append(np.asarray(result.x, np.float64))
        return min(found, key=lambda at: self.loss(at, every, scale))

    def refine(
        self, optimize: ModuleType, start: Floats, rows: npt.NDArray[np.intp], scale: float, step: float
    ) -> Floats:
        """The place of least loss of some points near a place, by robust least squares on differences of ``step``."""
        margin = 1e-6 * (self._high - self._low)
        result = optimize.least_squares(
            lambda at: self.errors(at)[rows],
            np.clip(start, self._low + margin, self._high - margin),
            jac=lambda at: self.jacobian(at, step)[rows],
            bounds=(self._low, self._high),
            loss="soft_l1",
            f_scale=_TUNING * scale,
            max_nfev=_MOST_STEPS,
        )
        return min(start, np.asarray(result.x, np.float64), key=lambda at: self.loss(at, rows, scale))

    def jacobian(self, at: Floats, step: float) -> Floats:
        """Change of each point's error by the coordinate of each key, by differences to both sides."""
        columns = []
        for number, key in enumerate(self._keys):
            ends = [self._beside(at, number, sign * step) for sign in (-1, 1)]
            spans = [key.coordinate(key.value(end[number])) for end in ends]
            change = self.errors(ends[1]) - self.errors(ends[0])
            columns.append(change / (spans[1] - spans[0]) if spans[1] > spans[0] else np.zeros(len(self._points)))
        return np.stack(columns, axis=1)

    def _beside(self, at: Floats, number: int, step: float) -> Floats:
        """A place with the coordinate of one key changed by a step, or by more if that gives no other value."""
        key, changed = self._keys[number], at.copy()
        while abs(step) < 1:
            changed[number] = np.clip(at[number] + step, self._low[number], self._high[number])
            if key.value(changed[number]) != key.value(at[number]):
                break
            step *= 2
        return changed


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


def _left_out(problem: _Problem, optimize: ModuleType, best: Floats, scale: float) -> Floats:
    """The error of each point on a device that was fitted to the points of other folds only."""
    count = len(problem.errors(best))
    folds = min(FOLDS, count)
    found = np.empty(count)
    for fold in range(folds):
        rows = np.arange(count)
        behind = rows % folds == fold
        place = problem.refine(optimize, best, rows[~behind], scale, _STEPS[-1])
        found[behind] = problem.errors(place)[behind]
    return found
