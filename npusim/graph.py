"""What a model is, whoever brought it: tensors, operators, a graph.

Every frontend lowers into this one language of a few dozen operator kinds. Shapes are static, types explicit,
quantisation is spelt out by ``quantize`` / ``dequantize`` operators and integer matrix operators, layout by an
attribute.
The shape rule, the constraints and the reference of each kind live in ``npusim.ops``.

Kinds, with their inputs, attributes (all required unless a default is given) and meaning. ``*`` marks an optional input
(None when absent). Axes and dimensions are normalised: non-negative, full rank. Broadcasting is numpy's.

========== elementwise (any shape)
unary            (x)                fn: Unary, p0=0.0, p1=0.0
binary           (a, b)             fn: Binary; a and b have one dtype; comparisons give BOOL
select           (condition, a, b)  condition BOOL
cast             (x)                to: DType; float to integer truncates and saturates, to BOOL is != 0
quantize         (x, scale, zero)   to: DType in int8/uint8/int16/uint16; x float or INT32; scale FLOAT32 and zero
                                    INT32 broadcast to x; clamp(rint(float32(x) / scale) + zero)
dequantize       (x, scale, zero)   to: DType float; float32(x - zero) * scale
========== matrix
conv             (x, w, bias*)      layout: "NCHW" | "NHWC" (of x and y); w is always [O, I/groups, KH, KW]; stride,
                                    dilation (2 each), pads (top, left, bottom, right), groups, x_zero=0,
                                    w_zero=0. Float: y has x's dtype. Integer x and w (int8/uint8/int16): y INT32 is
                                    the sum of (x - x_zero) * (w - w_zero), padding counts as x_zero; only int8 and
                                    uint8 weights may have a zero point, one number. bias: [O], y's dtype.
conv_transpose   (x, w, bias*)      w [I, O/groups, KH, KW]; layout, stride, dilation, pads, groups, output_hw (2):
                                    the output's height and width (output padding is what they imply); x_zero=0,
                                    w_zero=0 and integers as in conv
matmul           (a, b, bias*)      [..., M, K] x [..., K, N], batch dimensions broadcast, both at least rank 2;
                                    x_zero=0, w_zero=0 as in conv (zeros of a and b); INT32 x INT32 -> INT32 wraps;
                                    bias: [N], y's dtype
========== windows and reductions
pool             (x)                fn: "max" | "average" | "l2"; layout, kernel (2), stride (2), dilation (2),
                                    pads (4), output_hw (2), count_include_pad=False
reduce           (x)                fn: Reduce; axes: sorted tuple; keepdims: bool
arg_reduce       (x)                fn: "max" | "min"; axis; keepdims; select_last=False; y INT64
topk             (x)                axis, k, largest: bool; outputs (values, INT64 indices), sorted, ties to the lower
                                    index
resample         (x, index, weight) axis; index INT32 [n, taps], weight FLOAT32 [n, taps], both constant:
                                    y[.., j, ..] = sum over t of weight[j, t] * x[.., index[j, t], ..];
                                    index < 0 contributes nothing
========== rows (one whole axis at a time)
softmax          (x)                axis, log: bool
normalize        (x)                axis: normalise over all dimensions from axis on; mode: "layer" | "rms"; epsilon
cumsum           (x)                axis, exclusive: bool, reverse: bool
lrn              (x)                axis, size, alpha, beta, bias
========== movement
reshape          (x)                shape
transpose        (x)                perm
slice            (x)                starts, steps, sizes (one of each per dimension; steps may be negative): element
                                    i of a dimension is x[start + i * step]
concat           (*xs)              axis
pad              (x)                before, after (per dimension, >= 0), mode: "constant" | "edge" | "reflect" |
                                    "wrap", value=0
expand           (x)                shape (numpy broadcast)
gather           (x, indices)       axis; indices INT32/INT64 of any rank; negative counts from the end
gather_elements  (x, indices)       axis
scatter_elements (x, indices, u)    axis, reduction: "none" | "add" | "mul" | "max" | "min"
========== anything else
routine          (*xs)              name, version, params (sorted pairs): a routine of npusim.routines; its outputs
                                    follow from its own rule
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy.typing as npt

from npusim.dtypes import DType, raw_bytes
from npusim.errors import ModelError


@dataclass(eq=False, slots=True)
class Tensor:
    """A named value of static shape; ``data`` (storage dtype, see DType.storage) is set for constants only."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    data: npt.NDArray[Any] | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for dim in self.shape:
            count *= dim
        return count

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def is_constant(self) -> bool:
        return self.data is not None

    def __repr__(self) -> str:
        kind = "const" if self.is_constant else "value"
        return f"<{kind} {self.name!r} {self.dtype.label}{list(self.shape)}>"


