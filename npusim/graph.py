"""The graph language: tensors, operators, graphs, independent of the frontend.

Every frontend lowers to a few dozen operator kinds. Shapes are static and types explicit. Quantization is explicit in
``quantize`` / ``dequantize`` operators and integer matrix operators; layout is an attribute. Each kind is a row of
``npusim.ops``: operands, attributes, semantics, shape rule, limits, reference, unit; docs/reference/operators.md lists
them.

Axes and dimensions are normalised: non-negative, full rank. Broadcasting follows numpy. Images are NCHW or NHWC, as
given by the attribute ``layout``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy.typing as npt

from npusim.dtypes import DType, raw_bytes
from npusim.errors import ModelError
from npusim.polling import poll
from npusim.weights import ArrayOrigin, packed, unpacked


@dataclass(eq=False, slots=True)
class Tensor:
    """A named value of static shape; ``data`` (storage dtype, see DType.storage) is set for constants only.

    ``bound``: a constant derived from the value of a model input. The compiler does not fold device operators on it;
    work of the host is in ``Graph.host``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    data: npt.NDArray[Any] | None = None
    bound: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def is_constant(self) -> bool:
        """Whether the value is known at compile time."""
        return self.data is not None

    def __reduce__(self) -> tuple[Any, ...]:
        data = None if self.data is None else packed(self.data)
        return _tensor, (self.name, self.shape, self.dtype, data, self.bound)

    def __repr__(self) -> str:
        kind = "const" if self.is_constant else "value"
        return f"<{kind} {self.name!r} {self.dtype.label}{list(self.shape)}>"


def _tensor(name: str, shape: tuple[int, ...], dtype: DType, data: object, bound: bool) -> Tensor:
    """Constructor for pickle: weights in a file are stored as a position in it."""
    return Tensor(name, shape, dtype, None if data is None else unpacked(data), bound)


@dataclass(eq=False, slots=True)
class Op:
    """One operator: a kind of npusim.ops, its inputs (None = absent optional), outputs and attributes.

    ``origin``: number of the client's operation that it belongs to, if the frontend has set it; inherited by operators
    that replace it. It has no effect on the graph or its fingerprint.
    """

    name: str
    kind: str
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    attrs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    origin: int | None = None

    @property
    def output(self) -> Tensor:
        """The output of an operator with one output."""
        return self.outputs[0]

    def input(self, index: int) -> Tensor:
        """The input at ``index``. Raises ModelError if it is absent."""
        tensor = self.inputs[index]
        if tensor is None:
            raise ModelError(f"{self.name} ({self.kind}): input {index} is required")
        return tensor

    def optional(self, index: int) -> Tensor | None:
        """The input at ``index``, or None if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def __reduce__(self) -> tuple[Any, ...]:
        return _op, (self.name, self.kind, self.inputs, self.outputs, dict(self.attrs), self.origin)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r}>"


def _op(*fields: Any) -> Op:
    """Constructor for pickle, which cannot store read-only mappings."""
    name, kind, inputs, outputs, attrs, origin = fields
    return Op(name, kind, inputs, outputs, MappingProxyType(attrs), origin)


class HostWork(NamedTuple):
    """One operator that the host computes for a run.

    ``macs``: multiply-accumulates. ``operations``: basis of its cost: the MACs, or the elements read and written by an
    operator without any.
    """

    name: str
    kind: str
    macs: int
    operations: int


Check = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class HostPart:
    """The work of the host for each run, if values of inputs decide what is computed or are bound.

    ``work``: operators that it computes. ``decided``: (description, value) of each value that the program depends on
    and that its inputs decide. ``check``: raises InputError for arrays (by name, in storage form) that decide
    otherwise; None if unknown, as for a program from a file. ``deciding``: model inputs that decide.
    """

    work: tuple[HostWork, ...] = ()
    decided: tuple[tuple[str, str], ...] = ()
    check: Check | None = field(default=None, compare=False)
    deciding: tuple[str, ...] = field(default=(), compare=False)

    @property
    def operations(self) -> int:
        """Operations of all operators."""
        return sum(work.operations for work in self.work)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all operators."""
        return sum(work.macs for work in self.work)


