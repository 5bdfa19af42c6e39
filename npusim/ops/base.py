"""The declaration of an operator kind: operands, attributes, shape rule, limits, reference, unit, form."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.dtypes import DType, bfloat16_to_float32, float32_to_bfloat16
from npusim.errors import ModelError
from npusim.graph import Op, Tensor
from npusim.isa.base import Instruction, Unit
from npusim.isa.reduction import RowInstruction

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
Result = tuple[Shape, DType]
Inputs = Sequence[Tensor | None]
Attrs = Mapping[str, Any]
Infer = Callable[[Inputs, Attrs], list[Result]]
Reference = Callable[[Op, Sequence[Array | None]], list[Array]]
Constraint = Callable[[Inputs, Attrs], bool]
"""True if the operator is supported. The docstring is the message for the user and the line in the manual."""


class Required:
    """Marks an attribute without a default."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = Required()
Place = tuple[int, tuple[int, ...]]
"""(address, byte strides) of an operand of an instruction."""


@dataclass(frozen=True, slots=True)
class ElementForm:
    """Each element of the output depends on one element of each operand.

    ``instruction(op, places, dims)``: output first, then the operands, over four dimensions. Such kinds are fused with
    the producer of an operand.
    """

    instruction: Callable[[Op, Sequence[Place], tuple[int, ...]], Instruction]


@dataclass(frozen=True, slots=True)
class RowForm:
    """The output along ``axis`` depends on the whole row of the input, and on nothing else.

    ``fields(attrs)``: fields of the instruction; by default the attributes of the same names. ``trailing``: a row has
    all dimensions from ``axis`` on. ``single``: it becomes one element, whose dimension is removed if ``keepdims`` is
    false.
    """

    instruction: type[RowInstruction]
    fields: Callable[[Attrs], Mapping[str, Any]] | None = None
    trailing: bool = False
    single: bool = False

    def make(self, operands: tuple[Any, ...], attrs: Attrs) -> Instruction:
        """The instruction on ``operands``, which are the leading fields of all row instructions."""
        if self.fields is not None:
            return self.instruction(*operands, **self.fields(attrs))
        own = dataclasses.fields(self.instruction)[len(operands) :]
        return self.instruction(*operands, **{field.name: attrs[field.name] for field in own})


class Lowered(enum.Enum):
    """Kinds that the compiler handles by name."""

    VIEW = "view rule"  # the result is a view of its input
    TILES = "lowering"  # a lowering class splits it into tiles
    REWRITTEN = "rule"  # always rewritten to other kinds


Form = ElementForm | RowForm | Lowered


class Folding(enum.Enum):
    """When an operator on constants is folded while the graph is built."""

    PLAIN = "if the result is not much larger than its operands"
    VIEW = "always: the result is a view and takes no memory"
    HEAVY = "if all operands are small, because it is slow on large ones"
    NEVER = "never: the compiler needs quantised weights as integers"


@dataclass(frozen=True, slots=True)
class Kind:
    """One operator kind, except for its lowering (see ``form``).

    ``operands``: names of its inputs; ``bias*`` is optional, ``*xs`` any number; both come last. ``infer(inputs,
    attrs)``: (shape, dtype) of each output; raises ModelError for inconsistent operands. ``reference(op, arrays)``:
    takes and returns arrays in storage form (see DType.storage) and defines the result. ``unit``: computes it; may
    depend on the attributes. ``form``: selects the lowering. :mod:`npusim.compiler.lower.kinds` checks that each kind
    has one.
    """

    name: str
    operands: str
    meaning: str
    infer: Infer
    reference: Reference
    unit: Unit | Callable[[Attrs], Unit]
    form: Form
    attrs: Mapping[str, Any] = field(default_factory=dict)
    constraints: tuple[Constraint, ...] = ()
    folding: Folding = Folding.PLAIN

    def unit_of(self, attrs: Attrs) -> Unit:
        """The unit that computes an operator with these attributes."""
        return self.unit if isinstance(self.unit, Unit) else self.unit(attrs)

    def complete(self, attrs: Attrs) -> dict[str, Any]:
        """The attributes with defaults filled in; raises ModelError for unknown or missing ones."""
        unknown = sorted(set(attrs) - set(self.attrs))
        if unknown:
            raise ModelError(f"unknown attribute {unknown[0]!r}; {self.name} has {', '.join(self.attrs) or 'none'}")
        complete = {**self.attrs, **attrs}
        for name, value in complete.items():
            if value is REQUIRED:
                raise ModelError(f"attribute {name!r} is required")
        return complete

    def check_arity(self, inputs: Inputs) -> None:
        """Raise ModelError unless the number of inputs is one that the kind takes."""
        names = self.operands.split(", ")
        required = sum("*" not in name for name in names)
        most = len(inputs) if names[-1].startswith("*") else len(names)
        if not required <= len(inputs) <= most:
            count = required if required == most else f"{required} to {most}"
            raise ModelError(f"takes {count} {'input' if count == 1 else 'inputs'}, got {len(inputs)}")
        for index, tensor in enumerate(inputs):
            if tensor is None and (index < required or names[-1].startswith("*")):
                raise ModelError(f"input {index} is required")


