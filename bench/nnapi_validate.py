"""Models per second that the NNAPI driver validates on one core: ``python -m bench.nnapi_validate [--every N]``.

Valid models and mutants of the conformance examples (their location is in tests/support/nnapi_examples/examples.py), by
validation alone and through the driver: getSupportedOperations_1_3, then prepareModel_1_3 with its callback. The exit
code is 1 if the driver refuses fewer than 1000 mutants per second.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hal.nnapi import open_device
from hal.nnapi.types import ErrorStatus, ExecutionPreference, Model, Priority
from hal.nnapi.validation import validate_model
from tests.support.nnapi_examples.examples import VECTORS, available
from tests.support.nnapi_examples.mutants import mutants, valid_models
from tests.support.nnapi_examples.mutations import MUTATIONS

LEAST_PER_SECOND = 1000


class Callback:
    """Records the statuses that it receives."""

    def __init__(self) -> None:
        self.told: list[ErrorStatus] = []

    def notify_1_3(self, status: ErrorStatus, prepared: object) -> None:
        """The newest method of the interface."""
        self.told.append(status)


def refuse(device: Any, model: Model) -> None:
    """Let the driver refuse a model three times. Raises AssertionError if it does not."""
    callback = Callback()
    supported, _ = device.getSupportedOperations_1_3(model)
    preference, priority = ExecutionPreference.FAST_SINGLE_ANSWER, Priority.MEDIUM
    launched = device.prepareModel_1_3(model, preference, priority, None, [], [], bytes(32), callback)
    statuses = [supported, launched, *callback.told]
    assert statuses == [ErrorStatus.INVALID_ARGUMENT] * 3, statuses


def per_second(work: Callable[[Model], object], models: Iterable[Model]) -> tuple[int, float]:
    """(number of models, models per second of processor time)."""
    count, seconds = 0, 0.0
    for model in models:
        begin = time.thread_time()
        work(model)
        seconds += time.thread_time() - begin
        count += 1
    return count, count / seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=20, help="use every N-th mutant")
    every = parser.parse_args(arguments).every
    if not available():
        print(f"no examples in {VECTORS}")
        return 2
    logging.disable(logging.CRITICAL)
    models = [model for _, model in valid_models()]
    print("validate_model, valid models: {} at {:.0f}/s".format(*per_second(validate_model, models)))
    largest = max(models, key=lambda model: len(model.main.operands))
    size = len(largest.operandValues) / 1e6
    speed = per_second(validate_model, [largest] * 20)[1]
    print(f"the largest, {len(largest.main.operands)} operands, {size:.1f} MB of constants: {1e3 / speed:.2f} ms")
    kinds = list(MUTATIONS)
    sample = [
        mutant.model
        for number, mutant in enumerate(mutant for model in models for mutant in mutants(model, kinds))
        if number % every == 0
    ]
    with open_device("edge") as device:
        count, speed = per_second(lambda model: refuse(device, model), sample)
    print(f"getSupportedOperations_1_3 + prepareModel_1_3, mutants: {count} at {speed:.0f}/s")
    return int(speed < LEAST_PER_SECOND)


if __name__ == "__main__":
    raise SystemExit(main())
