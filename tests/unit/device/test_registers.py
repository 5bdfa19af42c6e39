"""The register map and its access rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.device.registers import BY_NAME, REGISTERS, SPACE_BYTES, WIDTH, FieldAccess, Register, RegisterFile

RESETS = {register.name: 0x1234 & register.mask for register in REGISTERS if register.reset is None}
NAMES = sorted(BY_NAME)


def make() -> tuple[RegisterFile, list[tuple[str, int]]]:
    """Return a register file, and the list of its side effects."""
    effects: list[tuple[str, int]] = []
    writes = {reg.on_write: (lambda v, n=reg.on_write: effects.append((n, v))) for reg in REGISTERS if reg.on_write}
    reads = {reg.on_read: (lambda n=reg.on_read: effects.append((n, -1))) for reg in REGISTERS if reg.on_read}
    return RegisterFile(RESETS, writes, reads), effects


def expected_after_write(register: Register, before: int, value: int) -> int:
    """Return the value of a register after a write according to the manual."""
    if register.access is FieldAccess.RW:
        return value & register.mask
    if register.access is FieldAccess.W1C:
        return before & ~value
    return before


def test_the_map_is_sound() -> None:
    offsets = [register.offset for register in REGISTERS]
    assert len(set(offsets)) == len(offsets)
    assert len(BY_NAME) == len(REGISTERS)
    for register in REGISTERS:
        assert register.offset % WIDTH == 0
        assert 0 <= register.offset < SPACE_BYTES
        assert register.mask.bit_count() == sum(field.width for field in register.fields), "fields overlap"
        assert 0 < register.mask < 1 << 32
        assert register.reset is None or not register.reset & ~register.mask
        assert all(field.doc for field in register.fields)


@given(st.sampled_from(NAMES), st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1))
def test_writes_do_what_the_kind_of_register_says(name: str, before: int, value: int) -> None:
    registers, effects = make()
    register = BY_NAME[name]
    registers.set(name, before)
    before &= register.mask
    registers.write(register.offset, 4, value)
    assert registers.get(name) == expected_after_write(register, before, value & register.mask)
    misused = register.access is FieldAccess.RO or bool(value & ~register.mask)
    assert bool(registers.misuse) == misused
    if register.access is FieldAccess.RO or not register.on_write:
        assert not effects
    else:
        after = value & register.mask if register.access is FieldAccess.WO else registers.get(name)
        assert effects == [(register.on_write, after)]


@given(st.sampled_from(NAMES), st.integers(0, (1 << 32) - 1))
def test_reads_change_nothing_but_by_a_declared_effect(name: str, value: int) -> None:
    registers, effects = make()
    register = BY_NAME[name]
    registers.set(name, value)
    seen = registers.read(register.offset, 4)
    assert seen == (0 if register.access is FieldAccess.WO else value & register.mask)
    assert bool(registers.misuse) == (register.access is FieldAccess.WO)
    assert effects == ([(register.on_read, -1)] if register.on_read else [])
    assert registers.get(name) == value & register.mask


@given(st.integers(0, SPACE_BYTES), st.sampled_from([1, 2, 4, 8]), st.integers(0, (1 << 32) - 1))
def test_odd_accesses_have_no_effect_and_are_logged(offset: int, size: int, value: int) -> None:
    registers, effects = make()
    state = {name: registers.get(name) for name in NAMES}
    if size == 4 and any(register.offset == offset for register in REGISTERS):
        return
    registers.write(offset, size, value)
    assert registers.read(offset, size) == 0
    assert {name: registers.get(name) for name in NAMES} == state
    assert not effects
    assert len(registers.misuse) == 2


def test_reset_restores_every_register() -> None:
    registers, _ = make()
    fresh = {name: registers.get(name) for name in NAMES}
    for register in REGISTERS:
        registers.set(register.name, 0xFFFF_FFFF)
    registers.reset()
    assert {name: registers.get(name) for name in NAMES} == fresh


@given(st.integers(0, (1 << 64) - 1))
def test_pairs_hold_64_bits(value: int) -> None:
    registers, _ = make()
    registers.set_pair("SEQNO", value)
    assert registers.get_pair("SEQNO") == value


@pytest.mark.parametrize(
    ("offset", "size", "text"),
    [
        (0x000, 4, "write of 0x5 to ID, which is read only"),
        (0x042, 2, "write of 2 bytes at 0x42: registers are 4 bytes wide and aligned"),
        (0x7F0, 4, "write at 0x7f0: there is no register"),
        (0x134, 4, "write of 0x5 to MEDIUM_DOORBELL: reserved bits 0x4 are ignored"),
    ],
)
def test_misuse_says_what_was_wrong(offset: int, size: int, text: str) -> None:
    registers, _ = make()
    registers.write(offset, size, 5)
    assert registers.misuse == [text]
