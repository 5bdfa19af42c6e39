"""Plans: segments, values that decide shapes, IF and WHILE."""

from __future__ import annotations

import numpy as np
import pytest

from hal.nnapi.operations import REGISTRY
from hal.nnapi.operations.constants import Constants
from hal.nnapi.operations.lowering import InvalidOperationError
from hal.nnapi.operations.view import STORAGE, Array
from hal.nnapi.plan import DeviceValue, LoopTimeoutError, Plan, Vocabulary
from hal.nnapi.types import (
    DataLocation,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
)
from tests.support.nnapi_examples.running import HostBackend, HostBuffer

F32, I32, BOOL8 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_INT32, OperandType.TENSOR_BOOL8
TEMPORARY, INPUT, OUTPUT = (
    OperandLifeTime.TEMPORARY_VARIABLE, OperandLifeTime.SUBGRAPH_INPUT, OperandLifeTime.SUBGRAPH_OUTPUT,
)  # fmt: skip


class Constantly:
    """Collects constants of a model."""

    def __init__(self) -> None:
        self.data = bytearray()

    def __call__(self, kind: OperandType, value: object) -> Operand:
        array = np.asarray(value, STORAGE[kind])
        place = DataLocation(0, len(self.data), array.nbytes)
        self.data += array.tobytes() + bytes(-array.nbytes % 4)
        return Operand(kind, array.shape, lifetime=OperandLifeTime.CONSTANT_COPY, location=place)


def subgraph_operand(index: int) -> Operand:
    return Operand(
        OperandType.SUBGRAPH, lifetime=OperandLifeTime.SUBGRAPH, location=DataLocation(offset=index, length=0)
    )


def plan_of(model: Model, backend: HostBackend, dropped: list[object] | None = None) -> Plan:
    drop = (lambda program: None) if dropped is None else dropped.append
    return Plan(model, Constants(model), Vocabulary(REGISTRY, STORAGE), backend.compile, drop)


def on_host(shape: tuple[int, ...], dtype: np.dtype) -> None:
    return None


def execute(plan: Plan, backend: HostBackend, *inputs: Array | None, limit_ps: int = 10**12) -> list[Array]:
    values = plan.execute(backend, list(inputs), [on_host] * len(plan.subgraph.outputIndexes), limit_ps)
    assert not any(isinstance(value, DeviceValue) for value in values)
    return [np.asarray(value) for value in values]


def add_model(*shape: int) -> Model:
    """y = a + b."""
    constant = Constantly()
    operands = [
        Operand(F32, shape, 1, lifetime=INPUT),
        Operand(F32, shape, 1, lifetime=INPUT),
        constant(OperandType.INT32, 0),
        Operand(F32, shape, 0, lifetime=OUTPUT),
    ]
    return Model(Subgraph(operands, [Operation(OperationType.ADD, [0, 1, 2], [3])], [0, 1], [3]), (), constant.data)


def test_a_static_model_is_compiled_before_its_first_execution_and_once() -> None:
    backend = HostBackend()
    plan = plan_of(add_model(2, 3), backend)
    plan.prepare()
    assert len(backend.graphs) == 1
    ones = np.ones((2, 3), np.float32)
    for _ in range(2):
        [result] = execute(plan, backend, ones, ones * 2)
        np.testing.assert_array_equal(result, ones * 3)
    assert len(backend.graphs) == 1
    assert len(list(plan.programs())) == 1


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 0)], ids=["rank", "rows", "columns"])
def test_open_dimensions_are_resolved_by_each_execution(shape: tuple[int, ...]) -> None:
    backend = HostBackend()
    plan = plan_of(add_model(*shape), backend)
    plan.prepare()
    assert not backend.graphs
    for rows in (2, 5, 2):
        size = (2, rows) if shape == (2, 0) else (rows, 3)
        [result] = execute(plan, backend, np.ones(size, np.float32), np.ones(size, np.float32))
        np.testing.assert_array_equal(result, np.full(size, 2, np.float32))
    assert len(backend.graphs) == 2


def test_the_ways_least_recently_used_are_dropped() -> None:
    backend, dropped = HostBackend(), []
    plan = plan_of(add_model(0), backend, dropped)
    for size in range(1, 67):
        execute(plan, backend, np.ones(size, np.float32), np.ones(size, np.float32))
    assert len(dropped) == 2
    assert len(list(plan.programs())) == 64


