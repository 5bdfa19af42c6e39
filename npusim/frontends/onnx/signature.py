"""Declared types and shapes of graph inputs, and checks of computed shapes against declarations."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto, ValueInfoProto

from npusim.dtypes import DType, dtype_of, to_storage
from npusim.errors import (
    InputError,
    ModelError,
    NpusimError,
    OpenInputsError,
    UndecidedError,
    UnsupportedError,
    UsageError,
)
from npusim.frontends.onnx.tensors import ELEMENT_TYPES, PACKED, TEXT, element_type
from npusim.graph import Tensor
from npusim.ops.base import Array, narrow

_log = logging.getLogger("npusim.frontends.onnx")

ANONYMOUS = ("", "?")
"""Names that exporters write for any unknown dimension, so equal names do not mean equal sizes."""

BATCH = r"batch|^n$|^bs$"
"""Names of the batch, in lower case."""

Dim = int | str | None
"""A size, the name of a symbol, or None if unknown."""
Symbols = dict[str, tuple[int, str]]
"""Sizes of symbols, each with the input that determines it."""


class DeclaredTypeError(ModelError):
    """The declared element type of a value differs from the computed one."""


class DeclaredShapeError(ModelError):
    """The declared shape of a value differs from the computed one."""


def declared_dims(value: ValueInfoProto) -> list[Dim] | None:
    """The declared dimensions; None if the rank is unknown."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    dims: list[Dim] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(dim.dim_value)
        else:
            dims.append(None if dim.dim_param in ANONYMOUS else str(dim.dim_param))
    return dims


def free_inputs(graph: GraphProto) -> list[ValueInfoProto]:
    """The inputs without an initializer."""
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def declared_inputs(
    values: Sequence[ValueInfoProto],
    given: Mapping[str, Sequence[int]],
    reasons: list[tuple[str, str, str]],
    model: str = "",
) -> list[tuple[str, tuple[int, ...], DType]]:
    """(name, shape, DType) of every input that is a tensor. Others are added to ``reasons``.

    ``given``: the open dimensions. A symbol is fixed for all inputs at once. If only the batch is open, it is 1, with a
    line in the log that names ``model``. Raises OpenInputsError that names every input with an open shape, UsageError
    for a shape that contradicts the model.
    """
    check_names(values, given, "a shape")
    if not given and (batched := _open_batch(values)):
        given = batched
        names = ", ".join(map(repr, batched))
        _log.warning("%s: the model leaves its batch open: it is 1 (%s)", model or "model", names)
    symbols: Symbols = {}
    for value in values:
        if value.name in given:
            _bind(value, given[value.name], symbols, UsageError(_given(value, given[value.name])))
    result, open_inputs = [], []
    for value in values:
        try:
            dtype = _dtype(value)
        except UnsupportedError as error:
            reasons.extend(error.reasons)
            continue
        dims = list(given[value.name]) if value.name in given else declared_dims(value)
        shape = None if dims is None else [_size(dim, symbols) for dim in dims]
        if shape is None or None in shape:
            open_inputs.append(f"{value.name!r} is {dtype.label}{_shown(dims)}")
        else:
            result.append((value.name, tuple(size for size in shape if size is not None), dtype))
    if open_inputs:
        raise OpenInputsError(f"the model leaves input shapes open: {'; '.join(open_inputs)}")
    return result


