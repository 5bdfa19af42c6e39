"""A device in the middle of a job, and changed copies of its state that a restore must refuse."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from npusim.device.checkpoint import Checkpoint
from npusim.device.npu import NpuDevice
from npusim.driver import Driver
from npusim.errors import CheckpointError
from npusim.hw.config import load_config
from tests.support.nested import Path, at, changed
from tests.support.programs.planted_bugs import SIZE, planted
from tests.support.programs.streams import QUICK_HOST

TINY = load_config("tiny").with_(**QUICK_HOST)
INPUTS = {name: np.arange(SIZE).astype(np.uint8) for name in ("x0", "x1")}
Value = Any
JOB: Path = ("queues", "jobs", 1)
"""Path of the job in the device state."""


def running(at_ps: int) -> NpuDevice:
    """Return a device in the middle of a job."""
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    driver.submit(driver.load(planted(None)), INPUTS)
    device.run_until(at_ps)
    return device


@functools.cache
def checkpoint(at_ps: int) -> Checkpoint:
    """Return the state in the middle of a job."""
    return running(at_ps).checkpoint()


def refusal(at_ps: int, *changes: tuple[Path, Value | Callable[[Value], Value]]) -> str:
    """Return the error for a state changed at some paths."""
    state = dict(checkpoint(at_ps).state)
    for path, value in changes:
        state = changed(state, path, value(at(state, path)) if callable(value) else value)
    with pytest.raises(CheckpointError) as error:
        NpuDevice(TINY).restore(Checkpoint(state, checkpoint(at_ps).pages))
    return str(error.value)


WRONG = (["x"], 1.5, "none of them", -(1 << 62))
"""Values that are invalid for any entry of another type, and for any integer."""
