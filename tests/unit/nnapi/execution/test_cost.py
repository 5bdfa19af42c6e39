"""The host cost of a small execution through HAL 1.3."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from hal.nnapi import open_device
from hal.nnapi.types import ErrorStatus
from tests.support.call_counts import calls_of, functions_of
from tests.support.nnapi.client import prepared_model
from tests.support.nnapi.models import add, add_case

MOST_CALLS = 650
"""Python and C function calls for an addition executed on the caller's thread while the device is idle. It has been
640, of which some 40 exclude other threads."""
MOST_OF_OURS = {"hal": 110, "npusim": 40}
"""Our Python functions called on the client's thread if the device's thread does the work: 107 and 35."""


def addition() -> Callable[[], None]:
    """Return an execution of a model that was executed before."""
    prepared, case = prepared_model(open_device("edge"), add()), add_case()

    def execute() -> None:
        prepared.executeSynchronously_1_3(case.request, 0, None, None)

    for _ in range(3):
        execute()
    assert case.output().tolist() == [10, 11, 12, 13]
    assert prepared.executeSynchronously_1_3(case.request, 0, None, None)[0] is ErrorStatus.NONE
    return execute


@pytest.mark.unwatched
def test_an_addition_takes_few_calls() -> None:
    counts: list[int] = []
    thread = threading.Thread(target=lambda: counts.append(calls_of(addition())))
    thread.start()
    thread.join(30)
    assert 300 < counts[0] <= MOST_CALLS, counts


def test_a_client_that_only_waits_for_the_device_calls_few_functions() -> None:
    """The main thread never does the device's work."""
    found = functions_of(addition())
    assert all(0 < found[package] <= most for package, most in MOST_OF_OURS.items()), found
