"""The fuzz of program files reaches deep enough to find errors, and would detect them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from npusim.cache import read_program
from npusim.isa.base import INSTRUCTIONS, Access
from npusim.isa.dma import Copy, Exchange
from npusim.routines.base import find_routine
from npusim.runtime import Session
from tests.support.fuzz import damaged_programs, program_files
from tests.support.fuzz.sample_programs import CONFIGS, samples
from tests.support.shipped_routines import TYPES


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> program_files.World:
    for cls in INSTRUCTIONS.values():  # restored afterwards, because fences stay
        for name in ("execute", "calls"):
            inherits = name not in vars(cls)
            monkeypatch.setattr(cls, name, getattr(cls, name))
            if inherits:
                delattr(cls, name)  # as a run of the fuzz finds it
    return program_files.make()


def test_samples_have_every_instruction_and_every_routine() -> None:
    assert any(config.cores > 1 for config in CONFIGS)
    for number, config in enumerate(CONFIGS):
        missing = {Exchange} if config.cores == 1 else set()
        used = [command.instruction for each in samples() if each.config == number for command in each.commands]
        assert {type(instruction) for instruction in used} == set(INSTRUCTIONS.values()) - missing
        called = {(used.call.name, used.call.version) for used in used if hasattr(used, "call")}
        assert called == {(f"npusim.{name}", 1) for name in TYPES}
        assert all(find_routine(*key) for key in called)


def test_unchanged_samples_are_read_and_run_to_their_ends(tmp_path: Path) -> None:
    for number, config in enumerate(CONFIGS):
        with Session(config, cache_dir=False) as session:
            for sample in samples():
                if sample.config == number:
                    path = tmp_path / "same.npu"
                    meta, code = sample.description.encode(), sample.program.code
                    path.write_bytes(damaged_programs.packed(meta, code, sample.constants))
                    session.run(read_program(path), sample.feeds)


def test_many_changed_programs_run_and_many_are_refused(world: program_files.World) -> None:
    cases = 400
    for number in range(cases):
        assert world.case(random.Random(number)) == []
    ends = world.tally
    assert ends["ran to its end"] > cases / 4
    assert ends["fault PROGRAM before it begins"] > cases / 5
    assert ends["refused: CacheError"] > cases / 20
    assert ends["fault DATA"] > 0


def test_a_fence_stands_once_around_what_instructions_share(world: program_files.World) -> None:
    for cls in INSTRUCTIONS.values():
        assert not hasattr(cls.execute.__wrapped__, "__wrapped__"), cls.mnemonic  # type: ignore[attr-defined]


@pytest.mark.skipif(program_files.SANITIZED, reason="AddressSanitizer would end the process")
def test_a_byte_beside_an_operand_is_seen(world: program_files.World, monkeypatch: pytest.MonkeyPatch) -> None:
    accesses = Copy.accesses

    def short(self: Copy) -> Iterator[Access | None]:
        for access in accesses(self):
            yield access._replace(high=access.high - 1) if access and access.write and access.high > 1 else access

    assert not any(world.case(random.Random(number)) for number in range(100))
    monkeypatch.setattr(Copy, "accesses", short)
    found = [problem for number in range(100) for problem in world.case(random.Random(number))]
    assert found
    assert all(problem.startswith(("Copy(", "Multicast(")) and " writes byte " in problem for problem in found)
