"""GraphBuilder: make a Graph one operator at a time, each checked as it is added."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from npusim.dtypes import DType, dtype_of, to_storage
from npusim.errors import ModelError, UnsupportedError, UsageError
from npusim.graph import Graph, Op, Tensor
from npusim.ops.base import REGISTRY, Array, Attrs, Inputs, OpDef, Shape, narrow

MAX_ELEMENTS = 1 << 40
"""No tensor may have more elements: what is larger is a damaged or hostile model."""
MAX_FOLDED_BYTES = 1 << 20
"""A folded result may be this large, or as large as the constants that it came from."""
_VIEWS = frozenset({"reshape", "transpose", "slice", "expand"})
_NEVER_FOLDED = frozenset({"dequantize"})
"""Quantised weights stay integers, for the compiler to compute with."""


class Names:
    """Hands out names that are different from each other."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """``name``, or the first of ``name_1``, ``name_2``, ... that is free; it is taken from now on."""
        candidate = name
        while candidate in self._taken:
            self._taken[name] += 1
            candidate = f"{name}_{self._taken[name]}"
        self._taken[candidate] = 0
        return candidate


class GraphBuilder:
    """Collects inputs, constants and operators of one graph.

    With ``fold`` an operator whose inputs are all constant is computed by its reference and becomes a constant, unless
    that would be larger than its inputs and :data:`MAX_FOLDED_BYTES`. Constants may be read-only views.
    """

    def __init__(self, name: str, *, fold: bool = False) -> None:
        self.name = name
        self._fold = fold
        self._inputs: list[Tensor] = []
        self._ops: list[Op] = []
        self._producer: dict[Tensor, Op] = {}
        self._tensor_names = Names()
        self._op_names = Names()

    def input(self, name: str, shape: Sequence[int], dtype: DType) -> Tensor:
        """A new graph input; the name must be free."""
        if self._tensor_names.unique(name) != name:
            raise ModelError(f"the name {name!r} is already taken by another tensor")
        tensor = Tensor(name, checked_shape(shape, name), dtype)
        self._inputs.append(tensor)
        return tensor

    def const(self, array: Any, name: str | None = None, dtype: DType | None = None) -> Tensor:
        """A constant from an array or scalar; ``dtype`` converts (uint16 for BFLOAT16 is taken as bit patterns)."""
        data = np.asarray(array)
        if dtype is None:
            dtype = dtype_of(data)
            data = to_storage(data)
        elif data.dtype != dtype.storage:
            data = to_storage(data)
            if not (dtype is DType.BFLOAT16 and data.dtype == np.uint16):
                data = narrow(data, dtype)
        return Tensor(self._tensor_names.unique(name or "const"), data.shape, dtype, data)

    def add(self, kind: str, inputs: Inputs, attrs: Attrs | None = None, name: str | None = None) -> Tensor:
        """Add an operator and return its output; kinds with several outputs need :meth:`add_all`.

        Raises ModelError for operands that contradict each other, UnsupportedError for what npusim does not do.
        """
        outputs = self.add_all(kind, inputs, attrs, name)
        if len(outputs) != 1:
            raise UsageError(f"{kind} has {len(outputs)} outputs: use add_all")
        return outputs[0]

    def add_all(self, kind: str, inputs: Inputs, attrs: Attrs | None = None, name: str | None = None) -> list[Tensor]:
        """Add an operator and return all of its outputs."""
        definition = REGISTRY.get(kind)
        if definition is None:
            raise UsageError(f"unknown operator kind {kind!r}; known: {', '.join(sorted(REGISTRY))}")
        label = self._op_names.unique(name or kind)
        try:
            definition.check_arity(inputs)
            complete = MappingProxyType(definition.complete(attrs or {}))
            results = definition.infer(inputs, complete)
            shapes = [checked_shape(shape, label) for shape, _ in results]
        except ModelError as error:
            raise ModelError(f"{label} ({kind}): {error}") from None
        names = [self._tensor_names.unique(f"{label}:{index}" if index else label) for index in range(len(results))]
        outputs = tuple(Tensor(n, s, dtype) for n, s, (_, dtype) in zip(names, shapes, results, strict=True))
        op = Op(label, kind, tuple(inputs), outputs, complete)
        check_constraints(op, definition)
        if self._fold and self._foldable(op):
            self._compute(op, definition)
            return list(outputs)
        self._ops.append(op)
        for output in outputs:
            self._producer[output] = op
        return list(outputs)

    def value_of(self, tensor: Tensor) -> Array | None:
        """The array of a constant, or of a tensor computed from constants only; None for anything else."""
        if tensor.data is not None:
            return tensor.data
        op = self._producer.get(tensor)
        if op is None or tensor.nbytes > MAX_FOLDED_BYTES:
            return None
        arrays: list[Array | None] = []
        for operand in op.inputs:
            value = None if operand is None else self.value_of(operand)
            if operand is not None and value is None:
                return None
            arrays.append(value)
        return REGISTRY[op.kind].reference(op, arrays)[op.outputs.index(tensor)]

    @property
    def op_count(self) -> int:
        """Operators added so far."""
        return len(self._ops)

    def ops_since(self, count: int) -> list[Op]:
        """The operators added since there were ``count``."""
        return self._ops[count:]

    def is_input(self, tensor: Tensor) -> bool:
        """Whether the tensor is an input of the graph."""
        return any(tensor is known for known in self._inputs)

    def reserve(self, names: Iterable[str]) -> None:
        """Keep tensor names for :meth:`rename`: nothing else gets them."""
        for name in names:
            self._tensor_names.unique(name)

    def rename(self, tensor: Tensor, name: str, *, reserved: bool = False) -> None:
        """Give a tensor that this builder made another name; made unique unless it is a reserved one."""
        if tensor.name != name:
            tensor.name = name if reserved else self._tensor_names.unique(name)

    def finish(self, outputs: Sequence[Tensor]) -> Graph:
        """The validated graph without operators that no output needs."""
        needed = set(outputs)
        kept: list[Op] = []
        for op in reversed(self._ops):
            if any(output in needed for output in op.outputs):
                kept.append(op)
                needed.update(tensor for tensor in op.inputs if tensor is not None)
        graph = Graph(self.name, tuple(self._inputs), tuple(outputs), tuple(reversed(kept)))
        graph.validate()
        return graph

    def _foldable(self, op: Op) -> bool:
        operands = [tensor for tensor in op.inputs if tensor is not None]
        if op.kind in _NEVER_FOLDED or not all(tensor.is_constant for tensor in operands):
            return False
        if op.kind in _VIEWS:
            return sum(output.nbytes for output in op.outputs) <= 1 << 32
        size = sum(output.nbytes for output in op.outputs)
        return size <= max(MAX_FOLDED_BYTES, sum(tensor.data.nbytes for tensor in operands if tensor.data is not None))

    def _compute(self, op: Op, definition: OpDef) -> None:
        arrays = [None if tensor is None else tensor.data for tensor in op.inputs]
        for output, array in zip(op.outputs, definition.reference(op, arrays), strict=True):
            output.data = array


def checked_shape(shape: Sequence[int], name: str) -> Shape:
    """The shape as a tuple of ints; raises ModelError for a negative dimension or an absurd size."""
    dims = tuple(int(dim) for dim in shape)
    elements = 1
    for dim in dims:
        if dim < 0:
            raise ModelError(f"{name}: dimensions must be >= 0, got {list(dims)}")
        elements *= dim
    if elements > MAX_ELEMENTS:
        raise ModelError(f"{name}: shape {list(dims)} has {elements} elements, at most {MAX_ELEMENTS} are possible")
    return dims


def check_constraints(op: Op, definition: OpDef) -> None:
    """Raise UnsupportedError with the docstring of every constraint that the operator breaks."""
    types = ", ".join(tensor.dtype.label for tensor in op.inputs if tensor is not None)
    broken = [c for c in definition.constraints if not c(op.inputs, op.attrs)]
    if broken:
        raise UnsupportedError([(op.name, op.kind, f"{(c.__doc__ or '').strip()} (got {types})") for c in broken])
