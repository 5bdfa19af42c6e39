"""Settings shared by all tests."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, settings

from npusim.isa import emitted
from npusim.isa.base import Command
from npusim.isa.verify import Limits, verify
from tests.support.own_places import VARIABLES

# No deadline, and no verdict on how fast examples are drawn: the first one of a test may compile kernels' tables or
# import onnx, and machines are shared.
# The same examples in every run: a failure seen once is seen by everybody.
settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


@pytest.fixture(scope="session", autouse=True)
def _nothing_in_the_users_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What npusim keeps - keys, programs, capabilities - stays within the test run, in other processes, too."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in VARIABLES:
            patch.setenv(variable, str(tmp_path_factory.mktemp(variable.lower())))
        yield


@pytest.fixture(scope="session", autouse=True)
def _whatever_is_compiled_is_verified() -> Iterator[None]:
    """A program that is only timed is not verified by the device that has just compiled it: a mistake of a lowering
    would stay unseen. Not here."""
    emit = emitted.emit

    def verified(commands: Sequence[Command], limits: Limits) -> emitted.Emitted:
        verify(commands, limits)
        return emit(commands, limits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("npusim.compiler.pipeline.emit", verified)
        yield
