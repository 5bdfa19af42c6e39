"""Reading and writing the client's memory. Addresses are trusted, as in any C library, except for NULL."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .codes import ApiError, ResultCode, bad_data

MAX_RANK = 1024
"""A larger number of dimensions is assumed to be a pointer to something else."""
MAX_SCALES = 1 << 24
MAX_NAME = 4096


class _OperandType(ctypes.Structure):
    """ANeuralNetworksOperandType."""

    _fields_ = (
        ("type", ctypes.c_int32),
        ("dimensionCount", ctypes.c_uint32),
        ("dimensions", ctypes.c_void_p),
        ("scale", ctypes.c_float),
        ("zeroPoint", ctypes.c_int32),
    )


class _ChannelQuant(ctypes.Structure):
    """ANeuralNetworksSymmPerChannelQuantParams."""

    _fields_ = (("channelDim", ctypes.c_uint32), ("scaleCount", ctypes.c_uint32), ("scales", ctypes.c_void_p))


@dataclass(frozen=True, slots=True)
class OperandTypeValue:
    """A copy of an ANeuralNetworksOperandType. ``problem``: the error of its pointer, if any."""

    type: int
    dimensions: tuple[int, ...]
    scale: float
    zeroPoint: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ChannelQuantValue:
    """A copy of an ANeuralNetworksSymmPerChannelQuantParams."""

    channelDim: int
    scales: tuple[float, ...]


def require(address: int, what: str) -> int:
    """The address. Raises ApiError (UNEXPECTED_NULL) for NULL."""
    if not address:
        raise ApiError(ResultCode.UNEXPECTED_NULL, f"{what} is NULL")
    return address


def read_operand_type(address: int, what: str) -> OperandTypeValue:
    """The operand type at an address. Raises ApiError (UNEXPECTED_NULL) for NULL."""
    found = _OperandType.from_address(require(address, what))
    count, problem = found.dimensionCount, ""
    dimensions: tuple[int, ...] = ()
    if count > MAX_RANK:
        problem = f"{what}->dimensionCount must be at most {MAX_RANK}, is {count}"
    elif bool(count) != bool(found.dimensions):
        problem = f"{what}->dimensions must be NULL if and only if dimensionCount is 0, which is {count}"
    elif count:
        dimensions = read_u32s(found.dimensions, count, MAX_RANK, f"{what}->dimensions")
    return OperandTypeValue(found.type & 0xFFFF_FFFF, dimensions, float(found.scale), found.zeroPoint, problem)


def read_channel_quant(address: int, what: str) -> ChannelQuantValue:
    """The per-channel parameters at an address; scales at NULL are none. Raises ApiError (UNEXPECTED_NULL) for NULL."""
    found = _ChannelQuant.from_address(require(address, what))
    count = found.scaleCount if found.scales else 0
    scales = _read_array(ctypes.c_float, found.scales or 0, count, MAX_SCALES, f"{what}->scales")
    return ChannelQuantValue(found.channelDim, scales)


def read_u32s(address: int, count: int, most: int, what: str) -> tuple[int, ...]:
    """``count`` numbers. Raises ApiError: BAD_DATA for more than ``most``, UNEXPECTED_NULL for some at NULL."""
    return _read_array(ctypes.c_uint32, address, count, most, what)


def read_i32s(address: int, count: int, most: int, what: str) -> tuple[int, ...]:
    """``count`` signed numbers. Raises ApiError as ``read_u32s`` does."""
    return _read_array(ctypes.c_int32, address, count, most, what)


def read_handles(address: int, count: int, most: int, what: str) -> tuple[int, ...]:
    """``count`` handles from an array of pointers. Raises ApiError as ``read_u32s`` does."""
    return _read_array(ctypes.c_uint64, address, count, most, what)


def _read_array(kind: Any, address: int, count: int, most: int, what: str) -> tuple[Any, ...]:
    if count > most:
        raise bad_data(f"{what}: must have at most {most} entries, the count says {count}")
    if not count:
        return ()
    return tuple((kind * count).from_address(require(address, what)))


def read_bytes(address: int, count: int, what: str) -> bytes:
    """A copy of ``count`` bytes. Raises ApiError."""
    return ctypes.string_at(require(address, what), count) if count else b""


def read_string(address: int, what: str) -> str:
    """Read a C string. Raises ApiError: UNEXPECTED_NULL, or BAD_DATA if it is not UTF-8 or too long."""
    text = ctypes.string_at(require(address, what))
    try:
        if len(text) <= MAX_NAME:
            return text.decode()
    except UnicodeDecodeError:
        pass
    raise bad_data(f"{what} must be UTF-8 of at most {MAX_NAME} bytes")


def copy(target: int, source: int, count: int) -> None:
    """``memcpy``."""
    ctypes.memmove(target, source, count)


def writer(kind: Any) -> Callable[[int, Any], None]:
    """A function that writes one value of a C type at an address."""

    def write(address: int, value: Any) -> None:
        kind.from_address(address).value = value

    return write


def write_array(kind: Any, address: int, values: tuple[Any, ...]) -> None:
    """Write values contiguously."""
    (kind * len(values)).from_address(address)[:] = values
