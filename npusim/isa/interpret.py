"""Reference interpreter, which defines the results of a program: commands are executed in order, without timing.

The simulator executes the same commands out of order and must give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable

from npusim.isa.base import Command, Memory
from npusim.isa.repeat import expanded


def interpret(commands: Iterable[Command], memory: Memory) -> None:
    """Execute commands in the order of the stream."""
    # Waits are ignored: they refer to earlier commands, which are all complete here.
    for command in expanded(commands):
        command.instruction.execute(memory, command.core)
