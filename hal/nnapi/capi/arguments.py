"""Inputs and outputs of an execution, as the client sets them."""

from __future__ import annotations

from dataclasses import dataclass

from ..aidl.types import Operand
from .codes import ApiError, ResultCode, bad_data
from .kinds import Dims, is_specified, merged, nbytes
from .memory import AnyMemory, RoleMemory
from .pointers import OperandTypeValue


@dataclass(frozen=True, slots=True)
class Omitted:
    """An optional argument that is omitted."""

    dims: Dims = ()


@dataclass(frozen=True, slots=True)
class AtPointer:
    """``length`` bytes at an address, of which ``size`` are data and the rest is padding."""

    address: int
    length: int
    size: int
    dims: Dims


@dataclass(frozen=True, slots=True)
class AtMemory:
    """An argument in a memory object; (0, 0, 0) is all of it, for memory created from a descriptor."""

    memory: AnyMemory
    offset: int
    length: int
    size: int
    dims: Dims


Argument = Omitted | AtPointer | AtMemory


def at_pointer(
    operand: Operand,
    given: OperandTypeValue | None,
    address: int,
    length: int,
    what: str,
    *,
    written: bool,
    padded: bool,
) -> Argument:
    """An argument in the client's memory, or an omitted one. Raises ApiError."""
    if not address:
        if length:
            raise ApiError(ResultCode.UNEXPECTED_NULL, f"{what}: buffer is NULL, but length is {length}")
        return Omitted()
    dims = _dims(operand, given, what)
    size = _size(operand, dims, length, what, written=written, padded=padded)
    return AtPointer(address, length, size, dims)


def at_memory(
    operand: Operand,
    given: OperandTypeValue | None,
    memory: AnyMemory,
    place: tuple[int, int],
    role: tuple[int, str, int],
    *,
    padded: bool,
) -> Argument:
    """An argument in a memory object. ``place``: offset and length. ``role``: compilation, input or output, index.

    Raises ApiError.
    """
    what = f"{role[1]} {role[2]}"
    dims = _dims(operand, given, what)
    if isinstance(memory, RoleMemory):
        memory.check_role(*role, *place)
        return AtMemory(memory, 0, 0, 0, merged(memory.dims, dims, what))
    memory.check_range(*place)
    size = _size(operand, dims, place[1], what, written=role[1] == "output", padded=padded)
    return AtMemory(memory, *place, size, dims)


def _dims(operand: Operand, given: OperandTypeValue | None, what: str) -> Dims:
    """Dimensions of the argument: those of the operand, completed by the client for this execution.

    Type, scale and zero point of ``given`` are ignored, as in the Android runtime.
    """
    known = tuple(operand.dimensions)
    if given is None:
        return known
    if given.problem:
        raise bad_data(f"{what}: {given.problem}")
    if not known and given.dimensions and not is_specified(int(operand.type), ()):
        return given.dimensions
    if known and given.dimensions and len(known) != len(given.dimensions):
        raise bad_data(f"{what}: must have rank {len(known)}, got dimensions {list(given.dimensions)}")
    if not known and given.dimensions:
        raise bad_data(f"{what}: is a scalar, got dimensions {list(given.dimensions)}")
    return merged(known, given.dimensions, what)


def _size(operand: Operand, dims: Dims, length: int, what: str, *, written: bool, padded: bool) -> int:
    """Bytes of data in an argument of ``length`` bytes."""
    exact = nbytes(int(operand.type), dims)
    if exact is None:
        if not written and not is_specified(int(operand.type), dims):
            raise bad_data(f"{what}: dimensions must be known, got {list(dims)}")
        return length
    if length == exact or (padded and length > exact):
        return exact
    raise bad_data(
        f"{what} of dimensions {list(dims)} must have {exact} bytes{' at least' if padded else ''}, got {length}"
    )
