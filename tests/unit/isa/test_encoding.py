"""Every instruction survives encoding; bytes that are not a program are refused with ProgramError only."""

from __future__ import annotations

import dataclasses
import re
import struct
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.errors import ProgramError
from npusim.isa import _stream
from npusim.isa.base import (
    INSTRUCTIONS,
    TAIL,
    Command,
    Instruction,
    Unit,
    Wait,
    decode,
    encode,
    operators,
    unit_name,
)
from npusim.isa.control import Halt
from npusim.isa.disassemble import disassemble
from npusim.isa.verify import Limits, verify
from tests.support.examples import examples
from tests.support.programs.any_instruction import commands, field_codes
from tests.support.programs.streams import add, copy

CLASSES = [INSTRUCTIONS[opcode] for opcode in sorted(INSTRUCTIONS)]
LIMITS = Limits((4096, 4096, 4096), 4096, 4096, 2, 2, ("matrix", "vector", "scalar"))
each_instruction = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.mnemonic)


@each_instruction
@settings(max_examples=examples(5))
@given(data=st.data())
def test_encoding_round_trip(cls: type[Instruction], data: st.DataObject) -> None:
    command = data.draw(commands(cls))
    raw = encode([command])
    assert len(raw) == command.size
    assert list(decode(raw)) == [command]
    assert list(decode(memoryview(b"\x00" + raw)[1:])) == [command]


