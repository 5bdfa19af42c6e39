# ruff: noqa: T201 a program
"""The sweep: find when events happen in a run, inject a fault at each of these moments, and judge the outcome.

Moments are the times of all events of the undisturbed run, and a picosecond before and after each. At a moment the
device is unplugged, permanently or for a while; or it hangs, and during the driver's reset the reset is late, never
ends, or the device is unplugged; or its clock is throttled. Each step of the run must give its undisturbed result or an
error; with a throttled clock no error is allowed.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import itertools
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar

from npusim.device import npu
from npusim.device.npu import NpuDevice
from npusim.faults import AtTime, AtWrite, Fault, Hang, Resets, Throttle, Unplug
from npusim.sim.adversary import VARIABLE
from npusim.sim.job import MachineJob
from npusim.sim.steps import Step
from npusim.sim.watch import Watcher
from npusim.timeline import Timeline
from tests.support.removal import doors, plays
from tests.support.removal.plays import Play, same

AWAY_PS = (1, 250_000, 20_000_000, 2_000_000_000)
"""How long a device is unplugged before it returns."""
LATE_PS = 3_000_000_000
"""How late a reset ends."""
IN_RESET_PS = (0, 100_000, 500_000, 1_000_000, 2_000_000, LATE_PS - 1, LATE_PS, LATE_PS + 1, LATE_PS + 1_000_000)
"""How long after the reset of a hanging device it is unplugged."""
HANG_S = 60
"""Wall time in seconds that no run takes."""
SHOWN, LINE = 20, 300
"""Lines of the report about bad outcomes, and their length."""


class Clock(Watcher):
    """Records the times of all events."""

    steps: ClassVar[bool] = True

    def __init__(self, device: NpuDevice) -> None:
        self._device = device
        self.times: set[int] = set()
        device.watch(self)

    def _now(self, *_: object) -> None:
        self.times.add(self._device.now_ps)

    def job_begins(self, job: MachineJob) -> None:
        self._now()

    def dispatched(self, unit: str, step: Step, at_ps: int) -> None:
        self._now()
        self.times.add(at_ps)

    def step_begins(self, unit: str, step: Step) -> None:
        self._now()

    def step_ends(self, unit: str, step: Step) -> None:
        self._now()

    def job_ends(self, job: MachineJob, timeline: Timeline) -> None:
        self._now()

    def register_read(self, register: str, value: int) -> None:
        self._now()

    def register_written(self, register: str, value: int) -> None:
        self._now()

    def memory_read(self, address: int, size: int) -> None:
        self._now()

    def memory_written(self, address: int, size: int) -> None:
        self._now()

    def interrupt(self, vector: int) -> None:
        self._now()

    def waits(self, timeout_ps: int) -> None:
        self._now()

    def takes(self, vectors: int) -> None:
        self._now()


@contextlib.contextmanager
def first_device(told: Callable[[NpuDevice], object], adversary: int | None) -> Iterator[None]:
    """Report the first device that is switched on in this context; later ones are those on which times are tried."""
    devices: list[NpuDevice] = []

    def is_on(device: NpuDevice) -> None:
        devices.append(device)
        if len(devices) == 1:
            told(device)

    before = os.environ.pop(VARIABLE, None)
    if adversary is not None:
        os.environ[VARIABLE] = str(adversary)
    npu.switched_on.append(is_on)
    try:
        yield
    finally:
        npu.switched_on.remove(is_on)
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before


def _hang(at_ps: int, *others: Fault) -> list[Fault]:
    return [Fault(AtTime(time_ps=at_ps), Hang(hang="sequencer", lasts="reset")), *others]


def _gone(at_ps: int, number: int) -> list[Fault]:
    return [Fault(AtTime(time_ps=at_ps), Unplug(unplug=True))]


def _back(at_ps: int, number: int) -> list[Fault]:
    return [Fault(AtTime(time_ps=at_ps), Unplug(unplug=True, lasts=AWAY_PS[number % len(AWAY_PS)]))]


def _twice(at_ps: int, number: int) -> list[Fault]:
    return _back(at_ps, number) + _back(at_ps + 10 ** (number % 8), number + 1)


def _late(at_ps: int, number: int) -> list[Fault]:
    return _hang(at_ps, Fault(AtWrite(write="CONTROL", nth=2), Resets(reset="late", delay_ps=LATE_PS)))


def _never(at_ps: int, number: int) -> list[Fault]:
    return _hang(at_ps, Fault(AtWrite(write="CONTROL", nth=2), Resets(reset="never")))


def _in_reset(at_ps: int, number: int) -> list[Fault]:
    after_ps, away_ps = IN_RESET_PS[number % len(IN_RESET_PS)], AWAY_PS[number % 3]
    unplugged = Fault(AtWrite(write="CONTROL", nth=2, after_ps=after_ps), Unplug(unplug=True, lasts=away_ps))
    return [*_late(at_ps, number), unplugged]


def _throttle(at_ps: int, number: int) -> list[Fault]:
    lasts: int | str = "ever" if number % 3 == 0 else 10 ** (5 + number % 3)
    return [Fault(AtTime(time_ps=at_ps), Throttle(throttle=Fraction(2 + number % 7), lasts=lasts))]


KINDS: dict[str, Callable[[int, int], list[Fault]]] = {
    "gone": _gone,
    "back": _back,
    "twice": _twice,
    "late": _late,
    "never": _never,
    "in-reset": _in_reset,
    "throttle": _throttle,
}
HARMLESS = frozenset({"throttle"})


@dataclass(frozen=True)
class Course:
    """A way to run a model: an interface, and the seed of an adversary or none."""

    door: str
    model: str
    adversary: int | None
    play: Callable[[], Play]

    def __str__(self) -> str:
        return f"{self.door}/{self.model}/{'-' if self.adversary is None else self.adversary}"


@dataclass(frozen=True)
class Moment:
    """A fault in a course at a time; ``number`` selects a variant of the fault kind."""

    course: Course
    kind: str
    at_ps: int
    number: int

    def __str__(self) -> str:
        return f"{self.course}/{self.kind}/{self.at_ps}/{self.number}"


@dataclass
class Tally:
    """Outcomes of moments by interface, kind and outcome, and the bad ones."""

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def add(self, moment: Moment, outcome: str, why: str) -> None:
        self.counts[moment.course.door, moment.kind, outcome] += 1
        if outcome in BAD:
            self.bad.append(f"{moment}: {outcome}: {why}")

    def table(self) -> str:
        outcomes = sorted({outcome for _, _, outcome in self.counts}, key=lambda word: (word not in BAD, word))
        rows = [("door", "fault", *outcomes)]
        for door, kind in dict.fromkeys((door, kind) for door, kind, _ in self.counts):
            rows.append((door, kind, *(str(self.counts[door, kind, outcome]) for outcome in outcomes)))
        totals = [sum(n for (_, _, found), n in self.counts.items() if found == outcome) for outcome in outcomes]
        rows.append(("all", "", *map(str, totals)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(" ".join(word.rjust(width) for word, width in zip(row, widths, strict=True)) for row in rows)


BAD = ("WRONG", "FAILED", "HANGS")
"""A wrong value; an error where none is allowed or that is not npusim's; no end."""


