"""GraphBuilder: builds a Graph one operator at a time, each checked when it is added."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from npusim.dtypes import DType, dtype_of, from_storage, to_storage, value_text
from npusim.errors import ModelError, UnsupportedError, UsageError
from npusim.graph import Graph, HostPart, HostWork, Op, Tensor, live
from npusim.ops.base import REGISTRY, Array, Attrs, Folding, Inputs, Shape, narrow
from npusim.ops.budget import OPERATOR_STEPS, Budget
from npusim.ops.guard import Guard
from npusim.ops.names import Names
from npusim.polling import poll

MAX_ELEMENTS = 1 << 40
"""Most elements of a tensor."""
MAX_FOLDED_BYTES = 1 << 20
"""Largest folded result in bytes, unless its constants are larger."""
MAX_RANK = 64
"""Most dimensions of a tensor, the limit of numpy."""
MAX_VIEW_BYTES = 1 << 32
"""Largest apparent size in bytes of a folded result that is a view."""

MAX_TRACED = 1 << 20
"""Most tensors that :meth:`GraphBuilder.inputs_of` visits in total."""


class GraphBuilder:
    """Collects inputs, constants and operators of one graph.

    With ``fold``, an operator on constants is computed by its reference and becomes a constant, unless that would be
    larger than its inputs and :data:`MAX_FOLDED_BYTES`. Constants may be read-only views. ``origin``: set on added
    operators, see ``Op``. Operators and computed bytes count against ``budget``, if given.
    """

    def __init__(self, name: str, *, fold: bool = False, budget: Budget | None = None) -> None:
        self.name = name
        self.budget = budget
        self.origin: int | None = None
        self._fold = fold
        self._inputs: dict[Tensor, None] = {}
        self._ops: list[Op] = []
        self._derived: dict[Tensor, Op] = {}
        self._known: set[Tensor] = set()
        self._values: dict[Tensor, Array] = {}
        self._follows: set[Tensor] = set()  # known for a run: inputs, and values computed from them
        self._computed: dict[Op, None] = {}  # operators computed on the host for them
        self._made: list[HostWork] = []  # and host work recorded by importers
        self._decisions: dict[Tensor, str] = {}
        self._makers: dict[Tensor, Op] = {}  # producers in the first ``_mapped`` operators
        self._mapped = self._traced = 0
        self._tensor_names = Names()
        self._op_names = Names()

    def input(self, name: str, shape: Sequence[int], dtype: DType, value: Array | None = None) -> Tensor:
        """A new graph input; the name must be unused. ``value``: its value in storage form in the run that the graph is
        made for, for :meth:`decide`; it is not folded."""
        if self._tensor_names.unique(name) != name:
            raise ModelError(f"the name {name!r} is already taken by another tensor")
        tensor = Tensor(name, checked_shape(shape, name), dtype)
        self._inputs[tensor] = None
        if value is not None:
            self._values[tensor] = value
            self._follows.add(tensor)
        return tensor

    def const(self, array: Any, name: str | None = None, dtype: DType | None = None) -> Tensor:
        """A constant from an array or scalar; ``dtype`` converts (uint16 for BFLOAT16 is taken as bit patterns)."""
        data = np.asarray(array)
        if dtype is None:
            dtype = dtype_of(data)
            data = to_storage(data)
        elif data.dtype != dtype.storage:
            data = to_storage(data)
            # numpy has no bfloat16: its bits are stored as uint16, which must not be converted as numbers.
            if not (dtype is DType.BFLOAT16 and data.dtype == np.uint16):
                data = narrow(data, dtype)
        return Tensor(self._tensor_names.unique(name or "const"), data.shape, dtype, data)

    def add(self, kind: str, inputs: Inputs, attrs: Attrs | None = None, name: str | None = None) -> Tensor:
        """Add an operator and return its output; kinds with several outputs need :meth:`add_all`.

        Raises ModelError for inconsistent operands, UnsupportedError for unsupported ones.
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
        poll()
        if self.budget is not None:
            self.budget.take_steps(OPERATOR_STEPS, label)
        try:
            definition.check_arity(inputs)
            complete = MappingProxyType(definition.complete(attrs or {}))
            results = definition.infer(inputs, complete)
            shapes = [checked_shape(shape, label) for shape, _ in results]
        except ModelError as error:
            raise ModelError(f"{label} ({kind}): {error}") from None
        if any(len(shape) > MAX_RANK for shape in shapes):
            raise UnsupportedError([(label, kind, f"tensors of up to {MAX_RANK} dimensions are supported")])
        base = name or kind
        names = [self._tensor_names.unique(f"{base}:{index}" if index else base) for index in range(len(results))]
        outputs = tuple(Tensor(n, s, dtype) for n, s, (_, dtype) in zip(names, shapes, results, strict=True))
        op = Op(label, kind, tuple(inputs), outputs, complete, self.origin)
        broken = [constraint for constraint in definition.constraints if not constraint(op.inputs, op.attrs)]
        if broken:
            types = ", ".join(tensor.dtype.label for tensor in op.inputs if tensor is not None)
            raise UnsupportedError([(op.name, op.kind, f"{(c.__doc__ or '').strip()} (got {types})") for c in broken])
        if self._fold and self._foldable(op, definition.folding):
            arrays = [None if tensor is None else tensor.data for tensor in op.inputs]
            for output, array in zip(op.outputs, self._compute(op, arrays), strict=True):
                output.data = array
            self._note(op)
            return list(outputs)
        self._ops.append(op)
        if all(tensor is None or self.is_known(tensor) for tensor in op.inputs):
            self._known.update(outputs)
        if all(tensor is None or tensor.is_constant or tensor in self._derived for tensor in op.inputs):
            # Frontends read shapes and sizes from such values; larger ones are data, and computing them here would
            # double the time.
            self._derived.update((output, op) for output in outputs if output.nbytes <= MAX_FOLDED_BYTES)
        return list(outputs)

    def is_known(self, tensor: Tensor) -> bool:
        """Whether the tensor follows from constants alone, even if it is too large to be folded."""
        return tensor.is_constant or tensor in self._known

    def value_of(self, tensor: Tensor) -> Array | None:
        """The array of a constant, or of a small tensor computed from constants only; None for anything else."""
        if tensor.data is not None:
            return tensor.data
        return self._evaluated(tensor, self._derived) if tensor in self._derived else None

    def decide(self, tensor: Tensor, what: str) -> Array | None:
        """The value of a tensor for the known values of inputs; None if it depends on an input without one.

        The host computes it. The graph is then only valid for inputs that give this value; ``what`` describes it. See
        :meth:`host_part`.
        """
        self._map_makers()
        value = self._evaluated(tensor, self._makers)
        if value is not None:
            self._decisions.setdefault(tensor, what)
        return value

    def _evaluated(self, tensor: Tensor, makers: Mapping[Tensor, Op]) -> Array | None:
        """The value by references; None if an operand has neither a value nor a producer."""
        # An explicit stack, because shape arithmetic in exported models can be deeper than Python's recursion limit.
        pending = [tensor]
        while pending:
            current = pending[-1]
            if current in self._values:
                pending.pop()
                continue
            op = makers.get(current)
            if op is None:
                return None
            missing = [t for t in op.inputs if t is not None and t.data is None and t not in self._values]
            if missing:
                pending += missing
                continue
            arrays = [None if t is None else self._values[t] if t.data is None else t.data for t in op.inputs]
            self._values.update(zip(op.outputs, self._compute(op, arrays), strict=True))
            self._note(op)
        return self._values[tensor]

    def follows(self, tensor: Tensor | None) -> bool:
        """Whether the host has a value of the tensor that follows from known or bound inputs."""
        return tensor in self._follows

    def mark(self, tensor: Tensor, name: str = "", kind: str = "") -> None:
        """Record that a constant depends on values of inputs. With a name and a kind: the host has computed it from
        them."""
        self._follows.add(tensor)
        tensor.bound = True
        if kind:
            self._made.append(HostWork(name, kind, 0, tensor.size))

    def _note(self, op: Op) -> None:
        """Record an operator computed by the host, unless it only depends on constants of the model."""
        if any(tensor in self._follows for tensor in op.inputs):
            self._follows.update(op.outputs)
            self._computed[op] = None
            for tensor in op.outputs:
                tensor.bound = tensor.is_constant

    @property
    def deciding(self) -> list[Tensor]:
        """The inputs with a value that decisions depend on."""
        self._map_makers()
        pending, seen = list(self._decisions), set(self._decisions)
        while pending:
            op = self._makers.get(pending.pop())
            new = {operand for operand in (op.inputs if op else ()) if operand is not None} - seen
            seen |= new
            pending += new
        return [tensor for tensor in self._inputs if tensor in seen]

    def host_part(self, graph: Graph, fixed: Sequence[Tensor]) -> HostPart:
        """The work of the host and its decisions for a graph, to check the inputs of a run.

        ``fixed``: inputs whose values are part of the graph; values that depend on them alone are not decisions of a
        run.
        """
        constants = {tensor: None for op in graph.ops for tensor in op.inputs if tensor is not None and tensor.bound}
        left = [HostWork(tensor.name, "constant", 0, tensor.size) for tensor in constants]
        work = (*map(_work_of, self._computed), *self._made, *left)
        deciding = self.deciding
        names = tuple(tensor.name for tensor in deciding)
        if len(deciding) == len(fixed):
            return HostPart(work, deciding=names)
        decided = tuple(self._decisions)
        needed = Graph(self.name, tuple(deciding), decided, live(self._ops, decided))
        texts = tuple(value_text(from_storage(self._values[tensor], tensor.dtype)) for tensor in decided)
        guard = Guard(needed, tuple(self._decisions.values()), texts, {t.name: self._values[t] for t in fixed})
        return HostPart(work, tuple(zip(guard.what, texts, strict=True)), guard, names)

    def _map_makers(self) -> None:
        self._makers.update((output, op) for op in self._ops[self._mapped :] for output in op.outputs)
        self._mapped = len(self._ops)

    def inputs_of(self, tensor: Tensor) -> list[Tensor]:
        """The graph inputs that a tensor depends on; none once the limit of visited tensors is reached."""
        self._map_makers()
        pending, seen = [tensor], {tensor}
        while pending and self._traced < MAX_TRACED:
            op = self._makers.get(pending.pop())
            new = {operand for operand in (op.inputs if op else ()) if operand is not None} - seen
            seen |= new
            pending += new
            self._traced += 1
        return [] if pending else [known for known in self._inputs if known in seen]

    def reached(self, tensor: Tensor, ends: Mapping[Tensor, object]) -> list[Tensor]:
        """The tensors in ``ends`` that a tensor depends on, itself included; not those behind them."""
        self._map_makers()
        pending, seen, found = [tensor], {tensor}, []
        while pending:
            current = pending.pop()
            if current in ends:
                found.append(current)
                continue
            op = self._makers.get(current)
            new = {operand: None for operand in (op.inputs if op else ()) if operand is not None}
            pending += [operand for operand in new if operand not in seen]
            seen.update(new)
        return found

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The inputs so far."""
        return tuple(self._inputs)

    def _compute(self, op: Op, arrays: Sequence[Array | None]) -> list[Array]:
        kind = REGISTRY[op.kind]
        if self.budget is not None and kind.folding is not Folding.VIEW:
            # Including operands: a view may repeat one element, and reading it takes time by its apparent size.
            tensors = {t for t in (*op.inputs, *op.outputs) if t is not None}
            count = sum(tensor.nbytes for tensor in tensors) + _terms(op)
            self.budget.take_bytes(count, f"{op.name} ({op.kind})")
        return kind.reference(op, arrays)

    @property
    def op_count(self) -> int:
        """Operators added so far."""
        return len(self._ops)

    def ops_since(self, count: int) -> list[Op]:
        """The operators added since there were ``count``."""
        return self._ops[count:]

    def bypass(self, ops: Collection[Op]) -> dict[Tensor, Tensor]:
        """Remove operators whose results are their operands. Returns the operand of each result."""
        instead: dict[Tensor, Tensor] = {}
        removed = set(map(id, ops))
        for op in self._ops:
            op.inputs = tuple([each and instead.get(each, each) for each in op.inputs])
            if id(op) in removed:
                instead.update((out, each) for out, each in zip(op.outputs, op.inputs, strict=False) if each)
        self._map_makers()
        self._ops = [op for op in self._ops if id(op) not in removed]
        self._mapped = len(self._ops)
        return instead

    @property
    def decided(self) -> int:
        """The number of values that the host has decided about so far."""
        return len(self._decisions)

    def is_input(self, tensor: Tensor) -> bool:
        """Whether the tensor is an input of the graph."""
        return tensor in self._inputs

    def reserve(self, names: Iterable[str]) -> None:
        """Reserve tensor names for :meth:`rename`."""
        for name in names:
            self._tensor_names.unique(name)

    def rename(self, tensor: Tensor, name: str, *, reserved: bool = False) -> None:
        """Rename a tensor made by this builder; the name is made unique unless it is a reserved one."""
        if tensor.name != name:
            tensor.name = name if reserved else self._tensor_names.unique(name)

    def rename_op(self, op: Op, name: str) -> None:
        """Rename an operator. The name is made unique among operators."""
        op.name = self._op_names.unique(name)

    def finish(self, outputs: Sequence[Tensor]) -> Graph:
        """The validated graph without operators that no output needs."""
        graph = Graph(self.name, tuple(self._inputs), tuple(outputs), live(self._ops, outputs))
        graph.validate()
        return graph

    def _foldable(self, op: Op, folding: Folding) -> bool:
        operands = [tensor for tensor in op.inputs if tensor is not None]
        if not all(tensor.is_constant for tensor in operands):
            return False
        size = sum(output.nbytes for output in op.outputs)
        apparent = sum(tensor.nbytes for tensor in operands)
        if op.kind == "reshape" and real_bytes(operands[0]) <= operands[0].dtype.itemsize:
            folding = Folding.VIEW  # a view that repeats one element; numpy would copy other views
        match folding:
            case Folding.NEVER:
                return False
            case Folding.VIEW:
                return size <= MAX_VIEW_BYTES
            case Folding.HEAVY:
                return size + apparent <= MAX_FOLDED_BYTES
            case Folding.PLAIN:
                real = sum(real_bytes(tensor) for tensor in operands)
                # A repeating view takes no memory, but time in proportion to its apparent size, and its result would
                # take both.
                return size <= max(MAX_FOLDED_BYTES, real) and apparent <= max(64 * MAX_FOLDED_BYTES, real)


def _terms(op: Op) -> int:
    """Number of terms that a reference computes beyond its operands and results, for results that are sums of many
    terms."""
    if op.kind == "matmul":
        return macs(op)
    if op.kind not in ("conv", "conv_transpose", "pool"):
        return 0
    window = math.prod(op.attrs["kernel"] if op.kind == "pool" else op.input(1).shape[1:])
    # Windows are copied contiguously before they are multiplied or compared.
    return op.output.size * window * op.input(0).dtype.itemsize


def macs(op: Op) -> int:
    """Multiply-accumulates of an operator."""
    if op.kind == "matmul":
        return op.output.size * op.input(0).shape[-1]
    if op.kind not in ("conv", "conv_transpose"):
        return 0
    spread = op.output if op.kind == "conv" else op.input(0)
    return spread.size * math.prod(op.input(1).shape[1:])


def _work_of(op: Op) -> HostWork:
    tensors = [tensor for tensor in (*op.inputs, *op.outputs) if tensor is not None]
    count = macs(op)
    return HostWork(op.name, op.kind, count, count or sum(tensor.size for tensor in tensors))


def real_bytes(constant: Tensor) -> int:
    """Bytes of a constant in memory, without the repetitions of a broadcast view."""
    if constant.data is None:
        return 0
    pairs = zip(constant.data.shape, constant.data.strides, strict=True)
    return constant.dtype.itemsize * int(math.prod(dim for dim, stride in pairs if stride or not dim))


def checked_shape(shape: Sequence[int], name: str) -> Shape:
    """The shape as a tuple of ints; raises ModelError for a negative dimension, UnsupportedError for a huge size."""
    # As Python integers, because the product of a hostile shape would overflow in numpy's and seem small.
    dims = tuple(int(dim) for dim in shape)
    elements = 1
    for dim in dims:
        if dim < 0:
            raise ModelError(f"{name}: dimensions must be >= 0, got {list(dims)}")
        elements *= dim
    if elements > MAX_ELEMENTS:
        reason = f"shape {list(dims)} has {elements} elements, at most {MAX_ELEMENTS} are supported"
        raise UnsupportedError([(name, "tensor", reason)])
    return dims
