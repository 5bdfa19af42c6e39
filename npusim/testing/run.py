"""Assertions about a run for tests."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy.typing as npt

from npusim.bottleneck import RESOURCES
from npusim.errors import UsageError, shown
from npusim.report.format import duration, grouped
from npusim.report.layers import layers, shares, slowest
from npusim.runtime.result import Result
from npusim.testing.changes import changes
from npusim.testing.quantity import Answer, Share, picoseconds, share
from npusim.testing.record import GoldenRecord, read, record

_MOST_NAMES = 8


class LayerTiming:
    """One operator of a run, from the start of its first instruction to the end of its last, in picoseconds since the
    device took the job. Layers that are computed together, some rows at a time, overlap."""

    __slots__ = ("_clock_hz", "end_ps", "name", "start_ps")

    def __init__(self, name: str, start_ps: int, end_ps: int, clock_hz: int) -> None:
        self.name, self.start_ps, self.end_ps, self._clock_hz = name, start_ps, end_ps, clock_hz

    def __repr__(self) -> str:
        return f"layer {self.name}, {duration(self.start_ps)} to {duration(self.end_ps)}"

    @property
    def time_ps(self) -> int:
        """From start to end."""
        return self.end_ps - self.start_ps

    def ends_before(self, moment: int | str | LayerTiming) -> Answer:
        """Whether it ends before a time (``2 ms``, ``1500 cycles``, picoseconds), or before another layer starts."""
        limit, what = self._moment(moment, "the start of")
        late = self.end_ps - limit
        return Answer(late <= 0, f"{self!r}: ends {_apart(late)} {what} {_at(limit)}")

    def starts_after(self, moment: int | str | LayerTiming) -> Answer:
        """Whether it starts after a time, or after another layer ends."""
        if isinstance(moment, LayerTiming):
            limit, what = moment.end_ps, f"the end of {moment!r}"
        else:
            limit, what = picoseconds(moment, self._clock_hz), "the limit"
        late = self.start_ps - limit
        return Answer(late >= 0, f"{self!r}: starts {_apart(late)} {what} {_at(limit)}")

    def overlaps(self, other: LayerTiming) -> Answer:
        """Whether the two layers overlap in time."""
        both = min(self.end_ps, other.end_ps) - max(self.start_ps, other.start_ps)
        reason = f"share {duration(both)}" if both > 0 else f"are {duration(-both)} apart"
        return Answer(both > 0, f"{self!r} and {other!r} {reason}")

    def takes_at_most(self, limit: int | str) -> Answer:
        """Whether it takes at most that long from start to end."""
        most = picoseconds(limit, self._clock_hz)
        return Answer(
            self.time_ps <= most,
            f"{self!r}: takes {duration(self.time_ps)}, {_apart(self.time_ps - most, 'more', 'less')} than "
            f"{duration(most)}",
        )

    def _moment(self, moment: int | str | LayerTiming, edge: str) -> tuple[int, str]:
        if isinstance(moment, LayerTiming):
            return moment.start_ps, f"{edge} {moment!r}"
        return picoseconds(moment, self._clock_hz), "the limit"


class ModelRun:
    """One run of a model on a device. ``result``: the complete result."""

    def __init__(self, result: Result) -> None:
        self.result = result

    def __repr__(self) -> str:
        return f"<{self.result.model} on {self.result.config}: {self.cycles} cycles>"

    @property
    def cycles(self) -> int:
        """Time in cycles of the device clock, see ``Result.cycles``."""
        return self.result.cycles

    @property
    def time_ps(self) -> int:
        """Simulated picoseconds on the device."""
        return self.result.time_ps

    @property
    def outputs(self) -> Mapping[str, npt.NDArray[Any]]:
        """Arrays by name; empty if only the time was requested."""
        return self.result.outputs

    @property
    def digest(self) -> str:
        """The digest of all spans. Equal digests mean equal timelines."""
        return self.result.timeline.digest()

    @functools.cached_property
    def record(self) -> GoldenRecord:
        """The work of each unit for each operator."""
        return record(self.result)

    @functools.cached_property
    def layers(self) -> list[LayerTiming]:
        """The layers in the order of the program."""
        hz = self.result.device.clock_hz
        return [LayerTiming(op.name, op.start_ps, op.end_ps, hz) for op in self.result.ops]

    def layer(self, name: str) -> LayerTiming:
        """The layer with that name, or the only layer whose name contains it. Raises UsageError."""
        names = [layer.name for layer in self.layers]
        found = [layer for layer in self.layers if layer.name == name]
        found = found or [layer for layer in self.layers if name in layer.name]
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"layer {name!r} may be {_listed([layer.name for layer in found])}")
        near = get_close_matches(name, names, _MOST_NAMES) or names
        raise UsageError(
            f"no layer is called {name!r}; {'near ones' if near != names else 'there'} are {_listed(near)}"
        )

    def ends_before(self, limit: int | str) -> Answer:
        """Whether the whole run takes at most that long."""
        most = picoseconds(limit, self.result.device.clock_hz)
        reason = f"{self!r} takes {duration(self.time_ps)}, {_apart(self.time_ps - most, 'more', 'less')} than "
        reason += f"{duration(most)}"
        for layer in slowest(layers(self.result), 1):
            reason += f"; slowest layer: {layer.timing.name}, {duration(layer.added_ps)} of it, bound by "
            reason += shares(layer.resources)
        return Answer(self.time_ps <= most, reason)

    @property
    def bound_by(self) -> str:
        """The resource that the run waited for most, see ``npusim.bottleneck.RESOURCES``; as reported by ``npusim
        run``."""
        return self.result.bottleneck.bound

    def bound(self, resource: str) -> Share:
        """The fraction of the total time, including the host, in which the run waited for a resource."""
        found = self.result.bottleneck
        if resource not in RESOURCES:
            raise UsageError(f"no resource is called {shown(resource)}; there are {', '.join(RESOURCES)}")
        reason = f"{self.result.model} on {self.result.config}: the time that waits for {resource}"
        return Share(found.resources.get(resource, 0), found.total_ps, reason)

    def idle(self, unit: str) -> Share:
        """The fraction of time in which a unit was idle."""
        return self._share(unit, self._unit(unit).idle_ps, "idle")

    def busy(self, unit: str) -> Share:
        """The fraction of time in which a unit was busy."""
        return self._share(unit, self._unit(unit).busy_ps, "busy")

    def waiting(self, unit: str, *, on: str | None = None) -> Share:
        """The fraction of time in which a unit was stalled: by anything, or by ``on``."""
        stalls = self._unit(unit).stalls
        if on is not None and on not in stalls:
            # A resource without stalls is valid, if it exists.
            known = {*self.result.counters.units, *(cause for each in self._units for cause in each.stalls)}
            if on not in known:
                raise UsageError(f"nothing waits for {on!r}; there are {_listed(sorted(known))}")
        waited = sum(stalls.values()) if on is None else stalls.get(on, 0)
        return self._share(unit, waited, "waiting" + (f" for {on}" if on else ""))

    def assert_within(self, baseline: ModelRun | int | str | Path, tolerance: float | str) -> None:
        """Fail unless the time is within ``2 %`` of that of another run, a number of cycles, or a golden file."""
        before = _baseline(baseline, self.result.device.clock_hz)
        expected = before if isinstance(before, int) else before.totals["time_ps"]
        allowed = share(tolerance)
        if abs(self.time_ps - expected) <= allowed * expected:
            return
        lines = [f"{self!r}: {duration(self.time_ps)} is not within {tolerance} of {duration(expected)}"]
        if isinstance(before, GoldenRecord):
            lines += changes(before, self.record, "the baseline")
        raise AssertionError("\n".join(lines))

    @property
    def _units(self) -> list[Any]:
        return list(self.result.counters.units.values())

    def _unit(self, name: str) -> Any:
        units = self.result.counters.units
        if name not in units:
            raise UsageError(f"no unit is called {name!r}; there are {_listed(sorted(units))}")
        return units[name]

    def _share(self, unit: str, part: int, what: str) -> Share:
        whole = self.result.counters.duration_ps
        return Share(part, whole, f"{self.result.model} on {self.result.config}: the time that {unit} is {what}")


def _baseline(baseline: ModelRun | int | str | Path, clock_hz: int) -> int | GoldenRecord:
    match baseline:
        case ModelRun():
            return baseline.record
        case bool():
            raise UsageError(f"a baseline is a run, a number of cycles or a golden file, got {shown(baseline)}")
        case int():
            return picoseconds(f"{baseline} cycles", clock_hz)
        case str() | Path():
            return read(baseline)
        case _:
            raise UsageError(f"a baseline is a run, a number of cycles or a golden file, got {shown(baseline)}")


def _apart(late: int, after: str = "after", before: str = "before") -> str:
    return f"{duration(abs(late))} {after if late > 0 else before}" if late else f"0 s {after}"


def _at(moment: int) -> str:
    return f"({grouped(moment)} ps)"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
