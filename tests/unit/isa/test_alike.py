"""What instructions that differ only in addresses have in common: their work for the unit."""

from __future__ import annotations

import contextlib
import dataclasses
from itertools import product

import numpy as np
import pytest

from npusim.errors import ProgramError
from npusim.isa.base import INSTRUCTIONS, Instruction, Unit, acc, l2, region, sram
from npusim.isa.dma import Copy
from npusim.program import CONSTANTS, SCRATCH
from npusim.work import DmaWork
from tests.support.programs.any_instruction import Executable, address_fields

VECTOR = [cls for cls in INSTRUCTIONS.values() if cls.unit is Unit.VECTOR]


@pytest.mark.parametrize("cls", VECTOR, ids=lambda cls: cls.mnemonic)
def test_what_the_vector_unit_is_asked_for_does_not_depend_on_addresses(cls: type[Instruction]) -> None:
    for seed in range(20):
        made, rng = Executable(cls, seed).make(), np.random.default_rng(seed)
        with contextlib.suppress(ProgramError):
            made.check()
            break
    else:
        pytest.fail("none of those that were drawn can be executed")
    for _ in range(10):
        moved = dataclasses.replace(
            made, **{name: int(rng.integers(0, 1 << 30)) for name in sorted(address_fields(cls))}
        )
        moved.like(made)
        assert moved.asked() == moved.work()
        assert moved.asked() is made.asked()


def test_others_say_what_they_are_asked_for_themselves() -> None:
    near, far = _copy(sram(0), sram(64)), _copy(sram(0), region(SCRATCH))
    far.like(near)
    assert far.asked() == far.work() != near.work()


PLACES = [start + offset for start, offset in product(
    (sram(0), acc(0), l2(0), region(CONSTANTS), region(SCRATCH), region(SCRATCH + 3)), (0, 1, 32, 63, 64, 4096)
)]  # fmt: skip


def test_copies_that_are_alike_share_their_work_and_others_do_not() -> None:
    works: dict[tuple[int, int, int], DmaWork] = {}
    for dst, src, itemsize in product(PLACES, PLACES, (1, 4)):
        copy = _copy(dst, src, itemsize)
        copy.alike(works)
        assert copy.asked() == copy.work()
    assert len(works) < len(PLACES) ** 2


def _copy(dst: int, src: int, itemsize: int = 1) -> Copy:
    strides, nothing = (0, 100 * itemsize, 8 * itemsize, itemsize), (0, 0, 0, 0)
    return Copy(dst, strides, src, strides, (1, 3, 4, 8), itemsize, nothing, nothing, 0)
