"""A segment: steps that run as one program, because none of them needs the host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from npusim.graph import Graph, Tensor
from npusim.ops.build import GraphBuilder
from npusim.plan.backend import Array, Shape
from npusim.polling import poll


class PlanSteps:
    """The steps of a plan in order, with the numbers of the values that each reads and writes.

    ``inputs``, ``outputs``: the values that the plan takes and returns.
    """

    def __init__(
        self,
        inputs: Sequence[int],
        outputs: Sequence[int],
        reads: Sequence[Collection[int]],
        writes: Sequence[Sequence[int]],
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.writes = writes
        self._last = {number: step for step, numbers in enumerate(reads) for number in numbers}
        self._returned = frozenset(outputs)

    def __len__(self) -> int:
        return len(self.writes)

    def read_after(self, number: int, step: int) -> bool:
        """Whether ``step`` or a later step reads a value."""
        return self._last.get(number, -1) >= step

    def needed_after(self, number: int, step: int) -> bool:
        """The same, or the plan returns it."""
        return number in self._returned or self.read_after(number, step)


class ValueNeededError(Exception):
    """The next step needs values, by number, that the device has not computed yet."""

    def __init__(self, *numbers: int) -> None:
        super().__init__(*numbers)
        self.numbers = numbers


@dataclass(slots=True)
class Segment:
    """Steps ``start`` to ``stop`` as a graph; None if none of their outputs is needed.

    ``shapes``: of all values known after it. ``inputs``, ``outputs``: the values of the graph's inputs and outputs, in
    order. ``counts``: outputs of which only the first entries are valid; for each, the graph has one more output at the
    end with their number. ``ask``: values that determine the next segment. ``constants``: values that do not depend on
    data of the device, and are not computed there.
    """

    start: int
    stop: int
    graph: Graph | None
    shapes: dict[int, Shape]
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    ask: tuple[int, ...] = ()
    constants: dict[int, Array] = field(default_factory=dict)


class SegmentBuilder(ABC):
    """Lowers steps from ``start`` on, as far as possible.

    ``shapes``: of values that exist before. ``stop``: the last possible end. ``at``: the current step, also after an
    exception of :meth:`build`. Front ends implement :meth:`is_decision`, :meth:`lower` and :meth:`label`.
    """

    keeps_constants = False
    """Whether constants are ``Segment.constants``; otherwise the device copies them to outputs."""

    def __init__(
        self, steps: PlanSteps, builder: GraphBuilder, start: int, shapes: Mapping[int, Shape], stop: int | None = None
    ) -> None:
        self.steps = steps
        self.builder = builder
        self.start = self.at = start
        self.stop = len(steps) if stop is None else stop
        self.shapes = dict(shapes)
        self.inputs: dict[int, Tensor] = {}
        self.made: dict[int, Tensor] = {}
        self.counts: dict[int, Tensor] = {}

    @abstractmethod
    def is_decision(self, step: int) -> bool:
        """Whether the host executes a step."""

    @abstractmethod
    def lower(self, step: int) -> bool:
        """Add the operators of a step to the graph, its results to ``made`` and ``shapes``, and its counts to
        ``counts``. Returns False if it turns out that the host must execute it. Raises ValueNeededError."""

    @abstractmethod
    def label(self, number: int) -> str:
        """The name of a value in the graph."""

    def build(self) -> Segment:
        """The segment. Raises errors of :meth:`lower`."""
        for step in range(self.start, self.stop):
            poll()
            if self.is_decision(step):
                return self._finish(step)
            self.at = self.builder.origin = step
            try:
                lowered = self.lower(step)
            except ValueNeededError as error:
                # Values that this segment computes are read after its run. Values computed before can be read now.
                if any(number in self.made for number in error.numbers):
                    return self._finish(step, error.numbers)
                return Segment(self.start, self.start, None, self.shapes, ask=error.numbers)
            if not lowered:
                return self._finish(step)
            if self.counts:  # what follows needs the shape, which depends on data of the device
                return self._finish(step + 1)
        return self._finish(self.stop)

    def finish_graph(self, graph: Graph) -> Graph:
        """The graph of the segment; for front ends that add to it."""
        return graph

    def add_count(self, number: int, count: Tensor, step: int) -> None:
        """Record the number of valid entries of a result of ``step``."""
        # If nothing reads its length, there is no reason to stop.
        if self.steps.needed_after(number, step + 1):
            self.counts[number] = count

    def _finish(self, stop: int, ask: tuple[int, ...] = ()) -> Segment:
        # In order of creation, so that equal segments have equal fingerprints.
        wanted = [number for number in self.made if number in ask or self.steps.needed_after(number, stop)]
        constants: dict[int, Array] = {}
        if self.keeps_constants:
            constants = {n: data for n in wanted if (data := self.made[n].data) is not None}
            wanted = [number for number in wanted if number not in constants]
        named = {self.label(number): self.made[number] for number in wanted}
        named |= {f"count {number}": tensor for number, tensor in self.counts.items()}
        outputs: list[Tensor] = []
        for name, tensor in named.items():
            # Each output has its own name: a tensor that is also an input, a constant or another output is copied.
            if tensor.is_constant or self.builder.is_input(tensor) or tensor in outputs:
                tensor = self.builder.add("reshape", [tensor], {"shape": tensor.shape}, f"copy of {tensor.name}")
            self.builder.rename(tensor, name)
            outputs.append(tensor)
        graph = self.finish_graph(self.builder.finish(outputs)) if outputs else None
        return Segment(
            self.start,
            stop,
            graph,
            self.shapes,
            tuple(self.inputs),
            tuple(wanted),
            tuple(self.counts),
            ask,
            constants,
        )
