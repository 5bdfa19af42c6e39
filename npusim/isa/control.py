"""Sequencer instructions."""

from __future__ import annotations

from collections.abc import Iterator

from npusim.errors import ProgramError
from npusim.isa.base import U32, U64, Access, Instruction, Memory, Unit, decode, instruction
from npusim.work import ControlWork, Work


class Control(Instruction):
    """An instruction executed by the sequencer itself, without units and memory."""

    def elements(self) -> int:
        return 0

    def accesses(self) -> Iterator[Access | None]:
        return iter(())

    def work(self) -> Work:
        return ControlWork()

    def execute(self, memory: Memory, core: int) -> None:
        """No arithmetic."""


@instruction(0x01, "halt", Unit.CONTROL)
class Halt(Control):
    """End of the job, which is complete once every unit is idle."""


@instruction(0x02, "residents", Unit.CONTROL)
class Residents(Control):
    """Must be the first command. The next ``stream_bytes`` bytes of the stream, the *prologue*, load the pinned
    weights: ``sram_bytes`` on all cores together. If the weights are in SRAM already, the prologue counts as complete
    and is skipped."""

    stream_bytes: U32
    sram_bytes: U64


def resident_bytes(stream: bytes) -> int:
    """Bytes of SRAM that a stream keeps pinned between jobs, as given in its first command; 0 for none."""
    try:
        first = next(decode(stream), None)
    except ProgramError:
        return 0
    return first.instruction.sram_bytes if first is not None and isinstance(first.instruction, Residents) else 0
