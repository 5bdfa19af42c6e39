"""Conversion of TensorProto to arrays: typed fields, raw bytes and external files. Sizes are checked before memory is
allocated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import TensorProto

from npusim.dtypes import DType
from npusim.errors import ModelError, UndecidedError, UnsupportedError
from npusim.frontends.onnx.files import Files
from npusim.frontends.onnx.narrow_formats import FLOATS, INTEGERS, bits_of
from npusim.ops.base import Array
from npusim.units import ceil_div

_SPELT = {DType.FLOAT32: "FLOAT", DType.FLOAT64: "DOUBLE"}  # the others have the same names in ONNX
ELEMENT_TYPES = {int(TensorProto.DataType.Value(_SPELT.get(dtype, dtype.name))): dtype for dtype in DType}
PACKED = {**INTEGERS, **{code: (DType.UINT8, bits_of(code)) for code in FLOATS}}
"""Types that are stored in bytes, with the type of the byte and the bits of an element in a file."""
TEXT = DType.UINT8
"""Recorded as the element type of strings, which have none on the device."""
TO_ONNX = {dtype: code for code, dtype in ELEMENT_TYPES.items()}

_FIELDS = {
    DType.FLOAT32: "float_data",
    DType.FLOAT64: "double_data",
    DType.INT64: "int64_data",
    DType.UINT32: "uint64_data",
    DType.UINT64: "uint64_data",
}


def type_name(code: int) -> str:
    """ONNX's name of an element type."""
    return TensorProto.DataType.Name(code).lower() if code in TensorProto.DataType.values() else f"type {code}"


def element_type(code: int, where: str, op_type: str) -> DType:
    """The DType of an ONNX element type code. Raises UnsupportedError if npusim does not support it, and UndecidedError
    for strings, which the host holds."""
    if code == TensorProto.STRING:
        error = UndecidedError([(where, op_type, "the device does not compute with string")])
        error.on_host = True
        raise error
    if code not in ELEMENT_TYPES:
        raise UnsupportedError([(where, op_type, f"element type {type_name(code)} is not supported")])
    return ELEMENT_TYPES[code]


def layout_of(proto: TensorProto, where: str) -> tuple[tuple[int, ...], DType, tuple[DType, int] | None, int]:
    """(shape, DType, entry of PACKED if any, bytes of data) as declared by a TensorProto.

    Raises ModelError for negative dimensions, UnsupportedError for element types.
    """
    shape = tuple(proto.dims)
    if any(dim < 0 for dim in shape):
        raise ModelError(f"{where}: negative dimension in {list(shape)}")
    # Python integers, because a product of four dimensions of 2**32 must not overflow to 0.
    count = math.prod(shape)
    packed = PACKED.get(proto.data_type)
    dtype = packed[0] if packed else element_type(proto.data_type, where, "tensor")
    return shape, dtype, packed, ceil_div(count * packed[1], 8) if packed else count * dtype.itemsize


def read_tensor(
    proto: TensorProto, files: Files | None, where: str, blob: memoryview | None = None
) -> tuple[Array, DType]:
    """(array in storage form, DType) of a TensorProto. ``files``: location of external data. ``blob``: its raw data if
    it was removed from the message.

    Raises ModelError for sizes that do not match and for missing external files, CompileError if these exceed the
    limit, UnsupportedError for element types.
    """
    shape, dtype, packed, nbytes = layout_of(proto, where)
    count = math.prod(shape)
    if proto.data_location == TensorProto.EXTERNAL:
        if files is None:
            location = next((entry.value for entry in proto.external_data if entry.key == "location"), "")
            raise ModelError(f"{where}: its data is in the file {location!r}; load the model from its path to find it")
        data = files.read(proto, nbytes, where)
    elif blob is not None or proto.HasField("raw_data"):
        raw = proto.raw_data if blob is None else blob
        # Checked before the array is allocated, because dimensions are only numbers in a file.
        if len(raw) != nbytes:
            raise ModelError(f"{where}: {list(shape)} of {dtype.label} needs {nbytes} bytes of data, has {len(raw)}")
        data = np.frombuffer(raw, np.uint8)
    else:
        return _from_field(proto, dtype, shape, count, packed, where), dtype
    if packed:
        return unpack(data, packed[1], count, packed[0]).reshape(shape), dtype
    return from_bytes(data, dtype, shape), dtype


def read_strings(proto: TensorProto, where: str) -> Array:
    """A TensorProto of strings as an array of objects. Raises ModelError."""
    shape = tuple(proto.dims)
    if any(dim < 0 for dim in shape) or math.prod(shape) != len(proto.string_data):
        raise ModelError(f"{where}: {list(shape)} needs as many strings, has {len(proto.string_data)}")
    try:
        texts = [text.decode("utf-8") for text in proto.string_data]
    except UnicodeDecodeError as error:
        raise ModelError(f"{where}: a string is not UTF-8: {error}") from None
    found: Array = np.array(texts, object).reshape(shape)
    return found


def from_bytes(data: Array, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Little-endian bytes as an array; a view on little-endian machines."""
    little = dtype.storage.newbyteorder("<")
    return data.view(little).reshape(shape).astype(dtype.storage, copy=False)


def unpack(data: Array, bits: int, count: int, dtype: DType) -> Array:
    """Elements of ``bits`` bits, low bits first, sign-extended to bytes."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    values = ((data[:, None] >> shifts) & np.uint8((1 << bits) - 1)).reshape(-1)[:count]
    if dtype is DType.UINT8:
        return values
    sign = np.uint8(1 << (bits - 1))
    # Flipping the sign bit and subtracting its weight extends the sign, for any number of bits.
    return ((values ^ sign).astype(np.int16) - int(sign)).astype(np.int8)


def _from_field(
    proto: TensorProto, dtype: DType, shape: tuple[int, ...], count: int, packed: tuple[DType, int] | None, where: str
) -> Array:
    field = _FIELDS.get(dtype, "int32_data")
    values: Any = getattr(proto, field)
    entries = ceil_div(count * packed[1], 8) if packed else count
    if len(values) != entries:
        raise ModelError(f"{where}: {list(shape)} needs {entries} entries in {field}, has {len(values)}")
    if field != "int32_data":
        return np.fromiter(values, dtype.storage, count).reshape(shape)
    wide = np.fromiter(values, np.int32, entries)
    if packed:
        return unpack(wide.astype(np.uint8), packed[1], count, dtype).reshape(shape)
    if dtype in (DType.FLOAT16, DType.BFLOAT16):
        # The field holds bit patterns of half floats, not their values.
        return wide.astype(np.uint16).view(dtype.storage).reshape(shape)
    return wide.astype(dtype.storage).reshape(shape)
