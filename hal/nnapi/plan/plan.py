"""Plan: one subgraph, compiled for the shapes and values of executions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from npusim.errors import CompileError, UnsupportedError
from npusim.plan import Compile, Drop, Record, Segment, SegmentPlan, Situation, Value, Values
from npusim.program import Program

from ..operations.constants import Constants
from ..operations.lowering import InvalidOperationError
from ..operations.signature import operation_name
from ..operations.view import SCALARS
from ..types import Model, OperationType, Subgraph
from .control import run_if, run_while
from .segment import CONTROL, OperationBuilder, Vocabulary, check_declared, steps_of

_log = logging.getLogger("hal.nnapi")


class Plan(SegmentPlan):
    """Executes one subgraph of a model; thread-safe.

    ``index``: None for the main subgraph, else its number among the referenced ones. ``time_ps``: the time of a program
    on the device. With it, segments are compiled with FLOAT32 and with FLOAT16, and the faster program is used.
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
        time_ps: Callable[[Program], int] | None = None,
    ) -> None:
        self.model = model
        self.subgraph: Subgraph = model.main if index is None else model.referenced[index]
        self.constants = constants
        self.vocabulary = vocabulary
        self.index = index
        self._family: dict[int, Plan] = {} if family is None else family
        self.time_ps = time_ps
        super().__init__(steps_of(self.subgraph), compile, drop)

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
                self.prepare_for(declared, Situation(shapes, {}, set()))
            # It may be about an input that executions omit; otherwise the execution raises the error.
            except InvalidOperationError as error:
                _log.warning("a model that cannot be executed with all of its inputs: %s", error)
        # For both branches, because a model may be refused when it is prepared, but not when it is executed.
        for number in referenced_by(self.subgraph):
            self.sub_plan(number).prepare()

    def programs(self) -> list[Program]:
        """All programs compiled so far, including those of referenced subgraphs."""
        return [record.program for record in self.export() if record.program is not None]

    def export(self) -> list[Record]:
        """Every compiled node, parents first, including those of referenced subgraphs, for the cache."""
        found = self.records(self.index)
        plans = list(self._family.values()) if self.index is None else []
        return found + [record for plan in plans for record in plan.export()]

    def load(self, records: Iterable[Record]) -> None:
        """Add nodes that another plan of the same model has exported."""
        for record in records:
            (self if record.index is None else self.sub_plan(record.index)).add(record)

    def sub_plan(self, index: int) -> Plan:
        """The plan of a referenced subgraph, shared by all references."""
        plan = self._family.get(index)
        if plan is None:  # if two threads arrive here at once, one creates a plan in vain
            given = self.model, self.constants, self.vocabulary, self._compile, self._drop
            fresh = Plan(*given, index, self._family, self.time_ps)
            plan = self._family.setdefault(index, fresh)
        return plan

    # Execution

    def builder(self, start: int, situation: Situation, *, half: bool = False) -> OperationBuilder:
        """See SegmentPlan. ``half``: see OperationBuilder."""
        name = "main" if self.index is None else f"referenced {self.index}"
        return OperationBuilder(
            self.subgraph,
            self.constants,
            self.vocabulary,
            start,
            situation.shapes,
            situation.known,
            absent=situation.absent,
            half=half,
            name=f"{name} from operation {start}",
        )

    def compiled(self, start: int, situation: Situation) -> tuple[Segment, Program | None]:
        """See SegmentPlan: with FLOAT16 where that is allowed, and is faster or the only way."""
        if self.time_ps is None:
            return super().compiled(start, situation)
        try:
            exact = super().compiled(start, situation)
        except (UnsupportedError, CompileError):
            return self.compiled_by(self.builder(start, situation, half=True))
        try:
            half = self.compiled_by(self.builder(start, situation, half=True))
        except (UnsupportedError, CompileError):
            return exact
        if exact[1] is None or half[1] is None:
            return exact
        best, other = (half, exact) if self.time_ps(half[1]) < self.time_ps(exact[1]) else (exact, half)
        if other[1] is not None and other[1] is not best[1]:
            self._drop(other[1])
        return best

    def describe(self, step: int) -> tuple[str, str]:
        """See SegmentPlan."""
        if step == len(self.subgraph.operations):
            return "end", ""
        return f"operation {step}", operation_name(self.subgraph.operations[step].type)

    def decide(self, values: Values, step: int, loop_timeout_ps: int) -> Sequence[Value]:
        """IF or WHILE. Raises InvalidOperationError, LoopTimeoutError."""
        operation = self.subgraph.operations[step]
        run = run_if if operation.type == OperationType.IF else run_while
        results = run(self, values, step, loop_timeout_ps)
        where = f"operation {step} ({operation_name(operation.type)})"
        for index, (operand, value) in enumerate(zip(operation.outputs, results, strict=True)):
            check_declared(self.subgraph.operands[operand], value.shape, f"{where}: output {index}")
        return results


def referenced_by(subgraph: Subgraph) -> list[int]:
    """Indexes of the subgraphs that control operations of a subgraph refer to."""
    found: set[int] = set()
    for operation in subgraph.operations:
        if operation.type in CONTROL:
            places = (1, 2) if operation.type == OperationType.IF else (0, 1)
            found.update(subgraph.operands[operation.inputs[place]].location.offset for place in places)
    return sorted(found)
