"""Rewriting of graphs: replace operators, keep names unique, drop unused results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy.typing as npt

from npusim.dtypes import DType, dtype_of
from npusim.graph import Graph, Op, Tensor, live
from npusim.ops.base import REGISTRY
from npusim.ops.budget import Budget
from npusim.ops.names import Names
from npusim.polling import poll

_MOVED = frozenset({"transpose", "reshape", "slice", "gather"})
"""Kinds that only move elements. Importers leave large results of these to the compiler."""


class Rewriter:
    """Offers the operators of a graph to a rule, in order. Later operators read the new values instead of the old
    ones."""

    def __init__(self, graph: Graph, budget: Budget | None = None) -> None:
        self.graph = graph
        self.budget = budget or Budget()
        """For rules whose results may be much larger than the graph."""
        self.ops: dict[Op, None] = {}
        """The new operators in order; a dict, because rules also remove operators."""
        self.producer: dict[Tensor, Op] = {}
        self.uses: dict[Tensor, int] = {}
        self._replaced: dict[Tensor, Tensor] = {}
        self._origin: int | None = None
        self._outputs = set(graph.outputs)
        self._names = Names("~")
        for tensor in (*graph.inputs, *(output for op in graph.ops for output in op.outputs)):
            self._names.unique(tensor.name)
        for op in graph.ops:
            # A set, because an operator that reads a tensor twice is one reader.
            for tensor in {t for t in op.inputs if t is not None}:
                self.uses[tensor] = self.uses.get(tensor, 0) + 1
        for tensor in graph.outputs:
            self.uses[tensor] = self.uses.get(tensor, 0) + 1

    def run(self, rule: Callable[[Rewriter, Op], bool]) -> Graph:
        """Offer every operator to the rule, which returns True if it has replaced it. Returns the new graph."""
        for op in self.graph.ops:
            poll()
            self._origin = op.origin
            inputs = tuple(None if tensor is None else self.resolve(tensor) for tensor in op.inputs)
            same = all(new is old for new, old in zip(inputs, op.inputs, strict=True))
            current = op if same else Op(op.name, op.kind, inputs, op.outputs, op.attrs)
            if not rule(self, current):
                self.keep(current)
        # Drop operators whose results are no longer read.
        outputs = tuple(self.resolve(tensor) for tensor in self.graph.outputs)
        return Graph(self.graph.name, self.graph.inputs, outputs, live(tuple(self.ops), outputs))

    def resolve(self, tensor: Tensor) -> Tensor:
        """The tensor that has replaced a tensor of the original graph."""
        while tensor in self._replaced:
            tensor = self._replaced[tensor]
        return tensor

    def keep(self, op: Op) -> None:
        """Append an operator to the new graph."""
        if op.origin is None:  # created by the rule: it replaces the offered operator
            op.origin = self._origin
        self.ops[op] = None
        for tensor in op.outputs:
            self.producer[tensor] = op

    def made_by(self, tensor: Tensor | None, kind: str) -> Op | None:
        """The operator that produces a tensor, if it is of this kind; else None."""
        op = self.producer.get(tensor) if tensor is not None else None
        return op if op is not None and op.kind == kind else None

    def value_of(self, tensor: Tensor) -> npt.NDArray[Any] | None:
        """The elements of a constant, or of a moved constant; None for anything else."""
        if tensor.data is not None:
            return tensor.data
        op = self.producer.get(tensor)
        if op is None or op.kind not in _MOVED:
            return None
        arrays = [None if operand is None else self.value_of(operand) for operand in op.inputs]
        if any(array is None and operand is not None for array, operand in zip(arrays, op.inputs, strict=True)):
            return None
        (value,) = REGISTRY[op.kind].reference(op, arrays)
        return value

    def add(
        self, name: str, kind: str, inputs: Sequence[Tensor | None], attrs: Mapping[str, Any] | None = None
    ) -> Tensor:
        """Append an operator, with the shape and type that its kind infers. Returns its only output."""
        definition = REGISTRY[kind]
        complete = MappingProxyType(definition.complete(attrs or {}))
        ((shape, dtype),) = definition.infer(inputs, complete)
        output = self.tensor(name, shape, dtype)
        self.keep(Op(name, kind, tuple(inputs), (output,), complete))
        return output

    def tensor(self, name: str, shape: tuple[int, ...], dtype: DType) -> Tensor:
        """A new value with a unique name, for an operator that is passed to :meth:`keep`."""
        return Tensor(self._names.unique(name), shape, dtype)

    def const(self, name: str, data: npt.NDArray[Any], dtype: DType | None = None) -> Tensor:
        """A new constant with a unique name. ``data``: in the storage dtype."""
        return Tensor(self._names.unique(name), data.shape, dtype_of(data) if dtype is None else dtype, data)

    def substitute(self, old: Tensor, new: Tensor) -> None:
        """Replace ``old`` by ``new`` from here on.

        Outputs of the graph keep their tensor: the operator that has just produced the new value produces the output
        instead, or, if others read the value, the output is a view of it.
        """
        if old in self._outputs:
            maker, last = self.producer.get(new), next(reversed(self.ops), None)
            if maker is not None and maker is last and not self.uses.get(new) and maker.outputs == (new,):
                self.keep(Op(maker.name, maker.kind, maker.inputs, (old,), maker.attrs, maker.origin))
                del self.ops[maker]
            else:
                self.keep(Op(old.name, "reshape", (new,), (old,), MappingProxyType({"shape": old.shape})))
            return
        # Readers of the old value will read the new one, and a later rule that checks for a single use must count them
        # all.
        self.uses[new] = self.uses.get(new, 0) + self.uses.get(old, 0)
        self._replaced[old] = new
