"""Many threads that create, compile, compute and free in every way: right results and no leaks."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from hal.nnapi.capi.handles import TABLE
from tests.support.nnapi.c_api import Api, add_model, address, compiled, set_inputs
from tests.support.waits_and_leaks import descriptors, until

THREADS = 8


def compute(api: Api, compilation: int, execution: int, way: str) -> None:
    if way == "compute":
        api.ok("Execution_compute", execution)
    elif way == "event":
        api.Event_free(api.make("Execution_startCompute", execution))
    elif way == "fence":
        event = api.make("Execution_startComputeWithDependencies", execution, None, 0, 0)
        api.ok("Event_wait", event)
        api.Event_free(event)
    else:
        burst = api.make("Burst_create", compilation)
        api.ok("Execution_burstCompute", execution, burst)
        api.Burst_free(burst)


def work(api: Api, seed: int, rounds: int, wrong: list[object]) -> None:
    rng = random.Random(seed)
    for _ in range(rounds):
        model = add_model(api)
        compilation = compiled(api, model, rng.choice([0, 1]))
        if rng.random() < 0.5:
            api.Model_free(model)
            model = 0
        for way in rng.sample(["compute", "event", "fence", "burst"], 3):
            values, result = np.full(4, rng.randrange(1000), np.float32), np.zeros(4, np.float32)
            execution = api.make("Execution_create", compilation)
            set_inputs(api, execution, values, values)
            api.ok("Execution_setOutput", execution, 0, None, address(result), 16)
            compute(api, compilation, execution, way)
            api.Execution_free(execution)
            if result.tolist() != (values + values).tolist():
                wrong.append((seed, way, values[0], result.tolist()))
        api.Compilation_free(compilation)
        api.Model_free(model)


def in_threads(api: Api, rounds: int) -> list[object]:
    wrong: list[object] = []
    threads = [threading.Thread(target=work, args=(api, seed, rounds, wrong)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


@pytest.mark.parametrize("rounds", [5, pytest.param(334, marks=pytest.mark.slow)])
def test_many_threads_in_every_way(api: Api, rounds: int) -> None:
    assert in_threads(api, 2) == []  # one-time allocations are done
    handles, open_before = len(TABLE), descriptors()
    assert in_threads(api, rounds) == []
    assert len(TABLE) == handles
    until(lambda: descriptors() <= open_before)  # the thread of a fenced execution holds its event until it is through
