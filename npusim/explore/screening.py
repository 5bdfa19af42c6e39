"""Properties of designs that need no simulation: validity, area, estimates of all other figures."""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from npusim.errors import CompileError, ConfigError, NpusimError, UnsupportedError
from npusim.explore.figures import OF_MODELS

if TYPE_CHECKING:
    from npusim.explore.formula import Formula
    from npusim.explore.objectives import Objectives
    from npusim.explore.space import Space
    from npusim.hw.config import Config

Floats = npt.NDArray[np.float64]
Area = Callable[["Config"], "int | float | None"]


class EstimatedFigures(Protocol):
    """Arrays with one element per design; nan: unknown."""

    @property
    def time_ps(self) -> Floats: ...
    @property
    def dram_bytes(self) -> Floats: ...
    @property
    def energy_fj(self) -> Floats: ...


class Estimate(Protocol):
    """Estimates a model, by name, on variants of a device, one per row of ``columns``. Raises NpusimError that names a
    key in which variants must not differ."""

    def __call__(self, model: str, base: Config, columns: Mapping[str, Sequence[object]], /) -> EstimatedFigures: ...


class Screen:
    """Decides which designs can be built and are allowed, and records why others are excluded."""

    def __init__(self, space: Space, objectives: Objectives, area: Area) -> None:
        self._space, self._objectives, self._area = space, objectives, area
        self.areas: dict[int, float | None] = {}
        self.clocks: dict[int, int] = {}
        self.excluded: dict[int, str] = {}

    def allowed(self, numbers: Sequence[int]) -> list[int]:
        """The designs that can be built and violate no constraint that needs no run."""
        return [number for number in numbers if self._is_allowed(number)]

    def _is_allowed(self, number: int) -> bool:
        if number not in self.areas and number not in self.excluded:
            try:
                config = self._space.config(number)
            except ConfigError as error:
                self.excluded[number] = _cause(error)
                return False
            area = self._area(config)
            reason = self._objectives.excluded(number, config, area)
            if reason:
                self.excluded[number] = reason + (
                    _unknown_area(config) if area is None and "not known" in reason else ""
                )
            else:
                self.areas[number], self.clocks[number] = area, config.clock_hz
        return number in self.areas

    def causes(self) -> collections.Counter[str]:
        """Number of excluded designs by reason."""
        return collections.Counter(self.excluded.values())


def _unknown_area(config: Config) -> str:
    """The parts without an area, and the keys that would define it."""
    from npusim.hw.area import area

    missing = area(config).unknown
    return f"; technology.node says it, or [set] area.*, for: {', '.join(missing)}" if missing else ""


def _cause(error: ConfigError) -> str:
    """The key and the rule of the first problem, without the numbers that vary between designs."""
    problem = error.problems[0].partition(": ")[2]
    return re.sub(r"(, got .*)| = [^,;]*", "", problem)


