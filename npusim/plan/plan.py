"""SegmentPlan: a sequence of steps, compiled for the shapes and values of executions.

A plan is a tree of nodes. A node runs one segment; its children follow, one for each decision of the host: values that
determine shapes, the number of entries that an operation produced, or the shapes of results of a decision. Most models
have one node per shape.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from npusim.graph import Graph
from npusim.plan.backend import Backend, Shape, Target, Value
from npusim.plan.node import PlanNode
from npusim.plan.recent import Recent
from npusim.plan.segment import PlanSteps, Segment, SegmentBuilder
from npusim.plan.values import Situation, Values
from npusim.polling import poll
from npusim.program import Program

_LOOK_S = 0.05
Compile = Callable[[Graph], Program]
Drop = Callable[[Program], None]
Path = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """A node for a cache: the index of its plan (None: the main one), and the keys of the path to it."""

    index: int | None
    path: Path
    segment: Segment
    program: Program | None


class SegmentPlan(ABC):
    """Executes its steps; thread-safe. Front ends implement :meth:`builder`, :meth:`decide` and :meth:`describe`.

    ``compile`` makes programs; ``drop`` is called with programs that are no longer needed.
    """

    children_kept = 64
    """Maximum number of children of a node that stay compiled. The least recently used one is removed."""

    def __init__(self, steps: PlanSteps, compile: Compile, drop: Drop = lambda program: None) -> None:
        self.steps = steps
        self._compile = compile
        self._drop = drop
        self._root = self._nothing()
        self._lock = threading.RLock()

    @abstractmethod
    def builder(self, start: int, situation: Situation) -> SegmentBuilder:
        """The builder of a segment that starts at a step."""

    @abstractmethod
    def decide(self, values: Values, step: int, loop_timeout_ps: int) -> Sequence[Value]:
        """Execute a step on the host. Returns its results."""

    @abstractmethod
    def describe(self, step: int) -> tuple[str, str]:
        """The name of a step and its kind, for reports; also of the end, which is the step after the last one."""

    # Preparation

    def prepare_for(self, shapes: Sequence[Shape], situation: Situation) -> None:
        """Compile the first segment for these shapes of the inputs. Raises errors of the builder and the compiler."""
        with self._held():
            self._root.find(shape_key(shapes), partial(self._make, 0, situation))

    def first_node(self, shapes: Iterable[Shape | None]) -> PlanNode | None:
        """The first node of an execution with these input shapes; None if it is not compiled."""
        with self._lock:
            return self._root.get(shape_key(shapes))

    def records(self, index: int | None) -> list[Record]:
        """Every compiled node, parents first."""
        with self._lock:
            pending: list[tuple[Path, PlanNode]] = [((key,), node) for key, node in self._root.items()]
            found: list[Record] = []
            while pending:
                path, node = pending.pop(0)
                found.append(Record(index, path, node.segment, node.program))
                pending += [((*path, key), child) for key, child in node.children.items()]
        return found

    def add(self, record: Record) -> None:
        """Add a node that another plan of the same steps has recorded, after its parents."""
        with self._lock:
            children = self._root
            for key in record.path[:-1]:
                children = children[key].children
            children[record.path[-1]] = self._node_of(record.segment, record.program)

    # Execution

    def execute(
        self, backend: Backend, inputs: Sequence[Value | None], targets: Sequence[Target], loop_timeout_ps: int
    ) -> list[Value]:
        """Run the steps once and return their outputs in order.

        ``inputs``: with the shapes of this execution; None for one without a value. Raises errors of the builder, the
        decisions, the compiler and the backend.
        """
        with Values(self.steps, backend, inputs, targets) as values:
            children, key = self._root, shape_key([None if value is None else value.shape for value in inputs])
            start = 0
            while True:
                node = self._known(children, key)
                if node is None:
                    # The lock is held while compiling: a second execution would only compile the same.
                    with backend.limited(), self._held():
                        node = children.find(key, partial(self._make, start, values))
                segment = node.segment
                values.run(node)
                if segment.ask or segment.counts:
                    start, key = segment.stop, values.answer(segment)
                    elements = sum(values.known[number].size for number in segment.ask)
                    backend.decide(*self.describe(segment.stop), elements + len(segment.counts))
                elif segment.stop < len(self.steps):
                    results = self.decide(values, segment.stop, loop_timeout_ps)
                    for number, value in zip(self.steps.writes[segment.stop], results, strict=True):
                        values.set(number, value)
                    # It may return any shapes: the following segments are compiled for the actual ones.
                    start, key = segment.stop + 1, shape_key(value.shape for value in results)
                else:
                    return values.results()
                children = node.children

    def _known(self, children: Recent[bytes, PlanNode], key: bytes) -> PlanNode | None:
        """A compiled node, without waiting for other compilations."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return children.recall(key)
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """The lock, acquired while polling for the end of the execution."""
        while not self._lock.acquire(timeout=_LOOK_S):
            poll()
        try:
            yield
        finally:
            self._lock.release()

    def _make(self, start: int, situation: Situation) -> PlanNode:
        segment, program = self.compiled(start, situation)
        segment.graph = None  # from here on only the program is needed
        return self._node_of(segment, program)

    def compiled(self, start: int, situation: Situation) -> tuple[Segment, Program | None]:
        """The segment that starts at a step, and its program; None if it computes nothing. For front ends with more
        than one way to build a segment."""
        return self.compiled_by(self.builder(start, situation))

    def compiled_by(self, builder: SegmentBuilder) -> tuple[Segment, Program | None]:
        """The segment of a builder, and its program. Raises errors of the builder and the compiler."""
        segment = builder.build()
        return segment, None if segment.graph is None else self._compile(segment.graph)

    def _node_of(self, segment: Segment, program: Program | None) -> PlanNode:
        return PlanNode(self.steps, segment, program, self._nothing())

    def _nothing(self) -> Recent[bytes, PlanNode]:
        """An empty cache of children.

        It has no reference to the plan, because a cycle would keep the client's memory until it is collected.
        """
        return Recent(self.children_kept, partial(_forget, self._drop))


def _forget(drop: Drop, node: PlanNode) -> None:
    """Remove a node and its descendants."""
    if node.program is not None:
        drop(node.program)
    for child in node.children.values():
        _forget(drop, child)


def shape_key(shapes: Iterable[Shape | None]) -> bytes:
    """Shapes as the key of a node."""
    return repr([None if shape is None else tuple(shape) for shape in shapes]).encode()
