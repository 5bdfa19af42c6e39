"""A segment: operations that run as one program, because none of them needs the host."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npusim.dtypes import dtype_of
from npusim.errors import ModelError, UnsupportedError
from npusim.graph import Graph, Tensor
from npusim.ops.build import GraphBuilder
from npusim.polling import poll

from ..operations import Definition
from ..operations.lowering import InvalidOperationError, Lowering, ValueNeededError, operation_label
from ..operations.signature import operation_name, type_name
from ..operations.view import SCALARS, Array, Constants, OpView, Shape, dims_of
from ..types import Operand, OperationType, Subgraph

CONTROL = (OperationType.IF, OperationType.WHILE)


@dataclass(slots=True)
class Segment:
    """Operations ``start`` to ``stop`` of a subgraph as a graph; None if none of their outputs is needed.

    ``shapes``: of all operands known after it. ``inputs``, ``outputs``: the operands of the graph's inputs and outputs,
    in order. ``counts``: outputs of which only the first entries are valid; for each, the graph has one more output at
    the end with their number. ``ask``: operands whose values determine the next segment.
    """

    start: int
    stop: int
    graph: Graph | None
    shapes: dict[int, Shape]
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    ask: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The definitions of operations and operand types of one model, including its extensions.

    ``definitions`` by operation type, ``storage`` (the numpy type of an element) by operand type.
    """

    definitions: Mapping[int, Definition]
    storage: Mapping[int, np.dtype[Any]]

    def definition_of(self, view: OpView) -> Definition:
        """The definition of an operation. Raises UnsupportedError if this driver has none."""
        definition = self.definitions.get(view.operation.type)
        if definition is None:
            name = operation_name(view.operation.type)
            raise UnsupportedError([(operation_label(view), name, "is not an operation that this driver knows")])
        return definition

    def storage_of(self, operand: Operand) -> np.dtype[Any]:
        """The numpy type of an operand's elements. Raises UnsupportedError for a type without one."""
        storage = self.storage.get(operand.type)
        if storage is None:
            raise UnsupportedError([("", "operand", f"operands of {type_name(operand.type)} are not supported")])
        return storage


