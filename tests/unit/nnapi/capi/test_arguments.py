"""Operand types given with an argument: what they may add to the model's types, and errors otherwise."""

from __future__ import annotations

import math
import re

import pytest

from hal.nnapi.aidl.types import Operand
from hal.nnapi.capi.arguments import AtPointer, Omitted, at_pointer
from hal.nnapi.capi.codes import ApiError, ResultCode
from hal.nnapi.capi.pointers import OperandTypeValue
from hal.nnapi.types import OperandType

F32, QUANT8, INT32 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_QUANT8_ASYMM, OperandType.INT32


def argument(
    operand: Operand, given: OperandTypeValue | None, length: int, *, written: bool = False, padded: bool = False
) -> AtPointer:
    """Return the argument with the number 1 at some address."""
    made = at_pointer(operand, given, 4096, length, "input 1", written=written, padded=padded)
    assert isinstance(made, AtPointer)
    assert (made.address, made.length) == (4096, length)
    return made


def dims(known: tuple[int, ...], given: tuple[int, ...], length: int) -> tuple[int, ...]:
    made = argument(Operand(F32, known), OperandTypeValue(int(F32), given, 0.0, 0), length)
    assert made.size == length
    return made.dims


def refused(operand: Operand, given: OperandTypeValue | None, length: int, words: str, written: bool = False) -> None:
    with pytest.raises(ApiError) as caught:
        argument(operand, given, length, written=written)
    assert caught.value.message == words
    assert caught.value.code is ResultCode.BAD_DATA


def test_dimensions_of_the_model_and_of_the_argument_complete_each_other() -> None:
    assert dims((2, 3), (), 24) == (2, 3)
    assert dims((2, 0), (0, 3), 24) == (2, 3)
    assert dims((), (2, 3), 24) == (2, 3)
    assert dims((0, 3), (2, 3), 24) == (2, 3)


@pytest.mark.parametrize("given", [(6,), (2, 3, 1), (0,)])
def test_another_rank_is_called_so(given: tuple[int, ...]) -> None:
    value = OperandTypeValue(int(F32), given, 0.0, 0)
    refused(Operand(F32, (2, 3)), value, 24, f"input 1: must have rank 2, got dimensions {list(given)}")


def test_dimensions_that_contradict_the_model() -> None:
    value = OperandTypeValue(int(F32), (2, 4), 0.0, 0)
    refused(Operand(F32, (2, 3)), value, 24, "input 1: dimensions must agree with [2, 3], got [2, 4]")


def test_a_scalar_takes_no_dimensions() -> None:
    assert argument(Operand(INT32), OperandTypeValue(int(INT32), (), 0.0, 0), 4) == AtPointer(4096, 4, 4, ())
    value = OperandTypeValue(int(INT32), (1,), 0.0, 0)
    refused(Operand(INT32), value, 4, "input 1: is a scalar, got dimensions [1]")


def test_a_pointer_that_is_wrong_is_told_before_anything_else() -> None:
    value = OperandTypeValue(int(INT32), (9,), 0.0, 0, "dimensions are NULL")
    refused(Operand(F32, (4,)), value, 16, "input 1: dimensions are NULL")


@pytest.mark.parametrize("kind", [int(F32), int(QUANT8), int(INT32), 10_001, 0xFFFF_FFFF])
@pytest.mark.parametrize(("scale", "zero"), [(0.5, 3), (0.25, 3), (0.5, 4), (0.0, 0), (-1.0, 1 << 20), (math.nan, -1)])
def test_of_a_type_only_the_dimensions_count(kind: int, scale: float, zero: int) -> None:
    """As in Android's runtime, which compares nothing else with the model."""
    operand = Operand(QUANT8, (0, 4), 0.5, 3)
    assert argument(operand, OperandTypeValue(kind, (2, 4), scale, zero), 8) == AtPointer(4096, 8, 8, (2, 4))
    wrong = OperandTypeValue(kind, (2, 5), scale, zero)
    refused(operand, wrong, 10, "input 1: dimensions must agree with [0, 4], got [2, 5]")


def test_only_an_output_may_leave_its_dimensions_open() -> None:
    refused(Operand(F32, (0, 3)), None, 24, "input 1: dimensions must be known, got [0, 3]")
    assert argument(Operand(F32, (0, 3)), None, 24, written=True) == AtPointer(4096, 24, 24, (0, 3))


def test_padding_is_what_exceeds_the_data() -> None:
    operand = Operand(F32, (4,))
    assert argument(operand, None, 16, padded=True) == AtPointer(4096, 16, 16, (4,))
    assert argument(operand, None, 17, padded=True) == AtPointer(4096, 17, 16, (4,))
    with pytest.raises(ApiError, match=re.escape("input 1 of dimensions [4] must have 16 bytes at least, got 15")):
        argument(operand, None, 15, padded=True)
    refused(operand, None, 17, "input 1 of dimensions [4] must have 16 bytes, got 17")


def test_what_is_nowhere_is_omitted_only_without_a_length() -> None:
    operand = Operand(F32, (4,))
    assert at_pointer(operand, None, 0, 0, "input 1", written=False, padded=False) == Omitted()
    with pytest.raises(ApiError, match="input 1: buffer is NULL, but length is 16") as caught:
        at_pointer(operand, None, 0, 16, "input 1", written=False, padded=False)
    assert caught.value.code is ResultCode.UNEXPECTED_NULL