def courses(names: Iterable[str], adversaries: Sequence[int | None]) -> Iterator[Course]:
    """Yield all runs through these interfaces."""
    for name in names:
        for model, play in doors.DOORS[name].items():
            for adversary in adversaries:
                yield Course(name, model, adversary, play)


class Undisturbed:
    """The results of a course without faults, and the times of its events."""

    def __init__(self, course: Course) -> None:
        clocks: list[Clock] = []
        with first_device(lambda device: clocks.append(Clock(device)), course.adversary):
            self.play = course.play()
        if self.play.errors:
            raise AssertionError(f"{course}: the undisturbed run ends with {self.play.errors}")
        self.times = sorted({at + step for at in clocks[0].times for step in (-1, 0, 1) if at + step > 0})


def moments(known: dict[Course, Undisturbed], kinds: Sequence[str], most: int) -> Iterator[Moment]:
    """Yield up to ``most`` moments, the same number for each interface, spread evenly over its events, with changing
    variants of the fault."""
    doors_ = dict.fromkeys(course.door for course in known)
    for door in doors_:
        runs = [each for each in itertools.product(known, kinds) if each[0].door == door]
        everything, share, left = sum(len(known[course].times) for course, _ in runs), most // len(doors_), 0
        for number, (course, kind) in enumerate(runs):
            for place, at_ps in enumerate(known[course].times):
                left += share
                if left >= everything:
                    left %= everything
                    yield Moment(course, kind, at_ps, number + place // 3)


def outcome_of(moment: Moment, wanted: Play) -> tuple[str, str]:
    """Return the outcome, and why it is bad."""
    script = KINDS[moment.kind](moment.at_ps, moment.number)
    try:
        with first_device(lambda device: device.faults.add(script), moment.course.adversary):
            play = moment.course.play()
    except _HangsError:
        return "HANGS", f"no end within {HANG_S} s"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        return "FAILED", f"{type(error).__name__}: {error}"
    for step, value in play.values.items():
        if not same(value, wanted.values[step]):
            return "WRONG", f"step {step}: {value!r}, not {wanted.values[step]!r}"
    if moment.kind in HARMLESS and play.errors:
        return "FAILED", ", ".join(play.errors)
    return (play.errors[0] if play.errors else "right"), ""


class _HangsError(BaseException):
    """Not caught by any handler on its way."""


def _hangs(*_: object) -> None:
    raise _HangsError


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """End a hanging run in this block by a signal, or end the process if a library does not return for one."""
    before = signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(HANG_S)
    faulthandler.dump_traceback_later(2 * HANG_S, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def sweep(
    chosen: Iterable[Course],
    most: int,
    kinds: Sequence[str] = tuple(KINDS),
    guard: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
) -> Tally:
    """Play all moments, or ``most`` of them, each with a ``guard``."""
    tally, known = Tally(), {course: Undisturbed(course) for course in chosen}
    for moment in moments(known, kinds, most):
        with guard():
            tally.add(moment, *outcome_of(moment, known[moment.course].play))
    return tally


def _only(text: str) -> Tally:
    """Play the moment named by a line of a report."""
    door, model, adversary, kind, at_ps, number = text.split("/")
    course = Course(door, model, None if adversary == "-" else int(adversary), doors.DOORS[door][model])
    tally, moment = Tally(), Moment(course, kind, int(at_ps), int(number))
    with watched():
        tally.add(moment, *outcome_of(moment, Undisturbed(course).play))
    return tally


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the command line."""
    parser = argparse.ArgumentParser("python -m tests.support.removal", description=plays.__doc__)
    parser.add_argument("--moments", type=int, default=100_000, help="how many, spread evenly over all there are")
    parser.add_argument("--door", action="append", choices=list(doors.DOORS), help="only this one; may be repeated")
    parser.add_argument("--fault", action="append", choices=list(KINDS), help="only this one; may be repeated")
    parser.add_argument("--seeds", type=int, default=3, help="so many adversaries besides none")
    parser.add_argument("--only", help="one moment, as a line of the report names it")
    options = parser.parse_args(arguments)
    begun = time.process_time()
    if options.only:
        tally = _only(options.only)
    else:
        adversaries: list[Any] = [None, *range(1, options.seeds + 1)]
        chosen = courses(options.door or doors.DOORS, adversaries)
        tally = sweep(chosen, options.moments, options.fault or list(KINDS), watched)
    print(tally.table())
    print("\n".join(" ".join(line.split())[:LINE] for line in tally.bad[:SHOWN]))
    count = tally.counts.total()
    print(f"{count} moments, {len(tally.bad)} bad, {time.process_time() - begun:.0f} s of CPU time")
    return bool(tally.bad) or not count
