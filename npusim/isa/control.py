"""Sequencer instructions."""

from __future__ import annotations

from collections.abc import Iterator

from npusim.isa.base import Access, Instruction, Memory, Unit, instruction
from npusim.work import ControlWork, Work


@instruction(0x01, "halt", Unit.CONTROL)
class Halt(Instruction):
    """End of the job: complete once every unit has drained."""

    def elements(self) -> int:
        return 0

    def accesses(self) -> Iterator[Access | None]:
        return iter(())

    def work(self) -> Work:
        return ControlWork()

    def execute(self, memory: Memory, core: int) -> None:
        """Nothing to compute."""
