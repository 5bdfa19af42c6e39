"""Element types: sizes, names, and exact bfloat16."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.dtypes import (
    DEVICE_DTYPES,
    DType,
    bfloat16_to_float32,
    dtype_of,
    float32_to_bfloat16,
    from_storage,
    to_storage,
    value_text,
)


@pytest.mark.parametrize("dtype", DType)
def test_sizes_and_kinds(dtype: DType) -> None:
    assert dtype.itemsize == dtype.storage.itemsize
    assert dtype.label == dtype.name.lower()
    assert dtype.is_float == dtype.name.startswith(("FLOAT", "BFLOAT"))
    assert dtype.is_integer == dtype.name.startswith(("INT", "UINT"))


def test_codes_are_those_of_the_instructions() -> None:
    """They are part of every compiled program: a change needs another ISA version."""
    assert [dtype.name for dtype in sorted(DType)] == [
        "BOOL", "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64", "FLOAT16", "BFLOAT16",
        "FLOAT32", "FLOAT64",
    ]  # fmt: skip
    assert [int(dtype) for dtype in sorted(DType)] == list(range(13))
    assert set(DType) - DEVICE_DTYPES == {DType.UINT32, DType.UINT64, DType.FLOAT64}


@pytest.mark.parametrize("dtype", set(DType) - {DType.BFLOAT16})
def test_numpy_types_are_recognised(dtype: DType) -> None:
    assert dtype_of(np.zeros(3, dtype.storage)) is dtype
    assert dtype_of(np.zeros(3, dtype.storage.newbyteorder(">"))) is dtype


def test_bfloat16_is_recognised_and_stored_as_bits() -> None:
    array = np.array([1.0, -2.5], ml_dtypes.bfloat16)
    assert dtype_of(array) is DType.BFLOAT16
    stored = to_storage(array)
    assert stored.dtype == np.uint16
    assert stored.tolist() == [0x3F80, 0xC020]
    assert from_storage(stored, DType.BFLOAT16).dtype == ml_dtypes.bfloat16
    assert from_storage(stored, DType.UINT16) is stored


@pytest.mark.parametrize("strange", [np.complex64, "U3", object, "datetime64[s]", ml_dtypes.float8_e3m4])
def test_other_types_are_refused_by_name(strange: object) -> None:
    array = np.zeros(2, np.dtype(strange))  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="no element type for numpy dtype"):
        dtype_of(array)


def test_storage_is_native_and_copies_only_for_that() -> None:
    native = np.arange(4, dtype=np.int32)
    assert to_storage(native) is native
    swapped = to_storage(native.astype(">i4"))
    assert swapped.dtype.isnative
    np.testing.assert_array_equal(swapped, native)


@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_bfloat16_rounds_as_ml_dtypes_does(values: list[float]) -> None:
    wide = np.array(values, np.float32)
    mine, theirs = float32_to_bfloat16(wide), wide.astype(ml_dtypes.bfloat16)
    nan = np.isnan(wide)
    np.testing.assert_array_equal(mine[~nan], theirs.view(np.uint16)[~nan])
    assert np.isnan(bfloat16_to_float32(mine))[nan].all()


def test_every_bfloat16_survives_widening() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    wide = bfloat16_to_float32(bits)
    finite = ~np.isnan(wide)
    np.testing.assert_array_equal(float32_to_bfloat16(wide)[finite], bits[finite])
    assert np.isnan(bfloat16_to_float32(float32_to_bfloat16(wide[~finite]))).all()


@pytest.mark.parametrize("shape", [(), (0,), (2, 3), (1, 1, 1)])
def test_bfloat16_keeps_the_shape(shape: tuple[int, ...]) -> None:
    values = np.ones(shape, np.float32)
    assert float32_to_bfloat16(values).shape == shape
    assert bfloat16_to_float32(float32_to_bfloat16(values)).shape == shape
    assert float32_to_bfloat16(np.ones((4, 6), np.float32)[::2, ::3]).shape == (2, 2)


def test_ties_go_to_even_and_overflow_to_infinity() -> None:
    one = 0x3F80_0000
    bits = np.array([one | 0x8000, one | 0x1_8000, one | 0x8001, 0x7F7F_FFFF], np.uint32).view(np.float32)
    assert float32_to_bfloat16(bits).tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7F80]


def test_without_ml_dtypes_bfloat16_stays_bits() -> None:
    """The extension type needs an optional package; without it everything else still works."""
    script = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "import numpy as np\n"
        "from npusim.dtypes import DType, dtype_of, from_storage\n"
        "bits = np.array([16256], np.uint16)\n"
        "print(from_storage(bits, DType.BFLOAT16).dtype, dtype_of(bits).label)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["uint16", "uint16"]


def test_values_as_text() -> None:
    assert value_text(np.array(16000)) == "16000"
    assert value_text(np.float32([[0.5], [-1]])) == "[[0.5], [-1.0]]"
    assert value_text(np.array([True])) == "[True]"
    assert value_text(np.array([1.5], ml_dtypes.bfloat16)) == "[1.5]"
    many, other = np.arange(33, dtype=np.int16), np.arange(33, dtype=np.int16)
    other[32] = 0
    assert value_text(many).startswith("int16[33] of SHA-256 ")
    assert value_text(many) == value_text(many.astype(">i2")) != value_text(other)
