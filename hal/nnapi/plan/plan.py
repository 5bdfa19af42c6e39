"""Plan: one subgraph, compiled for the shapes and values of executions.

A plan is a tree of nodes. A node runs one segment; its children follow, one for each decision of the host: values that
determine shapes, or the number of entries that an operation produced. Most models have one node per shape.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from npusim.graph import Graph
from npusim.polling import poll
from npusim.program import Program
from npusim.runtime import Recent

from ..operations.constants import Constants
from ..operations.lowering import InvalidOperationError
from ..operations.signature import operation_name
from ..operations.view import SCALARS, Shape
from ..types import Model, OperationType, Subgraph
from .backend import Backend, Target, Value
from .control import run_if, run_while
from .node import Node
from .segment import CONTROL, Segment, SegmentBuilder, Vocabulary, check_declared
from .state import Situation, State

_log = logging.getLogger("hal.nnapi")

_LOOK_S = 0.05
CHILDREN_KEPT = 64
"""Maximum number of children of a node that stay compiled. The least recently used one is removed."""

Compile = Callable[[Graph], Program]
Drop = Callable[[Program], None]
Path = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """A node in the cache: its subgraph (None: the main one), and the keys of the path to it."""

    index: int | None
    path: Path
    segment: Segment
    program: Program | None


class Plan:
    """Executes one subgraph of a model; thread-safe.

    ``compile`` makes programs; ``drop`` is called with programs that are no longer needed. ``index``: None for the main
    subgraph, else its number among the referenced ones.
    """

    def __init__(
        self,
        model: Model,
        constants: Constants,
        vocabulary: Vocabulary,
        compile: Compile,
        drop: Drop = lambda program: None,
        index: int | None = None,
        family: dict[int, Plan] | None = None,
    ) -> None:
        self.model = model
        self.subgraph: Subgraph = model.main if index is None else model.referenced[index]
        self.constants = constants
        self.vocabulary = vocabulary
        self.index = index
        self._compile = compile
        self._drop = drop
        self._root = self._nothing()
        self._lock = threading.RLock()
        self._family: dict[int, Plan] = {} if family is None else family

    # Preparation

    def prepare(self) -> None:
        """Compile all segments that do not depend on an execution: the whole model if all shapes are known.

        Raises UnsupportedError, CompileError.
        """
        declared = [tuple(self.subgraph.operands[number].dimensions) for number in self.subgraph.inputIndexes]
        scalars = [self.subgraph.operands[number].type in SCALARS for number in self.subgraph.inputIndexes]
        if all(scalar or (dims and all(dims)) for dims, scalar in zip(declared, scalars, strict=True)):
            shapes = dict(zip(self.subgraph.inputIndexes, declared, strict=True))
            try:
                with self._held():
                    self._root.find(_shape_key(declared), partial(self._make, 0, Situation(shapes, {}, set())))
            # It may be about an input that executions omit; otherwise the execution raises the error.
            except InvalidOperationError as error:
                _log.warning("a model that cannot be executed with all of its inputs: %s", error)
        # For both branches, because a model may be refused when it is prepared, but not when it is executed.
        for number in referenced_by(self.subgraph):
            self.sub_plan(number).prepare()

    def programs(self) -> list[Program]:
        """All programs compiled so far, including those of referenced subgraphs."""
        return [record.program for record in self.export() if record.program is not None]

    def first_node(self, shapes: Iterable[Shape | None]) -> Node | None:
        """The first node of an execution with these input shapes; None if it is not compiled."""
        with self._lock:
            return self._root.get(_shape_key(shapes))

    def export(self) -> list[Record]:
        """Every compiled node, parents first, including those of referenced subgraphs, for the cache."""
        with self._lock:
            pending: list[tuple[Path, Node]] = [((key,), node) for key, node in self._root.items()]
            records: list[Record] = []
            while pending:
                path, node = pending.pop(0)
                records.append(Record(self.index, path, node.segment, node.program))
                pending += [((*path, key), child) for key, child in node.children.items()]
            plans = list(self._family.values()) if self.index is None else []
        return records + [record for plan in plans for record in plan.export()]

    def load(self, records: Iterable[Record]) -> None:
        """Add nodes that another plan of the same model has exported."""
        for record in records:
            plan = self if record.index is None else self.sub_plan(record.index)
            with plan._lock:
                children = plan._root
                for key in record.path[:-1]:
                    children = children[key].children
                children[record.path[-1]] = plan._node_of(record.segment, record.program)

    def sub_plan(self, index: int) -> Plan:
        """The plan of a referenced subgraph, shared by all references."""
        plan = self._family.get(index)
        if plan is None:  # if two threads arrive here at once, one creates a plan in vain
            fresh = Plan(self.model, self.constants, self.vocabulary, self._compile, self._drop, index, self._family)
            plan = self._family.setdefault(index, fresh)
        return plan

    # Execution

    def execute(
        self, backend: Backend, inputs: Sequence[Value | None], targets: Sequence[Target], loop_timeout_ps: int
    ) -> list[Value]:
        """Run the subgraph once and return its outputs in order.

        ``inputs``: in the subgraph's order, with the shapes of this execution; None for one without a value. Raises
        InvalidOperationError, LoopTimeoutError, and errors of the compiler and the backend.
        """
        with State(self.subgraph, backend, inputs, targets) as state:
            children, key = self._root, _shape_key([None if value is None else value.shape for value in inputs])
            start = 0
            while True:
                node = self._known(children, key)
                if node is None:
                    # The lock is held while compiling: a second execution would only compile the same.
                    with backend.limited(), self._held():
                        node = children.find(key, partial(self._make, start, state))
                segment = node.segment
                state.run(node)
                if segment.ask or segment.counts:
                    start, key = segment.stop, state.answer(segment)
                elif segment.stop < len(self.subgraph.operations):
                    self._run_control(state, segment.stop, loop_timeout_ps)
                    # A branch may return any shape: the following segments are compiled for the actual ones.
                    results = self.subgraph.operations[segment.stop].outputs
                    start, key = segment.stop + 1, _shape_key(state.shapes[number] for number in results)
                else:
                    return state.results()
                children = node.children

    def _known(self, children: Recent[bytes, Node], key: bytes) -> Node | None:
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

    def _run_control(self, state: State, number: int, loop_timeout_ps: int) -> None:
        operation = self.subgraph.operations[number]
        run = run_if if operation.type == OperationType.IF else run_while
        results = run(self, state, number, loop_timeout_ps)
        where = f"operation {number} ({operation_name(operation.type)})"
        for index, (operand, value) in enumerate(zip(operation.outputs, results, strict=True)):
            check_declared(self.subgraph.operands[operand], value.shape, f"{where}: output {index}")
            state.set(operand, value)

    def _make(self, start: int, situation: Situation) -> Node:
        name = "main" if self.index is None else f"referenced {self.index}"
        segment = SegmentBuilder(
            self.subgraph,
            self.constants,
            self.vocabulary,
            start,
            situation.shapes,
            situation.known,
            absent=situation.absent,
            relaxed=self.model.relaxComputationFloat32toFloat16,
            name=f"{name} from operation {start}",
        ).build()
        program = None if segment.graph is None else self._compile(segment.graph)
        segment.graph = None  # from here on only the program is needed
        return self._node_of(segment, program)

    def _node_of(self, segment: Segment, program: Program | None) -> Node:
        return Node(self.subgraph, segment, program, self._nothing())

    def _nothing(self) -> Recent[bytes, Node]:
        """An empty cache of children.

        It has no reference to the plan, because a cycle would keep the client's memory until it is collected.
        """
        return Recent(CHILDREN_KEPT, partial(_forget, self._drop))


def _forget(drop: Drop, node: Node) -> None:
    """Remove a node and its descendants."""
    if node.program is not None:
        drop(node.program)
    for child in node.children.values():
        _forget(drop, child)


def referenced_by(subgraph: Subgraph) -> list[int]:
    """Indexes of the subgraphs that control operations of a subgraph refer to."""
    found: set[int] = set()
    for operation in subgraph.operations:
        if operation.type in CONTROL:
            places = (1, 2) if operation.type == OperationType.IF else (0, 1)
            found.update(subgraph.operands[operation.inputs[place]].location.offset for place in places)
    return sorted(found)


def _shape_key(shapes: Iterable[Shape | None]) -> bytes:
    return repr([None if shape is None else tuple(shape) for shape in shapes]).encode()
