"""Operands of a model that is being built."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from ..types import ExtraParams, Operand
from ..validation.operands import (
    EXTENSION_RULES,
    TYPE_RULES,
    channels_have_scales,
    not_subgraph_lifetime,
    subgraph_lifetime,
)
from . import extensions
from .codes import bad_data
from .kinds import Dims, described, is_tensor, nbytes
from .memory import SharedMemory
from .pointers import OperandTypeValue
from .sorting import BuiltOperation

_LATER = (channels_have_scales, subgraph_lifetime, not_subgraph_lifetime)
"""Rules about values that are set after the operand was added."""


@dataclass(frozen=True, slots=True)
class Copied:
    """A value that was copied into the model."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Pointed:
    """A value that stays in the client's memory until the model is finished."""

    address: int
    length: int


@dataclass(frozen=True, slots=True)
class InMemory:
    """A value in a memory object."""

    memory: SharedMemory
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Referenced:
    """A model as a value, for IF and WHILE."""

    model: BuiltModel


@dataclass(frozen=True, slots=True)
class Missing:
    """An optional operand that is omitted."""


Value = Copied | Pointed | InMemory | Referenced | Missing


@dataclass(frozen=True, slots=True)
class BuiltOperand:
    """One operand of a model."""

    type: int
    dimensions: Dims
    scale: float
    zeroPoint: int
    value: Value | None = None
    extra: ExtraParams | None = None

    @property
    def is_tensor(self) -> bool:
        """Whether it has dimensions, known or not."""
        return is_tensor(self.type)

    def nbytes(self, dimensions: Dims | None = None) -> int | None:
        """Bytes of a value; None while a dimension, or the size of the type, is unknown."""
        return nbytes(self.type, self.dimensions if dimensions is None else dimensions)

    def with_value(self, value: Value) -> BuiltOperand:
        """A copy with another value."""
        return replace(self, value=value)


@dataclass(slots=True, eq=False)
class BuiltModel:
    """The model as the client has built it so far."""

    operands: list[BuiltOperand] = field(default_factory=list)
    operations: list[BuiltOperation] = field(default_factory=list)
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    relaxed: bool = False
    order: list[int] = field(default_factory=list)
    """The operations in execution order, as indices in the order in which they were added."""


def made_from(given: OperandTypeValue) -> BuiltOperand:
    """An operand of a type that the client describes. Raises ApiError (BAD_DATA) with the violated rule."""
    if given.problem:
        raise bad_data(given.problem)
    context = extensions.context()
    operand = Operand(given.type, given.dimensions, 0, given.scale, given.zeroPoint)
    if not math.isfinite(given.scale):
        raise bad_data(f"the scale must be a finite number, got {given.scale}")
    for rule in TYPE_RULES.get(given.type, EXTENSION_RULES):
        if rule not in _LATER and not rule(operand, context):
            raise bad_data(f"operand type {described(given)}: {rule.__doc__}")
    return BuiltOperand(given.type, given.dimensions, given.scale, given.zeroPoint)
