"""Verification: every command stream, compiled or cached, is checked before a device executes it.

It checks that the device has the units and cores of all commands; that waits refer to earlier commands (so that no
stream can deadlock); that fields are valid; that no command processes more elements than allowed; that every access is
inside its memory; that only DMA accesses DRAM and L2; and that outputs do not overlap other operands if addresses
depend on data. Pinned weights must be copied from constants by the prologue, and must never be overwritten. A job that
finds them in SRAM therefore computes the same as one that loads them. A repeated block is checked once, with the bytes
that it touches in all iterations together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from operator import le

from npusim.errors import ProgramError
from npusim.isa.base import Access, Command, Instruction, Space, Unit, describe_address, offset_of, space_of, unit_name
from npusim.isa.control import Residents
from npusim.isa.dma import MULTICASTS, Exchange, Expand
from npusim.isa.repeat import MOST_REPEATED, Block, Repeat
from npusim.program import CONSTANTS

READ_ONLY_REGIONS = frozenset({CONSTANTS})
"""Regions that no command may write: the constants."""


class RefusedCommandError(ProgramError):
    """A command breaks a rule. ``index``: its number in the stream."""

    def __init__(self, text: str, index: int = 0) -> None:
        super().__init__(text)
        self.index = index


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources of a device for a job: bytes of each region and of the memories of each core, number of cores and
    DMA channels, units of each core, whether the interconnect has multicast, whether DMA decompresses weights, whether
    cores have a network between their SRAMs, and bytes of the L2, 0 if there is none."""

    region_bytes: Sequence[int]
    sram_bytes: int
    acc_bytes: int
    cores: int
    dma_channels: int
    units: Collection[str]
    multicast: bool = False
    decoder: bool = False
    exchange: bool = False
    l2_bytes: int = 0

    def within(self, other: Limits) -> bool:
        """Whether programs within these limits are within others: those of the same device with regions of at least the
        same size."""
        sizes, others = tuple(self.region_bytes), tuple(other.region_bytes)
        same = replace(self, region_bytes=()) == replace(other, region_bytes=())
        return same and len(sizes) == len(others) and all(map(le, sizes, others))


def verify(commands: Iterable[Command], limits: Limits) -> None:
    """Raise ProgramError for the first command that violates a rule, with its position."""
    present = {Unit[name.upper()] for name in limits.units} | {Unit.CONTROL}
    stream = _Stream(limits, present)
    left, index, added = iter(commands), 0, 0
    for command in left:
        repeat = command.instruction
        if not isinstance(repeat, Repeat):
            with _located(index, command):
                stream.check(command, None)
            index += 1
            continue
        with _located(index, command):
            stream.check(command, None)
            added += (repeat.times - 1) * repeat.commands
            if added > MOST_REPEATED:
                raise ProgramError(f"the repetitions add {added} commands, at most {MOST_REPEATED} are possible")
            block = Block(repeat, list(islice(left, repeat.commands)))
        for number, each in enumerate(block.commands):
            with _located(index + 1 + number, each):
                stream.check(each, block.accesses(number))
                # A field is invalid in the last iteration if it is in any: addresses are linear.
                block.instruction(number, block.times - 1).check()
        stream.repeated(block)
        index += 1 + len(block.commands)
    if not stream.halted:
        raise ProgramError("the stream does not end in halt")


@contextmanager
def _located(index: int, command: Command) -> Iterator[None]:
    """Context manager: name the command in errors."""
    try:
        yield
    except ProgramError as error:
        raise RefusedCommandError(f"command {index} ({command.instruction.mnemonic}): {error}", index) from None


