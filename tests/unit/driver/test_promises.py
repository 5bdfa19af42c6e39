"""What every driver promises: add a driver here and it is held to the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npusim.device.npu import NpuDevice
from npusim.driver.null import NullDriver
from npusim.driver.reference import Driver
from npusim.errors import DeviceMemoryError, InputError, UsageError
from npusim.hw.config import load_config
from tests.support.programs.streams import Stream, round_trip

DRIVERS: dict[str, Any] = {"reference": Driver, "null": NullDriver}
COMPUTES = frozenset({"reference"})


@pytest.fixture(params=sorted(DRIVERS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def driver(name: str) -> Any:
    return DRIVERS[name](NpuDevice(load_config("tiny")).bus)


def test_outputs_have_the_programs_names_shapes_and_types(driver: Any, name: str) -> None:
    values = np.arange(64, dtype=np.uint8)
    outputs = driver.run(driver.load(round_trip(64)), {"x0": values}).outputs
    assert list(outputs) == ["y0"]
    assert (outputs["y0"].dtype, outputs["y0"].shape) == (np.uint8, (64,))
    assert np.array_equal(outputs["y0"], values) == (name in COMPUTES)


def test_timing_only_needs_no_inputs_and_gives_no_outputs(driver: Any) -> None:
    result = driver.run(driver.load(round_trip(64)), timing_only=True)
    assert result.outputs == {}
    assert result.fence == 1


def test_wrong_inputs_are_refused(driver: Any) -> None:
    loaded = driver.load(round_trip(4))
    with pytest.raises(InputError, match="'x0' is missing"):
        driver.run(loaded, {})
    with pytest.raises(InputError, match="dtype must be uint8, got int32"):
        driver.run(loaded, {"x0": np.zeros(4, np.int32)})


def test_loading_too_much_takes_nothing(driver: Any) -> None:
    with pytest.raises(DeviceMemoryError, match="bytes of device memory required"):
        driver.load(Stream().program(scratch=1 << 40))
    loaded = [driver.load(Stream().program(scratch=400 << 20)) for _ in range(2)]
    driver.unload(loaded[0])
    driver.load(Stream().program(scratch=400 << 20))


def test_an_unloaded_program_does_not_run(driver: Any) -> None:
    loaded = driver.load(round_trip(4))
    driver.unload(loaded)
    with pytest.raises(UsageError, match="has been unloaded"):
        driver.run(loaded, timing_only=True)
    with pytest.raises(UsageError, match="has been unloaded"):
        driver.unload(loaded)
