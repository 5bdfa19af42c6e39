"""Functions of single 8-bit values as tables: exporters quantise each node of SiLU, hard swish, mish and others.

The table contains what the vector unit computes for each of the 256 values, so results are bit-identical.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from npusim._core import Strided
from npusim.compiler.passes.rewrite import Rewriter
from npusim.dtypes import DType
from npusim.graph import Graph, Op, Tensor
from npusim.hw.config import Config
from npusim.isa.vector import ENTRIES
from npusim.ops.base import REGISTRY, ElementForm, Place
from npusim.units import ceil_div
from npusim.work import VectorWork

_BYTES = (DType.INT8, DType.UINT8)
_LONGEST = 64
"""Maximum number of operators in a function."""


def tabulate(graph: Graph, config: Config) -> Graph:
    """Replace functions of one 8-bit value by tables if the vector unit looks up a value faster than it computes the
    function."""
    vector = config.vector
    if vector is None or not any(op.kind == "quantize" for op in graph.ops):
        return graph
    return Rewriter(graph).run(_Tables(graph, vector.cost).rule)


class _Tables:
    """The rewrite rule. It also looks through tables that it created, because a longer function is no slower."""

    def __init__(self, graph: Graph, cost: Mapping[str, int]) -> None:
        self._cost = cost
        self._places = {tensor: place for place, op in enumerate(graph.ops) for tensor in op.outputs}
        self._makers: dict[Tensor, Op] = {}

    def rule(self, rewriter: Rewriter, op: Op) -> bool:
        """Replace a quantisation by the table of the function that it ends."""
        if op.kind != "quantize" or op.output.dtype not in _BYTES or not op.output.shape:
            return False
        found = self._function(rewriter, op)
        if found is None or sum(_price(each, self._cost) for each in found[1]) <= self._cost["transcendental"]:
            return False
        x, ops = found
        attrs = {"to": op.output.dtype, "table": _computed(x, ops)}
        value = rewriter.add(f"{op.name}.table", "lookup", (x,), attrs)
        self._makers[value] = Op(op.name, op.kind, op.inputs, (value,), op.attrs)
        self._places[value] = self._places[op.output]
        rewriter.substitute(op.output, value)
        return True

    def _function(self, rewriter: Rewriter, op: Op) -> tuple[Tensor, list[Op]] | None:
        """The only 8-bit value that a result depends on, and the operators between them, in order; None if there is
        none."""
        found, ops = None, [op]
        pending = {tensor for tensor in op.inputs if tensor is not None and tensor.data is None}
        while pending and len(ops) <= _LONGEST:
            # The value that is computed last: everything that reads it is already among the operators.
            last = max(pending, key=lambda tensor: self._places.get(tensor, -1))
            if len(pending) == 1 and last.dtype in _BYTES and last.shape == op.output.shape:
                found = last, ops[::-1]
            # Other operators read the result of a table: a second table for its operand would keep the operand, too.
            if last in self._makers and rewriter.uses[last] > 1:
                break
            maker = self._makers.get(last) or rewriter.producer.get(last)
            if maker is None or not _is_scalar_function(maker, op.output.shape):
                break
            ops.append(maker)
            pending.discard(last)
            pending |= {tensor for tensor in maker.inputs if tensor is not None and tensor.data is None}
        return found


def _is_scalar_function(op: Op, shape: Sequence[int]) -> bool:
    """Whether each element of the result is the same function of the elements at its position."""
    if not isinstance(REGISTRY[op.kind].form, ElementForm) or op.kind == "lookup" or op.output.shape != shape:
        return False
    known = all(t is None or t.data is None or (t.size == 1 and not t.bound) for t in op.inputs)
    return known and all(t is None or t.data is not None or t.shape == shape for t in op.inputs)


class _Memory:
    """A memory in which instructions process all values of a type."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self.at_of: dict[Tensor, Place] = {}

    def place(self, tensor: Tensor) -> Place:
        """The place of a tensor: one repeated element for a constant, otherwise one element per value."""
        if tensor not in self.at_of:
            item, start = tensor.dtype.itemsize, ceil_div(len(self.bytes), 8) * 8
            count = ENTRIES if tensor.data is None else 1
            self.bytes.extend(bytes(start + count * item - len(self.bytes)))
            if tensor.data is not None:
                self.bytes[start:] = np.ascontiguousarray(tensor.data.reshape(-1)).tobytes()
            self.at_of[tensor] = start, (0, 0, 0, item if count > 1 else 0)
        return self.at_of[tensor]

    def at(self, core: int, address: int, strides: tuple[int, ...] = ()) -> Strided:
        """The memory interface that instructions use."""
        return Strided(self.bytes, address, strides)


def _form(op: Op) -> ElementForm:
    form = REGISTRY[op.kind].form
    assert isinstance(form, ElementForm)
    return form


def _computed(x: Tensor, ops: Sequence[Op]) -> bytes:
    """The results of the vector unit for each value of ``x``'s type, in ascending order."""
    memory = _Memory()
    start, _ = memory.place(x)
    low = int(np.iinfo(x.dtype.storage).min)
    memory.bytes[start : start + ENTRIES] = np.arange(low, low + ENTRIES).astype(x.dtype.storage).tobytes()
    last = ops[-1].output
    for op in ops:
        for tensor in (op.output, *op.inputs):
            if tensor is not None:
                memory.place(tensor)
    for op in ops:
        places = [memory.place(tensor) for tensor in (op.output, *op.inputs) if tensor is not None]
        _form(op).instruction(op, places, (1, 1, 1, ENTRIES)).execute(memory, 0)
    start, _ = memory.place(last)
    return bytes(memory.bytes[start : start + ENTRIES * last.dtype.itemsize])


def _price(op: Op, cost: Mapping[str, int]) -> int:
    """Cycles per element in a lane."""
    nowhere: Place = (0, (0, 0, 0, 0))
    places = [nowhere for tensor in (op.output, *op.inputs) if tensor is not None]
    work = _form(op).instruction(op, places, (1, 1, 1, 1)).work()
    assert isinstance(work, VectorWork)
    return cost[work.function] * work.passes
