"""Calls of routines: what the verifier refuses, and faults caused by data."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from npusim._core import Strided
from npusim.dtypes import DType
from npusim.errors import ProgramError
from npusim.hw.units.dma import FETCH_BYTES
from npusim.isa.base import ByteArray, Command, Unit, Wait, acc, decode, encode, region
from npusim.isa.control import Halt
from npusim.isa.disassemble import disassemble
from npusim.isa.routine import MAX_CALL_BYTES, Call, Operand, ScalarRoutine, VectorRoutine
from npusim.isa.verify import Limits, verify
from npusim.routines import canonical
from tests.support.programs.any_instruction import CALLS
from tests.support.sample_routines import PLAIN, SCALE

LIMITS = Limits((256, 256), 512, 128, 1, 1, ("matrix", "vector", "scalar"))
X = Operand(0, DType.INT32, (2, 3, 4))
W = Operand(96, DType.INT32, (3,))
Y = Operand(128, DType.INT32, (2, 3, 4))
N = Operand(224, DType.UINT8, (4, 2))
CALL = Call("test.scale", 1, canonical(PLAIN), (X, W), (Y, N))
SQUARE = Call("test.square", 1, (), (N,), (Operand(240, DType.UINT8, (4, 2)),))


def refused(call: Call, unit: Unit = Unit.SCALAR) -> str:
    cls = ScalarRoutine if unit is Unit.SCALAR else VectorRoutine
    stream = encode([Command(0, unit, 0, (), cls(call)), Command(0, Unit.CONTROL, 0, (), Halt())])
    with pytest.raises(ProgramError) as caught:
        verify(decode(stream), LIMITS)
    return str(caught.value)


def changed(**changes: Any) -> Call:
    return dataclasses.replace(CALL, **changes)


def moved(operand: Operand, **changes: Any) -> Operand:
    return dataclasses.replace(operand, **changes)


def test_a_sound_call_passes() -> None:
    for unit, instruction in ((Unit.SCALAR, ScalarRoutine(CALL)), (Unit.VECTOR, VectorRoutine(SQUARE))):
        stream = encode([Command(0, unit, 0, (), instruction), Command(0, Unit.CONTROL, 0, (), Halt())])
        verify(decode(stream), LIMITS)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (changed(name="test.none"), "routine 'test.none' version 1 is not registered; import the package"),
        (changed(version=7), "routine 'test.scale' version 7 is not registered"),
        (changed(name=""), "routine '' version 1 is not registered"),
        (changed(params=CALL.params[1:]), "parameter 'cuts' is missing"),
        (changed(params=canonical({**PLAIN, "factor": "3"})), "parameter 'factor' must be int, got str"),
        (changed(params=CALL.params[::-1]), "parameters must be sorted"),
        (changed(params=(*CALL.params, CALL.params[-1])), "parameters must be sorted"),
        (changed(inputs=(X,)), "routine test.scale: ValueError"),
        (changed(inputs=(W, X)), "x must be int32"),
        (changed(outputs=(Y,)), "outputs must be"),
        (changed(outputs=(Y, moved(N, shape=(2, 4)))), "outputs must be"),
        (changed(outputs=(Y, moved(N, dtype=DType.INT8))), "outputs must be"),
        (changed(inputs=(moved(X, address=2), W)), r"sram\+0x2:int32\[2,3,4\] must start at a multiple of 4"),
        (changed(inputs=(moved(X, address=region(1)), W)), r"r1\+0x0:int32\[2,3,4\] must be in SRAM"),
        (changed(outputs=(moved(Y, address=acc(0)), N)), "must be in SRAM"),
        (changed(inputs=(X, moved(W, dtype=DType.FLOAT64))), "no unit computes with float64"),
        (changed(outputs=(moved(Y, address=420), N)), "writes bytes 420..516 of sram"),
        (changed(inputs=(moved(X, address=2**40), W)), "the memory has 512"),
        (SQUARE, "routine test.square runs on the vector unit"),
    ],
)
def test_the_gate_refuses(call: Call, message: str) -> None:
    assert re.search(message, refused(call)), refused(call)


def test_the_gate_refuses_scalar_routines_on_the_vector_unit() -> None:
    assert "routine test.scale runs on the scalar unit" in refused(CALL, Unit.VECTOR)


def test_a_call_must_fit_the_fetch_buffer() -> None:
    waits = tuple(Wait(0, Unit.DMA, 1) for _ in range(255))
    command = Command(0, Unit.SCALAR, 0, waits, ScalarRoutine(CALL))
    assert command.size - len(CALL.to_bytes()) + MAX_CALL_BYTES <= FETCH_BYTES
    with pytest.raises(ProgramError, match=f"the call takes .* bytes, at most {MAX_CALL_BYTES} are possible"):
        changed(params=(("label", "x" * MAX_CALL_BYTES),)).to_bytes()


@given(CALLS)
def test_calls_survive_their_encoding(call: Call) -> None:
    assert Call.from_bytes(call.to_bytes()) == call


@pytest.mark.parametrize("cut", range(1, 40))
def test_calls_cut_short_are_refused(cut: int) -> None:
    with pytest.raises(ValueError, match="the call"):
        Call.from_bytes(CALL.to_bytes()[:-cut])


def test_calls_with_something_behind_them_are_refused() -> None:
    with pytest.raises(ValueError, match="not in canonical form"):
        Call.from_bytes(CALL.to_bytes() + b"\0")
    with pytest.raises(ValueError, match="at most"):
        Call.from_bytes(bytes(MAX_CALL_BYTES + 1))


def test_booleans_have_one_encoding() -> None:
    raw = changed(params=(("a", True),)).to_bytes()
    assert raw.endswith(b"b\x01")
    with pytest.raises(ValueError, match="not in canonical form"):
        Call.from_bytes(raw[:-1] + b"\x02")


def test_the_disassembly_shows_the_call() -> None:
    (line,) = disassemble([Command(0, Unit.SCALAR, 0, (), ScalarRoutine(CALL))], ["op"])
    assert "call=test.scale@1(cuts=2 factor=3 fail=False label=plain) [sram+0x0:int32[2,3,4], " in line


class Flat:
    """One array for everything."""

    def __init__(self, array: ByteArray) -> None:
        self.array = array

    def at(self, core: int, address: int, strides: tuple[int, ...] = ()) -> Strided:
        return Strided(self.array, address, strides)


def test_execution_reads_and_writes_memory() -> None:
    memory = np.full(512, 0xEE, np.uint8)
    x = np.arange(-12, 12, dtype=np.int32).reshape(2, 3, 4)
    memory[:96] = x.reshape(-1).view(np.uint8)
    memory[96:108] = np.array([10, 20, 30], np.int32).view(np.uint8)
    before = memory.copy()
    ScalarRoutine(CALL).execute(Flat(memory), 0)
    wanted = x * 3 + np.array([10, 20, 30])[:, None]
    np.testing.assert_array_equal(memory[128:224].view(np.int32).reshape(2, 3, 4), wanted)
    np.testing.assert_array_equal(memory[224:232].reshape(4, 2), np.count_nonzero(x > 0, axis=1).T)
    np.testing.assert_array_equal(memory[:128], before[:128])
    np.testing.assert_array_equal(memory[232:], before[232:])


def test_a_routine_that_raises_is_a_fault_of_the_data() -> None:
    call = changed(params=canonical({**PLAIN, "fail": True}))
    with pytest.raises(ProgramError, match=r"scalar\.routine: routine test\.scale: told to"):
        ScalarRoutine(call).execute(Flat(np.zeros(512, np.uint8)), 0)


def test_work_is_the_routines() -> None:
    specs = ([X.spec, W.spec], [Y.spec, N.spec])
    assert ScalarRoutine(CALL).work() == SCALE.work(*specs, PLAIN)
