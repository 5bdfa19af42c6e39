"""Declared types: what the graph's inputs are, and whether what we computed agrees with what the file says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import TensorProto, ValueInfoProto

from npusim.dtypes import DType
from npusim.errors import ModelError, UnsupportedError, UsageError
from npusim.frontends.onnx.tensors import ELEMENT_TYPES, PACKED, element_type
from npusim.graph import Tensor

Dim = int | str | None
"""A size, the name of a symbol, or nothing known."""


class DeclaredTypeError(ModelError):
    """A value is declared with another element type than it is computed with."""


class DeclaredShapeError(ModelError):
    """A value is declared with another shape than it is computed with."""


def declared_dims(value: ValueInfoProto) -> list[Dim] | None:
    """The declared dimensions; None when not even their number is known."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    dims: list[Dim] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(dim.dim_value)
        else:
            dims.append(str(dim.dim_param) or None)
    return dims


def declared_inputs(
    values: Sequence[ValueInfoProto], given: Mapping[str, Sequence[int]], reasons: list[tuple[str, str, str]]
) -> list[tuple[str, tuple[int, ...], DType]]:
    """(name, shape, DType) of every input that is a tensor; others go to ``reasons``.

    ``given`` fills in what the model leaves open; a symbol that it fixes for one input is fixed for all. Raises
    ModelError naming every input whose shape stays open, UsageError for a shape that contradicts the model.
    """
    unknown = sorted(set(given) - {value.name for value in values})
    if unknown:
        known = ", ".join(repr(value.name) for value in values) or "none"
        raise UsageError(f"a shape is given for {unknown[0]!r}, which is not an input; inputs: {known}")
    symbols: dict[str, int] = {}
    for value in values:
        if value.name in given:
            _bind(value, given[value.name], symbols)
    result, open_inputs = [], []
    for value in values:
        try:
            dtype = _dtype(value)
        except UnsupportedError as error:
            reasons.extend(error.reasons)
            continue
        dims = list(given[value.name]) if value.name in given else declared_dims(value)
        shape = None if dims is None else [symbols.get(dim, dim) if isinstance(dim, str) else dim for dim in dims]
        if shape is None or not all(isinstance(dim, int) for dim in shape):
            open_inputs.append((value.name, dims))
        else:
            result.append((value.name, tuple(int(dim) for dim in shape if isinstance(dim, int)), dtype))
    if open_inputs:
        listed = "; ".join(f"{name!r} is {_shown(dims)}" for name, dims in open_inputs)
        first, dims = open_inputs[0]
        example = ",".join(str(dim) if isinstance(dim, int) else "1" for dim in dims or [1])
        raise ModelError(
            f"the model leaves input shapes open: {listed}. Give them, for example --input-shape {first}={example}"
        )
    return result


def _dtype(value: ValueInfoProto) -> DType:
    kind = value.type.WhichOneof("value")
    if kind is None:
        raise ModelError(f"input {value.name!r} has no type")
    if kind != "tensor_type":
        reason = f"inputs of type {kind.removesuffix('_type')} are not supported"
        raise UnsupportedError([(value.name, "input", reason)])
    return element_type(value.type.tensor_type.elem_type, value.name, "input")


def _bind(value: ValueInfoProto, shape: Sequence[int], symbols: dict[str, int]) -> None:
    """Check a given shape against the declared one and note what it says about symbols."""
    dims = declared_dims(value)
    if dims is None:
        return
    wrong = f"input {value.name!r} is {_shown(dims)} in the model; the shape given is {list(shape)}"
    if len(dims) != len(shape):
        raise UsageError(wrong)
    for dim, size in zip(dims, shape, strict=True):
        if size < 0 or (isinstance(dim, int) and dim != size):
            raise UsageError(wrong)
        if isinstance(dim, str) and symbols.setdefault(dim, size) != size:
            raise UsageError(f"{wrong}, and {dim!r} is {symbols[dim]} elsewhere")


def check_declared(value: ValueInfoProto, tensor: Tensor) -> None:
    """Raise ModelError when the file declares another type or shape for a value than it computes."""
    declared = value.type.tensor_type
    if value.type.WhichOneof("value") != "tensor_type":
        return
    code, dims = declared.elem_type, declared_dims(value)
    known = ELEMENT_TYPES.get(code, PACKED[code][0] if code in PACKED else None)
    if code != TensorProto.UNDEFINED and known is not tensor.dtype:
        label = known.label if known else f"type {code}"
        raise DeclaredTypeError(f"{value.name!r} is declared as {label} but computed as {tensor.dtype.label}")
    if dims is None:
        return
    agree = len(dims) == len(tensor.shape) and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(dims, tensor.shape, strict=True)
    )
    if not agree:
        raise DeclaredShapeError(f"{value.name!r} is declared as {_shown(dims)} but computed as {list(tensor.shape)}")


def _shown(dims: Sequence[Dim] | None) -> str:
    return "of unknown rank" if dims is None else "[" + ", ".join(str(d) if d is not None else "?" for d in dims) + "]"