@each_instruction
@settings(max_examples=examples(5))
@given(data=st.data())
def test_a_stream_is_encoded_as_its_commands_are_alone(cls: type[Instruction], data: st.DataObject) -> None:
    drawn = data.draw(st.lists(commands(cls), max_size=3))
    again = [dataclasses.replace(command, op=command.op // 2) for command in drawn]  # the very same instructions
    code, ends = _stream.encode([*drawn, *again])
    parts = [command.to_bytes() for command in (*drawn, *again)]
    assert code == b"".join(parts)
    assert ends == list(accumulate(map(len, parts)))


@pytest.mark.parametrize(
    "change",
    [{"op": 1 << 32}, {"op": -1}, {"core": 256}, {"unit": -1}, {"waits": (Wait(0, 8, 1 << 32),)},
     {"waits": (Wait(0, 256, 1),)}, {"waits": (Wait(0, 8, 1),) * 256}],
)  # fmt: skip
def test_what_no_field_can_hold_is_refused_in_a_stream_as_alone(change: dict[str, Any]) -> None:
    command = dataclasses.replace(Command(0, Unit.DMA, 0, (), copy(0, 64, 8)), **change)
    with pytest.raises(struct.error) as alone:
        command.to_bytes()
    with pytest.raises(struct.error, match=re.escape(str(alone.value))):
        _stream.encode([command])


@settings(max_examples=25)
@given(st.lists(st.sampled_from(CLASSES).flatmap(commands), max_size=6))
def test_streams_round_trip(stream: list[Command]) -> None:
    raw = encode(stream)
    assert len(raw) == sum(command.size for command in stream)
    assert list(decode(raw)) == stream


@each_instruction
@settings(max_examples=examples(5))
@given(data=st.data())
def test_disassembly_shows_everything(cls: type[Instruction], data: st.DataObject) -> None:
    command = data.draw(commands(cls))
    (line,) = disassemble([command], ["first"])
    assert cls.mnemonic in line
    assert unit_name(command.core, command.unit) in line
    for name, (code, _, _) in field_codes(cls).items():
        # The bytes after the fields are shown if there are any.
        shown = code != TAIL or bool(getattr(command.instruction, name).to_bytes())
        assert (f" {name}=" in f" {line}") == shown, name
    for core, unit, number in command.waits:
        assert f"{unit_name(core, unit)}>={number}" in line
    assert line.endswith("; first" if command.op == 0 else f"; {command.op}")


def test_disassembly_shows_units_that_there_are_not() -> None:
    """Any decodable stream can be displayed; it is only verified where it runs."""
    (line,) = disassemble([Command(0, 4, 0, (Wait(1, 7, 2),), copy(0, 64, 64))])
    assert " core0.unit4 " in line
    assert "; wait core1.unit7>=2 ;" in line


def test_operators_of_a_stream_as_far_as_there_are_headers() -> None:
    first, second = Command(0, Unit.DMA, 7, (), copy(0, 64, 64)), Command(0, Unit.VECTOR, 3, (), add(0, 0, 64, 64))
    halt = Command(0, Unit.CONTROL, 99, (), Halt())
    stream = encode([first, second, halt])
    assert operators(stream) == {3, 7}
    assert operators(stream[: first.size + 11]) == {7}
    assert operators(b"") == set()
    assert operators(bytes(1000)) == {0}
    assert operators(b"\xff" * 1000) == {2**32 - 1}


def test_disassembly_names_memories_and_operators() -> None:
    load = Command(0, Unit.DMA + 1, 0, (), copy(0x40, (16 + 2) << 48 | 0x100, 64))
    use = Command(1, Unit.VECTOR, 1, (), add(1 << 48 | 8, 0, 64, 64))
    first, second = disassemble([load, use], ["conv1"])
    assert "core0.dma1" in first
    assert "dst=sram+0x40" in first
    assert "src=r2+0x100" in first
    assert first.endswith("; conv1")
    assert "core1.vector" in second
    assert "fn=ADD" in second
    assert "dst=acc+0x8" in second
    assert second.endswith("; 1")


@each_instruction
@settings(max_examples=examples(5))
@given(data=st.data())
def test_truncated_streams_are_refused(cls: type[Instruction], data: st.DataObject) -> None:
    raw = encode([data.draw(commands(cls))])
    for end in range(1, len(raw)):
        with pytest.raises(ProgramError, match="command at byte 0: "):
            list(decode(raw[:end]))


@settings(max_examples=200)
@given(st.sampled_from(CLASSES).flatmap(commands), st.data())
def test_altered_streams_are_refused_or_mean_something(command: Command, data: st.DataObject) -> None:
    """For any bytes, decoding and verification give a verdict and raise nothing but ProgramError."""
    raw = bytearray(encode([command, Command(0, Unit.CONTROL, 0, (), Halt())]))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = list(decode(bytes(raw)))
        verify(found, LIMITS)
    except ProgramError:
        return
    assert all(command.instruction.work() is not None for command in found)


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(raw: bytes) -> None:
    if raw != HALT:
        with pytest.raises(ProgramError):
            verify(decode(raw), LIMITS)


HALT = Command(0, Unit.CONTROL, 7, (), Halt()).to_bytes()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\x01", "command at byte 0: 1 bytes left, a header takes 12"),
        (HALT + HALT[:4], "command at byte 12: 4 bytes left, a header takes 12"),
        (b"\xee" + HALT[1:], "command at byte 0: unknown opcode 0xee"),
        (HALT[:4] + b"\x0d" + HALT[5:], "command at byte 0: halt of length 13 does not fit its fields"),
        (HALT[:6] + b"\x01" + HALT[7:], "command at byte 0: halt of length 12 does not fit its fields"),
        (
            HALT[:3] + b"\x01\x14" + HALT[5:] + bytes([0, 0, 1, 0, 1, 0, 0, 0]),
            "command at byte 0: reserved bits of a wait are set",
        ),
    ],
)
def test_messages_of_the_decoder(raw: bytes, message: str) -> None:
    with pytest.raises(ProgramError) as caught:
        list(decode(raw))
    assert str(caught.value) == message


def test_a_value_that_does_not_fit_its_field() -> None:
    with pytest.raises(ProgramError, match=r"^dma\.copy: .* in Copy\("):
        encode([Command(0, Unit.DMA, 0, (), copy(-1, 0, 4))])
