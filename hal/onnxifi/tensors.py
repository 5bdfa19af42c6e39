"""Checks of the tensor descriptors of weights, inputs and outputs against the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx import ValueInfoProto

from npusim.frontends.onnx.signature import Dim, declared_dims
from npusim.frontends.onnx.tensors import type_name
from npusim.ops.build import MAX_ELEMENTS

from .constants import DataType, MemoryType
from .descriptor import Descriptor
from .quantization import Quantization, quantization_of
from .rules import fits
from .status import OnnxifiError, Status

MAX_DIMENSIONS = 64
_TYPES = frozenset(int(item) for item in DataType) - {DataType.UNDEFINED}
_MEMORIES = frozenset(int(item) for item in MemoryType)


@dataclass(frozen=True, slots=True)
class Declared:
    """The declaration of an input or output of the model; ``dims``: None if the rank is unknown."""

    name: str
    data_type: int
    dims: tuple[Dim, ...] | None

    @property
    def is_static(self) -> bool:
        """Whether all dimensions are known."""
        return self.dims is not None and all(isinstance(dim, int) for dim in self.dims)


def declared(value: ValueInfoProto) -> Declared:
    """Return the declaration of a graph input or output that has passed the model's rules."""
    dims = declared_dims(value)
    return Declared(value.name, value.type.tensor_type.elem_type, None if dims is None else tuple(dims))


def match_names(descriptors: Sequence[Descriptor], wanted: Iterable[str], what: str) -> dict[str, Descriptor]:
    """Return the descriptors by name. Raises INVALID_NAME for an unknown or duplicate name."""
    names = dict.fromkeys(wanted)
    found: dict[str, Descriptor] = {}
    for descriptor in descriptors:
        name = descriptor.name
        if not isinstance(name, str) or name not in names:
            raise OnnxifiError(Status.INVALID_NAME, f"{name!r} is no {what}; there are {', '.join(names) or 'none'}")
        if name in found:
            raise OnnxifiError(Status.INVALID_NAME, f"{name!r} has two descriptors")
        found[name] = descriptor
    return found


def check_complete(found: Mapping[str, Descriptor], wanted: Iterable[str], what: str) -> None:
    """Raise UNIDENTIFIED_NAME if a required name has no descriptor."""
    missing = [name for name in wanted if name not in found]
    if missing:
        raise OnnxifiError(Status.UNIDENTIFIED_NAME, f"{what} {missing[0]!r} has no descriptor")


def check_descriptor(descriptor: Descriptor) -> None:
    """Check type, memory, sizes and location of a descriptor, independent of the model."""
    name = descriptor.name
    if descriptor.data_type not in _TYPES:
        raise OnnxifiError(Status.INVALID_DATATYPE, f"{name!r}: there is no data type {descriptor.data_type}")
    if descriptor.memory_type not in _MEMORIES:
        raise OnnxifiError(Status.INVALID_MEMORY_TYPE, f"{name!r}: there is no memory type {descriptor.memory_type}")
    if descriptor.memory_type != MemoryType.CPU:
        kind = MemoryType(descriptor.memory_type).name
        raise OnnxifiError(Status.UNSUPPORTED_MEMORY_TYPE, f"{name!r}: {kind} is not supported, CPU is")
    shape = descriptor.shape
    if shape is None or len(shape) > MAX_DIMENSIONS or 0 in shape:
        raise OnnxifiError(Status.INVALID_SHAPE, f"{name!r}: every dimension must be > 0, got {shape}")
    if not descriptor.buffer:
        raise OnnxifiError(Status.INVALID_MEMORY_LOCATION, f"{name!r}: the buffer must not be NULL")
    if math.prod(shape) > MAX_ELEMENTS:
        raise OnnxifiError(Status.UNSUPPORTED_SHAPE, f"{name!r}: {list(shape)} has more than {MAX_ELEMENTS} elements")


def check_against(descriptor: Descriptor, model: Declared, *, any_type: bool = False) -> Quantization | None:
    """Check type and shape of a descriptor against the model.

    Returns the quantisation to undo if its integers represent floats. ``any_type``: ignore the declared type.
    """
    quantization = quantization_of(descriptor)
    if model.dims is not None and not fits(model.dims, descriptor.shape or ()):
        raise OnnxifiError(
            Status.MISMATCHING_SHAPE, f"{model.name!r} is {list(model.dims)} in the model, {descriptor.shape} here"
        )
    if descriptor.data_type == model.data_type:
        return None
    if quantization is not None and model.data_type == DataType.FLOAT32:
        return quantization
    if any_type:
        return None
    raise OnnxifiError(
        Status.MISMATCHING_DATATYPE,
        f"{model.name!r} is {type_name(model.data_type)} in the model, {type_name(descriptor.data_type)} here",
    )
