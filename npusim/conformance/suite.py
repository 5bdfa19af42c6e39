"""The suite: each case on a fresh device, then the same work under an adversary; and what came of it."""

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
from npusim.conformance.cases import CASES, LONG_PS, OPENING, WITHOUT_ARITHMETIC, BrokenPromiseError, CaseContext
from npusim.conformance.programs import SuitePrograms
from npusim.conformance.subject import DeadError, DriverRefusedError, Subject
from npusim.device.npu import NpuDevice
from npusim.errors import UsageError
from npusim.hw.config import Config
from npusim.report.format import printable

_log = logging.getLogger("npusim.device")

ADVERSARY = "any-times"
"""The case that the adversary's seeds make."""
REMOVAL = "gone-at-any-access"
"""The case in which the device is unplugged after one access after the other."""
MOST_FINDINGS = 5
"""Of one case that are told."""


@dataclass
class CaseOutcome:
    """What came of a case. ``state``: passed, failed, left out; ``text``: why; ``told``: what the program has told
    people meanwhile; ``findings``: the sanitizer's, as JSON values."""

    name: str
    promise: str
    state: str
    text: str = ""
    told: str = ""
    findings: list[dict[str, object]] = field(default_factory=list)


@dataclass
class Report:
    """All cases."""

    driver: str
    outcomes: list[CaseOutcome] = field(default_factory=list)

    @property
    def failed(self) -> list[CaseOutcome]:
        """The cases that failed."""
        return [outcome for outcome in self.outcomes if outcome.state == "failed"]

    @property
    def kept(self) -> bool:
        """Whether something was tried, and nothing has failed."""
        return not self.failed and any(outcome.state == "passed" for outcome in self.outcomes)

    def text(self) -> str:
        """The report for a person."""
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
    """Hold a driver to its promises. ``computes`` False: it drives nothing, and only keeps what it says about arguments
    and memory; ``cases``: only these. Raises UsageError for a case or an endpoint that is not there."""
    endpoints.check_kind(endpoint)
    known = names(computes=computes)
    chosen = known if cases is None else list(cases)
    for each in chosen:
        if each not in known:
            raise UsageError(f"--case: must be one of {', '.join(known)}, got {each!r}")
    report = Report(name)
    bench = _Bench(subject, config, endpoint, computes)
    # What the device and its sanitizer would log is in the report, beside the case that it belongs to.
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
                report.outcomes.append(CaseOutcome(each, _promise(each), "left out", "no seeds were asked for"))
            progress(report.outcomes[-1])
    finally:
        _log.setLevel(level)
        subject.end()
    return report


def names(*, computes: bool = True) -> list[str]:
    """All cases, in their order."""
    return (
        [*CASES, *OPENING, REMOVAL, ADVERSARY] if computes else [each for each in CASES if each in WITHOUT_ARITHMETIC]
    )


def table() -> str:
    """The cases, for the manual."""
    rows = [f"| `{name}` | {_promise(name)} |" for name in names()]
    return "\n".join(["| case | what is promised |", "|---|---|", *rows])


def _promise(name: str) -> str:
    if name == ADVERSARY:
        return (
            "Whatever times the contract leaves open, results are the same: a device with an adversary for each seed."
        )
    if name == REMOVAL:
        return (
            "A device that goes after any access of a job, and comes back empty or does not: outputs are right, or the "
            "job is refused; with GONE if the device stays away."
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
        outcome = CaseOutcome(name, _promise(name), "passed")
        with self._device() as (device, endpoint):
            if name in OPENING:
                self._guarded(outcome, lambda: self._opens_not(name, device, endpoint))
            else:
                self._guarded(outcome, lambda: self._tried(CASES[name], device, endpoint))
        self._judge(outcome, device)
        return outcome

    def adversary(self, seeds: int) -> CaseOutcome:
        outcome = CaseOutcome(
            ADVERSARY, _promise(ADVERSARY), *(("passed",) if seeds else ("left out", "no seeds were asked for"))
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
        outcome, counts = CaseOutcome(REMOVAL, _promise(REMOVAL), "passed"), list[int]()
        with self._device() as (device, endpoint):
            self._guarded(
                outcome, lambda: self._tried(lambda trial: counts.append(removal.accesses(trial)), device, endpoint)
            )
        self._judge(outcome, device)
        for after, back in removal.moments(counts[0], most) if counts else ():
            if outcome.state != "passed":
                break
            # No sanitizer: a driver cannot know yet that the device which it goes on with is another one.
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
        except (BrokenPromiseError, DeadError) as error:
            outcome.state, outcome.text = "failed", str(error)
        except Exception as error:  # noqa: BLE001 - a driver may raise anything; that it does is what is reported
            outcome.state, outcome.text = "failed", f"{type(error).__name__}: {error}"
        outcome.told += self._subject.told()

    def _judge(self, outcome: CaseOutcome, device: NpuDevice) -> None:
        """What the sanitizer has seen."""
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
