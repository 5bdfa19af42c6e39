"""ImportedSegment: the part of a plan's segment that front ends of model files share."""

from __future__ import annotations

from npusim.dtypes import DType
from npusim.errors import UndecidedError, UnsupportedError
from npusim.graph import Graph, Tensor
from npusim.hw.config import Config
from npusim.ops.base import Array
from npusim.ops.budget import Budget
from npusim.ops.build import GraphBuilder
from npusim.plan import PlanSteps, SegmentBuilder, Situation, ValueNeededError

MOST_ASKED = 1 << 16
"""Maximum number of elements of a value that becomes a constant of the next segment."""
Constant = tuple[Array, DType]


class ImportedSegment(SegmentBuilder):
    """Imports steps into a graph. A step turns out to need the host when it is imported."""

    keeps_constants = True

    def __init__(self, steps: PlanSteps, name: str, config: Config, start: int, situation: Situation) -> None:
        self.budget = Budget.of(config)
        self.budget.grant(operators=len(steps))
        super().__init__(steps, GraphBuilder(name, fold=True, budget=self.budget), start, situation.shapes)
        self._known = situation.known
        self._tensors: dict[int, Tensor] = {}
        self._numbers: dict[Tensor, int] = {}

    def is_decision(self, step: int) -> bool:
        """See SegmentBuilder: known after the import."""
        return False

    def label(self, number: int) -> str:
        """See SegmentBuilder."""
        return f"value {number}"

    def earlier(self, number: int, name: str, dtype: DType) -> Tensor:
        """The tensor of a value from before the segment, which is a constant if the host has read it."""
        if number in self._known:
            tensor = self.builder.const(self._known[number], name, dtype)
            self.builder.mark(tensor)
        else:
            tensor = self.builder.input(self.label(number), self.shapes[number], dtype)
            self.inputs[number] = tensor
            self._numbers[tensor] = number
        self._tensors[number] = tensor
        return tensor

    def define(self, number: int, tensor: Tensor) -> None:
        """Record the result of a step."""
        self._tensors[number] = self.made[number] = tensor
        self._numbers.setdefault(tensor, number)
        self.shapes[number] = tensor.shape

    def ask(self, error: UndecidedError) -> ValueNeededError:
        """The exception for values that the host must read before a step can be imported. Raises UnsupportedError if
        there are none, or too many elements."""
        found: list[int] = []
        if isinstance(error.value, Tensor):
            found = [self._numbers[tensor] for tensor in self.builder.reached(error.value, self._numbers)]
        if not found or any(self._tensors[number].size > MOST_ASKED for number in found):
            raise UnsupportedError(error.reasons)
        return ValueNeededError(*found)

    def finish_graph(self, graph: Graph) -> Graph:
        """See SegmentBuilder: without inputs that nothing reads, and with the work of the host."""
        read = {tensor for op in graph.ops for tensor in op.inputs}
        self.inputs = {number: tensor for number, tensor in self.inputs.items() if tensor in read}
        graph.inputs = tuple(self.inputs.values())
        graph.host = self.builder.host_part(graph, self.builder.deciding)
        return graph
