"""Arguments of ``IDevice.allocate``: the roles of a buffer, and the layout that follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from weakref import WeakSet

import numpy as np

from ..errors import StatusError, invalid_argument
from ..operations.view import SCALARS, STORAGE
from ..types import BufferDesc, BufferRole, ErrorStatus, Model, Operand, SymmPerChannelQuantParams
from ..validation.context import Context, context_of
from ..validation.fields import U32, MalformedError, instance, instances, integer, integers, items, real

Direction = Literal["input", "output"]
Dims = tuple[int, ...] | None
"""Dimensions, 0 where unknown; None if the rank is unknown. The dimensions of a scalar are ()."""


class Prepared(Protocol):
    """The part of a prepared model that buffers need."""

    @property
    def model(self) -> Model:
        """The model with the inputs and outputs."""

    @property
    def buffers(self) -> object:
        """The tracker of the buffers that it may use."""


Roles = Mapping[tuple[Direction, int], WeakSet[Prepared]]
"""The prepared models that may use a buffer, for each of their inputs and outputs."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a buffer: elements of type ``storage``, and the known dimensions."""

    storage: np.dtype[Any]
    dims: Dims

    def nbytes(self, dims: Dims) -> int | None:
        """Bytes with these dimensions; None if one of them is unknown."""
        return None if dims is None or 0 in dims else math.prod(dims) * self.storage.itemsize


def check_allocation(
    tracker: object, desc: object, preparedModels: object, inputRoles: object, outputRoles: object
) -> tuple[Layout, Roles]:
    """The layout and the roles of a buffer. Raises StatusError: INVALID_ARGUMENT for violated rules, GENERAL_FAILURE
    for elements of unknown size."""
    try:
        given = integers(instance(desc, BufferDesc, "desc").dimensions, U32, "desc.dimensions")
        models = _models(tracker, preparedModels)
        uses = [*_uses("input", models, inputRoles), *_uses("output", models, outputRoles)]
    except MalformedError as error:
        raise invalid_argument(str(error)) from None
    if not uses:
        raise invalid_argument("there must be at least one role, but inputRoles and outputRoles are empty")
    _check_unique(uses)
    # All roles share one piece of memory, so its bytes must mean the same in each (IDevice.allocate).
    first = uses[0]
    for use in uses[1:]:
        if use.contents() != first.contents():
            raise invalid_argument(f"{use} must have the same type, scale, zero point and extra parameters as {first}")
    dims: Dims = given if given or first.scalar else None
    if first.scalar and given:
        raise invalid_argument(f"{first} is a scalar: desc.dimensions must be empty, got {list(given)}")
    for use in uses:
        dims = merge_dims(dims, use.dims, str(use))
    # Weak references: a buffer must not keep a model's weights alive.
    roles: dict[tuple[Direction, int], WeakSet[Prepared]] = {}
    for use in uses:
        roles.setdefault((use.direction, use.index), WeakSet()).add(use.prepared)
    return Layout(first.storage(), dims), roles


def merge_dims(first: Dims, second: Dims, where: str) -> Dims:
    """The merged dimensions. Raises StatusError (INVALID_ARGUMENT) if they contradict each other."""
    if first is None or second is None:
        return second if first is None else first
    if len(first) != len(second) or any(a and b and a != b for a, b in zip(first, second, strict=True)):
        raise invalid_argument(f"{where}: dimensions must agree with {list(first)}, got {list(second)}")
    return tuple(a or b for a, b in zip(first, second, strict=True))


@dataclass(frozen=True, slots=True)
class _Use:
    """One role and its operand."""

    prepared: Prepared
    context: Context
    direction: Direction
    model: int
    index: int
    operand: Operand

    def __str__(self) -> str:
        return f"{self.direction} {self.index} of preparedModels[{self.model}]"

    @property
    def scalar(self) -> bool:
        """Whether the operand is a scalar."""
        extension = self.context.operand_type(self.operand.type)
        return not extension.tensor if extension else self.operand.type in SCALARS

    @property
    def dims(self) -> Dims:
        """Dimensions of the operand."""
        return tuple(self.operand.dimensions) or (() if self.scalar else None)

    def contents(self) -> object:
        """A key that is equal for operands whose elements have the same meaning. Prefixes differ between models."""
        operand, extra = self.operand, self.operand.extraParams
        extension = self.context.prefixes.get(operand.type >> 16)
        kind = (extension.name, operand.type & 0xFFFF) if extension else operand.type
        quant = _quant(extra.channelQuant) if extra else None
        return (kind, operand.scale, operand.zeroPoint, quant, extra.extension if extra else None)

    def storage(self) -> np.dtype[Any]:
        """The numpy type of an element."""
        extension = self.context.operand_type(self.operand.type)
        storage = extension.storage if extension else STORAGE.get(self.operand.type)
        if storage is None:
            raise StatusError(
                ErrorStatus.GENERAL_FAILURE, f"{self}: this driver has no buffers of operand type {self.operand.type}"
            )
        return storage


def _quant(quant: SymmPerChannelQuantParams | None) -> object:
    return None if quant is None else (tuple(quant.scales), quant.channelDim)


def _models(tracker: object, preparedModels: object) -> list[tuple[Prepared, Context]]:
    models: Sequence[Any] = items(preparedModels, "preparedModels")
    if not models:
        raise MalformedError("preparedModels must not be empty")
    for number, prepared in enumerate(models):
        if getattr(prepared, "buffers", None) is not tracker:
            raise MalformedError(f"preparedModels[{number}] must be a prepared model of this device, got {prepared!r}")
    return [(prepared, context_of(prepared.model)) for prepared in models]


def _uses(direction: Direction, models: Sequence[tuple[Prepared, Context]], roles: object) -> list[_Use]:
    field = f"{direction}Roles"
    uses = []
    for number, role in instances(roles, BufferRole, field):
        where = f"{field}[{number}]"
        which = integer(role.modelIndex, 0, len(models) - 1, f"{where}.modelIndex")
        prepared, context = models[which]
        main = prepared.model.main
        indexes = main.inputIndexes if direction == "input" else main.outputIndexes
        index = integer(role.ioIndex, 0, len(indexes) - 1, f"{where}.ioIndex")
        if not 0 < real(role.frequency, f"{where}.frequency") <= 1:
            raise MalformedError(f"{where}.frequency must be in (0, 1], got {role.frequency}")
        uses.append(_Use(prepared, context, direction, which, index, main.operands[indexes[index]]))
    return uses


def _check_unique(uses: Sequence[_Use]) -> None:
    seen: set[tuple[int, Direction, int]] = set()
    for use in uses:
        key = (id(use.prepared), use.direction, use.index)
        if key in seen:
            raise invalid_argument(f"each role may be given once only, but {use} is given twice")
        seen.add(key)
