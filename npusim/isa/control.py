"""Sequencer instructions."""

from __future__ import annotations

from collections.abc import Iterator

from npusim.errors import ProgramError
from npusim.isa.base import U32, U64, Access, Instruction, Memory, Unit, decode, instruction
from npusim.work import ControlWork, Work


class Control(Instruction):
    """What the sequencer does by itself: no unit takes part, and no bytes."""

    def elements(self) -> int:
        return 0

    def accesses(self) -> Iterator[Access | None]:
        return iter(())

    def work(self) -> Work:
        return ControlWork()

    def execute(self, memory: Memory, core: int) -> None:
        """Nothing to compute."""


@instruction(0x01, "halt", Unit.CONTROL)
class Halt(Control):
    """End of the job: complete once every unit has drained."""


@instruction(0x02, "residents", Unit.CONTROL)
class Residents(Control):
    """The first command of a stream whose next ``stream_bytes`` bytes, the *prologue*, load what stays in SRAM:
    ``sram_bytes`` on all cores together. Where it is there still, the prologue counts as complete and is left out."""

    stream_bytes: U32
    sram_bytes: U64


def resident_bytes(stream: bytes) -> int:
    """Bytes of SRAM that a stream keeps from one job to the next, as its first command says; 0 if it keeps none."""
    try:
        first = next(decode(stream), None)
    except ProgramError:
        return 0
    return first.instruction.sram_bytes if first is not None and isinstance(first.instruction, Residents) else 0
