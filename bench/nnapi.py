"""The cost of the NNAPI driver on the host, and the gain of a burst on the device.

``python -m bench.nnapi [--config edge] [--profile 25]``: on one core, in processor time unless stated otherwise. The
mutants are those of ``bench.nnapi_validate``, or of the small models of the tests if the conformance examples are not
available. The exit code is 1 if a requirement is missed: 1000 mutants per second, prepareModelFromCache in a tenth of
the time of prepareModel, a second frame that is faster than the first.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import logging
import os
import pstats
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.nnapi_validate import LEAST_PER_SECOND, per_second, refuse
from hal.nnapi import aidl, fence, open_device
from hal.nnapi.aidl import types as aidl_types
from hal.nnapi.types import ErrorStatus, MeasureTiming, Model
from tests.support.nnapi.client import Burst, ExecutionCallback, Frame, PreparedCallback, prepared_model
from tests.support.nnapi.mobilenet import mobilenet
from tests.support.nnapi.models import Case, add, add_case, loop
from tests.support.nnapi.valid_models import ALL
from tests.support.nnapi_examples.examples import available
from tests.support.nnapi_examples.mutants import mutants, valid_models
from tests.support.nnapi_examples.mutations import MUTATIONS

NONE = ErrorStatus.NONE
MOST_FROM_CACHE = 0.1
"""Limit of the time of prepareModelFromCache relative to prepareModel."""
ROUNDS = 300


def row(name: str, value: str, wanted: str = "") -> None:
    """Print one line of the table."""
    print(f"{name:<58}{value:>16}  {wanted}")


def validation(device: Any, every: int) -> bool:
    """Mutants per second through getSupportedOperations_1_3 and prepareModel_1_3."""
    models = [model for _, model in valid_models()] if available() else [make() for make in ALL.values()]
    kinds = list(MUTATIONS)
    found = (mutant.model for model in models for mutant in mutants(model, kinds))
    step = every if available() else 1
    sample = [model for number, model in enumerate(found) if number % step == 0]
    count, speed = per_second(lambda model: refuse(device, model), sample)
    row(f"mutants refused ({count})", f"{speed:.0f}/s", f">= {LEAST_PER_SECOND}/s")
    return speed >= LEAST_PER_SECOND


def executors(prepared: Any, case: Case) -> dict[str, Callable[[], ErrorStatus]]:
    """A function per kind of execution, from the call to its end."""
    request = case.request
    pools: Any = [aidl_types.RequestMemoryPool(pool=case.memory)]
    modern = aidl_types.Request(request.inputs, request.outputs, pools)
    over_aidl = aidl.AidlPreparedModel(prepared)
    aidl_burst, hidl_burst = over_aidl.configureExecutionBurst(), Burst(prepared)
    reusable = over_aidl.createReusableExecution(modern, aidl_types.ExecutionConfig())

    def asynchronous() -> ErrorStatus:
        callback = ExecutionCallback()
        prepared.execute_1_3(request, MeasureTiming.NO, None, None, callback)
        return callback.wait()[0]

    def fenced() -> ErrorStatus:
        status, handle, callback = prepared.executeFenced(request, [], MeasureTiming.NO, None, None, None)
        assert status is NONE
        fence.wait(handle)
        os.close(handle[0])
        ended: ErrorStatus = callback.getExecutionInfo()[0]
        return ended

    def raising(call: Callable[[], Any]) -> Callable[[], ErrorStatus]:
        return lambda: NONE if call().outputSufficientSize else ErrorStatus.OUTPUT_INSUFFICIENT_SIZE

    return {
        "executeSynchronously_1_3": lambda: prepared.executeSynchronously_1_3(request, 0, None, None)[0],
        "execute_1_3": asynchronous,
        "executeFenced": fenced,
        "HIDL burst": lambda: hidl_burst.execute(request)[0],
        "AIDL burst": raising(lambda: aidl_burst.executeSynchronously(modern, [1], False, -1, -1)),
        "AIDL executeSynchronously": raising(lambda: over_aidl.executeSynchronously(modern, False, -1, -1)),
        "AIDL reusable execution": raising(lambda: reusable.executeSynchronously(-1)),
    }


def small_executions(device: Any) -> None:
    """Host time of an addition of four numbers, by kind of execution."""
    prepared = prepared_model(device, add())
    for name, execute in executors(prepared, add_case()).items():
        times = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            assert execute() is NONE
            times.append(time.perf_counter() - begin)
        row(f"{name}, 4 elements, median", f"{1e6 * float(np.median(times)):.0f} us")


def endless_loop(device: Any) -> None:
    """Host time of a loop that is stopped after the default timeout of two simulated seconds."""
    frame = Frame([np.ones(1, np.bool_), np.ones(2, np.float32)], [1, 8], [(1,), (2,)])
    begin = time.perf_counter()
    status, _, _ = prepared_model(device, loop()).executeSynchronously_1_3(frame.request, 0, None, None)
    assert status is ErrorStatus.MISSED_DEADLINE_PERSISTENT
    row("an endless WHILE, 2 s simulated", f"{time.perf_counter() - begin:.1f} s")


def profile(device: Any, lines: int) -> None:
    """A profile of executeSynchronously_1_3: on the thread of the caller, then on that of the device."""
    prepared, request = prepared_model(device, add()), add_case().request
    for on_thread in (lambda call: call(), device._engine.executor._call):
        recorder = cProfile.Profile()
        on_thread(recorder.enable)
        for _ in range(ROUNDS):
            prepared.executeSynchronously_1_3(request, 0, None, None)
        on_thread(recorder.disable)
        text = io.StringIO()
        pstats.Stats(recorder, stream=text).sort_stats("tottime").print_stats(lines)
        print(text.getvalue())


def timed(call: Callable[[PreparedCallback], ErrorStatus]) -> float:
    """Seconds from a launch to its callback."""
    callback = PreparedCallback()
    begin = time.perf_counter()
    assert call(callback) is NONE
    assert callback.wait()[0] is NONE
    return time.perf_counter() - begin


def compilation_cache(config: str, model: Model) -> bool:
    """prepareModel and prepareModelFromCache of a network, each by a fresh driver."""
    with tempfile.TemporaryDirectory() as state:
        files = [os.open(Path(state) / name, os.O_RDWR | os.O_CREAT) for name in ("model", "data")]
        cache = [[files[0]]], [[files[1]]], bytes(32)
        with open_device(config, state_dir=state) as device:
            cold = timed(lambda callback: device.prepareModel_1_3(model, 1, 1, None, *cache, callback))
        warm = []
        for _ in range(3):
            with open_device(config, state_dir=state) as device:
                warm.append(timed(lambda callback: device.prepareModelFromCache_1_3(None, *cache, callback)))
        for file in files:
            os.close(file)
    row("prepareModel_1_3, MobileNet v1, with its cache files", f"{1e3 * cold:.0f} ms")
    row("prepareModelFromCache_1_3, best of 3", f"{1e3 * min(warm):.1f} ms")
    row("their ratio", f"{100 * min(warm) / cold:.1f} %", f"<= {100 * MOST_FROM_CACHE:.0f} %")
    return min(warm) <= MOST_FROM_CACHE * cold


def frames(device: Any, model: Model) -> bool:
    """Simulated time of the first and second frame of a burst."""
    image = np.zeros((1, 224, 224, 3), np.float32)
    case = Case([image], [4 * 1000], [(1, 1000)])
    burst = Burst(prepared_model(device, model))
    times = []
    for _ in range(2):
        status, _, timing = burst.execute(case.request, MeasureTiming.YES)
        assert status is NONE
        times.append((timing.timeOnDevice, timing.timeInDriver))
    burst.close()
    for name, (on_device, in_driver) in zip(("first", "second"), times, strict=True):
        row(f"{name} frame of a burst: simulated on device / in driver", f"{on_device} / {in_driver} us")
    return times[1][1] < times[0][1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="edge")
    parser.add_argument("--every", type=int, default=100, help="use every N-th mutant")
    parser.add_argument("--profile", type=int, default=0, metavar="LINES", help="also profile small executions")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    network = mobilenet()
    with open_device(options.config) as device:
        kept = [validation(device, options.every)]
        small_executions(device)
        endless_loop(device)
        kept.append(frames(device, network))
        if options.profile:
            profile(device, options.profile)
    kept.append(compilation_cache(options.config, network))
    return int(not all(kept))


if __name__ == "__main__":
    raise SystemExit(main())
