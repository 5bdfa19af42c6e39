"""IF and WHILE: the host reads a condition and selects the next program; the data stay on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from npusim.plan import Array, Backend, Iterations, Target, Value, Values, on_host

from ..operations.constants import Constants
from ..operations.lowering import InvalidOperationError
from ..types import Subgraph


class SubgraphPlan(Protocol):
    """The interface of a subgraph's plan to IF and WHILE."""

    subgraph: Subgraph
    constants: Constants

    def sub_plan(self, index: int) -> SubgraphPlan:
        """The plan of a referenced subgraph."""

    def execute(
        self, backend: Backend, inputs: Sequence[Value | None], targets: Sequence[Target], loop_timeout_ps: int
    ) -> list[Value]:
        """Run the subgraph once and return its outputs."""


class LoopTimeoutError(Exception):
    """A WHILE loop exceeded its simulated time; argument: the limit in picoseconds."""


def run_if(plan: SubgraphPlan, state: Values, number: int, loop_timeout_ps: int) -> list[Value]:
    """IF: inputs are the condition, two subgraphs, and the inputs of the chosen subgraph."""
    operation = plan.subgraph.operations[number]
    condition = _truth(state.host(_value(plan, state, operation.inputs[0])))
    chosen = _plan(plan, operation.inputs[1 if condition else 2])
    inputs = [_value(plan, state, operand) for operand in operation.inputs[3:]]
    targets = [state.target(operand, number + 1) for operand in operation.outputs]
    return chosen.execute(state.backend, inputs, targets, loop_timeout_ps)


def run_while(plan: SubgraphPlan, state: Values, number: int, loop_timeout_ps: int) -> list[Value]:
    """WHILE: inputs are the subgraphs of condition and body, the values that the body updates, and its constants."""
    operation = plan.subgraph.operations[number]
    condition, body = (_plan(plan, operand) for operand in operation.inputs[:2])
    values = [_value(plan, state, operand) for operand in operation.inputs[2:]]
    limit_ps = state.backend.elapsed_ps() + loop_timeout_ps  # simulated, so that the host's speed decides nothing
    with Iterations(state.backend) as loop:
        while True:
            values = loop.repeat(values, limit_ps)
            [verdict] = condition.execute(loop, values, [on_host], loop_timeout_ps)
            if not _truth(state.host(verdict)):
                state.adopt(loop.take())
                return values[: len(operation.outputs)]
            if loop.elapsed_ps() > limit_ps:
                raise LoopTimeoutError(loop_timeout_ps)
            targets = [loop.target] * len(body.subgraph.outputIndexes)
            results = body.execute(loop, values, targets, loop_timeout_ps)
            # The body does not return values that it only reads.
            values = [*results, *values[len(results) :]]
            loop.next()


def _value(plan: SubgraphPlan, state: Values, number: int) -> Value:
    constant = plan.constants(plan.subgraph.operands[number])
    if constant is not None:
        return constant
    if number not in state.values:
        raise InvalidOperationError(f"operand {number} has no value in this execution, and must have one")
    return state.values[number]


def _plan(plan: SubgraphPlan, operand: int) -> SubgraphPlan:
    return plan.sub_plan(plan.subgraph.operands[operand].location.offset)


def _truth(array: Array) -> bool:
    return bool(np.asarray(array).reshape(-1)[0])