@dataclass(eq=False, slots=True)
class Op:
    """One operator: a kind of the table above, its inputs (None = absent optional), outputs and attributes.

    ``origin``: the number of the client's operation that it is a part of, if a frontend has said so; it is handed on
    to whatever replaces the operator. It means nothing to the graph, and has no part in its fingerprint.
    """

    name: str
    kind: str
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    attrs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    origin: int | None = None

    @property
    def output(self) -> Tensor:
        return self.outputs[0]

    def input(self, index: int) -> Tensor:
        """The input at index, which must be present."""
        tensor = self.inputs[index]
        if tensor is None:
            raise ModelError(f"{self.name} ({self.kind}): input {index} is required")
        return tensor

    def optional(self, index: int) -> Tensor | None:
        """The input at index, or None when it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r}>"


@dataclass(eq=False, slots=True)
class Graph:
    """Operators in topological order; every tensor has one producer, or is an input or a constant."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    ops: tuple[Op, ...]

    def validate(self) -> None:
        """Raise ModelError unless names are unique and every operator reads only what exists before it."""
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
                    raise ModelError(f"{op.name} ({op.kind}): reads {operand.name!r} before anything produces it")
            for result in op.outputs:
                _define(known, result, f"{op.name} ({op.kind})")
        for tensor in self.outputs:
            if not tensor.is_constant and known.get(tensor.name) is not tensor:
                raise ModelError(f"graph output {tensor.name!r} is produced by nothing")

    def constants(self) -> Iterator[Tensor]:
        """Every constant that an operator reads or that is an output, once, in order of first use."""
        seen: set[int] = set()
        for tensor in (*(t for op in self.ops for t in op.inputs), *self.outputs):
            if tensor is not None and tensor.is_constant and id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor

    def fingerprint(self) -> str:
        """SHA-256 over structure, attributes and constant bytes, in hex; equal graphs have equal fingerprints."""
        digest = hashlib.sha256()
        for tensor in (*self.inputs, *self.outputs):
            digest.update(_describe(tensor).encode())
        for op in self.ops:
            operands = [t and _describe(t) for t in op.inputs]
            digest.update(repr((op.name, op.kind, operands, [_describe(t) for t in op.outputs])).encode())
            digest.update(repr(sorted(op.attrs.items())).encode())
        for tensor in self.constants():
            if tensor.data is not None:
                _digest_data(digest, tensor.data)
        return digest.hexdigest()


def _digest_data(digest: hashlib._Hash, data: npt.NDArray[Any]) -> None:
    """The bytes of a constant; of one that a view repeats, the shape and the bytes that are there."""
    once = tuple(
        slice(None) if stride or dim <= 1 else slice(1) for dim, stride in zip(data.shape, data.strides, strict=True)
    )
    if any(part.stop for part in once):
        digest.update(repr(("repeated", data.shape)).encode())
    digest.update(raw_bytes(data[once]).data)


def _define(known: dict[str, Tensor], tensor: Tensor, where: str) -> None:
    if tensor.name in known:
        raise ModelError(f"{where}: the name {tensor.name!r} is already taken by another tensor")
    known[tensor.name] = tensor


def _describe(tensor: Tensor) -> str:
    return f"{tensor.name}:{tensor.dtype.label}{tensor.shape}{'!' if tensor.is_constant else ''}"


def consumers(ops: Sequence[Op]) -> dict[Tensor, list[Op]]:
    """Which operators read each tensor, in order; an operator that reads it twice is listed once."""
    readers: dict[Tensor, list[Op]] = {}
    for op in ops:
        for tensor in op.inputs:
            if tensor is not None:
                users = readers.setdefault(tensor, [])
                if not users or users[-1] is not op:
                    users.append(op)
    return readers
