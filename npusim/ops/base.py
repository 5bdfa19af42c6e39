"""What every operator kind declares: its inputs and attributes, its shape rule, its limits and its reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.dtypes import DType, bfloat16_to_float32, float32_to_bfloat16
from npusim.errors import ModelError
from npusim.graph import Op, Tensor

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
Result = tuple[Shape, DType]
Inputs = Sequence[Tensor | None]
Attrs = Mapping[str, Any]
Constraint = Callable[[Inputs, Attrs], bool]
"""True when the operator is within npusim's limits; the docstring is the user's message and the manual's line."""


class Required:
    """The default of an attribute that has none."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = Required()


@dataclass(frozen=True, slots=True)
class OpDef:
    """One operator kind.

    ``infer(inputs, attrs)`` returns (shape, dtype) of each output and raises ModelError for operands that contradict
    each other. ``reference(op, arrays)`` takes and returns arrays in storage form (see DType.storage) and defines the
    truth.
    """

    kind: str
    infer: Callable[[Inputs, Attrs], list[Result]]
    reference: Callable[[Op, Sequence[Array | None]], list[Array]]
    required: int = 1
    optional: int = 0
    variadic: bool = False
    attrs: Mapping[str, Any] = field(default_factory=dict)
    constraints: tuple[Constraint, ...] = ()

    def complete(self, attrs: Attrs) -> dict[str, Any]:
        """The attributes with defaults filled in; raises ModelError for unknown or missing ones."""
        unknown = sorted(set(attrs) - set(self.attrs))
        if unknown:
            raise ModelError(f"unknown attribute {unknown[0]!r}; {self.kind} has {', '.join(self.attrs) or 'none'}")
        complete = {**self.attrs, **attrs}
        for name, value in complete.items():
            if value is REQUIRED:
                raise ModelError(f"attribute {name!r} is required")
        return complete

    def check_arity(self, inputs: Inputs) -> None:
        """Raise ModelError unless the number of inputs is one that the kind takes."""
        most = len(inputs) if self.variadic else self.required + self.optional
        if not self.required <= len(inputs) <= most:
            raise ModelError(f"takes {self.required} to {most} inputs, got {len(inputs)}")
        for index in range(len(inputs) if self.variadic else self.required):
            if inputs[index] is None:
                raise ModelError(f"input {index} is required")


REGISTRY: dict[str, OpDef] = {}


def register(definition: OpDef) -> OpDef:
    """Add a kind to the registry; a kind is defined once."""
    if definition.kind in REGISTRY:
        raise ValueError(f"operator kind {definition.kind!r} is already defined")
    REGISTRY[definition.kind] = definition
    return definition


def operand(inputs: Inputs, index: int) -> Tensor:
    """The input at index, which check_arity has shown to be present."""
    tensor = inputs[index]
    if tensor is None:
        raise ModelError(f"input {index} is required")
    return tensor


def optional(inputs: Inputs, index: int) -> Tensor | None:
    """The input at index, or None when it is absent."""
    return inputs[index] if index < len(inputs) else None


def present(arrays: Sequence[Array | None], index: int) -> Array:
    """The array of a required input."""
    array = arrays[index]
    if array is None:
        raise ModelError(f"input {index} is required")
    return array


def broadcast(*shapes: Shape) -> Shape:
    """numpy's broadcast shape; raises ModelError naming the shapes."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ModelError(f"shapes {' and '.join(map(str, map(list, shapes)))} do not broadcast") from None


def check_axis(axis: int, rank: int) -> None:
    """Raise ModelError unless 0 <= axis < rank."""
    if not 0 <= axis < rank:
        raise ModelError(f"axis must be in [0, {rank}), got {axis}")


def same_dtype(*tensors: Tensor | None) -> DType:
    """The one dtype that all present tensors have; raises ModelError naming the types."""
    dtypes = [tensor.dtype for tensor in tensors if tensor is not None]
    if len(set(dtypes)) != 1:
        raise ModelError(f"operands must have one type, got {', '.join(d.label for d in dtypes)}")
    return dtypes[0]


def widen(array: Array, dtype: DType) -> Array:
    """Storage to the type that arithmetic is done in: float32 for half floats, otherwise the type itself."""
    if dtype is DType.BFLOAT16:
        return bfloat16_to_float32(array)
    return array.astype(np.float32) if dtype is DType.FLOAT16 else array


def narrow(array: Array, dtype: DType) -> Array:
    """Round floats once to dtype, wrap integers; the result is in storage form."""
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype is DType.BFLOAT16:
            return float32_to_bfloat16(array.astype(np.float32, copy=False))
        return array.astype(dtype.storage, copy=False)


def widened(op: Op, arrays: Sequence[Array | None], index: int) -> Array:
    """Input ``index`` of an operator in its arithmetic type."""
    return widen(present(arrays, index), op.input(index).dtype)


def is_float(inputs: Inputs, attrs: Attrs) -> bool:
    """the operands are floating point"""
    return all(tensor.dtype.is_float for tensor in inputs if tensor is not None)


def is_numeric(inputs: Inputs, attrs: Attrs) -> bool:
    """the operands are numbers, not bool"""
    return all(tensor.dtype is not DType.BOOL for tensor in inputs if tensor is not None)
