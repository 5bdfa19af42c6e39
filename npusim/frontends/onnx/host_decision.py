"""HostDecision: one node that the host executes in a plan, with its operands and bodies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from onnx import GraphProto, NodeProto, helper

from npusim.dtypes import DType, from_storage
from npusim.errors import InputError, ModelError
from npusim.ops.base import Array
from npusim.plan import Backend, Held, PlanSteps, Strings, Target, Value, Values


class GraphPlan(Protocol):
    """The interface of a plan to decisions, see NodePlan."""

    graph: GraphProto
    nodes: list[NodeProto]
    inputs: list[str]
    outputs: list[str]
    captured: list[str]
    steps: PlanSteps
    types: dict[int, DType]

    def number(self, name: str) -> int:
        """The number of a value."""

    def name_of(self, step: int) -> str:
        """The name of a node."""

    def version(self, domain: str) -> int:
        """The version of an operator set."""

    def body(self, step: int, attribute: str) -> GraphPlan:
        """The plan of a body of a node."""

    def extra(self, step: int, name: str, make: Callable[[], GraphProto]) -> GraphPlan:
        """The plan of a graph that a decision needs for its arithmetic."""

    def value(self, values: Values, name: str) -> Value:
        """A value of this execution."""

    def execute(
        self, backend: Backend, inputs: Sequence[Value | None], targets: Sequence[Target], loop_timeout_ps: int
    ) -> list[Value]:
        """Run the plan once."""


class HostDecision:
    """One node that the host executes in one execution."""

    def __init__(self, plan: GraphPlan, values: Values, step: int, loop_timeout_ps: int) -> None:
        self.plan = plan
        self.values = values
        self.step = step
        self.node = plan.nodes[step]
        self.name = plan.name_of(step)
        self.loop_timeout_ps = loop_timeout_ps

    # Operands

    def has(self, index: int) -> bool:
        """Whether the node has an input."""
        return index < len(self.node.input) and bool(self.node.input[index])

    def value(self, index: int) -> Value:
        """An input of the node. Raises ModelError."""
        if not self.has(index):
            raise ModelError(f"{self.name} ({self.node.op_type}): input {index} is required")
        return self.plan.value(self.values, self.node.input[index])

    def type_of(self, index: int) -> DType:
        """The element type of an input of numbers, after its value was read."""
        return self.plan.types[self.plan.number(self.node.input[index])]

    def host(self, index: int) -> Array:
        """An input of the node on the host, in storage form. Raises InputError."""
        value = self.value(index)
        if isinstance(value, Held):
            raise InputError(f"input {index} must be a tensor of numbers")
        return self.values.host(value)

    def operand(self, index: int) -> Array | None:
        """An input of the node on the host, in the type that numpy has for it; None if it is absent."""
        if not self.has(index):
            return None
        value = self.value(index)
        return value.array if isinstance(value, Strings) else from_storage(self.host(index), self.type_of(index))

    def scalar(self, index: int) -> Any:
        """An input of one element. Raises InputError."""
        array = self.host(index)
        if array.size != 1:
            raise InputError(f"input {index} must have one element, has shape {list(array.shape)}")
        return array.reshape(-1)[0].item()

    def give(self, index: int, dtype: DType) -> None:
        """Set the element type of an output."""
        self.plan.types[self.plan.number(self.node.output[index])] = dtype

    def attribute(self, name: str, default: Any) -> Any:
        """The value of an attribute."""
        found = [helper.get_attribute_value(each) for each in self.node.attribute if each.name == name]
        return found[0] if found else default

    def charge(self, elements: int = 0) -> None:
        """Let the host take the time of this decision, in which it reads or writes ``elements`` elements."""
        self.values.backend.decide(self.name, self.node.op_type, elements)

    # Bodies

    def run(
        self, body: GraphPlan, given: Sequence[tuple[Value, DType]], targets: Sequence[Target], backend: Backend
    ) -> list[Value]:
        """Run a body with values for its inputs; captured values are added."""
        if len(given) != len(body.inputs):
            raise ModelError(
                f"{self.name} ({self.node.op_type}): its body takes {len(body.inputs)} values, not {len(given)}"
            )
        inputs: list[Value] = []
        for name, (value, dtype) in zip(body.inputs, given, strict=True):
            body.types[body.number(name)] = dtype
            inputs.append(value)
        for name in body.captured:
            inputs.append(self.plan.value(self.values, name))
            body.types[body.number(name)] = self.plan.types[self.plan.number(name)]
        return body.execute(backend, inputs, targets, self.loop_timeout_ps)
