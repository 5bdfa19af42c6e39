"""Loop iterations repeated without events give the bits and picoseconds of simulated ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.nnapi import open_device
from hal.nnapi.types import (
    DataLocation,
    ErrorStatus,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    OptionalTimeoutDuration,
    OptionalTimePoint,
    Subgraph,
)
from npusim.runtime import Executor
from tests.support.nnapi.client import EXECUTORS, Array, Frame, prepared_model
from tests.support.nnapi.models import BOOL8, I32, IN, OUT, TEMP, loop, scalar, tensor

NONE = ErrorStatus.NONE
MISSED = {ErrorStatus.MISSED_DEADLINE_TRANSIENT, ErrorStatus.MISSED_DEADLINE_PERSISTENT}
LONG_NS = 10**9
NOW = 10**12


def subgraphs(count: int) -> list[Operand]:
    """Return operands that name the referenced subgraphs."""
    named = OperandLifeTime.SUBGRAPH
    return [Operand(OperandType.SUBGRAPH, (), 1, lifetime=named, location=DataLocation(0, i, 0)) for i in range(count)]


def subgraph(operands: Sequence[Operand], operations: Sequence[Operation], inputs: int, outputs: int) -> Subgraph:
    """Return a subgraph whose first operands are the inputs and whose last ones are the outputs."""
    taken = [number for operation in operations for number in operation.inputs]
    counted = [dataclasses.replace(each, numberOfConsumers=taken.count(i)) for i, each in enumerate(operands)]
    first = sum(operand.type == OperandType.SUBGRAPH for operand in operands)
    return Subgraph(counted, operations, range(first, first + inputs), range(len(operands) - outputs, len(operands)))


def taken(width: int) -> list[Operand]:
    """Return the inputs of the loops in these tests: a number and a vector that change, then three operands that do
    not."""
    number, vector = tensor(IN, (1,), 0, I32), tensor(IN, (width,), 0)
    return [number, vector, number, number, vector]


def made(width: int) -> list[Operand]:
    return [tensor(OUT, (1,), 0, I32), tensor(OUT, (width,))]


def counting(width: int) -> list[Subgraph]:
    """Return condition and body of: while i < n: i, x = i + k, x + y."""
    add = OperationType.ADD
    less = Operation(OperationType.LESS, (0, 3), (5,))
    sums = [Operation(add, (0, 2, 5), (6,)), Operation(add, (1, 4, 5), (7,))]
    return [
        subgraph([*taken(width), tensor(OUT, (1,), 0, BOOL8)], [less], 5, 1),
        subgraph([*taken(width), scalar(0), *made(width)], sums, 5, 2),
    ]


def counter(width: int) -> Model:
    """Return the loop of :func:`counting`."""
    loop = Operation(OperationType.WHILE, range(7), (7, 8))
    main = subgraph([*subgraphs(2), *taken(width), *made(width)], [loop], 5, 2)
    return Model(main, counting(width), operandValues=bytes(4))


def constant(number: int) -> Operand:
    """Return [number]: the values of these models are 0, 1, 2, ..."""
    where = DataLocation(0, 4 * number, 4)
    return Operand(I32, (1,), 1, lifetime=OperandLifeTime.CONSTANT_COPY, location=where)


def nested(width: int) -> Model:
    """Return while i < n: i, x = i + k, x + 6 * y, with an inner loop of six iterations."""
    inner = Operation(OperationType.WHILE, (0, 1, 7, 3, 8, 9, 6), (11, 13))
    operands = [*subgraphs(2), *taken(width), constant(0), constant(1), constant(6), scalar(0)]
    operands += [tensor(TEMP, (1,), 0, I32), *made(width)]
    body = subgraph(operands, [inner, Operation(OperationType.ADD, (2, 4, 10), (12,))], 5, 2)
    loop = Operation(OperationType.WHILE, (0, 2, 3, 4, 5, 6, 7), (8, 9))
    main = subgraph([*subgraphs(3), *taken(width), *made(width)], [loop], 5, 2)
    return Model(main, [*counting(width), body], operandValues=np.arange(7, dtype=np.int32).tobytes())


def counter_inputs(width: int, start: int, step: int, stop: int) -> list[Array]:
    whole = [np.array([number], np.int32) for number in (start, step, stop)]
    return [whole[0], np.arange(width, dtype=np.float32), *whole[1:], np.full(width, 0.5, np.float32)]


Run = tuple[str, int, int | None]
"""The way to execute, the time limit of each loop, and the time to the deadline, in nanoseconds."""


def history(
    model: Model, inputs: Sequence[Array], sizes: Sequence[int], runs: Sequence[Run], config: str = "edge"
) -> tuple[list[Any], int]:
    """Return everything that a client can see of consecutive executions, and the number of repeated iterations."""
    repeated = 0
    seen: list[Any] = []
    original = Executor.repeat

    def counted(executor: Executor, rounds: Any, most: int) -> int:
        nonlocal repeated
        count = original(executor, rounds, most)
        repeated += count
        return count

    with pytest.MonkeyPatch.context() as patch, open_device(config, clock=lambda: NOW) as device:
        patch.setattr(Executor, "repeat", counted)
        prepared = prepared_model(device, model)
        for way, limit_ns, left_ns in runs:
            dims = [model.main.operands[number].dimensions for number in model.main.outputIndexes]
            frame = Frame(inputs, sizes, dims)
            never = left_ns is None or way == "fenced"  # which waits for a fence so long in the machine's time
            deadline = OptionalTimePoint(None if never else NOW + left_ns)
            outcome = EXECUTORS[way](prepared, frame, 1, loop=OptionalTimeoutDuration(limit_ns), deadline=deadline)
            counters = dataclasses.asdict(device._engine.executor.counters)
            seen.append((outcome, counters, device._engine.executor.device.now_ps))
            frame.close()
    return seen, repeated


def stepped(*arguments: Any) -> list[Any]:
    """The same without repetition."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executor, "repeat", lambda executor, rounds, most: 0)
        return history(*arguments)[0]


