"""Repeated commands: the block behind a :class:`Repeat` is executed several times, with addresses that advance.

A block has no loop inside. In iteration ``i``, each address that :class:`Strides` names is ``i`` strides further, and
each wait counts ``i`` times the block's commands of its unit more. So a wait for a command of the block, or of the
iteration before it, means the same command in every iteration.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Annotated, Any, Self

from npusim.errors import ProgramError
from npusim.isa.base import OFFSET_MASK, TAIL, U32, Access, Command, Instruction, Unit, Wait, instruction, space_of
from npusim.isa.control import Control

MOST_REPEATED = 1 << 20
"""Most commands that the repetitions of a stream add to it."""

Moves = Mapping[str, int]
"""Bytes by which address fields of a command advance per iteration, by the name of the field."""

_STRIDE = struct.Struct("<HBBq")


@dataclass(frozen=True, slots=True)
class Strides:
    """Addresses that advance: (number of the command in its block, number of its field, bytes per iteration), in order.

    Encoded as u16 command, u8 field, u8 zero, i64 bytes each.
    """

    each: tuple[tuple[int, int, int], ...] = ()

    def __str__(self) -> str:
        return "[" + ",".join(f"{command}.{field}{step:+}" for command, field, step in self.each) + "]"

    def to_bytes(self) -> bytes:
        """The encoding. Raises ProgramError for numbers that do not fit it."""
        try:
            return b"".join(_STRIDE.pack(command, field, 0, step) for command, field, step in self.each)
        except struct.error as error:
            raise ProgramError(f"repeat: {error} in {self}") from None

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Inverse of ``to_bytes``. Raises ProgramError for other bytes."""
        if len(data) % _STRIDE.size:
            raise ProgramError(f"strides of {len(data)} bytes, must be a multiple of {_STRIDE.size}")
        found = list(_STRIDE.iter_unpack(data))
        each = tuple((command, field, step) for command, field, _, step in found)
        if (
            any(zero for _, _, zero, _ in found)
            or any(not step for *_, step in each)
            or list(each) != sorted(set(each))
        ):
            raise ProgramError("strides out of order, without effect, or with reserved bits set")
        return cls(each)


@instruction(0x03, "repeat", Unit.CONTROL)
class Repeat(Control):
    """Execute the next ``commands`` commands ``times`` times. The sequencer fetches them again in each iteration."""

    times: U32
    commands: U32
    strides: Annotated[Strides, TAIL, Strides.from_bytes]

    def check(self) -> None:
        if not self.times or not self.commands:
            raise ProgramError(f"must repeat at least 1 command once, got {self.commands} commands {self.times} times")
        if (self.times - 1) * self.commands > MOST_REPEATED:
            raise ProgramError(
                f"adds {(self.times - 1) * self.commands} commands, at most {MOST_REPEATED} are possible"
            )


class Block:
    """The commands that a Repeat is followed by. Raises ProgramError for one that cannot be repeated."""

    def __init__(self, repeat: Repeat, commands: Sequence[Command]) -> None:
        repeat.check()
        if len(commands) < repeat.commands:
            raise ProgramError(f"repeats {repeat.commands} commands, {len(commands)} follow it")
        self.times = repeat.times
        self.commands = commands
        self.counts = Counter((command.core, command.unit) for command in commands)
        self._moves: list[dict[str, int]] = [{} for _ in commands]
        for command in commands:
            if command.unit == Unit.CONTROL:
                raise ProgramError(f"repeats a command of the sequencer ({command.instruction.mnemonic})")
        for number, field, step in repeat.strides.each:
            known = commands[number].instruction.fields if number < len(commands) else ()
            if field >= len(known) or not known[field].is_address:
                raise ProgramError(f"advances field {field} of command {number}, which is no address of the block")
            if self._moves[number].setdefault(known[field].name, step) != step:
                raise ProgramError(f"advances field {field} of command {number} twice")

    def instruction(self, number: int, iteration: int) -> Instruction:
        """The instruction of a command of the block in an iteration. Addresses stay in their space, or ProgramError is
        raised."""
        one, moves = self.commands[number].instruction, self._moves[number]
        return advanced(one, moves, iteration) if moves and iteration else one

    def iteration(self, iteration: int) -> Iterator[Command]:
        """The commands of an iteration."""
        if not iteration:
            yield from self.commands
            return
        for number, command in enumerate(self.commands):
            waits = tuple(
                Wait(core, unit, count + iteration * self.counts[core, unit]) for core, unit, count in command.waits
            )
            yield Command(command.core, command.unit, command.op, waits, self.instruction(number, iteration))

    def accesses(self, number: int) -> list[Access]:
        """The bytes that a command of the block may touch in any iteration."""
        first, last = self.instruction(number, 0), self.instruction(number, self.times - 1)
        found = []
        # Addresses are linear in the iteration, so the first and the last one bound all others.
        for one, other in zip(first.accesses(), last.accesses(), strict=True):
            if one is not None and other is not None:
                way = other.address - one.address
                found.append(one._replace(low=one.low + min(0, way), high=one.high + max(0, way)))
        return found


def advanced(one: Instruction, moves: Moves, iterations: int) -> Instruction:
    """An instruction with addresses that many strides further. Raises ProgramError if one leaves its space."""
    values: dict[str, Any] = {field.name: getattr(one, field.name) for field in fields(one)}
    for name, step in moves.items():
        address = values[name] + iterations * step
        if not 0 <= (values[name] & OFFSET_MASK) + iterations * step <= OFFSET_MASK:
            raise ProgramError(
                f"{one.mnemonic}: {name} leaves space {space_of(values[name])} in iteration {iterations}"
            )
        values[name] = address
    return type(one)(**values)


def blocks(commands: Iterable[Command]) -> Iterator[Command | tuple[Command, Block]]:
    """The commands of a stream; those that are repeated as one block, with their Repeat. Raises ProgramError."""
    left, added = iter(commands), 0
    for command in left:
        repeat = command.instruction
        if not isinstance(repeat, Repeat):
            yield command
            continue
        repeat.check()
        added += (repeat.times - 1) * repeat.commands
        if added > MOST_REPEATED:
            raise ProgramError(f"the repetitions add {added} commands, at most {MOST_REPEATED} are possible")
        yield command, Block(repeat, list(islice(left, repeat.commands)))


def expanded(commands: Iterable[Command]) -> Iterator[Command]:
    """The commands in the order of execution, without Repeat. Raises ProgramError for an invalid repetition."""
    for each in blocks(commands):
        if isinstance(each, Command):
            yield each
        else:
            for iteration in range(each[1].times):
                yield from each[1].iteration(iteration)
