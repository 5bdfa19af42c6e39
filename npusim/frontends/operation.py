"""The interface for importers of operators: refusals, values that decide the graph, constants and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from npusim.dtypes import MOST_SHOWN, DType, value_text
from npusim.errors import ModelError, NeedsValueError, UndecidedError, UnsupportedError
from npusim.graph import Graph, Tensor
from npusim.ops.base import Array
from npusim.ops.budget import Budget
from npusim.ops.build import GraphBuilder
from npusim.ops.emit import Emitter

MAX_TABLE = 1 << 24
"""Maximum number of elements of a tensor that an importer computes."""
TABLE_BYTES = 16
"""Bytes per element of such a tensor during the computation."""

MOST_DECIDING = MOST_SHOWN
"""Limit of the elements of an input whose value may determine shapes and branches. Larger inputs are data."""

PRINCIPAL = frozenset({"conv", "conv_transpose", "lrn", "matmul", "normalize", "pool", "reduce", "softmax", "topk"})
"""Kinds that do the main work of a node that becomes several operators."""
STUMBLES = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""Exceptions that numpy, protobuf and Python raise for invalid values."""


class Poison:
    """The output of a refused operator, so that its readers are not reported as well."""


POISON = Poison()


class ImportedOperation(Emitter):
    """One operation of a model file during import. ``op_type``: the operator's name in its format."""

    def __init__(self, builder: GraphBuilder, name: str, op_type: str) -> None:
        super().__init__(builder, name)
        self.op_type = op_type
        self.budget = builder.budget or Budget()
        self._follows = False  # whether it has read a value that depends on inputs

    # -- refusing -----------------------------------------------------------------------------------------------------

    def refuse(self, reason: str) -> NoReturn:
        """Raise UnsupportedError with this reason."""
        raise UnsupportedError([(self.name, self.op_type, reason)])

    def decided(self, tensor: Tensor, what: str, reason: str) -> Array:
        """A value that determines the graph, in storage form: a constant, or a value that follows from inputs of the
        run.

        ``what``: the name of the value. Refuses the node for ``reason`` if the value is unknown.
        """
        array = self.builder.value_of(tensor)
        if array is None and not self.builder.is_known(tensor):
            array = self.builder.decide(tensor, f"{self.name} ({self.op_type}): {what}")
            if array is None:
                self._refuse_unknown(tensor, reason)
        if array is None:
            self.refuse(f"{what} ({tensor.name!r}) is made of too many elements to be computed while importing")
        self._follows = self._follows or self.builder.follows(tensor)
        return array

    def _refuse_unknown(self, tensor: Tensor, reason: str) -> NoReturn:
        """Raise UnsupportedError, or NeedsValueError with the inputs that the value depends on."""
        inputs = self.builder.inputs_of(tensor)
        if inputs:
            reason = f"{reason}; it follows from input {', '.join(repr(source.name) for source in inputs)}"
        reasons = [(self.name, self.op_type, reason)]
        if inputs and all(source.size <= MOST_DECIDING for source in inputs):
            error: UndecidedError = NeedsValueError(reasons, {source.name: 1 for source in inputs})
        else:
            error = UndecidedError(reasons)
        error.value = tensor
        raise error

    def damaged(self, reason: str) -> NoReturn:
        """Raise ModelError with this reason."""
        raise ModelError(f"{self.name} ({self.op_type}): {reason}")

    # -- axes ---------------------------------------------------------------------------------------------------------

    def normal_axis(self, axis: int, rank: int) -> int:
        """An axis of a tensor of this rank, made non-negative. Raises ModelError if it is out of range."""
        if not -rank <= axis < rank:
            self.damaged(f"axis {axis} is outside a tensor of {rank} dimensions")
        return axis + rank if axis < 0 else axis

    def normal_axes(self, axes: Sequence[int], rank: int) -> list[int]:
        """Distinct axes made non-negative, in the given order. Raises ModelError for duplicates."""
        normal = [self.normal_axis(axis, rank) for axis in axes]
        if len(set(normal)) != len(normal):
            self.damaged(f"axes {list(axes)} name the same dimension twice")
        return normal

    # -- building -----------------------------------------------------------------------------------------------------

    def name_of(self, kind: str) -> str:
        """A unique name for an operator of this kind."""
        return f"{self.name}/{kind}"

    def add(self, kind: str, *inputs: Tensor | None, **attrs: Any) -> Tensor:
        """Add an operator with one output."""
        return self.emit(kind, inputs, attrs)

    def const(self, array: Any, dtype: DType | None = None) -> Tensor:
        """A constant. If it follows from input values, computing it is host work."""
        tensor = super().const(array, dtype)
        if self._follows:
            self.builder.mark(tensor, self.name, self.op_type)
        return tensor

    def iota(self, count: int) -> Tensor:
        """The integers from 0 to ``count`` - 1."""
        self.limit(count)
        return self.const(np.arange(count, dtype=np.int64))

    def limit(self, elements: int) -> None:
        """Refuse a table that is too large before it is computed."""
        if elements > MAX_TABLE:
            self.refuse(f"needs a table of {elements} elements; at most {MAX_TABLE} are supported")
        self.budget.take_bytes(elements * TABLE_BYTES, f"{self.name} ({self.op_type})")


def settle(graph: Graph, builder: GraphBuilder, arrays: Mapping[str, Any], bound: dict[str, str]) -> None:
    """Record the decisions by values of inputs. Inputs that only determine shapes are not inputs of the program.

    ``arrays``: the values of inputs. ``bound``: the values that the graph is made for, as text; the new ones are added.
    """
    read = {tensor for op in graph.ops for tensor in op.inputs}
    fixed = [tensor for tensor in builder.deciding if not tensor.dtype.is_float and tensor not in read]
    for tensor in fixed:
        bound[tensor.name] = value_text(np.asarray(arrays[tensor.name]))
    graph.inputs = tuple(tensor for tensor in graph.inputs if tensor not in fixed)
    graph.bound = tuple(bound.items())
    graph.host = builder.host_part(graph, fixed)