class _Stream:
    """The state of a verification: the commands of each unit so far, and whether the stream has ended."""

    def __init__(self, limits: Limits, present: Collection[int]) -> None:
        self._limits, self._present = limits, present
        self._issued: dict[tuple[int, int], int] = {}
        self._prologue: _Prologue | None = None
        self._begun = self.halted = False

    def check(self, command: Command, given: list[Access] | None) -> None:
        """Check the next command. ``given``: the bytes that it touches; None: those of its instruction."""
        instruction = command.instruction
        # Halt ends the job, so later commands would never be reached.
        if self.halted:
            raise ProgramError("follows halt")
        _check_issue(command, self._limits, self._present, self._issued)
        # Before the accesses, which rely on these checks: item sizes, matching types, no empty windows.
        instruction.check()
        _check_elements(instruction)
        _check_targets(instruction, self._limits)
        # An operand without elements accesses no memory.
        accesses = [each for each in instruction.accesses() if each is not None] if given is None else given
        for access in accesses:
            _check_access(access, self._limits, by_dma=command.unit >= Unit.DMA)
        if instruction.data_decides:
            _check_apart(accesses)
        if isinstance(instruction, Residents):
            if self._begun:
                raise ProgramError("must be the first command")
            self._prologue = _Prologue(instruction)
        elif self._prologue is not None:
            self._prologue.check(command, accesses)
        self._begun = True
        self.halted = instruction.mnemonic == "halt"
        key = (command.core, command.unit)
        self._issued[key] = self._issued.get(key, 0) + 1

    def repeated(self, block: Block) -> None:
        """Count the iterations of a block after the first, which was checked for all of them."""
        if self._prologue is not None and self._prologue.is_open:
            raise ProgramError("residents are loaded by commands that are not repeated")
        for key, count in block.counts.items():
            self._issued[key] += (block.times - 1) * count


class _Prologue:
    """The commands that load pinned weights, and the bytes of the SRAM of each core that they have filled."""

    def __init__(self, residents: Residents) -> None:
        self._left = residents.stream_bytes
        self._stated = self._missing = residents.sram_bytes
        self._filled: dict[int, list[tuple[int, int]]] = {}  # (first byte, end)
        self._end_when_over()

    @property
    def is_open(self) -> bool:
        """Whether commands of the prologue are still to come."""
        return self._left > 0

    def check(self, command: Command, accesses: Iterable[Access]) -> None:
        """Raise ProgramError for a command of the prologue that is not a load, or a later one that overwrites loaded
        bytes."""
        if not self._left:
            for access in accesses:
                if access.write and space_of(access.address) == Space.SRAM:
                    for core in command.instruction.targets(command.core):
                        self._check_kept(core, access)
            return
        if command.size > self._left:
            raise ProgramError(
                f"{self._left} bytes are left of the commands that load residents, it has {command.size}"
            )
        if command.unit < Unit.DMA:
            raise ProgramError("residents are loaded by DMA alone")
        for access in accesses:
            space, offset = space_of(access.address), offset_of(access.address)
            if space != (Space.SRAM if access.write else Space.REGION + CONSTANTS):
                where = f"{'writes' if access.write else 'reads'} {describe_address(access.address)}"
                raise ProgramError(f"{where}: residents come from region {CONSTANTS} to SRAM")
            for core in command.instruction.targets(command.core) if access.write else ():
                self._filled.setdefault(core, []).append((offset + access.low, offset + access.high))
                self._missing -= access.high - access.low
        self._left -= command.size
        self._end_when_over()

    def _end_when_over(self) -> None:
        if self._left:
            return
        if self._missing:
            raise ProgramError(f"residents take {self._stated - self._missing} bytes of SRAM, not {self._stated}")
        for filled in self._filled.values():
            filled.sort()
            for (_, end), (first, _) in pairwise(filled):
                if first < end:
                    raise ProgramError(f"byte {first} of SRAM is loaded twice as a resident")

    def _check_kept(self, core: int, access: Access) -> None:
        filled = self._filled.get(core, [])
        first, end = offset_of(access.address) + access.low, offset_of(access.address) + access.high
        # Disjoint and sorted: only the last range that begins before the end can overlap.
        number = bisect_left(filled, (end, 0))
        if number and filled[number - 1][1] > first:
            raise ProgramError(f"writes bytes {first}..{end} of SRAM, which holds residents")


def _check_issue(
    command: Command, limits: Limits, present: Collection[int], issued: dict[tuple[int, int], int]
) -> None:
    _check_unit(command.core, command.unit, limits, present)
    wanted = command.instruction.unit
    runs_here = command.unit >= Unit.DMA if wanted == Unit.DMA else command.unit == wanted
    if not runs_here:
        raise ProgramError(f"is for unit {wanted.name.lower()}, issued to {unit_name(command.core, command.unit)}")
    for core, unit, count in command.waits:
        _check_unit(core, unit, limits, present)
        # This prevents deadlock: units run in order, so the oldest unfinished command waits only for complete commands.
        if count > issued.get((core, unit), 0):
            raise ProgramError(
                f"waits for {count} commands of {unit_name(core, unit)}, "
                f"{issued.get((core, unit), 0)} were issued before it"
            )