class SegmentBuilder:
    """Lowers operations of one subgraph from ``start`` on, as far as possible.

    ``shapes``: of operands that exist before; ``known``: values that the host has read. ``stop``: the last possible
    end. ``absent``: operands without a value in this execution. ``at``: the current operation, also after an exception
    of ``build``.
    """

    def __init__(
        self,
        subgraph: Subgraph,
        constants: Constants,
        vocabulary: Vocabulary,
        start: int,
        shapes: Mapping[int, Shape],
        known: Mapping[int, Array],
        *,
        relaxed: bool,
        name: str,
        stop: int | None = None,
        absent: Collection[int] = (),
    ) -> None:
        self._subgraph = subgraph
        self._constants = constants
        self._vocabulary = vocabulary
        self._start = self.at = start
        self._stop = len(subgraph.operations) if stop is None else stop
        self._shapes = dict(shapes)
        self._known = known
        self._absent = absent
        self._relaxed = relaxed
        self._builder = GraphBuilder(name, fold=True)
        self._tensors: dict[int, Tensor] = {}
        self._inputs: list[int] = []
        self._made: dict[int, Tensor] = {}
        self._counts: dict[int, Tensor] = {}

    def build(self) -> Segment:
        """The segment. Raises InvalidOperationError, ModelError, UnsupportedError, which name the operation."""
        operations = self._subgraph.operations
        for number in range(self._start, self._stop):
            poll()
            if operations[number].type in CONTROL:
                return self._finish(number)
            view = OpView(self._subgraph, operations[number], self._constants, number)
            self.at = self._builder.origin = number
            try:
                self._lower(view)
            except ValueNeededError as error:
                # A value that this segment computes is read after its run. A value computed before can be read now.
                if error.operand in self._made:
                    return self._finish(number, (error.operand,))
                return Segment(self._start, self._start, None, self._shapes, ask=(error.operand,))
            except (InvalidOperationError, ModelError) as error:
                kind = operation_name(view.operation.type)
                raise InvalidOperationError(f"operation {number} ({kind}): {error}") from None
            if self._counts:  # what follows needs the shape, which depends on data of the device
                return self._finish(number + 1)
        return self._finish(self._stop)

    def _lower(self, view: OpView) -> None:
        definition = self._vocabulary.definition_of(view)
        lowering = Lowering(
            view, self._builder, self._shapes, self._read, self._look, relaxed=self._relaxed, absent=self._absent
        )
        for number in view.operation.inputs:
            if number not in self._shapes and number not in self._absent:
                self._shapes[number] = tuple(self._subgraph.operands[number].dimensions)
        self._check_ranks(definition, view)
        definition.lower(lowering)
        for index, number in enumerate(view.operation.outputs):
            if number not in lowering.results:
                raise InvalidOperationError(f"its lowering has made no output {index}")
            tensor = lowering.results[number]
            if number not in lowering.counts:
                check_declared(view.outputs[index], tensor.shape, f"output {index}")
            self._shapes[number] = tensor.shape
            self._made[number] = self._tensors[number] = tensor
        for number, count in lowering.counts.items():
            # Nothing reads the length of the others, so there is no reason to stop.
            if self._needed_after(number, view.index + 1):
                self._counts[number] = count

    def _check_ranks(self, definition: Definition, view: OpView) -> None:
        """Check inputs whose rank the model leaves open against the rules that depend on it."""
        opened = [dims_of(operand) is None for operand in view.inputs]
        if not any(opened):
            return
        now = OpView(self._subgraph, view.operation, self._constants, view.index)
        for index, (number, unknown) in enumerate(zip(view.operation.inputs, opened, strict=True)):
            if unknown and number in self._shapes:
                now.inputs[index] = replace(now.inputs[index], dimensions=self._shapes[number])
        problem = definition.problem(now)
        if problem:
            raise InvalidOperationError(problem)

    def _look(self, number: int) -> Array | None:
        if number in self._known:
            return self._known[number]
        made = self._made.get(number)
        if made is not None:
            return self._builder.value_of(made)
        return self._constants(self._subgraph.operands[number])

    def _read(self, number: int) -> Tensor:
        tensor = self._tensors.get(number)
        if tensor is None:
            operand = self._subgraph.operands[number]
            value = self._known.get(number)
            if value is None:
                value = self._constants(operand)
            if value is not None:
                tensor = self._builder.const(value, f"operand {number}")
            elif number in self._absent:
                raise InvalidOperationError(f"operand {number} has no value in this execution, and must have one")
            else:
                dtype = dtype_of(np.empty(0, self._vocabulary.storage_of(operand)))
                tensor = self._builder.input(f"operand {number}", self._shapes[number], dtype)
                self._inputs.append(number)
            self._tensors[number] = tensor
        return tensor

    def _finish(self, stop: int, ask: tuple[int, ...] = ()) -> Segment:
        # In order of creation, so that equal segments have equal fingerprints.
        wanted = [number for number in self._made if number in ask or self._needed_after(number, stop)]
        named = {f"operand {number}": self._made[number] for number in wanted}
        named |= {f"count {number}": tensor for number, tensor in self._counts.items()}
        outputs: list[Tensor] = []
        for name, tensor in named.items():
            # Each output has its own name: a tensor that is also an input, a constant or another output is copied.
            if tensor.is_constant or self._builder.is_input(tensor) or tensor in outputs:
                tensor = self._builder.add("reshape", [tensor], {"shape": tensor.shape}, f"copy of {tensor.name}")
            self._builder.rename(tensor, name)
            outputs.append(tensor)
        graph = self._builder.finish(outputs) if outputs else None
        return Segment(
            self._start, stop, graph, self._shapes, tuple(self._inputs), tuple(wanted), tuple(self._counts), ask
        )

    def _needed_after(self, number: int, stop: int) -> bool:
        later = self._subgraph.operations[stop:]
        return number in self._subgraph.outputIndexes or any(number in operation.inputs for operation in later)


def check_declared(operand: Operand, shape: Shape, where: str) -> None:
    """Raise InvalidOperationError if a shape contradicts the declaration of the operand."""
    declared = operand.dimensions
    if operand.type in SCALARS or not declared:
        return
    if len(declared) != len(shape) or any(d not in (0, s) for d, s in zip(declared, shape, strict=True)):
        raise InvalidOperationError(f"{where} is declared as {list(declared)}, the operation makes {list(shape)}")