def _open_batch(values: Sequence[ValueInfoProto]) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs with open dimensions, if these are one first dimension that has no name or that of a batch;
    otherwise none."""
    found: dict[str, tuple[int, ...]] = {}
    names = set()
    for value in values:
        dims = declared_dims(value) if value.type.HasField("tensor_type") else []
        if dims is None:
            return {}
        if all(isinstance(dim, int) for dim in dims):
            continue
        rest = [dim for dim in dims[1:] if isinstance(dim, int)]
        first = dims[0]
        if isinstance(first, int) or len(rest) < max(len(dims) - 1, 1) or not re.search(BATCH, (first or "n").lower()):
            return {}
        found[value.name] = (1, *rest)
        names.add(first)
    return found if len(names) == 1 else {}


def open_shapes(
    values: Sequence[ValueInfoProto],
    arrays: Mapping[str, Any],
    given: Mapping[str, Sequence[int]],
    bound: Collection[str],
) -> dict[str, tuple[int, ...]]:
    """The shapes of inputs with open dimensions, from the arrays of all inputs and ``given``. Raises InputError for
    arrays that contradict the declarations."""
    known = {value.name: value for value in values}
    for name in arrays:
        if name not in known:
            raise InputError(f"there is no input {name!r}; the model takes {_names(values)}")
    shapes, symbols = {name: tuple(shape) for name, shape in given.items()}, Symbols()
    for name, value in known.items():
        try:
            dtype, dims = _dtype(value), declared_dims(value)
        except UnsupportedError:
            continue  # reported together with all other reasons
        if name in given:
            continue  # compared with the program later
        wanted = f"{dtype.label}{_shown(dims)}"
        if name in arrays:
            array = np.asarray(arrays[name])
            try:
                kind: DType | None = dtype_of(array)
            except TypeError:
                kind = None
            wrong = InputError(f"input {name!r} must be {wanted}, got {array.dtype}{list(array.shape)}")
            if kind is not dtype and not (dtype is DType.BFLOAT16 and kind is DType.UINT16):
                raise wrong
            _bind(value, array.shape, symbols, wrong)
            if dims is None or not all(isinstance(dim, int) for dim in dims):
                shapes[name] = array.shape
        elif name not in bound:
            raise InputError(f"input {name!r} is missing: {wanted}")
    return shapes


def bound_array(value: ValueInfoProto, given: Any, shape: Sequence[int] | None = None) -> Array:
    """The value of a bound input, in storage form. ``shape``: given in addition to the model. Raises UsageError for a
    value that the input cannot have."""
    dtype, dims, array = _dtype(value), declared_dims(value), to_storage(np.asarray(given))
    if shape is not None and array.ndim <= 1 and array.size == math.prod(shape):
        array = array.reshape(shape)
    sizes = [dim if isinstance(dim, int) else 1 for dim in dims or ()]
    # A number is accepted for an input of one element, and a list for one row.
    if dims is not None and len(sizes) != array.ndim and math.prod(sizes) == array.size:
        array = array.reshape(sizes)
    _bind(value, array.shape, {}, UsageError(_given(value, array.shape)))
    number = array.dtype.kind in "biuf"
    bits = dtype is DType.BFLOAT16 and array.dtype == np.uint16
    stored = narrow(array, dtype) if number and not bits else array
    if not number or not (dtype.is_float or np.array_equal(stored, array)):
        what = np.array2string(array, threshold=8, separator=", ")
        raise UsageError(f"input {value.name!r} is {dtype.label}{_shown(dims)} and cannot be bound to {what}")
    return stored


def check_names(values: Sequence[ValueInfoProto], given: Mapping[str, Any], what: str) -> None:
    """Raise UsageError for a name that is not an input."""
    unknown = sorted(set(given) - {value.name for value in values})
    if unknown:
        raise UsageError(f"{what} is given for {unknown[0]!r}, which is not an input; inputs: {_names(values)}")


def _names(values: Sequence[ValueInfoProto]) -> str:
    return ", ".join(repr(value.name) for value in values) or "none"


def _size(dim: Dim, symbols: Symbols) -> int | None:
    return symbols[dim][0] if isinstance(dim, str) and dim in symbols else dim if isinstance(dim, int) else None


def _dtype(value: ValueInfoProto) -> DType:
    kind = value.type.WhichOneof("value")
    if kind is None:
        raise ModelError(f"input {value.name!r} has no type")
    if kind != "tensor_type":
        reason = f"inputs of type {kind.removesuffix('_type')} are not supported"
        error = UndecidedError if held_type(value) is not None else UnsupportedError
        raise error([(value.name, "input", reason)])
    code = value.type.tensor_type.elem_type
    return PACKED[code][0] if code in PACKED else element_type(code, value.name, "input")


def is_text(value: ValueInfoProto) -> bool:
    """Whether an input is a tensor of strings."""
    return value.type.WhichOneof("value") == "tensor_type" and value.type.tensor_type.elem_type == TensorProto.STRING


def held_type(value: ValueInfoProto) -> DType | None:
    """The element type of an input that is a sequence, an optional value or a tensor of strings, which the host holds;
    None for others."""
    inner = value.type
    if is_text(value):
        return TEXT
    if inner.WhichOneof("value") == "optional_type":
        inner = inner.optional_type.elem_type
    elif inner.WhichOneof("value") != "sequence_type":
        return None
    if inner.WhichOneof("value") == "sequence_type":
        inner = inner.sequence_type.elem_type
    if inner.WhichOneof("value") != "tensor_type":
        return None
    return ELEMENT_TYPES.get(inner.tensor_type.elem_type)


def _given(value: ValueInfoProto, shape: Sequence[int]) -> str:
    return f"input {value.name!r} is {_shown(declared_dims(value))} in the model; the shape given is {list(shape)}"


def _bind(value: ValueInfoProto, shape: Sequence[int], symbols: Symbols, wrong: NpusimError) -> None:
    """Record the sizes of symbols from a shape. Raises ``wrong`` for a shape that contradicts the declaration."""
    dims = declared_dims(value)
    if dims is None:
        return
    if len(dims) != len(shape):
        raise wrong
    for dim, size in zip(dims, shape, strict=True):
        if size < 0 or (isinstance(dim, int) and dim != size):
            raise wrong
        known, where = symbols.setdefault(dim, (size, value.name)) if isinstance(dim, str) else (size, "")
        if known != size:
            raise type(wrong)(f"{wrong}, and {dim!r} is {known} in input {where!r}")


def contradiction(value: ValueInfoProto, tensor: Tensor) -> str | None:
    """The declared shape of a value if it differs. Raises DeclaredTypeError for another type."""
    declared = value.type.tensor_type
    if value.type.WhichOneof("value") != "tensor_type":
        return None
    code, dims = declared.elem_type, declared_dims(value)
    known = ELEMENT_TYPES.get(code, PACKED[code][0] if code in PACKED else None)
    if code != TensorProto.UNDEFINED and known is not tensor.dtype:
        label = known.label if known else f"type {code}"
        raise DeclaredTypeError(f"{value.name!r} is declared as {label} but computed as {tensor.dtype.label}")
    if dims is None:
        return None
    agree = len(dims) == len(tensor.shape) and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(dims, tensor.shape, strict=True)
    )
    return None if agree else f"{value.name!r} is declared as {_shown(dims)} but computed as {list(tensor.shape)}"


def _shown(dims: Sequence[Dim] | None) -> str:
    return " of unknown rank" if dims is None else "[" + ", ".join(str(d) if d is not None else "?" for d in dims) + "]"