def _check_targets(instruction: Instruction, limits: Limits) -> None:
    if isinstance(instruction, Expand) and not limits.decoder:
        raise ProgramError("the device has no decoder of weights")
    if not isinstance(instruction, (*MULTICASTS, Exchange)):
        return
    if isinstance(instruction, Exchange):
        if not limits.exchange:
            raise ProgramError("the device's cores have no network between their SRAMs")
        if instruction.source >= limits.cores:
            raise ProgramError(f"reads from core {instruction.source}: the device has {limits.cores}")
    several = not isinstance(instruction, Exchange) or instruction.cores.bit_count() > 1
    if several and not limits.multicast:
        raise ProgramError("the device's interconnect writes to one core at a time")
    if (last := instruction.cores.bit_length()) > limits.cores:
        raise ProgramError(f"writes to core {last - 1}: the device has {limits.cores}")


def _check_unit(core: int, unit: int, limits: Limits, present: Collection[int]) -> None:
    if core >= limits.cores:
        raise ProgramError(f"core {core}: the device has {limits.cores}")
    if unit >= Unit.DMA:
        if unit - Unit.DMA >= limits.dma_channels:
            raise ProgramError(f"DMA channel {unit - Unit.DMA}: the device has {limits.dma_channels}")
    elif unit > Unit.CONTROL:
        raise ProgramError(f"unit {unit}: there is no such unit")
    elif unit not in present:
        raise ProgramError(f"{unit_name(core, unit)}: the device has no such unit")


def _check_elements(instruction: Instruction) -> None:
    elements = instruction.elements()
    if elements > instruction.limit:
        raise ProgramError(f"goes through {elements} elements, at most {instruction.limit} are possible")


def _check_apart(accesses: Sequence[Access]) -> None:
    """Outputs must not overlap other operands; otherwise data that decides on addresses could change during the
    instruction."""
    ends = [(access.address + access.low, access.address + access.high) for access in accesses]
    for (index, access), (low, high) in zip(enumerate(accesses), ends, strict=True):
        for other, (first, end) in zip(accesses[:index], ends, strict=False):
            if (access.write or other.write) and low < end and first < high:
                where = f"{describe_address(access.address)} and {describe_address(other.address)}"
                raise ProgramError(f"operands at {where} overlap, and one of them is written")


def _check_access(access: Access, limits: Limits, *, by_dma: bool) -> None:
    space = space_of(access.address)
    if space >= Space.REGION:
        number = space - Space.REGION
        if number >= len(limits.region_bytes):
            raise ProgramError(f"region {number}: the job has {len(limits.region_bytes)}")
        size = limits.region_bytes[number]
        # Other units have no path to DRAM in hardware, and no cost for it in the cost model.
        if not by_dma:
            raise ProgramError(f"touches {describe_address(access.address)}: only DMA reaches DRAM")
        # Constants stay on the device between runs: a write would corrupt all later jobs of the program.
        if access.write and number in READ_ONLY_REGIONS:
            raise ProgramError(f"writes {describe_address(access.address)}: region {number} is read only")
    elif space == Space.L2:
        size = limits.l2_bytes
        if not size:
            raise ProgramError(f"touches {describe_address(access.address)}: the device has no L2")
        if not by_dma:
            raise ProgramError(f"touches {describe_address(access.address)}: only DMA reaches L2")
    elif space == Space.SRAM:
        size = limits.sram_bytes
    elif space == Space.ACC:
        size = limits.acc_bytes
    else:
        raise ProgramError(f"address {access.address:#x}: there is no memory space {space}")
    # Python's integers do not overflow, so a stride of 2**63 cannot wrap around.
    offset = offset_of(access.address)
    if offset + access.low < 0 or offset + access.high > size:
        kind = "writes" if access.write else "reads"
        first, end = offset + access.low, offset + access.high
        raise ProgramError(f"{kind} bytes {first}..{end} of {describe_address(access.address)}: the memory has {size}")
