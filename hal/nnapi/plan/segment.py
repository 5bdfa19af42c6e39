"""Segments of a subgraph: operations that run as one program, because none of them needs the host."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npusim.dtypes import dtype_of
from npusim.errors import ModelError, UnsupportedError
from npusim.graph import Tensor
from npusim.ops.build import GraphBuilder
from npusim.plan import Array, PlanSteps, SegmentBuilder, Shape

from ..operations import Definition
from ..operations.lowering import InvalidOperationError, Lowering, operation_label
from ..operations.signature import operation_name, type_name
from ..operations.view import SCALARS, Constants, OpView, dims_of
from ..types import Operand, OperationType, Subgraph

CONTROL = (OperationType.IF, OperationType.WHILE)


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


def steps_of(subgraph: Subgraph) -> PlanSteps:
    """The operations of a subgraph as steps of a plan; values have the numbers of their operands."""
    operations = subgraph.operations
    reads, writes = [each.inputs for each in operations], [each.outputs for each in operations]
    return PlanSteps(subgraph.inputIndexes, subgraph.outputIndexes, reads, writes)


class OperationBuilder(SegmentBuilder):
    """Lowers operations of one subgraph.

    ``known``: values that the host has read. ``absent``: operands without a value in this execution.
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
        super().__init__(steps_of(subgraph), GraphBuilder(name, fold=True), start, shapes, stop)
        self._subgraph = subgraph
        self._constants = constants
        self._vocabulary = vocabulary
        self._known = known
        self._absent = absent
        self._relaxed = relaxed
        self._tensors: dict[int, Tensor] = {}

    def is_decision(self, step: int) -> bool:
        """See SegmentBuilder."""
        return self._subgraph.operations[step].type in CONTROL

    def label(self, number: int) -> str:
        """See SegmentBuilder."""
        return f"operand {number}"

    def lower(self, step: int) -> bool:
        """See SegmentBuilder. Raises InvalidOperationError, UnsupportedError, which name the operation."""
        view = OpView(self._subgraph, self._subgraph.operations[step], self._constants, step)
        try:
            self._lower(view)
        except (InvalidOperationError, ModelError) as error:
            kind = operation_name(view.operation.type)
            raise InvalidOperationError(f"operation {step} ({kind}): {error}") from None
        return True

    def _lower(self, view: OpView) -> None:
        definition = self._vocabulary.definition_of(view)
        lowering = Lowering(
            view, self.builder, self.shapes, self._read, self._look, relaxed=self._relaxed, absent=self._absent
        )
        for number in view.operation.inputs:
            if number not in self.shapes and number not in self._absent:
                self.shapes[number] = tuple(self._subgraph.operands[number].dimensions)
        self._check_ranks(definition, view)
        definition.lower(lowering)
        for index, number in enumerate(view.operation.outputs):
            if number not in lowering.results:
                raise InvalidOperationError(f"its lowering has made no output {index}")
            tensor = lowering.results[number]
            if number not in lowering.counts:
                check_declared(view.outputs[index], tensor.shape, f"output {index}")
            self.shapes[number] = tensor.shape
            self.made[number] = self._tensors[number] = tensor
        for number, count in lowering.counts.items():
            self.add_count(number, count, view.index)

    def _check_ranks(self, definition: Definition, view: OpView) -> None:
        """Check inputs whose rank the model leaves open against the rules that depend on it."""
        opened = [dims_of(operand) is None for operand in view.inputs]
        if not any(opened):
            return
        now = OpView(self._subgraph, view.operation, self._constants, view.index)
        for index, (number, unknown) in enumerate(zip(view.operation.inputs, opened, strict=True)):
            if unknown and number in self.shapes:
                now.inputs[index] = replace(now.inputs[index], dimensions=self.shapes[number])
        problem = definition.problem(now)
        if problem:
            raise InvalidOperationError(problem)

    def _look(self, number: int) -> Array | None:
        if number in self._known:
            return self._known[number]
        made = self.made.get(number)
        if made is not None:
            return self.builder.value_of(made)
        return self._constants(self._subgraph.operands[number])

    def _read(self, number: int) -> Tensor:
        tensor = self._tensors.get(number)
        if tensor is None:
            operand = self._subgraph.operands[number]
            value = self._known.get(number)
            if value is None:
                value = self._constants(operand)
            if value is not None:
                tensor = self.builder.const(value, f"operand {number}")
            elif number in self._absent:
                raise InvalidOperationError(f"operand {number} has no value in this execution, and must have one")
            else:
                dtype = dtype_of(np.empty(0, self._vocabulary.storage_of(operand)))
                tensor = self.builder.input(f"operand {number}", self.shapes[number], dtype)
                self.inputs[number] = tensor
            self._tensors[number] = tensor
        return tensor


def check_declared(operand: Operand, shape: Shape, where: str) -> None:
    """Raise InvalidOperationError if a shape contradicts the declaration of the operand."""
    declared = operand.dimensions
    if operand.type in SCALARS or not declared:
        return
    if len(declared) != len(shape) or any(d not in (0, s) for d, s in zip(declared, shape, strict=True)):
        raise InvalidOperationError(f"{where} is declared as {list(declared)}, the operation makes {list(shape)}")