DOUBLING = -1
"""For ``Graph.cache_rows``: capacity is doubled when needed, so few different row counts need a new program."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Graph:
    """Operators in topological order; every tensor has one producer, or is an input or a constant.

    ``bound``: inputs of the model that the graph does not have, with the values used. ``cache_rows``: an input that
    grows to an output by concatenation shares memory with it, of this capacity in rows; 0: exactly the rows of the
    output; DOUBLING: the next power of two; None: they do not share memory. ``host``: work of the host to make the
    graph, and for each run.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    bound: tuple[tuple[str, str], ...] = ()
    cache_rows: int | None = None
    host: HostPart = field(default_factory=HostPart)

    def validate(self) -> None:
        """Raise ModelError unless names are unique and every operator reads only earlier tensors."""
        known: dict[str, Tensor] = {}
        for tensor in self.inputs:
            _define(known, tensor, "graph input")
        for op in self.ops:
            for operand in op.inputs:
                if operand is None:
                    continue
                if operand.is_constant:
                    known.setdefault(operand.name, operand)
                if known.get(operand.name) is not operand:
                    raise ModelError(f"{op.name} ({op.kind}): reads {operand.name!r} before it is produced")
            for result in op.outputs:
                _define(known, result, f"{op.name} ({op.kind})")
        for tensor in self.outputs:
            if not tensor.is_constant and known.get(tensor.name) is not tensor:
                raise ModelError(f"graph output {tensor.name!r} is not produced")

    def constants(self) -> Iterator[Tensor]:
        """Every constant that is read by an operator or is an output, once, in order of first use."""
        seen: set[int] = set()
        for tensor in (*(t for op in self.ops for t in op.inputs), *self.outputs):
            if tensor is not None and tensor.is_constant and id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor

    def fingerprint(self, *, values: bool = True) -> str:
        """SHA-256 over structure, attributes and constants, in hex; equal graphs have equal fingerprints.

        Without ``values``, constants in files (see ``npusim.weights``) are not read, but represented by file,
        modification time and position.
        """
        digest = hashlib.sha256(repr(self.bound).encode() if self.bound else b"")
        if self.cache_rows is not None:
            digest.update(f"rows {self.cache_rows}".encode())
        for tensor in (*self.inputs, *self.outputs):
            digest.update(_describe(tensor).encode())
        for op in self.ops:
            poll()
            operands = [t and _describe(t) for t in op.inputs]
            digest.update(repr((op.name, op.kind, operands, [_describe(t) for t in op.outputs])).encode())
            digest.update(repr(sorted(op.attrs.items())).encode())
        for tensor in self.constants():
            if tensor.data is not None:
                origin = None if values else ArrayOrigin.of(tensor.data)
                if origin is None:
                    _digest_data(digest, tensor.data)
                else:
                    digest.update(repr(origin).encode())
        return digest.hexdigest()


def _digest_data(digest: hashlib._Hash, data: npt.NDArray[Any]) -> None:
    """Add the bytes of a constant; for a broadcast view, its shape and distinct bytes."""
    once = tuple(
        slice(None) if stride or dim <= 1 else slice(1) for dim, stride in zip(data.shape, data.strides, strict=True)
    )
    if any(part.stop for part in once):
        digest.update(repr(("repeated", data.shape)).encode())
    raw = raw_bytes(data[once])
    for start in range(0, raw.size, _AT_ONCE):
        poll()
        digest.update(raw[start : start + _AT_ONCE].data)


_AT_ONCE = 16 << 20
"""Bytes read between two polls."""


def _define(known: dict[str, Tensor], tensor: Tensor, where: str) -> None:
    if tensor.name in known:
        raise ModelError(f"{where}: the name {tensor.name!r} is already taken by another tensor")
    known[tensor.name] = tensor


def _describe(tensor: Tensor) -> str:
    return f"{tensor.name}:{tensor.dtype.label}{tensor.shape}{'!' if tensor.is_constant else ''}"


def live(ops: Sequence[Op], outputs: Sequence[Tensor]) -> tuple[Op, ...]:
    """The operators that the outputs depend on."""
    needed = set(outputs)
    kept = []
    for op in reversed(ops):
        if any(tensor in needed for tensor in op.outputs):
            kept.append(op)
            needed.update(tensor for tensor in op.inputs if tensor is not None)
    return tuple(reversed(kept))


def consumers(ops: Sequence[Op]) -> dict[Tensor, list[Op]]:
    """The operators that read each tensor, in order, each once."""
    readers: dict[Tensor, list[Op]] = {}
    for op in ops:
        for tensor in op.inputs:
            if tensor is not None:
                users = readers.setdefault(tensor, [])
                if not users or users[-1] is not op:
                    users.append(op)
    return readers
