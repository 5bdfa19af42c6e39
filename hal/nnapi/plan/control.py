"""IF and WHILE: the host reads a condition and decides which program comes next; the data stay on the device."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..operations.lowering import InvalidOperationError
from ..operations.view import Array, Shape
from .backend import Backend, Buffer, Value, bytes_of

if TYPE_CHECKING:
    from .plan import Plan
    from .state import State


class LoopTimeoutError(Exception):
    """A WHILE loop has taken more simulated time than it may; argument: the limit in picoseconds."""


def run_if(plan: Plan, state: State, number: int, loop_timeout_ps: int) -> list[Value]:
    """IF: inputs are the condition, two subgraphs, and what the chosen one takes."""
    operation = plan.subgraph.operations[number]
    condition = _truth(state.host(_value(plan, state, operation.inputs[0])))
    chosen = _plan(plan, operation.inputs[1 if condition else 2])
    inputs = [_value(plan, state, operand) for operand in operation.inputs[3:]]
    targets = [partial(state.place, operand, number + 1) for operand in operation.outputs]
    return chosen.execute(state.backend, inputs, targets, loop_timeout_ps)


def run_while(plan: Plan, state: State, number: int, loop_timeout_ps: int) -> list[Value]:
    """WHILE: inputs are the condition's and the body's subgraph, what the body changes, and what it only reads."""
    operation = plan.subgraph.operations[number]
    condition, body = (_plan(plan, operand) for operand in operation.inputs[:2])
    values = [_value(plan, state, operand) for operand in operation.inputs[2:]]
    backend = state.backend
    begin = backend.elapsed_ps()
    with _Iterations(backend) as iterations:
        while True:
            [verdict] = condition.execute(backend, values, [_on_host], loop_timeout_ps)
            if _truth(state.host(verdict)):
                if backend.elapsed_ps() - begin > loop_timeout_ps:
                    raise LoopTimeoutError(loop_timeout_ps)
                targets = [iterations.allocate] * len(body.subgraph.outputIndexes)
                results = body.execute(backend, values, targets, loop_timeout_ps)
                values[: len(results)] = results
                iterations.next()
            else:
                state.adopt(iterations.take())
                return values[: len(operation.outputs)]


class _Iterations:
    """Device memory of a loop: what one iteration made is given back when the next one has read it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._old: list[Buffer] = []
        self._new: list[Buffer] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for buffer in (*self._old, *self._new):
            buffer.release()

    def allocate(self, shape: Shape, dtype: np.dtype[Any]) -> Buffer | None:
        """Where a result of the body goes."""
        nbytes = bytes_of(shape, dtype)
        if not nbytes:
            return None
        self._new.append(self._backend.allocate(nbytes))
        return self._new[-1]

    def next(self) -> None:
        """The body has run: its results are what the next iteration reads."""
        for buffer in self._old:
            buffer.release()
        self._old, self._new = self._new, []

    def take(self) -> list[Buffer]:
        """The memory of the last iteration's results goes over to the caller."""
        taken, self._old = self._old, []
        return taken


def _on_host(shape: Shape, dtype: np.dtype[Any]) -> Buffer | None:
    return None


def _value(plan: Plan, state: State, number: int) -> Value:
    constant = plan.constants(plan.subgraph.operands[number])
    if constant is not None:
        return constant
    if number not in state.values:
        raise InvalidOperationError(f"operand {number} must have a value")
    return state.values[number]


def _plan(plan: Plan, operand: int) -> Plan:
    return plan.sub_plan(plan.subgraph.operands[operand].location.offset)


def _truth(array: Array) -> bool:
    return bool(np.asarray(array).reshape(-1)[0])
