"""Segments of a subgraph: operations that run as one program, because none of them needs the host."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npusim.dtypes import DType, dtype_of
from npusim.errors import ModelError, UnsupportedError
from npusim.graph import Tensor
from npusim.ops.build import GraphBuilder
from npusim.plan import Array, PlanSteps, SegmentBuilder, Shape

from ..operations import Definition
from ..operations.lowering import InvalidOperationError, Lowering, operation_label
from ..operations.signature import operation_name, type_name
from ..operations.view import SCALARS, Constants, OpView, dims_of
from ..types import Operand, OperandType, OperationType, Subgraph

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

    ``known``: values that the host has read. ``absent``: operands without a value in this execution. ``half``: compute
    FLOAT32 as FLOAT16, with operations in the form that takes FLOAT16. Values keep their type between segments.
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
        half: bool = False,
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
        self._exact = exact_steps(subgraph) if half else range(len(subgraph.operations))
        self._tensors: dict[int, Tensor] = {}
        self._halves: dict[int, Tensor] = {}

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
        half = view.index not in self._exact
        halved = halved_view(view, definition, self._constants) if half else None
        view, read = (view, self._read) if halved is None else (halved, self._read_half)
        lowering = Lowering(view, self.builder, self.shapes, read, self._look, half=half, absent=self._absent)
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
            if self._subgraph.operands[number].type != view.outputs[index].type:
                self._halves[number] = tensor
                tensor = lowering.cast(tensor, DType.FLOAT32)
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

    def _read_half(self, number: int) -> Tensor:
        """A float operand as FLOAT16; others as they are."""
        tensor = self._halves.get(number)
        if tensor is None:
            tensor = self._read(number)
            if tensor.dtype is DType.FLOAT32:
                if tensor.data is not None:  # numbers out of range, such as masks, become the largest ones
                    tensor = self.builder.const(np.clip(tensor.data, -_LARGEST_HALF, _LARGEST_HALF).astype(np.float16))
                else:
                    tensor = self.builder.add("cast", [tensor], {"to": DType.FLOAT16}, f"half of {tensor.name}")
                self._halves[number] = tensor
        return tensor


_LARGEST_HALF = float(np.finfo(np.float16).max)
_HALF: Mapping[int, OperandType] = {
    OperandType.TENSOR_FLOAT32: OperandType.TENSOR_FLOAT16,
    OperandType.FLOAT32: OperandType.FLOAT16,
}
_EXACT = frozenset({OperationType.LSH_PROJECTION, OperationType.CAST})
"""Operations on bits and between types: rounded numbers would give other bits and other indices."""


def exact_steps(subgraph: Subgraph) -> set[int]:
    """The operations that must compute in FLOAT32 although others may not: those on exact numbers, and those that
    compute these numbers."""
    steps: set[int] = set()
    exact: set[int] = set()
    for step in reversed(range(len(subgraph.operations))):
        operation = subgraph.operations[step]
        if operation.type in _EXACT or not exact.isdisjoint(operation.outputs):
            steps.add(step)
            exact.update(operation.inputs)
    return steps


def halved_view(view: OpView, definition: Definition, constants: Constants) -> OpView | None:
    """An operation on FLOAT32 with its operands as FLOAT16. Scalars keep their exact value. None if the operation has
    no float operands, or no such form."""
    operands = [*view.inputs, *view.outputs]
    if not any(operand.type in _HALF for operand in operands):
        return None
    originals: dict[int, Operand] = {}

    def halved(operand: Operand) -> Operand:
        if operand.type not in _HALF:
            return operand
        changed = replace(operand, type=_HALF[operand.type])
        originals[id(changed)] = operand
        return changed

    found = OpView(
        view.subgraph, view.operation, lambda operand: constants(originals.get(id(operand), operand)), view.index
    )
    found.inputs = [halved(operand) for operand in view.inputs]
    found.outputs = [halved(operand) for operand in view.outputs]
    return found if definition.problem(found) is None else None


def check_declared(operand: Operand, shape: Shape, where: str) -> None:
    """Raise InvalidOperationError if a shape contradicts the declaration of the operand."""
    declared = operand.dimensions
    if operand.type in SCALARS or not declared:
        return
    if len(declared) != len(shape) or any(d not in (0, s) for d, s in zip(declared, shape, strict=True)):
        raise InvalidOperationError(f"{where} is declared as {list(declared)}, the operation makes {list(shape)}")
