"""Streams written by the compiler of this process, with their commands.

The times of such a stream can be computed without decoding and verifying it again. It is found by its bytes alone, so a
modified program is unknown. It is kept as long as the program that owns it.

The commands are those of the compiler before encoding, which rounds some values, such as a scale to float32. So they
are only valid for times; to execute a stream it must be decoded and verified (``isa.verify``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from weakref import WeakValueDictionary

from npusim.isa._stream import encode
from npusim.isa.base import Command, Unit, decode
from npusim.isa.control import Residents
from npusim.isa.verify import Limits
from npusim.program import Program


class Emitted:
    """A stream, its commands, their end offsets, and the device that it was written for."""

    __slots__ = ("__weakref__", "code", "commands", "ends", "limits")

    def __init__(self, commands: Sequence[Command], limits: Limits) -> None:
        self.code, ends = encode(commands)
        self.commands, self.ends = tuple(commands), tuple(ends)
        self.limits = limits

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Only the program is pickled: another process does not know the stream."""
        return type(None), ()


_KNOWN: WeakValueDictionary[bytes, Emitted] = WeakValueDictionary()


def emit(commands: Sequence[Command], limits: Limits) -> Emitted:
    """Encode commands for a device, and keep them while the result lives. Raises ProgramError for values that do not
    fit their fields."""
    made = Emitted(commands, limits)
    # A stream shared by two devices is known for the last one.
    _KNOWN[made.code] = made
    return made


def emitted(code: bytes, limits: Limits) -> Emitted | None:
    """The stream with these bytes; None if it was not written in this process, or for another device, or for larger
    regions."""
    known = _KNOWN.get(code)
    return known if known is not None and known.limits.within(limits) else None


def commands_of(program: Program) -> tuple[Sequence[Command], int]:
    """The commands of a program, decoded unless this process compiled it, and how many of them load pinned weights.

    The latter come first. Repeated blocks are not expanded.
    """
    known = program.emitted
    if isinstance(known, Emitted) and known.code == program.code:
        commands, ends = known.commands, known.ends
    else:
        commands = tuple(decode(program.code))
        ends = tuple(accumulate(command.size for command in commands))
    for number, command in enumerate(commands):
        if isinstance(command.instruction, Residents):
            return commands, bisect_right(ends, ends[number] + command.instruction.stream_bytes)
        if command.unit != Unit.CONTROL:
            break
    return commands, 0
