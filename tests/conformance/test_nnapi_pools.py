"""Pools: images, weights and arguments in files, and truncated files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hal.nnapi import memory
from hal.nnapi.types import DataLocation, OperandLifeTime, Request, RequestArgument, Timing
from tests.support.nnapi.client import Burst, prepare, prepared_model
from tests.support.nnapi.memory_requests import (
    FAILURE,
    INVALID,
    NBYTES,
    NONE,
    SHAPE,
    Bench,
    check,
    numbers,
    request_for,
    run_sync,
    two_results,
)


def test_pictures_are_refused(bench: Bench, prepared: Any) -> None:
    with memory.hardware_buffer(64, 32) as picture:
        request = request_for([picture, picture], [picture, picture])
        for argument in (*request.inputs, *request.outputs):
            argument.location.length = NBYTES
        check(run_sync(prepared, request), FAILURE)
        model = two_results(*SHAPE)
        constant = model.main.operands[4]
        constant.lifetime, model.pools = OperandLifeTime.CONSTANT_REFERENCE, [picture]
        launched, status, made = prepare(bench.device, model)
        assert (launched, status, made) == (FAILURE, FAILURE, None)


@pytest.mark.parametrize("offset", [0, 3, 4096, 5000])
def test_constants_and_arguments_in_a_file(bench: Bench, tmp_path: Path, offset: int) -> None:
    path = tmp_path / "weights"
    data = numbers(1)
    path.write_bytes(bytes(offset) + data.tobytes() + bytes(4))
    model = two_results(*SHAPE)
    model.main.inputIndexes = [1]
    first = model.main.operands[0]
    first.lifetime, first.location = OperandLifeTime.CONSTANT_REFERENCE, DataLocation(0, 0, NBYTES)
    with path.open("rb") as file:
        model.pools = [memory.from_fd(NBYTES, 1, file.fileno(), offset)]
        argument = memory.from_fd(NBYTES + 4, 1, file.fileno(), offset)
    prepared = prepared_model(bench.device, model)
    model.pools[0].close()  # the driver has its own
    with memory.allocate_ashmem(NBYTES) as sums, memory.allocate_ashmem(NBYTES) as squares:
        request = request_for([argument], [sums, squares])
        request.inputs[0].location = DataLocation(0, 0, NBYTES)
        check(run_sync(prepared, request), NONE)
        assert np.array_equal(sums.map().view(np.float32).reshape(SHAPE), data + data)
        assert np.array_equal(squares.map().view(np.float32).reshape(SHAPE), data * data)
        with_output_in_file = request_for([sums], [argument, squares])
        with_output_in_file.outputs[0].location = DataLocation(1, 0, NBYTES)
        check(run_sync(prepared, with_output_in_file), INVALID)  # it is read-only
    assert path.read_bytes()[offset : offset + NBYTES] == data.tobytes()
    argument.close()


def test_a_file_that_is_cut_under_an_execution(bench: Bench, prepared: Any, tmp_path: Path) -> None:
    path = tmp_path / "frame"
    path.write_bytes(bytes(4 * NBYTES))
    with path.open("r+b") as file, memory.from_fd(4 * NBYTES, 3, file.fileno()) as pool:
        places = [RequestArgument(False, DataLocation(0, index * NBYTES, NBYTES)) for index in range(4)]
        request = Request(places[:2], places[2:], [pool])
        check(run_sync(prepared, request), NONE)
        burst = Burst(prepared)
        assert burst.execute(request)[0] is NONE
        os.truncate(path, NBYTES)
        assert run_sync(prepared, request)[0] in (INVALID, FAILURE)
        assert burst.execute(request) == (FAILURE, [], Timing())
        burst.close()


@pytest.mark.parametrize("batch", [0, 1])
def test_weights_that_are_cut_after_the_preparation(bench: Bench, tmp_path: Path, batch: int) -> None:
    """Weights go to the device at the first execution; with open dimensions, a new shape reads them again."""
    path = tmp_path / "weights"
    path.write_bytes(bytes(2 * NBYTES))
    model = two_results(batch, 32, 32, 8)
    model.main.inputIndexes = [1]
    first = model.main.operands[0]
    first.dimensions, first.lifetime = SHAPE, OperandLifeTime.CONSTANT_REFERENCE
    first.location = DataLocation(0, NBYTES, NBYTES)
    with path.open("rb") as file:
        model.pools = [memory.from_fd(2 * NBYTES, 1, file.fileno())]
    prepared = prepared_model(bench.device, model)
    model.pools[0].close()
    os.truncate(path, 100)
    pools = [memory.allocate_ashmem(NBYTES) for _ in range(3)]
    check(run_sync(prepared, request_for(pools[:1], pools[1:])), FAILURE)
    for pool in pools:
        pool.close()
