"""What a driver keeps about programs, their runs, and its own traffic."""

from __future__ import annotations

import dataclasses
import enum
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from npusim.errors import NpusimError
from npusim.program import CONSTANTS, Program

Array = npt.NDArray[Any]


class Priority(enum.IntEnum):
    """The class of a job: one of a higher class preempts one of a lower; within a class jobs run in order."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2


@dataclass(slots=True)
class HostCounters:
    """What the host has done, in bytes over the link and in numbers."""

    input_bytes: int = 0
    constant_bytes: int = 0
    code_bytes: int = 0
    buffer_write_bytes: int = 0
    output_bytes: int = 0
    buffer_read_bytes: int = 0
    jobs: int = 0
    mappings: int = 0
    preemptions: int = 0

    @property
    def written_bytes(self) -> int:
        """To the device, of whatever kind."""
        return self.input_bytes + self.constant_bytes + self.code_bytes + self.buffer_write_bytes

    @property
    def read_bytes(self) -> int:
        """From the device, of whatever kind."""
        return self.output_bytes + self.buffer_read_bytes

    def snapshot(self) -> HostCounters:
        """A copy that stays as it is."""
        return HostCounters(*_VALUES(self))

    def since(self, earlier: HostCounters) -> HostCounters:
        """What has come on top of an earlier snapshot."""
        return HostCounters(*map(operator.sub, _VALUES(self), _VALUES(earlier)))

    def mark(self) -> tuple[int, ...]:
        """All values, to be given to :meth:`add_since`."""
        return _VALUES(self)

    def add(self, other: HostCounters, times: int = 1) -> None:
        """Count what another one has counted, too, so many times."""
        for name, value in zip(_NAMES, _VALUES(other), strict=True):
            setattr(self, name, getattr(self, name) + times * value)

    def add_since(self, mark: tuple[int, ...], other: HostCounters) -> None:
        """Count what another one has counted since its mark, too."""
        for name, before, value in zip(_NAMES, mark, _VALUES(other), strict=True):
            if value != before:
                setattr(self, name, getattr(self, name) + value - before)


_NAMES = [item.name for item in dataclasses.fields(HostCounters)]
_VALUES: Callable[[HostCounters], tuple[int, ...]] = operator.attrgetter(*_NAMES)


@dataclass(slots=True, eq=False)
class Slot:
    """The device memory of one run at a time. ``own``: addresses of the regions that were allocated for it.

    ``rows``: the region table as the device's memory holds it; ``usual``: the addresses in it, if all are its own.
    """

    table: int
    completion: int
    log: int
    own: dict[int, int] = field(default_factory=dict)
    rows: bytes = b""
    usual: dict[int, int] = field(default_factory=dict)

    def blocks(self) -> list[int]:
        return [self.table, self.completion, self.log, *self.own.values()]


@dataclass(slots=True, eq=False)
class LoadedProgram:
    """A program in device memory: constants and code stay there until it is unloaded. Made by :meth:`Driver.load`.

    ``resident``: its constants have been written, which the first run that computes does. ``idle``: slots that no run
    uses at the moment; ``running``: runs under way.
    """

    program: Program
    code: int
    constants: int
    sizes: tuple[int, ...]
    idle: list[Slot] = field(default_factory=list)
    running: int = 0
    loaded: bool = True
    resident: bool = False

    @property
    def slot(self) -> Slot:
        """The memory that the next run will use."""
        return self.idle[-1]

    @property
    def regions(self) -> tuple[int, ...]:
        """Address of each region in the next run."""
        own = self.slot.own
        return tuple(self.constants if region == CONSTANTS else own[region] for region in range(len(self.sizes)))


@dataclass(slots=True, eq=False)
class Flight:
    """A job that has been submitted. ``entry``: address of its ring entry; ``done``: the device has ended it."""

    fence: int
    loaded: LoadedProgram
    slot: Slot
    addresses: Mapping[int, int]
    reads: tuple[int, ...]
    ring: int
    entry: int = 0
    flags: int = 0
    cycles: int = 0
    done: bool = False
    error: NpusimError | None = None


@dataclass(frozen=True, slots=True)
class JobResult:
    """``outputs``: arrays in the storage dtype by name, none if timing only. ``cycles``: from doorbell to interrupt."""

    outputs: dict[str, Array]
    cycles: int
    fence: int
