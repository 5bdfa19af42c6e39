"""Supported operations of a model, and the reasons of unsupported ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from npusim.compiler.pipeline import find_unsupported
from npusim.errors import CompileError, UnsupportedError
from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.plan import Segment
from npusim.program import Program

from ..operations.lowering import InvalidOperationError
from ..operations.view import SCALARS, Constants, Shape
from ..types import Model, OperandLifeTime, OperationType, Subgraph
from .segment import CONTROL, OperationBuilder, Vocabulary

Reasons = dict[int, str]
"""The reason why an operation is not supported, by its number in the subgraph."""


class Support:
    """Examines one model for one device.

    ``compile``: compiles a graph and may cache the program. ``unreadable``: pools that cannot be read, with the reason.
    ``half``: whether FLOAT32 may be computed as FLOAT16.
    """

    def __init__(
        self,
        model: Model,
        constants: Constants,
        vocabulary: Vocabulary,
        config: Config,
        compile: Callable[[Graph], Program],
        unreadable: Mapping[int, str] = MappingProxyType({}),
        *,
        half: bool = False,
    ) -> None:
        self._model = model
        self._constants = constants
        self._vocabulary = vocabulary
        self._config = config
        self._compile = compile
        self._unreadable = unreadable
        self._may_be_half = half
        self._half = False
        self._examined: dict[int, Reasons] = {}

    def unsupported(self) -> Reasons:
        """Reasons by number of the main subgraph's operation; empty if everything is supported."""
        reasons = self._examine(self._model.main)
        if reasons and self._may_be_half:
            self._half = True
            self._examined.clear()
            reasons = min(reasons, self._examine(self._model.main), key=len)
        return reasons

    def _examine(self, subgraph: Subgraph) -> Reasons:
        reasons: Reasons = {}
        shapes: dict[int, Shape] = {
            number: tuple(operand.dimensions)
            for number, operand in enumerate(subgraph.operands)
            if operand.type in SCALARS or (operand.dimensions and all(operand.dimensions))
        }
        start = 0
        while start < len(subgraph.operations):
            if subgraph.operations[start].type not in self._vocabulary.definitions:
                reasons[start] = "is not an operation that this driver knows"
                start += 1
            elif reason := self._hidden(subgraph, start):
                reasons[start] = reason
                start += 1
            elif subgraph.operations[start].type in CONTROL:
                self._control(subgraph, start, reasons)
                start += 1
            # An operation whose shapes are known only at execution may need any unit: it is examined alone.
            elif any(self._shape_unknown(subgraph, number, shapes) for number in subgraph.operations[start].inputs):
                self._unsure(start, reasons)
                start += 1
            else:
                start = self._segment(subgraph, start, self._known_until(subgraph, start, shapes), shapes, reasons)
        return reasons

    def _known_until(self, subgraph: Subgraph, start: int, shapes: Mapping[int, Shape]) -> int:
        """The first operation from ``start`` on that needs a shape which neither the model nor an earlier operation
        gives, or a constant that cannot be read."""
        made: set[int] = set()
        for number in range(start, len(subgraph.operations)):
            operation = subgraph.operations[number]
            if self._hidden(subgraph, number):
                return number
            if any(each not in made and self._shape_unknown(subgraph, each, shapes) for each in operation.inputs):
                return number
            made.update(operation.outputs)
        return len(subgraph.operations)

    def _hidden(self, subgraph: Subgraph, number: int) -> str | None:
        """The reason why a constant of an operation cannot be read, if any."""
        for index in subgraph.operations[number].inputs if self._unreadable else ():
            operand = subgraph.operands[index]
            pool = operand.location.poolIndex
            if operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE and pool in self._unreadable:
                return f"its constant, operand {index}, lies in pool {pool}: {self._unreadable[pool]}"
        return None

    def _segment(self, subgraph: Subgraph, start: int, stop: int, shapes: dict[int, Shape], reasons: Reasons) -> int:
        """Check the operations from ``start`` to at most ``stop`` that can be lowered together; returns the next
        one."""
        builder = self._builder(subgraph, start, stop, shapes)
        try:
            segment = builder.build()
        except InvalidOperationError:  # left to the execution: which inputs have values is not known before
            return start + 1 if stop == start + 1 else self._segment(subgraph, start, start + 1, shapes, reasons)
        except UnsupportedError as error:
            if builder.at == start:
                reasons[start] = "; ".join(reason for _, _, reason in error.reasons)
                return start + 1
            segment = self._builder(subgraph, start, builder.at, shapes).build()
        if segment.stop == start:  # it needs a value that only an execution provides
            self._unsure(start, reasons)
            return start + 1
        for number, shape in segment.shapes.items():
            if number not in segment.counts:
                shapes.setdefault(number, shape)
        if segment.graph is not None:
            self._fits(subgraph, segment, segment.graph, shapes, reasons)
        return segment.stop

    def _fits(
        self, subgraph: Subgraph, segment: Segment, graph: Graph, shapes: Mapping[int, Shape], reasons: Reasons
    ) -> None:
        """Find operations without a unit on the device, or too large for it."""
        try:
            refused = find_unsupported(graph, self._config)
            for op, reason in refused:
                assert op.origin is not None, f"{op} is of no operation"
                reasons.setdefault(op.origin, reason)
            if not refused:
                self._compile(graph)
        except CompileError as error:
            if segment.stop == segment.start + 1:
                reasons[segment.start] = str(error)
                return
            # The compiler cannot tell which operation is too large, so each is tried alone. If all fit alone, all are
            # reported.
            alone: Reasons = {}
            for number in range(segment.start, segment.stop):
                part = self._builder(subgraph, number, number + 1, shapes).build()
                if part.graph is not None:
                    self._fits(subgraph, part, part.graph, shapes, alone)
            reasons.update(alone or dict.fromkeys(range(segment.start, segment.stop), str(error)))

    def _builder(self, subgraph: Subgraph, start: int, stop: int, shapes: Mapping[int, Shape]) -> OperationBuilder:
        return OperationBuilder(
            subgraph,
            self._constants,
            self._vocabulary,
            start,
            shapes,
            {},
            stop=stop,
            half=self._half,
            name=f"operations from {start}",
        )

    def _control(self, subgraph: Subgraph, number: int, reasons: Reasons) -> None:
        operation = subgraph.operations[number]
        for place in (1, 2) if operation.type == OperationType.IF else (0, 1):
            index = subgraph.operands[operation.inputs[place]].location.offset
            if index not in self._examined:
                self._examined[index] = self._examine(self._model.referenced[index])
            for inner, reason in self._examined[index].items():
                reasons.setdefault(number, f"referenced[{index}].operations[{inner}]: {reason}")

    def _shape_unknown(self, subgraph: Subgraph, number: int, shapes: Mapping[int, Shape]) -> bool:
        operand = subgraph.operands[number]
        if self._constants(operand) is not None or operand.type in SCALARS or number in shapes:
            return False
        return operand.lifetime not in _WITHOUT_SHAPE

    def _unsure(self, number: int, reasons: Reasons) -> None:
        """Whether the device has every unit: operations whose shapes are known only at execution can then run."""
        config = self._config
        units = {"matrix": config.matrix, "vector": config.vector, "scalar": config.scalar}
        missing = [name for name, unit in units.items() if unit is None]
        if missing:
            lacking = f"{config.name} has no {' and no '.join(missing)} unit"
            reasons[number] = f"its shapes come with an execution; {lacking}, which it may need"


_WITHOUT_SHAPE = (5, 6)  # NO_VALUE, SUBGRAPH
