"""The host cost of a small job."""

from __future__ import annotations

import dataclasses
import threading
from functools import partial

import numpy as np
import pytest

from npusim.runtime import Executor, Request
from tests.support.call_counts import calls_of
from tests.support.programs.streams import round_trip
from tests.support.programs.timed_jobs import TINY

MOST_CALLS = 380
"""Python and C function calls for a job of three commands with a recorded course. It has been 375, of which 36 acquire
and release locks."""


@pytest.mark.unwatched
def test_a_small_job_takes_few_calls() -> None:
    counts: list[int] = []

    def work() -> None:
        with Executor(TINY) as executor:
            fingerprint = executor.config.fingerprint()
            program = dataclasses.replace(round_trip(), config_fingerprint=fingerprint)
            request = Request(program, {"x0": np.ones(1000, np.uint8)})
            for _ in range(3):
                executor.submit(request, here=True).wait()
            counts.append(calls_of(partial(executor.submit, request, here=True)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)

    assert counts[0] <= MOST_CALLS, counts
