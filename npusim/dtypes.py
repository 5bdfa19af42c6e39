"""Element types: their codes in instructions, their sizes, and how they are stored in numpy."""

from __future__ import annotations

import enum
import functools
import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt


class DType(enum.IntEnum):
    """An element type; the value is its code in the instruction stream and in the kernels."""

    BOOL = 0
    INT8 = 1
    UINT8 = 2
    INT16 = 3
    UINT16 = 4
    INT32 = 5
    UINT32 = 6
    INT64 = 7
    UINT64 = 8
    FLOAT16 = 9
    BFLOAT16 = 10
    FLOAT32 = 11
    FLOAT64 = 12

    @functools.cached_property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.storage.itemsize

    @functools.cached_property
    def storage(self) -> np.dtype[Any]:
        """The numpy dtype of the raw bytes; bfloat16 is stored as its uint16 bit pattern."""
        return _STORAGE[self]

    @functools.cached_property
    def is_float(self) -> bool:
        """Whether the type is a floating-point type."""
        return self >= DType.FLOAT16

    @functools.cached_property
    def is_integer(self) -> bool:
        """True for every integer type; bool is not one."""
        return DType.INT8 <= self <= DType.UINT64

    @functools.cached_property
    def label(self) -> str:
        """The lower-case name used in configs, messages and reports."""
        return self.name.lower()


_STORAGE = {dtype: np.dtype("uint16" if dtype is DType.BFLOAT16 else dtype.label) for dtype in DType}
_FROM_NUMPY = {storage: dtype for dtype, storage in _STORAGE.items() if dtype is not DType.BFLOAT16}

MOST_SHOWN = 32
"""Largest number of values that are printed in full."""
DEVICE_DTYPES = frozenset(DType) - {DType.UINT32, DType.UINT64, DType.FLOAT64}
"""Types supported by the device."""


@functools.cache
def _ml_bfloat16() -> np.dtype[Any] | None:
    """The bfloat16 type of ml_dtypes, which the ``onnx`` extra installs; None if it is missing."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


_NARROW_FLOATS = ("8_e4m3fn", "8_e4m3fnuz", "8_e5m2", "8_e5m2fnuz", "8_e8m0fnu", "4_e2m1fn")
"""Those of ONNX."""


@functools.cache
def _ml_narrow() -> dict[np.dtype[Any], DType]:
    """Types of ml_dtypes that are stored in bytes: narrow integers as their value, floats of 8 bits as their bits."""
    try:
        import ml_dtypes
    except ImportError:
        return {}
    found = {np.dtype(getattr(ml_dtypes, name)): DType.INT8 for name in ("int4", "int2")}
    unsigned = "uint4", "uint2", *(f"float{name}" for name in _NARROW_FLOATS)
    return found | {np.dtype(getattr(ml_dtypes, name)): DType.UINT8 for name in unsigned}


def dtype_of(array: npt.NDArray[Any]) -> DType:
    """The DType of a numpy array. Raises TypeError for an unsupported type."""
    if array.dtype == _ml_bfloat16():
        return DType.BFLOAT16
    if array.dtype in _ml_narrow():
        return _ml_narrow()[array.dtype]
    try:
        return _FROM_NUMPY[array.dtype.newbyteorder("=")]
    except KeyError:
        raise TypeError(f"no element type for numpy dtype {array.dtype}") from None


def to_storage(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array in storage form: native byte order, bfloat16 as uint16 bit patterns. Copies only if needed."""
    if array.dtype == _ml_bfloat16():
        return array.view(np.uint16)
    narrow = _ml_narrow().get(array.dtype)
    if narrow is not None:
        return array.view(np.uint8) if "float" in array.dtype.name else array.astype(narrow.storage)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def raw_bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The elements in row-major order as a flat array of bytes. Copies only if the array is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def from_storage(array: npt.NDArray[Any], dtype: DType) -> npt.NDArray[Any]:
    """The inverse of :func:`to_storage`; bfloat16 stays uint16 where ml_dtypes is not installed."""
    bfloat16 = _ml_bfloat16()
    return array.view(bfloat16) if dtype is DType.BFLOAT16 and bfloat16 is not None else array


def value_text(array: npt.NDArray[Any]) -> str:
    """Text that identifies the values of an array; a digest if there are many."""
    if array.size <= MOST_SHOWN:
        return str(array.tolist())
    digest = hashlib.sha256(raw_bytes(to_storage(array)).data).hexdigest()
    return f"{array.dtype.name}{list(array.shape)} of SHA-256 {digest[:16]}"


def bfloat16_to_float32(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Widen bfloat16 bit patterns exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def float32_to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round float32 to bfloat16 bit patterns, to nearest even; NaN stays a quiet NaN."""
    bits = np.asarray(values, np.float32, order="C").view(np.uint32)
    # Adding half a unit less one plus the lowest kept bit rounds halves to even. NaNs are handled separately, because
    # the carry could turn them into infinity.
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), (bits >> np.uint32(16)) | np.uint32(0x40), rounded).astype(np.uint16)
