"""Loops in a command stream: the commands of the last iterations of a ``repeat`` operator become one repeated block.

A graph has a few iterations of a loop, so its schedule does not depend on their number. In the stream, the commands of
an iteration, or of a few consecutive ones, are those of the iterations before them, with addresses that advance. Then
they can be repeated: each iteration reads the states where the previous one has written them, and waits for the same
commands of it. A stream whose iterations differ is refused, and its loops are written out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from npusim.compiler.buffers import Buffer
from npusim.compiler.schedule.build import Build
from npusim.errors import ProgramError
from npusim.isa.base import Access, Command, Unit, Wait, l2, region, sram
from npusim.isa.repeat import Block, Repeat, Strides, advanced

MOST_TOGETHER = 2
"""Most iterations in a block. Slots and channels may take turns, so that only every second iteration is the same."""


class NotUniformError(Exception):
    """The iterations of a loop differ in the stream."""


@dataclass(slots=True)
class _Loop:
    """Groups ``ends[i - 1] + 1`` to ``ends[i]`` are an iteration; the last one is repeated ``times`` times."""

    ends: list[int]
    times: int


def with_loops(built: Build) -> list[Command]:
    """The commands of a program, with its loops. Raises NotUniformError for a loop that has to be written out."""
    commands = built.commands
    # The last loop first: the commands of an earlier one keep their numbers.
    for loop in reversed(_loops(built)):
        commands = _repeated(commands, loop, built)
    return commands


def _loops(built: Build) -> list[_Loop]:
    found, ends = [], []
    for group in built.groups:
        op = group.ops[0]
        if op.kind == "repeat":
            ends.append(group.index)
            if op.attrs["times"]:
                found.append(_Loop(ends, op.attrs["times"]))
                ends = []
    return found


def _repeated(commands: list[Command], loop: _Loop, built: Build) -> list[Command]:
    for together in range(1, MOST_TOGETHER + 1):
        if loop.times % together == 0 and len(loop.ends) > 2 * together:
            try:
                return _Window(commands, loop, together, built).repeated()
            except (NotUniformError, ProgramError):
                continue
    raise NotUniformError


class _Window:
    """The last ``together`` iterations of a loop, and as many commands before them."""

    def __init__(self, commands: list[Command], loop: _Loop, together: int, built: Build) -> None:
        self._commands, self._built, self._last = commands, built, loop.ends[-1]
        self._first, self._times = loop.ends[-1 - together] + 1, loop.times // together
        self._groups = loop.ends[-1] - loop.ends[-1 - together]
        numbers = [number for number, one in enumerate(commands) if self._first <= one.op <= self._last and _works(one)]
        if not numbers:
            raise NotUniformError
        after = (number for number, one in enumerate(commands) if one.op > self._last or not _works(one))
        self._end = next(number for number in after if number > numbers[0])
        self._start = self._end - len(numbers)
        self._size = len(numbers)
        if self._start < self._size:
            raise NotUniformError

    def repeated(self) -> list[Command]:
        """The stream with this window as a repeated block. Raises NotUniformError."""
        commands, start, size = self._commands, self._start, self._size
        before, block = commands[start - size : start], commands[start : self._end]
        counts = Counter((one.core, one.unit) for one in block)
        moves = [self._moved(*pair) for pair in zip(before, block, strict=True)]
        made = [
            replace(one, waits=_advancing(other.waits, one.waits, counts))
            for other, one in zip(before, block, strict=True)
        ]
        names = [[field.name for field in one.instruction.fields] for one in block]
        each = [
            (number, names[number].index(name), step)
            for number, found in enumerate(moves)
            for name, step in found.items()
        ]
        repeat = Repeat(self._times + 1, size, Strides(tuple(sorted(each))))
        written = self._check_places(Block(repeat, made), moves)
        mark = Command(0, Unit.CONTROL, block[0].op, (), repeat)
        return [*commands[:start], mark, *made, *self._later(counts, moves, written)]

    def _moved(self, before: Command, one: Command) -> dict[str, int]:
        """How far addresses advance from a command to the same one of the next iterations."""
        same = (before.core, before.unit, before.op + self._groups) == (one.core, one.unit, one.op)
        if not same or type(before.instruction) is not type(one.instruction):
            raise NotUniformError
        if before.instruction is one.instruction:
            return {}
        found = {}
        for field in one.instruction.fields:
            old, new = getattr(before.instruction, field.name), getattr(one.instruction, field.name)
            if old != new and not field.is_address:
                raise NotUniformError
            if old != new:
                found[field.name] = new - old
        if advanced(before.instruction, found, 1) != one.instruction:
            raise NotUniformError  # they differ in their last field
        return found

    def _check_places(self, block: Block, moves: Sequence[dict[str, int]]) -> list[tuple[tuple[int, int], Access]]:
        """Raise NotUniformError unless everything that advances stays in one value that exists during the whole loop.

        Returns the bytes that are written then, each with the unit that writes them.
        """
        written = []
        alive = [each for each in self._built.layout.buffers if each.born < self._first and each.dies >= self._last]
        for number, moved in enumerate(moves):
            if not moved:
                continue
            command, still = block.commands[number], list(block.commands[number].instruction.accesses())
            own = [access for access in still if access is not None]
            for access, alone in zip(block.accesses(number), own, strict=True):
                if (access.low, access.high) == (alone.low, alone.high):
                    continue
                cores = command.instruction.targets(command.core) if access.write else (command.core,)
                if not all(any(_holds(each, access, core) for each in alive) for core in cores):
                    raise NotUniformError
                if access.write:
                    written.append(((command.core, command.unit), access))
        return written

    def _later(
        self,
        counts: Counter[tuple[int, int]],
        moves: Sequence[dict[str, int]],
        written: Sequence[tuple[tuple[int, int], Access]],
    ) -> Iterable[Command]:
        """The commands after the block: they wait for its last iteration, and those of the loop are part of it."""
        commands, start, times = self._commands, self._start, self._times
        issued = Counter((one.core, one.unit) for one in commands[:start])
        known = {(one.op, number): at for at, (one, number) in enumerate(_numbered(commands[start : self._end]))}
        inside = Counter(one.op for one in commands[start : self._end])
        late: Counter[int] = Counter()
        for one in commands[self._end :]:
            waits = tuple(
                Wait(core, unit, count + times * counts[core, unit] if count > issued[core, unit] else count)
                for core, unit, count in one.waits
            )
            made = replace(one, waits=waits)
            if one.op <= self._last and _works(one):
                # A command of the last iteration behind the end of the block: its fellow of the iteration before is
                # in the block.
                there = known.get((one.op - self._groups, inside[one.op] + late[one.op]))
                late[one.op] += 1
                if there is None:
                    raise NotUniformError
                moved = self._moved(commands[start + there], one)
                if moved != moves[there]:
                    raise NotUniformError
                made = replace(made, instruction=advanced(one.instruction, moved, times))
            elif written and _works(one):
                made = replace(made, waits=_after(made.waits, one, written, issued, counts, times))
            yield made


def _works(command: Command) -> bool:
    return command.unit != Unit.CONTROL


def _numbered(commands: Iterable[Command]) -> Iterable[tuple[Command, int]]:
    """Commands, each with its number among those of its operator."""
    seen: Counter[int] = Counter()
    for command in commands:
        yield command, seen[command.op]
        seen[command.op] += 1


def _advancing(before: Sequence[Wait], waits: Sequence[Wait], counts: Counter[tuple[int, int]]) -> tuple[Wait, ...]:
    """The waits that advance with the iterations. The others hold since the iteration before."""
    old = {(core, unit): count for core, unit, count in before}
    found = []
    for wait in waits:
        unit = (wait.core, wait.unit)
        advance = wait.completed - old.pop(unit, wait.completed + 1)
        if advance not in (0, counts[unit]):
            raise NotUniformError
        if advance:
            found.append(wait)
    if old:
        raise NotUniformError
    return tuple(found)


def _holds(buffer: Buffer, access: Access, core: int) -> bool:
    """Whether a value contains the bytes that a core accesses."""
    if buffer.core is not None and buffer.core != core:
        return False
    shared = l2 if buffer.in_l2 else partial(region, buffer.region)
    first = sram(buffer.offset) if buffer.on_chip else shared(buffer.offset)
    return first <= access.address + access.low and access.address + access.high <= first + buffer.nbytes


def _after(
    waits: Sequence[Wait],
    one: Command,
    written: Sequence[tuple[tuple[int, int], Access]],
    issued: Counter[tuple[int, int]],
    counts: Counter[tuple[int, int]],
    times: int,
) -> tuple[Wait, ...]:
    """The waits of a command, and those for the iterations that write bytes which it touches."""
    found = {(core, unit): count for core, unit, count in waits}
    own = [access for access in one.instruction.accesses() if access is not None]
    for unit, rows in written:
        for access in own:
            low, high = access.address + access.low, access.address + access.high
            if unit != (one.core, one.unit) and low < rows.address + rows.high and rows.address + rows.low < high:
                found[unit] = max(found.get(unit, 0), issued[unit] + (times + 1) * counts[unit])
    return tuple(Wait(core, unit, count) for (core, unit), count in sorted(found.items()))
