"""Properties of operand types: elements, bytes, dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from ..operations.signature import type_name
from ..types import OperandType
from . import extensions
from .codes import bad_data

Dims = tuple[int, ...]


def is_tensor(kind: int) -> bool:
    """Whether operands of a type have dimensions."""
    if kind > extensions.CODE_MASK:
        found = extensions.context().operand_type(kind)
        return found is not None and found.tensor
    return kind in _TENSORS


def is_specified(kind: int, dimensions: Sequence[int]) -> bool:
    """Whether nothing is open: scalars, and tensors with known rank and dimensions."""
    return not is_tensor(kind) or (len(dimensions) > 0 and 0 not in dimensions)


def nbytes(kind: int, dimensions: Sequence[int]) -> int | None:
    """Bytes of a value; None while a dimension, or the size of the type, is unknown."""
    element = extensions.context().element_bytes(kind)
    if element is None or not is_specified(kind, dimensions):
        return None
    return element * math.prod(dimensions)


class Typed(Protocol):
    """Any object with the fields of an operand's type."""

    @property
    def type(self) -> int:
        """The operand type code."""

    @property
    def dimensions(self) -> Sequence[int]:
        """The dimensions; 0 is unknown."""

    @property
    def scale(self) -> float:
        """The scale of a quantised type, else 0."""

    @property
    def zeroPoint(self) -> int:
        """The zero point of a quantised type, else 0."""


def described(typed: Typed) -> str:
    """The text for a type in messages: ``TENSOR_QUANT8_ASYMM [1, 4], scale 0.5, zero point 128``."""
    dims = f" {list(typed.dimensions)}" if is_tensor(int(typed.type)) or len(typed.dimensions) else ""
    quantised = f", scale {typed.scale:g}, zero point {typed.zeroPoint}" if typed.scale or typed.zeroPoint else ""
    return f"{type_name(int(typed.type))}{dims}{quantised}"


def merged(known: Dims, given: Dims, what: str) -> Dims:
    """Merge dimensions, where 0 (or no dimensions) means unknown. Raises ApiError (BAD_DATA) if they differ."""
    if not known or not given:
        return known or given
    if len(known) != len(given) or any(a and b and a != b for a, b in zip(known, given, strict=True)):
        raise bad_data(f"{what}: dimensions must agree with {list(known)}, got {list(given)}")
    return tuple(a or b for a, b in zip(known, given, strict=True))


_TENSORS = frozenset(int(kind) for kind in OperandType if kind.name.startswith("TENSOR_"))