def test_what_the_model_says_of_an_output_must_hold() -> None:
    model = add_model(0, 3)
    model.main.operands[3].dimensions = (4, 3)
    plan = plan_of(model, HostBackend())
    with pytest.raises(InvalidOperationError, match=r"0 \(ADD\): output 0 is declared as \[4, 3\], .* makes \[2, 3\]"):
        execute(plan, HostBackend(), np.ones((2, 3), np.float32), np.ones((2, 3), np.float32))


def test_exported_nodes_make_another_plan_ready() -> None:
    backend = HostBackend()
    first, second = plan_of(add_model(0), backend), plan_of(add_model(0), backend)
    execute(first, backend, np.ones(4, np.float32), np.ones(4, np.float32))
    second.load(first.export())
    [result] = execute(second, backend, np.ones(4, np.float32), np.full(4, 2, np.float32))
    np.testing.assert_array_equal(result, np.full(4, 3, np.float32))
    assert len(backend.graphs) == 1


def test_an_output_can_be_placed_in_device_memory() -> None:
    backend = HostBackend()
    plan, buffer = plan_of(add_model(3), backend), HostBuffer(12)
    [held] = plan.execute(backend, [np.ones(3, np.float32)] * 2, [lambda shape, dtype: buffer], 1)
    assert isinstance(held, DeviceValue)
    assert held.buffer is buffer
    assert held.shape == (3,)
    [result] = plan.execute(backend, [held, held], [on_host], 1)
    np.testing.assert_array_equal(result, np.full(3, 4, np.float32))


def if_model() -> Model:
    """y = a + b if condition, else a * b."""
    constant = Constantly()
    branches = []
    for kind in (OperationType.ADD, OperationType.MUL):
        operands = [
            Operand(F32, (0,), 1, lifetime=INPUT),
            Operand(F32, (0,), 1, lifetime=INPUT),
            constant(OperandType.INT32, 0),
            Operand(F32, (0,), 0, lifetime=OUTPUT),
        ]
        branches.append(Subgraph(operands, [Operation(kind, [0, 1, 2], [3])], [0, 1], [3]))
    main = Subgraph(
        [
            Operand(BOOL8, (1,), 1, lifetime=INPUT),
            subgraph_operand(0),
            subgraph_operand(1),
            Operand(F32, (0,), 1, lifetime=INPUT),
            Operand(F32, (0,), 1, lifetime=INPUT),
            Operand(F32, (0,), 0, lifetime=OUTPUT),
        ],
        [Operation(OperationType.IF, [0, 1, 2, 3, 4], [5])],
        [0, 3, 4],
        [5],
    )
    return Model(main, branches, constant.data)


@pytest.mark.parametrize(("condition", "expected"), [(True, [4, 6]), (False, [3, 8])])
def test_if_executes_one_branch(condition: bool, expected: list[int]) -> None:
    backend = HostBackend()
    plan = plan_of(if_model(), backend)
    arrays = (np.array([1, 2], np.float32), np.array([3, 4], np.float32))
    [result] = execute(plan, backend, np.array([condition]), *arrays)
    np.testing.assert_array_equal(result, np.array(expected, np.float32))
    assert backend.runs == 1


def while_model(limit: int) -> Model:
    """i, x = 0, x; while i < limit: i, x = i + 1, x + x."""
    constant = Constantly()
    condition = Subgraph(
        [
            Operand(I32, (1,), 1, lifetime=INPUT),
            Operand(F32, (0,), 0, lifetime=INPUT),
            constant(I32, [limit]),
            Operand(BOOL8, (1,), 0, lifetime=OUTPUT),
        ],
        [Operation(OperationType.LESS, [0, 2], [3])],
        [0, 1],
        [3],
    )
    body = Subgraph(
        [
            Operand(I32, (1,), 1, lifetime=INPUT),
            Operand(F32, (0,), 2, lifetime=INPUT),
            constant(I32, [1]),
            constant(OperandType.INT32, 0),
            Operand(I32, (1,), 0, lifetime=OUTPUT),
            Operand(F32, (0,), 0, lifetime=OUTPUT),
        ],
        [Operation(OperationType.ADD, [0, 2, 3], [4]), Operation(OperationType.ADD, [1, 1, 3], [5])],
        [0, 1],
        [4, 5],
    )
    main = Subgraph(
        [
            subgraph_operand(0),
            subgraph_operand(1),
            Operand(I32, (1,), 1, lifetime=INPUT),
            Operand(F32, (0,), 1, lifetime=INPUT),
            Operand(I32, (1,), 0, lifetime=OUTPUT),
            Operand(F32, (0,), 0, lifetime=OUTPUT),
        ],
        [Operation(OperationType.WHILE, [0, 1, 2, 3], [4, 5])],
        [2, 3],
        [4, 5],
    )
    return Model(main, [condition, body], constant.data)


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_while_runs_until_its_condition_is_false(limit: int) -> None:
    backend = HostBackend()
    plan = plan_of(while_model(limit), backend)
    count, result = execute(plan, backend, np.zeros(1, np.int32), np.ones(3, np.float32))
    assert count.tolist() == [limit]
    np.testing.assert_array_equal(result, np.full(3, 2.0**limit, np.float32))
    assert len(backend.graphs) == (2 if limit else 1)


