"""Plans of a small front end: when values are read, what is compiled again, and what stays in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from npusim.dtypes import DType
from npusim.errors import InputError
from npusim.isa.functions import Binary, Reduce
from npusim.ops.build import GraphBuilder
from npusim.plan import (
    DeviceValue,
    Items,
    PlanSteps,
    SegmentBuilder,
    SegmentPlan,
    Situation,
    Value,
    ValueNeededError,
    Values,
    on_host,
    shape_key,
)
from npusim.program import Program
from tests.support.nnapi_examples.running import HostBackend

# Value 0 is the input. Steps: 1 = sum of 0 as [1]; 2 = 0 repeated as often as 1 says; 3 = its double, by the host if
# there are more than two rows; 4 = 3 + 3.
STEPS = PlanSteps([0], [4], [[0], [0, 1], [2], [3]], [[1], [2], [3], [4]])


class Builder(SegmentBuilder):
    def __init__(self, start: int, situation: Situation) -> None:
        super().__init__(STEPS, GraphBuilder("g", fold=True), start, situation.shapes)
        self.known = situation.known

    def is_decision(self, step: int) -> bool:
        return step == 2 and self.shapes[2][0] > 2

    def label(self, number: int) -> str:
        return f"v{number}"

    def lower(self, step: int) -> bool:
        x = self.tensor(step if step else 0) if step != 1 else self.tensor(0)
        if step == 0:
            made = self.builder.add("reduce", [x], {"fn": Reduce.SUM, "axes": (0,), "keepdims": True})
        elif step == 1:
            if 1 not in self.known:
                raise ValueNeededError(1)
            made = self.builder.add("concat", [x] * int(self.known[1][0]), {"axis": 0})
        else:
            made = self.builder.add("binary", [x, x], {"fn": Binary.ADD})
        self.made[step + 1] = made
        self.shapes[step + 1] = made.shape
        return True

    def tensor(self, number: int):
        if number in self.made:
            return self.made[number]
        if number not in self.inputs:
            self.inputs[number] = self.builder.input(f"v{number}", self.shapes[number], DType.FLOAT32)
        return self.inputs[number]


class Toy(SegmentPlan):
    children_kept = 3

    def builder(self, start: int, situation: Situation) -> Builder:
        return Builder(start, situation)

    def describe(self, step: int) -> tuple[str, str]:
        return f"step {step}", "toy"

    def decide(self, values: Values, step: int, loop_timeout_ps: int) -> Sequence[Value]:
        return [values.host(values.values[2]) * 2]


@pytest.fixture
def backend() -> HostBackend:
    return HostBackend()


def run(plan: Toy, backend: HostBackend, *numbers: float) -> list[float]:
    [value] = plan.execute(backend, [np.array(numbers, np.float32)], [on_host], 10**12)
    assert not isinstance(value, DeviceValue | Items)
    return [float(number) for number in value]


def test_values_are_read_and_decisions_made(backend: HostBackend) -> None:
    plan = Toy(STEPS, backend.compile)
    assert run(plan, backend, 2, -1) == [8, -4]  # once
    assert run(plan, backend, 2) == [8, 8]  # twice
    assert run(plan, backend, 3) == [12, 12, 12]  # three rows: the host doubles


def test_other_data_that_decides_alike_compiles_nothing(backend: HostBackend) -> None:
    plan = Toy(STEPS, backend.compile)
    run(plan, backend, 2, -1)
    before = len(backend.graphs)
    assert run(plan, backend, -4, 5) == [-16, 20]
    assert len(backend.graphs) == before
    run(plan, backend, 1, 1)  # four rows: a program before the decision of the host, and one after it
    assert len(backend.graphs) == before + 2


def test_the_least_recently_used_children_are_dropped(backend: HostBackend) -> None:
    dropped: list[Program] = []
    plan = Toy(STEPS, backend.compile, dropped.append)
    for total in (1, 2, 3, 4):  # four decisions on the value that was read
        run(plan, backend, total, 0)
    assert dropped
    before = len(backend.graphs)
    run(plan, backend, 4, 0)
    assert len(backend.graphs) == before
    run(plan, backend, 1, 0)
    assert len(backend.graphs) > before


def test_steps_know_the_last_use_of_each_value() -> None:
    assert [STEPS.read_after(0, step) for step in range(4)] == [True, True, False, False]
    assert not STEPS.read_after(4, 0)
    assert STEPS.needed_after(4, 4)
    assert not STEPS.needed_after(3, 4)


def test_keys_of_shapes() -> None:
    shapes = [None, (), (2,), (2, 3), Items(None).shape, Items((np.zeros(2),)).shape, Items(()).shape]
    assert len({shape_key([shape]) for shape in shapes}) == len(shapes)
    assert shape_key([(2, 3)]) == shape_key([(2, 3)])


def test_sequences_leave_an_execution_on_the_host(backend: HostBackend) -> None:
    steps = PlanSteps([0], [0], [], [])
    with Values(steps, backend, [Items((np.ones(2), np.zeros(3)))], [on_host]) as values:
        [found] = values.results()
    assert isinstance(found, Items)
    assert found.values is not None
    assert [array.shape for array in found.values] == [(2,), (3,)]
    with pytest.raises(InputError, match="a sequence"):
        values.host(found)


def test_compiled_graphs_are_those_of_the_segments(backend: HostBackend) -> None:
    plan = Toy(STEPS, backend.compile)
    run(plan, backend, 1, 0)
    kinds = [[op.kind for op in graph.ops] for graph in backend.graphs.values()]
    assert kinds == [["reduce"], ["concat", "binary", "binary"]]
