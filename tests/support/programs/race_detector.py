"""A race detector for programs. It knows which commands are ordered by waits, and which bytes each one accesses.

The order is that of vector clocks: a unit runs its commands in order, and a wait includes everything that the awaited
command waited for. Bytes are exact, element by element, for strided operands, because tiles of one tensor interleave.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import numpy as np
import numpy.typing as npt

from npusim.hw.config import Config
from npusim.isa import dma, matrix, reduction, scalar, vector
from npusim.isa.base import Access, Command, Space, describe_address, offset_of, space_of, span, unit_name
from npusim.isa.verify import Limits
from npusim.limits import limits_of as offered
from npusim.program import Program

Bytes = npt.NDArray[np.int64]
Key = tuple[int, int]


@dataclass(frozen=True)
class Race:
    """Two unordered commands that access the same byte, one of them writing it."""

    first: int
    second: int
    where: str
    commands: tuple[str, str]


class _Strided(Access):
    """An access that knows its elements."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


def _remember(address: int, dims: Iterable[int], strides: Iterable[int], itemsize: int, write: bool) -> Access | None:
    dims, strides = tuple(dims), tuple(strides)
    plain = span(address, dims, strides, itemsize, write)
    if plain is None:
        return None
    access = _Strided(*plain)
    access.dims, access.strides, access.itemsize = dims, strides, itemsize
    return access


@contextmanager
def exact_accesses() -> Iterator[None]:
    """In this context, ``Instruction.accesses`` returns accesses that know their elements."""
    with (
        mock.patch.object(dma, "span", _remember),
        mock.patch.object(matrix, "span", _remember),
        mock.patch.object(vector, "span", _remember),
        mock.patch.object(reduction, "span", _remember),
        mock.patch.object(scalar, "span", _remember),
    ):
        yield


def bytes_of(access: Access) -> Bytes:
    """Return the byte offsets within the memory that an access touches, each once."""
    base = offset_of(access.address)
    if not isinstance(access, _Strided):
        return np.arange(base + access.low, base + access.high)
    low, offsets, overlapping = base, np.arange(access.itemsize, dtype=np.int64), False
    for stride, dim in sorted(zip(access.strides, access.dims, strict=True), key=lambda pair: abs(pair[0])):
        step = abs(stride)
        if not step or dim <= 1:
            continue
        low += min(0, stride * (dim - 1))
        if step == offsets.size == offsets[-1] + 1 and not overlapping:  # dense
            offsets = np.arange(step * dim, dtype=np.int64)
        else:
            overlapping |= step <= offsets[-1]
            offsets = np.add.outer(np.arange(dim, dtype=np.int64) * step, offsets).reshape(-1)
    return low + (np.unique(offsets) if overlapping else offsets)


class _Shadow:
    """For each byte of one memory: the last command that wrote it, and the last command of each unit that read it."""

    def __init__(self, size: int, units: int) -> None:
        self.writer = np.full(size, -1, np.int64)
        self.readers = np.full((units, size), -1, np.int64)


def limits_of(program: Program, config: Config) -> Limits:
    """Return the limits of a device for a program."""
    return offered(config, program.region_bytes)


class Detector:
    """Walks a program in stream order and collects unordered pairs in ``races``."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._shadows: dict[tuple[int, int], _Shadow] = {}
        self._units = [(c, u) for c in range(limits.cores) for u in (0, 1, 2, 3, *range(8, 8 + limits.dma_channels))]
        self._number = {key: index for index, key in enumerate(self._units)}
        self._clocks: dict[Key, list[npt.NDArray[np.int64]]] = {key: [] for key in self._units}
        self._commands: list[Command] = []
        # Unit and 1-based position of each command. The last element stands for no command, whose index is -1.
        self._unit, self._count = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self.races: list[Race] = []

    def run(self, commands: Sequence[Command]) -> list[Race]:
        """Return every race of the stream."""
        self._unit, self._count = np.zeros((2, len(commands) + 1), np.int64)
        with exact_accesses():
            for command in commands:
                self._step(command)
        return self.races

    def _step(self, command: Command) -> None:
        key = (command.core, command.unit)
        history = self._clocks[key]
        clock = history[-1].copy() if history else np.zeros(len(self._units), np.int64)
        clock[self._number[key]] = len(history)
        for core, unit, count in command.waits:
            if count:
                other = self._clocks[core, unit][count - 1]
                clock = np.maximum(clock, other)
                number = self._number[core, unit]
                clock[number] = max(clock[number], count)
        history.append(clock)
        index = len(self._commands)
        self._commands.append(command)
        self._unit[index], self._count[index] = self._number[key], len(history)
        touched = [(access, bytes_of(access)) for access in command.instruction.accesses() if access is not None]
        cores = command.instruction.targets(command.core)
        for access, where in touched:
            for core in cores if access.write else (command.instruction.reads_of(command.core),):
                self._compare(index, clock, access, where, core)
        for access, where in touched:
            for core in cores if access.write else (command.instruction.reads_of(command.core),):
                shadow = self._shadow(core, access.address)
                if access.write:
                    shadow.writer[where] = index
                else:
                    shadow.readers[self._number[key], where] = index

    def _shadow(self, core: int, address: int) -> _Shadow:
        space = space_of(address)
        owner = core if space in (Space.SRAM, Space.ACC) else -1
        shadow = self._shadows.get((owner, space))
        if shadow is None:
            limits = self._limits
            sizes: dict[int, int] = {
                Space.SRAM: limits.sram_bytes,
                Space.ACC: limits.acc_bytes,
                Space.L2: limits.l2_bytes,
            }
            size = sizes.get(space)
            if size is None:
                size = limits.region_bytes[space - Space.REGION]
            shadow = self._shadows[owner, space] = _Shadow(size, len(self._units))
        return shadow

    def _compare(self, index: int, clock: npt.NDArray[np.int64], access: Access, where: Bytes, core: int) -> None:
        shadow = self._shadow(core, access.address)
        seen = [shadow.writer[where], *(shadow.readers[:, where] if access.write else ())]
        late = [rivals[clock[self._unit[rivals]] < self._count[rivals]] for rivals in seen]
        for rival in sorted({index for rivals in late if rivals.size for index in rivals.tolist()}):
            pair = self._commands[rival], self._commands[index]
            names = tuple(f"{c.instruction.mnemonic} of op {c.op} on {unit_name(c.core, c.unit)}" for c in pair)
            self.races.append(Race(rival, index, describe_address(access.address), (names[0], names[1])))


def find_races(commands: Sequence[Command], limits: Limits) -> list[Race]:
    """Return every pair of commands that access the same byte, one of them writing it, without a wait between them."""
    return Detector(limits).run(commands)
