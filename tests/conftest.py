"""Settings shared by all tests."""

import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from npusim.device.check import VARIABLE, Checker
from npusim.device.flights import Load
from npusim.isa import emitted
from npusim.isa.base import Command
from npusim.isa.verify import Limits, verify
from npusim.sim.parts import Parts
from tests.support.own_places import VARIABLES as OWN
from tests.support.warm import interpreter

# The width of reports must not depend on the terminal of the tests.
os.environ.pop("COLUMNS", None)

# No deadline, and no verdict on how fast examples are drawn: the first one of a test may compile kernels' tables or
# import onnx, and machines are shared.
# The same examples in every run: a failure seen once is seen by everybody.
settings.register_profile(
    "default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], max_examples=50
)
# Of properties that do not say how many examples they want: make slow.
settings.register_profile("many", settings.get_profile("default"), max_examples=1000)
settings.load_profile("default")


def pytest_collection_finish() -> None:
    """Modules and tests exist until the end, so exempt them from garbage collection, which would take half a second
    each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _later_files_do_not_scan_what_this_one_leaves() -> Iterator[None]:
    """Caches grow with every test file, and tests that count descriptors collect garbage."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _nothing_in_the_users_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep npusim's files - keys, programs, capabilities - in the test run's directory, also in child processes."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in OWN:
            patch.setenv(variable, str(tmp_path_factory.mktemp(variable.lower())))
        yield


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a replacement for ``sys.executable`` for tests of what a program does, not of how Python starts it."""
    with interpreter(tmp_path_factory.mktemp("warm")) as command:
        yield command


@pytest.fixture(scope="session", autouse=True)
def _whatever_is_compiled_is_verified() -> Iterator[None]:
    """Verify every compiled program. A device does not verify a program that it compiled itself and only times, which
    would hide lowering errors."""
    emit = emitted.emit

    def verified(commands: Sequence[Command], limits: Limits) -> emitted.Emitted:
        verify(commands, limits)
        return emit(commands, limits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("npusim.compiler.pipeline.emit", verified)
        yield


@pytest.fixture(autouse=bool(os.environ.get(VARIABLE)))
def _no_driver_does_wrong(request: pytest.FixtureRequest) -> Iterator[None]:
    """With $NPUSIM_DRIVER_CHECK each device of each test checks its driver, and a finding fails the test."""
    # Not an argument: an unused fixture takes a seventh of the time of an empty test.
    monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    if request.node.get_closest_marker("unwatched"):
        monkeypatch.delenv(VARIABLE)
        yield
        return
    checkers: list[Checker] = []
    make = Checker.wanted

    def kept(check: bool | str | None, machine: Parts, registers: Mapping[str, int], load: Load) -> Checker | None:
        checker = make(check, machine, registers, load)
        checkers.extend([checker] if checker is not None and check is None else [])
        return checker

    monkeypatch.setattr(Checker, "wanted", kept)
    yield
    assert [str(finding) for checker in checkers for finding in checker.findings] == []
