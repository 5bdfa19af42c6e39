"""Instructions whose data determine addresses: which they are, and which operands must not overlap."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from npusim.dtypes import DType
from npusim.errors import ProgramError
from npusim.isa.base import INSTRUCTIONS, Command, Instruction, Unit, region
from npusim.isa.control import Halt
from npusim.isa.reduction import Resample
from npusim.isa.routine import Call, Operand, ScalarRoutine
from npusim.isa.scalar import GatherElements, Scatter, TopK
from npusim.isa.verify import Limits, verify
from tests.support.programs.streams import add, gather

LIMITS = Limits((64, 256, 64), 512, 0, 1, 1, ("vector", "scalar"))
DEVICE = Path(__file__).parents[3] / "docs" / "device.md"
LINE = (0, 4, 0)
I32, F32 = DType.INT32, DType.FLOAT32
SEARCH = [Operand(at, I32, (4,)) for at in (0, 64, 128)]
APART: list[tuple[Instruction, str]] = [
    (gather(128, 0, 64, 4, 4), "dst"),
    (GatherElements(4, 128, LINE, 0, LINE, I32, 64, LINE, (1, 4, 1), 4), "dst"),
    (Scatter(I32, 128, LINE, 0, LINE, I32, 64, LINE, (1, 4, 1), 4, 0), "dst"),
    (TopK(F32, 128, LINE, 64, (0, 8, 0), 0, LINE, (1, 4, 1), 4, True), "values"),
    (Resample(F32, 128, LINE, 0, LINE, (1, 4, 1), 4, 64, 96, 1), "dst"),
]


def check(instruction: Instruction) -> None:
    verify([Command(0, instruction.unit, 0, (), instruction), Command(0, Unit.CONTROL, 0, (), Halt())], LIMITS)


@pytest.mark.parametrize(("apart", "written"), APART, ids=lambda made: getattr(made, "mnemonic", ""))
def test_nothing_lies_over_a_result(apart: Instruction, written: str) -> None:
    """Neither an index nor an unread element may overlap a result, not even by a byte."""
    check(apart)
    for at in (3, 67, 0):
        with pytest.raises(
            ProgramError, match=r"operands at sram\+\w+ and sram\+\w+ overlap, and one of them is written"
        ):
            check(dataclasses.replace(apart, **{written: at}))


@pytest.mark.parametrize("at", [0, 64, 128])
def test_nothing_lies_over_a_result_of_a_routine(at: int) -> None:
    lookups, keys, places = SEARCH
    for hits, sound in ((at, False), (192, True)):
        call = Call("npusim.search_keys", 1, (), (lookups, keys), (places, Operand(hits, DType.UINT8, (4,))))
        if sound:
            check(ScalarRoutine(call))
        else:
            with pytest.raises(ProgramError, match="overlap, and one of them is written"):
                check(ScalarRoutine(call))


def test_indices_may_lie_over_what_they_point_into() -> None:
    """Read-only operands may overlap, and in-place operands are allowed if no data determine addresses."""
    check(dataclasses.replace(gather(128, 64, 64, 4, 4), data=64))
    check(add(0, 0, 0, 64))


def test_regions_are_told_apart() -> None:
    check(gather(region(1), region(2), 64, 4, 4))
    with pytest.raises(ProgramError, match=r"operands at r1\+0x2 and r1\+0x0 overlap"):
        check(gather(region(1, 2), region(1), 64, 4, 4))


def test_the_list_of_them_is_complete() -> None:
    """The documentation's table names each one, and contains every instruction that takes an index list, sorts or is
    firmware."""
    listed = set(re.findall(r"^\| `(\w+\.\w+)` \| [^|]+ \| [^|]+ \|$", DEVICE.read_text(), re.MULTILINE))
    decided = {cls for cls in INSTRUCTIONS.values() if cls.data_decides}
    assert listed == {cls.mnemonic for cls in decided}
    fields = {cls: {field.name for field in dataclasses.fields(cls)} for cls in INSTRUCTIONS.values()}
    assert decided == {cls for cls in fields if fields[cls] & {"index", "indices", "call"}}
