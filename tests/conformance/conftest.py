"""A device for each test, and models prepared on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hal.nnapi import open_device
from tests.support.nnapi.client import prepared_model
from tests.support.nnapi.memory_requests import SHAPE, Bench, two_results
from tests.support.waits_and_leaks import descriptors, until


@pytest.fixture
def bench() -> Iterator[Bench]:
    before = descriptors()
    with open_device("edge") as device:
        yield Bench(device)
    until(lambda: descriptors() <= before)


@pytest.fixture
def prepared(bench: Bench) -> Any:
    return prepared_model(bench.device, two_results(*SHAPE))


@pytest.fixture
def open_shape(bench: Bench) -> Any:
    return prepared_model(bench.device, two_results(0, 32, 32, 8))