REGISTRY: dict[str, Kind] = {}


def define(
    name: str,
    operands: str,
    meaning: str,
    *,
    infer: Infer | None = None,
    reference: Reference | None = None,
    unit: Unit | Callable[[Attrs], Unit] | None = None,
    form: Form | None = None,
    attrs: Mapping[str, Any] | None = None,
    constraints: tuple[Constraint, ...] = (),
    folding: Folding = Folding.PLAIN,
) -> None:
    """Register a kind. Raises ValueError if it exists already, or lacks a required part."""
    if name in REGISTRY:
        raise ValueError(f"the kind {name!r} is defined twice")
    lacks = f"the kind {name!r} has no"
    if infer is None:
        raise ValueError(f"{lacks} shape rule (infer)")
    if reference is None:
        raise ValueError(f"{lacks} reference")
    if unit is None:
        raise ValueError(f"{lacks} unit that computes it (unit)")
    if form is None:
        raise ValueError(f"{lacks} form that selects its lowering (form)")
    REGISTRY[name] = Kind(name, operands, meaning, infer, reference, unit, form, attrs or {}, constraints, folding)


def operand(inputs: Inputs, index: int) -> Tensor:
    """The input at ``index``. Raises ModelError if it is absent."""
    tensor = inputs[index]
    if tensor is None:
        raise ModelError(f"input {index} is required")
    return tensor


def optional(inputs: Inputs, index: int) -> Tensor | None:
    """The input at ``index``, or None if it is absent."""
    return inputs[index] if index < len(inputs) else None


def present(arrays: Sequence[Array | None], index: int) -> Array:
    """The array of a required input."""
    array = arrays[index]
    if array is None:
        raise ModelError(f"input {index} is required")
    return array


def broadcast(*shapes: Shape) -> Shape:
    """The broadcast shape, as in numpy. Raises ModelError that names the shapes."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ModelError(f"shapes {' and '.join(map(str, map(list, shapes)))} do not broadcast") from None


def check_axis(axis: int, rank: int) -> None:
    """Raise ModelError unless 0 <= axis < rank."""
    if not 0 <= axis < rank:
        raise ModelError(f"axis must be in [0, {rank}), got {axis}")


def same_dtype(*tensors: Tensor | None) -> DType:
    """The common type of all present tensors. Raises ModelError if they differ."""
    dtypes = [tensor.dtype for tensor in tensors if tensor is not None]
    if len(set(dtypes)) != 1:
        raise ModelError(f"operands must have the same type, got {', '.join(d.label for d in dtypes)}")
    return dtypes[0]


def widen(array: Array, dtype: DType) -> Array:
    """Convert storage to the type of the arithmetic: float32 for half floats, otherwise the type itself."""
    if dtype is DType.BFLOAT16:
        return bfloat16_to_float32(array)
    return array.astype(np.float32) if dtype is DType.FLOAT16 else array


def narrow(array: Array, dtype: DType) -> Array:
    """Convert to storage of ``dtype``: floats are rounded once, integers wrap."""
    # Overflow becomes infinity as on the device. It is a result, not an error.
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