WAYS = st.sampled_from(["sync", "async", "fenced", "device memory"])
LIMITS = st.sampled_from([0, 1, 10**4, 10**5, 333_333, LONG_NS])
DEADLINES = st.sampled_from([None, None, 10**5, 222_222, 456_789, LONG_NS])


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([counter, nested]),
    st.integers(0, 30),
    st.integers(1, 40),
    st.lists(st.tuples(WAYS, LIMITS, DEADLINES), min_size=1, max_size=3),
    st.sampled_from(["edge", "server"]),
)
def test_nothing_differs(make: Any, iterations: int, width: int, runs: list[Run], config: str) -> None:
    arguments = make(width), counter_inputs(width, 3, 2, 3 + 2 * iterations), [4, 4 * width], runs, config
    assert history(*arguments)[0] == stepped(*arguments)


@pytest.mark.parametrize("left_ns", [None, 600_000])
@pytest.mark.parametrize("limit_ns", [*range(400_000, 420_000, 2_500), LONG_NS])
def test_the_time_is_up_in_the_same_iteration(limit_ns: int, left_ns: int | None) -> None:
    """With limits within one iteration, and for a loop that ends by itself long after it was first repeated."""
    arguments = counter(3), counter_inputs(3, 0, 1, 100), [4, 12], [("sync", limit_ns, left_ns)] * 2
    [first, second], repeated = history(*arguments)
    assert [first, second] == stepped(*arguments)
    assert repeated >= 30
    if limit_ns < LONG_NS or left_ns:
        assert first[0].status in MISSED
    else:
        assert first[0].status is NONE
        assert first[0].array(0, np.dtype(np.int32)).tolist() == [100]
        assert first[0].array(1, np.dtype(np.float32)).tolist() == [50, 51, 52]


def test_a_loop_in_a_loop_is_repeated_by_itself() -> None:
    arguments = nested(2), counter_inputs(2, 0, 1, 5), [4, 8], [("sync", LONG_NS, None)]
    [(outcome, *_)], repeated = history(*arguments)
    assert outcome.array(0, np.dtype(np.int32)).tolist() == [5]
    assert outcome.array(1, np.dtype(np.float32)).tolist() == [15, 16]
    assert repeated == 5 * 3


def test_a_loop_without_an_end_that_changes_nothing() -> None:
    arguments = loop(), [np.ones(1, np.bool_), np.zeros(2, np.float32)], [1, 8], [("sync", 10**6, None)]
    seen, repeated = history(*arguments)
    assert seen == stepped(*arguments)
    assert seen[0][0].status in MISSED
    assert repeated >= 50