def test_while_gives_its_memory_back_and_leaves_what_is_not_its_own() -> None:
    backend = CountingBackend()
    plan = plan_of(while_model(7), backend)
    own = HostBuffer(4)
    own.data = np.zeros(1, np.int32).tobytes()
    for limit_reached in (0, 9):
        own.data = np.array([limit_reached], np.int32).tobytes()
        held = DeviceValue(own, (1,), np.dtype(np.int32))
        plan.execute(backend, [held, np.ones(2, np.float32)], [on_host, on_host], 10**12)
        assert own.data is not None, "the caller's buffer was released"
        assert all(buffer.data is None for buffer in backend.buffers)
    assert max(backend.alive) <= 4


def test_while_ends_when_its_time_is_up() -> None:
    backend = CountingBackend()
    plan = plan_of(while_model(1000), backend)
    with pytest.raises(LoopTimeoutError):
        execute(plan, backend, np.zeros(1, np.int32), np.ones(1, np.float32), limit_ps=10 * 10**6)
    assert 10 <= backend.runs <= 13
    assert all(buffer.data is None for buffer in backend.buffers)


class CountingBackend(HostBackend):
    """Tracks every allocated buffer, and how many were alive at each moment."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers: list[HostBuffer] = []
        self.alive: list[int] = []

    def allocate(self, nbytes: int) -> HostBuffer:
        buffer = super().allocate(nbytes)
        buffer.data = b""
        self.buffers.append(buffer)
        self.alive.append(sum(each.data is not None for each in self.buffers))
        return buffer


def suppression_model(*wanted: int) -> Model:
    """Build BOX_WITH_NMS_LIMIT with only these of its four results as outputs, and an addition that reads none of
    them."""
    constant = Constantly()
    scalars = [
        constant(kind, value)
        for kind, value in zip(
            [OperandType.FLOAT32, OperandType.INT32, OperandType.INT32, *[OperandType.FLOAT32] * 3],
            [0.5, -1, 0, 0.5, 0, 0],
            strict=True,
        )
    ]
    results = [
        Operand(kind, (0, 4) if index == 1 else (0,), 0, lifetime=OUTPUT if index in wanted else TEMPORARY)
        for index, kind in enumerate((F32, F32, I32, I32))
    ]
    operands = [
        Operand(F32, (3, 2), 1, lifetime=INPUT), Operand(F32, (3, 8), 1, lifetime=INPUT),
        Operand(I32, (3,), 3, lifetime=INPUT), *scalars, *results, constant(OperandType.INT32, 0),
        Operand(I32, (3,), 0, lifetime=OUTPUT),
    ]  # fmt: skip
    for each in (*scalars, operands[13]):
        each.numberOfConsumers = 1
    operations = [
        Operation(OperationType.BOX_WITH_NMS_LIMIT, list(range(9)), [9, 10, 11, 12]),
        Operation(OperationType.ADD, [2, 2, 13], [14]),
    ]
    return Model(
        Subgraph(operands, operations, [0, 1, 2], [*(9 + index for index in wanted), 14]), operandValues=constant.data
    )


@pytest.mark.parametrize("wanted", [(), (1,), (0, 2)])
def test_results_of_unknown_length_may_be_unused(wanted: tuple[int, ...]) -> None:
    backend = HostBackend()
    plan = plan_of(suppression_model(*wanted), backend)
    scores = np.array([[0, 0.75], [0, 0.25], [0, 1]], np.float32)
    boxes = np.tile(np.array([[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 6, 6]], np.float32), (1, 2))
    *given, doubled = execute(plan, backend, scores, boxes, np.array([7, 7, 7], np.int32))
    every = ([1, 0.75], [[4, 4, 6, 6], [0, 0, 1, 1]], [1, 1], [7, 7])
    assert [array.tolist() for array in given] == [every[index] for index in wanted]
    assert doubled.tolist() == [14, 14, 14]
