"""The definition of what a program means: its commands one after another, without time.

The simulator runs the same commands out of order; its results must be these, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable

from npusim.isa.base import Command, Memory


def interpret(commands: Iterable[Command], memory: Memory) -> None:
    """Execute commands in the order of the stream."""
    # No waits are looked at: they name earlier commands only, and here all of those are complete.
    for command in commands:
        command.instruction.execute(memory, command.core)