class EstimateTable:
    """Estimated figures of designs, as columns. ``estimate`` None: all figures are unknown, and all designs look
    equal."""

    def __init__(self, space: Space, objectives: Objectives, screen: Screen, estimate: Estimate | None) -> None:
        self._space, self._objectives, self._screen, self._estimate = space, objectives, screen, estimate
        self.numbers: list[int] = []
        self.place: dict[int, int] = {}
        self.models = [each.name for each in space.workloads]
        self._figures: dict[tuple[str, str], Floats] = {}
        self._first: dict[str, EstimatedFigures] = {}
        """The estimates of the first designs, by model."""
        self._names: dict[str, npt.NDArray[Any]] = {}

    def add(self, numbers: Sequence[int]) -> None:
        """Estimate more designs, which must be allowed."""
        new = [number for number in dict.fromkeys(numbers) if number not in self.place]
        if not new:
            return
        found = self._estimated(new)
        names = self._named(new)
        self.place.update({number: len(self.numbers) + i for i, number in enumerate(new)})
        self.numbers += new
        for key, column in found.items():
            self._figures[key] = np.concatenate([self._figures[key], column]) if key in self._figures else column
        for name, values in names.items():
            self._names[name] = np.concatenate([self._names[name], values]) if name in self._names else values

    def unseen(self) -> dict[str, tuple[str, ...]]:
        """The keys that the estimates of each model do not follow, measured by simulation."""
        # Other estimators may not provide this.
        found = {model: getattr(estimates, "unseen", ()) for model, estimates in self._first.items()}
        return {model: keys for model, keys in found.items() if keys}

    def _named(self, numbers: Sequence[int]) -> dict[str, npt.NDArray[Any]]:
        """Areas, and the keys of the device that constraints and objectives use."""
        areas = [math.nan if (area := self._screen.areas[n]) is None else float(area) for n in numbers]
        found: dict[str, npt.NDArray[Any]] = {"area": np.array(areas)}
        wanted = self._objectives.device_names
        if wanted:
            rows = [self._space.names(number, self._space.config(number)) for number in numbers]
            for name in wanted:
                found[name] = _column([row[name] for row in rows])
        return found

    def _estimated(self, numbers: Sequence[int]) -> dict[tuple[str, str], Floats]:
        count = len(numbers)
        found = {(model, figure): np.full(count, np.nan) for model in self.models for figure in OF_MODELS}
        if self._estimate is None:
            return found
        by_base: dict[str, list[int]] = {}
        settings = []
        for place, number in enumerate(numbers):
            base, changed = self._space.settings(number)
            by_base.setdefault(base.name, []).append(place)
            settings.append(changed)
        clocks = np.array([self._screen.clocks[number] for number in numbers], float)
        for places in by_base.values():
            for model in self.models:
                self._fill(model, np.array(places), numbers, settings, found, ())
        for model in self.models:
            latency, energy = found[model, "latency"], found[model, "energy"]
            found[model, "cycles"] = latency * clocks / 1e12
            found[model, "power"] = energy * 1000 / latency
        return found

    def _fill(
        self,
        model: str,
        places: npt.NDArray[np.intp],
        numbers: Sequence[int],
        settings: Sequence[Mapping[str, Any]],
        found: dict[tuple[str, str], Floats],
        fixed: tuple[str, ...],
    ) -> None:
        """Estimate a model on designs that agree in the keys that are ``fixed``."""
        first = int(places[0])
        columns = {key: [settings[i][key] for i in places] for key in settings[first] if key not in fixed}
        alike = self._space.config(numbers[first])
        base = alike if fixed else self._space.settings(numbers[first])[0]
        # Use the device of the space, so that one estimator serves every round. If it cannot compute the model, or
        # contradicts the varied keys, use the first of the designs.
        estimates = self._ask(model, base, columns)
        if isinstance(estimates, NpusimError) and base != alike:
            estimates = self._ask(model, alike, columns)
        if isinstance(estimates, NpusimError):
            text = str(estimates)
            key = next((key for key in columns if _names(key, text)), None)
            if key is None and not isinstance(estimates, UnsupportedError | CompileError):
                raise estimates
            groups: dict[str, list[int]] = {}
            for i in places if key is not None else ():
                groups.setdefault(repr(settings[i][key or ""]), []).append(int(i))
            for group in groups.values():
                self._fill(model, np.array(group), numbers, settings, found, (*fixed, key or ""))
            return
        self._first.setdefault(model, estimates)
        found[model, "latency"][places] = estimates.time_ps
        found[model, "dram_bytes"][places] = estimates.dram_bytes
        found[model, "energy"][places] = estimates.energy_fj

    def _ask(self, model: str, base: Config, columns: Mapping[str, Sequence[Any]]) -> EstimatedFigures | NpusimError:
        assert self._estimate is not None
        given = {key: [_toml(key, value) for value in column] for key, column in columns.items()}
        try:
            return self._estimate(model, base, given or {"clock": [base.clock_hz]})
        except NpusimError as error:
            return error

    def column(self, model: str, figure: str) -> Floats:
        """Estimates of a figure. If it is unknown for all designs: ones, so that a correction factor is the figure
        itself."""
        raw = self._figures[model, figure]
        return np.ones(len(raw)) if np.isnan(raw).all() else np.maximum(raw, 1.0)

    def known(self, model: str, number: int) -> dict[str, float]:
        """The estimated figures of a design by name; empty if it was not estimated."""
        place = self.place.get(number)
        if place is None:
            return {}
        found = {figure: float(self._figures[model, figure][place]) for figure in OF_MODELS}
        return {figure: value for figure, value in found.items() if math.isfinite(value)}

    def values(self, corrections: Mapping[tuple[str, str], Floats]) -> dict[str, Any]:
        """The values of the names in formulas, as columns. ``corrections``: factors by model and figure."""
        weights = self._objectives.weights
        total = float(sum(weights.values()))
        found: dict[str, Any] = dict(self._names)
        for figure in OF_MODELS:
            mean = np.zeros(len(self.numbers))
            for model in self.models:
                raw = self._figures[model, figure]
                factor = corrections.get((model, figure))
                column = raw if factor is None else self.column(model, figure) * factor
                found[f"{figure}({model})"] = column
                mean = mean + column * (float(weights[model]) / total)
            found[figure] = mean
        for model in self.models:
            found[f"area({model})"] = found["area"]
        if len(self.models) > 1:
            found["power"] = found["energy"] * 1000 / found["latency"]
        return found

    def objectives(self, values: Mapping[str, Any]) -> Floats:
        """The objectives in SI units, [designs, objectives]."""
        count = len(self.numbers)
        with np.errstate(all="ignore"):
            columns = [_evaluated(formula, values, count) for formula in self._space.objectives]
        return np.stack(columns, axis=1)

    def lack(self, values: Mapping[str, Any]) -> Floats:
        """The largest violation of a constraint by each design, relative to its limit; 0 if it is unknown."""
        found = np.full(len(self.numbers), -np.inf)
        with np.errstate(all="ignore"):
            for constraint in self._objectives.later:
                lack = _evaluated(constraint, values, len(found))
                found = np.maximum(found, np.where(np.isnan(lack), 0.0, lack))
        return found


def _evaluated(formula: Formula, values: Mapping[str, Any], count: int) -> Floats:
    """The value of a formula for each design; nan for a division by zero."""
    try:
        found = np.broadcast_to(np.asarray(formula(values), float), (count,))
    except ZeroDivisionError:
        return np.full(count, np.nan)
    return np.where(np.isinf(found), np.nan, found)


def _column(values: Sequence[Any]) -> npt.NDArray[Any]:
    """Values of a key as an array: numbers, with nan for keys that a device lacks; or texts and flags."""
    if all(value is None or (isinstance(value, Real) and not isinstance(value, bool)) for value in values):
        return np.array([math.nan if value is None else float(value) for value in values])
    return np.array(values, object)


def _toml(key: str, plain: Any) -> Any:
    """A value as written in a file."""
    from npusim.explore.axes import config_key
    from npusim.hw.keys import Quantity
    from npusim.units import show

    kind = config_key(key)
    return show(plain, kind.dimension) if isinstance(kind, Quantity) and isinstance(plain, int) else plain


def _names(key: str, text: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", text) is not None
