"""Guarantees of every driver: the suite of ``npusim driver-test`` with good drivers of all kinds, and with bad ones."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from npusim.conformance import endpoints, run
from npusim.conformance.cases import CASES
from npusim.conformance.removal import moments
from npusim.conformance.subject import ProgramSubject, PythonSubject
from npusim.conformance.suite import ADVERSARY, REMOVAL, Report, names
from npusim.device.npu import NpuDevice
from npusim.device.transports.bus_socket import REQUEST, SocketBus
from npusim.driver.null import NullDriver
from npusim.driver.reference import Driver
from npusim.errors import DeviceFaultError, DeviceGoneError, UsageError
from npusim.hw.config import load_config
from tests.support.drivers.program import MISTAKES
from tests.support.drivers.written_from_the_document import DocumentDriver, Job
from tests.support.programs.streams import round_trip

TINY = load_config("tiny")
Program = Callable[..., Report]


def held(driver: Any, **options: Any) -> Report:
    return run(PythonSubject(driver), TINY, name=driver.__name__, **options)


class ImpatientSubject(ProgramSubject):
    """Waits only half a second where it expects silence, but as long as necessary for the start of the program."""

    def _ask(self, *words: object) -> list[str]:
        self._patience_s = 0.5 if words[0] == "run" else 60
        return super()._ask(*words)


@pytest.fixture
def program(warm_python: Path) -> Program:
    def run_it(mistake: str = "", **options: Any) -> Report:
        command = shlex.join([str(warm_python), "-m", "tests.support.drivers.program"])
        kind = ImpatientSubject if mistake == "silent" else ProgramSubject
        subject = kind(f"{command} {mistake}".rstrip(), 60)
        return run(subject, TINY, name="program", endpoint="bus", **options)

    return run_it


@pytest.mark.parametrize("driver", [Driver, DocumentDriver])
@pytest.mark.parametrize("case", names())
def test_python_drivers_keep_each(driver: Any, case: str) -> None:
    (outcome,) = held(driver, cases=[case], seeds=40).outcomes
    assert (outcome.state, outcome.text, outcome.told) == ("passed", "", "")


def test_a_template_keeps_what_it_can() -> None:
    report = held(NullDriver, computes=False)
    assert [(outcome.name, outcome.state) for outcome in report.outcomes] == [
        (name, "passed") for name in ("computes", "wrong-inputs", "too-large", "unloaded")
    ]


def test_a_program_keeps_all(program: Program) -> None:
    report = program(seeds=5)
    assert [(outcome.name, outcome.text) for outcome in report.outcomes if outcome.state != "passed"] == []
    assert [outcome.name for outcome in report.outcomes] == names()


WRONG = {
    "silent": r"run @1 \S+ -> \S+: no answer within 0.5 s",
    "dies": "the program has ended, exit code 7",
    "babbles": "the answer must be ok or error and a code, got 'what\\?'",
    "wrong-output": r"y0\[0\] must be 0, got 1",
    "late-input": "findings of the sanitizer",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_bad_program_fails_with_a_reason(program: Program, mistake: str) -> None:
    (outcome,) = program(mistake, cases=["computes-again"]).outcomes
    assert outcome.state == "failed"
    assert re.search(WRONG[mistake], outcome.text), outcome.text
    if mistake == "dies":
        assert outcome.told == "it hurts\n"


class AnyException(DocumentDriver):
    def load(self, program: Any) -> Any:
        raise ZeroDivisionError("oh")


class WithoutAbort(DocumentDriver):
    @property
    def abort(self) -> Any:  # type: ignore[override]
        raise AttributeError("abort")


class LosesTheLast(DocumentDriver):
    def read_outputs(self, job: Job) -> None:
        super().read_outputs(job)
        job.outputs = {name: np.zeros_like(array) for name, array in job.outputs.items()}


class HidesFaults(DocumentDriver):
    def finish(self, job: Job) -> Job:
        if isinstance(job.error, DeviceFaultError):
            job.error = None
        return super().finish(job)


def test_what_is_left_out_and_what_fails_is_told(tmp_path: Path) -> None:
    report = held(WithoutAbort, cases=["computes", "aborts"])
    assert [(each.state, each.text) for each in report.outcomes] == [
        ("passed", ""), ("left out", "the driver has no abort()")
    ]  # fmt: skip
    assert report.text().splitlines()[-1] == "WithoutAbort: 1 passed, 0 failed, 1 left out"
    assert held(AnyException, cases=["computes"]).outcomes[0].text == "ZeroDivisionError: oh"
    assert held(LosesTheLast, cases=["computes-again"]).outcomes[0].text == "job 0: y0[1] must be 1, got 0"
    hidden = held(HidesFaults, cases=["a-bus-error"])
    assert hidden.outcomes[0].text == "must be refused with FAULT DMA, but succeeded"
    tree = ET.fromstring(hidden.to_junit())
    assert tree.attrib["failures"] == "1"
    assert [(case.attrib["name"], case[0].tag) for case in tree] == [("a-bus-error", "failure")]
    assert json.loads(hidden.to_json())["cases"][0]["state"] == "failed"


class NeverLooks(DocumentDriver):
    def check_presence(self, raw: bytes | bytearray) -> None:
        pass


class LooksForOnesAlone(DocumentDriver):
    """Does not know that a device that returns has lost its memory."""

    def check_presence(self, raw: bytes | bytearray) -> None:
        if raw[-4:] == b"\xff" * 4:
            super().check_presence(raw)


class LooksForAnyDevice(DocumentDriver):
    """Does not know that a present device may have lost power in between."""

    def check_presence(self, raw: bytes | bytearray) -> None:
        if raw[-4:] in (b"\xff" * 4, bytes(4)) and self.get(0) == 0xFFFFFFFF:
            raise DeviceGoneError("GONE", 0, "the device went while outputs were read")


class LooksOnce(DocumentDriver):
    """Only checks the first output."""

    def read_outputs(self, job: Job) -> None:
        self.first = True
        super().read_outputs(job)

    def check_presence(self, raw: bytes | bytearray) -> None:
        if self.first:
            super().check_presence(raw)
        self.first = False


class CallsItAFault(DocumentDriver):
    def check_presence(self, raw: bytes | bytearray) -> None:
        try:
            super().check_presence(raw)
        except DeviceGoneError:
            raise DeviceFaultError("TIMEOUT", 0, "something went wrong") from None


@pytest.mark.parametrize(
    ("driver", "says"),
    [
        (NeverLooks, r"^gone after access \d+ of \d+: outputs: y1\[0\] must be 21, got 255$"),
        (LooksForOnesAlone, r"^gone and back after access \d+ of \d+: outputs: y1\[0\] must be 21, got 0$"),
        (LooksForAnyDevice, r"^gone and back after access \d+ of \d+: outputs: y1\[0\] must be 21, got 0$"),
        (LooksOnce, r"^gone after access \d+ of \d+: outputs: y1\[0\] must be 21, got 255$"),
        (
            CallsItAFault,
            r"^gone after access \d+ of \d+: must be refused with GONE, got TIMEOUT .*something went wrong$",
        ),
    ],
)
def test_a_driver_that_believes_a_device_that_is_gone(driver: Any, says: str) -> None:
    (outcome,) = held(driver, cases=[REMOVAL]).outcomes
    assert outcome.state == "failed"
    assert re.search(says, outcome.text), outcome.text


def test_without_seeds_nothing_is_claimed() -> None:
    report = held(Driver, cases=[REMOVAL, ADVERSARY], seeds=0)
    assert [(outcome.state, outcome.text) for outcome in report.outcomes] == [("left out", "no seeds requested")] * 2


def test_each_access_is_a_moment() -> None:
    """As many as requested, including the last ones, or all that exist."""
    for count in (1, 7, 30):
        for most in (1, 2, 5, 100):
            found = list(moments(count, most))
            after = [number for number, back in found if not back]
            assert found == [(number, back) for number in after for back in (False, True)]
            assert after == sorted({*after}, reverse=True)
            assert {*after} <= {*range(1, count + 1)}
            assert len(after) <= most
            assert most < 2 or after[0] == count
            assert len(after) == count or most < 2 * count


class Late(DocumentDriver):
    """Writes the next input while the previous job may still need it."""

    shared = 0

    def write_job(self, job: Job, inputs: Any) -> None:
        self.shared = self.shared or job.regions[2]
        job.regions[2] = self.shared
        super().write_job(job, inputs)


def test_findings_fail_the_case_that_they_were_made_in() -> None:
    (outcome,) = held(Late, cases=["jobs-in-flight"]).outcomes
    assert outcome.state == "failed"
    assert {finding["kind"] for finding in outcome.findings} >= {"changed-in-flight"}
    assert "changed-in-flight at" in outcome.told


def test_every_case_has_a_requirement() -> None:
    assert all(function.__doc__ for function in CASES.values())
    assert {ADVERSARY, REMOVAL} <= {*names()}
    with pytest.raises(UsageError, match=r"--case: must be one of computes, .*, got 'nothing'"):
        held(Driver, cases=["nothing"])
    with pytest.raises(UsageError, match="--endpoint: must be one of in-process, bus, vfio-user, got 'pci'"):
        held(Driver, endpoint="pci")


@contextmanager
def at_a_socket(device: NpuDevice) -> Iterator[str]:
    with endpoints.bus(device) as endpoint:
        yield endpoint.partition(":")[2]


def test_a_device_at_a_socket_takes_the_same_picoseconds() -> None:
    def moments(bus: Any, device: NpuDevice) -> list[int]:
        driver, found = DocumentDriver(bus), []
        loaded = driver.load(round_trip(64))
        for number in range(5):
            values = np.full(64, number, np.uint8)
            assert np.array_equal(driver.run(loaded, {"x0": values}).outputs["y0"], values)
            found.append(device.now_ps)
        return found

    here, there = NpuDevice(TINY), NpuDevice(TINY)
    with at_a_socket(there) as path:
        bus = SocketBus(path)
        assert moments(bus, there) == moments(here.bus, here)
        bus.close()


@pytest.mark.parametrize("seed", range(20))
def test_nonsense_ends_the_connection_and_nothing_else(seed: int) -> None:
    random, device = np.random.default_rng(seed), NpuDevice(TINY)
    with at_a_socket(device) as path:
        for _ in range(50):
            bus = SocketBus(path)
            words = random.bytes(REQUEST.size * 4) if seed % 2 else REQUEST.pack(9, 0, 0, 4, 0, 0)
            bus._peer.sendall(words)
            bus.close()
        driver = DocumentDriver(SocketBus(path))
        values = np.arange(64, dtype=np.uint8)
        assert np.array_equal(driver.run(driver.load(round_trip(64)), {"x0": values}).outputs["y0"], values)
