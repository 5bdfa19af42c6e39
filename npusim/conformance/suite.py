"""The conformance suite: each case on a fresh device, then with adversaries and removals; and its report."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from xml.etree import ElementTree as ET

from npusim.conformance import endpoints, removal
from npusim.conformance.cases import CASES, LONG_PS, OPENING, WITHOUT_ARITHMETIC, CaseContext, ViolationError
from npusim.conformance.programs import SuitePrograms
from npusim.conformance.subject import DeadError, DriverRefusedError, Subject
from npusim.device.npu import NpuDevice
from npusim.errors import UsageError
from npusim.hw.config import Config
from npusim.report.format import printable

_log = logging.getLogger("npusim.device")

ADVERSARY = "any-times"
"""The case that runs once per adversary seed."""
REMOVAL = "gone-at-any-access"
"""The case in which the device is unplugged after each access."""
MOST_FINDINGS = 5
"""Limit of the printed findings per case."""


@dataclass
class CaseOutcome:
    """The result of a case.

    ``state``: passed, failed or left out. ``text``: the reason. ``told``: standard error of the program. ``findings``:
    findings of the driver sanitizer, as JSON values.
    """

    name: str
    requirement: str
    state: str
    text: str = ""
    told: str = ""
    findings: list[dict[str, object]] = field(default_factory=list)


@dataclass
class Report:
    """The results of all cases."""

    driver: str
    outcomes: list[CaseOutcome] = field(default_factory=list)

    @property
    def failed(self) -> list[CaseOutcome]:
        """The cases that failed."""
        return [outcome for outcome in self.outcomes if outcome.state == "failed"]

    @property
    def kept(self) -> bool:
        """Whether at least one case passed and none failed."""
        return not self.failed and any(outcome.state == "passed" for outcome in self.outcomes)

    def text(self) -> str:
        """The report as text."""
        lines = []
        for each in self.outcomes:
            lines.append(f"{each.state:8}  {each.name}" + (f": {each.text}" if each.text else ""))
            lines += [f"            | {line}" for line in each.told.splitlines()[-10:] if each.state == "failed"]
        states = [each.state for each in self.outcomes]
        counts = ", ".join(f"{states.count(state)} {state}" for state in ("passed", "failed", "left out"))
        return "\n".join([*lines, f"{self.driver}: {counts}"])

    def to_json(self) -> str:
        """The report as JSON text."""
        cases = [vars(each) for each in self.outcomes]
        return json.dumps({"driver": self.driver, "cases": cases}, indent=2, sort_keys=True) + "\n"

    def to_junit(self) -> str:
        """The report as JUnit XML."""
        left_out = sum(each.state == "left out" for each in self.outcomes)
        numbers = {"tests": len(self.outcomes), "failures": len(self.failed), "skipped": left_out, "errors": 0}
        suite = ET.Element(
            "testsuite", {"name": "npusim driver-test", **{name: str(value) for name, value in numbers.items()}}
        )
        for each in self.outcomes:
            case = ET.SubElement(suite, "testcase", {"classname": printable(self.driver), "name": each.name})
            if each.state != "passed":
                kind = "failure" if each.state == "failed" else "skipped"
                ET.SubElement(case, kind, {"message": printable(each.text)}).text = printable(each.told)
        return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def run(
    subject: Subject,
    config: Config,
    *,
    name: str,
    endpoint: str = "in-process",
    seeds: int = 20,
    computes: bool = True,
    cases: Iterable[str] | None = None,
    progress: Callable[[CaseOutcome], None] = lambda outcome: None,
) -> Report:
    """Run the suite against a driver.

    ``computes`` False: the driver computes nothing; only its handling of arguments and memory is checked.
    ``cases``: the cases to run. Raises UsageError for an unknown case or endpoint.
    """
    endpoints.check_kind(endpoint)
    known = names(computes=computes)
    chosen = known if cases is None else list(cases)
    for each in chosen:
        if each not in known:
            raise UsageError(f"--case: must be one of {', '.join(known)}, got {each!r}")
    report = Report(name)
    bench = _Bench(subject, config, endpoint, computes)
    # The report has the messages of the device and the sanitizer, by case.
    level = _log.level
    _log.setLevel(logging.CRITICAL)
    try:
        for each in chosen:
            special = {ADVERSARY: bench.adversary, REMOVAL: bench.removal}.get(each)
            if special is None:
                report.outcomes.append(bench.case(each))
            elif seeds:
                report.outcomes.append(special(seeds))
            else:
                report.outcomes.append(CaseOutcome(each, _requirement(each), "left out", "no seeds requested"))
            progress(report.outcomes[-1])
    finally:
        _log.setLevel(level)
        subject.end()
    return report


def names(*, computes: bool = True) -> list[str]:
    """The names of all cases in their order."""
    return (
        [*CASES, *OPENING, REMOVAL, ADVERSARY] if computes else [each for each in CASES if each in WITHOUT_ARITHMETIC]
    )


def table() -> str:
    """The cases as a table for the manual."""
    rows = [f"| `{name}` | {_requirement(name)} |" for name in names()]
    return "\n".join(["| case | requirement |", "|---|---|", *rows])


def _requirement(name: str) -> str:
    if name == ADVERSARY:
        return "Results do not depend on the times that the device specification leaves open: one adversary per seed."
    if name == REMOVAL:
        return (
            "The device is removed after any access of a job, and may come back empty: the outputs are correct, or the "
            "job is refused, with GONE if the device stays removed."
        )
    text = CASES[name].__doc__ if name in CASES else f"The driver refuses to open, with {OPENING[name][0]}."
    return " ".join((text or "").split())


class _Bench:
    def __init__(self, subject: Subject, config: Config, endpoint: str, computes: bool) -> None:
        self._subject, self._config = subject, config
        self._endpoint, self._computes = endpoint, computes

    @contextlib.contextmanager
    def _device(self, adversary: int | None = None, *, check: bool = True) -> Iterator[tuple[NpuDevice, Any]]:
        shared = self._endpoint in endpoints.MAPPED
        device = NpuDevice(self._config, check=check, adversary=adversary, shared_memory=shared)
        try:
            with endpoints.KINDS[self._endpoint](device) as endpoint:
                yield device, endpoint
        finally:
            device.close()

    def case(self, name: str) -> CaseOutcome:
        outcome = CaseOutcome(name, _requirement(name), "passed")
        with self._device() as (device, endpoint):
            if name in OPENING:
                self._guarded(outcome, lambda: self._opens_not(name, device, endpoint))
            else:
                self._guarded(outcome, lambda: self._tried(CASES[name], device, endpoint))
        self._judge(outcome, device)
        return outcome

    def adversary(self, seeds: int) -> CaseOutcome:
        outcome = CaseOutcome(
            ADVERSARY, _requirement(ADVERSARY), *(("passed",) if seeds else ("left out", "no seeds requested"))
        )
        for seed in range(seeds):
            with self._device(seed) as (device, endpoint):
                self._guarded(outcome, lambda: self._tried(_any_times, device, endpoint))
            self._judge(outcome, device)
            if outcome.state != "passed":
                outcome.text = f"seed {seed}: {outcome.text}"
                break
        return outcome

    def removal(self, most: int) -> CaseOutcome:
        outcome, counts = CaseOutcome(REMOVAL, _requirement(REMOVAL), "passed"), list[int]()
        with self._device() as (device, endpoint):
            self._guarded(
                outcome, lambda: self._tried(lambda trial: counts.append(removal.accesses(trial)), device, endpoint)
            )
        self._judge(outcome, device)
        for after, back in removal.moments(counts[0], most) if counts else ():
            if outcome.state != "passed":
                break
            # No sanitizer: the driver cannot know yet that it continues with another device.
            with self._device(check=False) as (device, endpoint):
                work = partial(removal.removed, after=after, back=back)
                self._guarded(outcome, partial(self._tried, work, device, endpoint))
            if outcome.state != "passed":
                outcome.text = f"gone{' and back' * back} after access {after} of {counts[0]}: {outcome.text}"
        return outcome

    def _opens_not(self, name: str, device: NpuDevice, endpoint: Any) -> None:
        code, change = OPENING[name]
        change(device)
        trial = CaseContext(self._subject, device, SuitePrograms(self._config))
        with trial.refused(code):
            self._subject.open(endpoint)

    def _tried(self, work: Callable[[CaseContext], None], device: NpuDevice, endpoint: Any) -> None:
        self._subject.open(endpoint)
        try:
            work(CaseContext(self._subject, device, SuitePrograms(self._config), self._computes))
        finally:
            removed = not device.connected or device.plugged
            with contextlib.suppress(*([DriverRefusedError] if removed else [])):
                self._subject.close()

    def _guarded(self, outcome: CaseOutcome, work: Callable[[], None]) -> None:
        try:
            work()
        except DriverRefusedError as error:
            left_out = error.code == "UNSUPPORTED"
            outcome.state, outcome.text = ("left out", error.text) if left_out else ("failed", f"refused: {error}")
        except (ViolationError, DeadError) as error:
            outcome.state, outcome.text = "failed", str(error)
        except Exception as error:  # noqa: BLE001 - a driver may raise anything; that it does is what is reported
            outcome.state, outcome.text = "failed", f"{type(error).__name__}: {error}"
        outcome.told += self._subject.told()

    def _judge(self, outcome: CaseOutcome, device: NpuDevice) -> None:
        """Add the findings of the sanitizer to the result."""
        findings = device.checker.findings if device.checker is not None and self._computes else []
        if findings and outcome.state != "failed":
            outcome.state, outcome.text = "failed", f"{len(findings)} findings of the sanitizer"
        outcome.findings += [finding.to_json_dict() for finding in findings]
        outcome.told += "".join(f"{finding}\n" for finding in findings[:MOST_FINDINGS])


def _any_times(trial: CaseContext) -> None:
    loaded, slow = (trial.subject.load(each) for each in (trial.programs.round_trip(), trial.programs.slow()))
    try:
        jobs = [
            trial.subject.submit(slow if number == 1 else loaded, {"x0": trial.values(number)}, ring)
            for number, ring in enumerate((1, 0, 2, 1, 0))
        ]
    except DriverRefusedError as error:
        if error.code != "UNSUPPORTED":
            raise
        for number in range(5):
            trial.right(loaded, number)
        return
    for number, job in enumerate(jobs):
        trial.same(trial.subject.wait(job, LONG_PS), trial.values(number), f"job {number}")


if __name__ == "__main__":
    print(table())  # noqa: T201
