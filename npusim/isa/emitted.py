"""Streams that the compiler of this process has written, with the commands that it wrote them from.

Whoever wants to know what takes how long need not decode and verify what has just been encoded. What is remembered
hangs on the bytes and on nothing else: a program whose code is another, however it came to it, is one that nobody
knows. It is remembered for as long as the program lives that keeps it.

The commands are as the compiler made them; what the encoding rounds, such as a scale to float32, is not rounded. So
they are good for times, and for times alone: who executes a stream decodes and verifies it first (``isa.verify``).
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakValueDictionary

from npusim.isa._stream import encode
from npusim.isa.base import Command
from npusim.isa.verify import Limits


class Emitted:
    """A stream, its commands, where each of them ends, and the device that it was written for."""

    __slots__ = ("__weakref__", "code", "commands", "ends", "limits")

    def __init__(self, commands: Sequence[Command], limits: Limits) -> None:
        self.code, ends = encode(commands)
        self.commands, self.ends = tuple(commands), tuple(ends)
        self.limits = limits

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """To another process goes the program alone: there it is one that nobody knows."""
        return type(None), ()


_KNOWN: WeakValueDictionary[bytes, Emitted] = WeakValueDictionary()


def emit(commands: Sequence[Command], limits: Limits) -> Emitted:
    """Encode commands that were made for a device, and remember them while the result lives. Raises ProgramError for
    what no field can hold."""
    made = Emitted(commands, limits)
    # A stream that two devices share is known for the one that it was written for last.
    _KNOWN[made.code] = made
    return made


def emitted(code: bytes, limits: Limits) -> Emitted | None:
    """The stream of these bytes; None if it was not written in this process, or for another device, or for larger
    regions."""
    known = _KNOWN.get(code)
    return known if known is not None and known.limits.within(limits) else None
