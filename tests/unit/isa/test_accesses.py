"""``accesses()`` bounds the memory that ``execute`` touches; the compiler's waits and the verifier's bounds rely
on it."""

from __future__ import annotations

import numpy as np
import pytest

from npusim._core import Strided
from npusim.errors import ProgramError
from npusim.isa.base import INSTRUCTIONS, Access, ByteArray, Instruction, Unit, offset_of, region
from npusim.isa.dma import Expand, MulticastExpand
from tests.support.programs.any_instruction import AREA, Executable
from tests.support.programs.race_detector import bytes_of, exact_accesses

MEMORY = 12 * AREA
CASES = 80
CLASSES = [INSTRUCTIONS[opcode] for opcode in sorted(INSTRUCTIONS) if INSTRUCTIONS[opcode].unit is not Unit.CONTROL]


class Flat:
    """One array for everything."""

    def __init__(self, array: ByteArray) -> None:
        self.array = array

    def at(self, core: int, address: int, strides: tuple[int, ...] = ()) -> Strided:
        return Strided(self.array, offset_of(address), strides)


def mask(accesses: list[Access]) -> np.ndarray:
    """Return True for every byte within an access."""
    inside = np.zeros(MEMORY, bool)
    for access in accesses:
        inside[offset_of(access.address) + access.low : offset_of(access.address) + access.high] = True
    return inside


def fill_indices(instruction: Instruction, memory: ByteArray, rng: np.random.Generator) -> None:
    """Write indices within the axis, and valid streams, because random bytes seldom are."""
    if isinstance(instruction, Expand):
        memory[offset_of(instruction.src)] &= 0xFC
    size = getattr(instruction, "axis_size", getattr(instruction, "axis", None))
    if size is None:
        return
    axis_size = max(int(size), 1)
    for access in instruction.accesses():
        if access is None or access.address != instruction.index:  # type: ignore[attr-defined]
            continue
        width = 4 if not hasattr(instruction, "index_type") else instruction.index_type.itemsize
        low = -axis_size if hasattr(instruction, "index_type") else -1
        base = offset_of(access.address)
        for position in range(base + access.low, base + access.high - width + 1):
            if (position - base) % width == 0:
                value = int(rng.integers(low, axis_size))
                memory[position : position + width] = np.frombuffer(
                    value.to_bytes(width, "little", signed=True), np.uint8
                )


def run(instruction: Instruction, memory: ByteArray) -> bool:
    """Execute; returns False if the kernel refuses the fields or the data."""
    try:
        instruction.execute(Flat(memory), 0)
    except (ProgramError, ValueError):
        return False
    return True


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.mnemonic)
def test_nothing_outside_the_accesses_matters(cls: type[Instruction]) -> None:
    """No byte outside of writing accesses changes, and no byte outside of all accesses affects the result."""
    executed = changed_any = 0
    for case in range(CASES):
        source = Executable(cls, case)
        instruction = source.make()
        try:
            instruction.check()
        except ProgramError:
            continue
        accesses = [access for access in instruction.accesses() if access is not None]
        if any(offset_of(a.address) + a.low < 0 or offset_of(a.address) + a.high > MEMORY for a in accesses):
            continue
        one = source.rng.integers(0, 256, MEMORY, np.uint8)
        fill_indices(instruction, one, source.rng)
        inside, written = mask(accesses), mask([access for access in accesses if access.write])
        other = np.where(inside, one, one ^ 0xA7).astype(np.uint8)
        before_one, before_other = one.copy(), other.copy()
        ran = run(instruction, one)
        assert run(instruction, other) == ran, instruction
        assert not np.any((one != before_one) & ~written), instruction
        assert not np.any((other != before_other) & ~written), instruction
        np.testing.assert_array_equal(one[inside], other[inside], err_msg=str(instruction))
        executed += ran
        changed_any += bool(ran and np.any(one != before_one))
    assert executed >= CASES // 8, "too few were legal"
    assert changed_any >= executed // 2, "too few changed anything"


def test_elements_are_within_the_bounds() -> None:
    """The exact elements for the race detector are within low and high and reach both."""
    with exact_accesses():
        for cls in CLASSES:
            for case in range(20):
                for access in Executable(cls, case).make().accesses():
                    if access is not None:
                        where, base = bytes_of(access), offset_of(access.address)
                        assert (where[0], where[-1] + 1) == (base + access.low, base + access.high), access


@pytest.mark.parametrize("bits", [0, 1, 3, 7, 16, 255])
def test_no_work_is_in_symbols_of_no_bits(bits: int) -> None:
    """Reports ask for the work of unverified programs."""
    for instruction in (Expand(0, region(0), 4, 4, bits), MulticastExpand(0, region(0), 4, 4, bits, 3)):
        for asked in (instruction.work, instruction.elements, instruction.check):
            with pytest.raises(ProgramError, match=rf"^bits must be one of \(2, 4, 8\), got {bits}$"):
                asked()
