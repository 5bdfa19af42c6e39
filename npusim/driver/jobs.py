"""The records of a driver: programs, runs, traffic."""

from __future__ import annotations

import dataclasses
import enum
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.errors import InputError, NpusimError
from npusim.program import CONSTANTS, Binding, Program

Array = npt.NDArray[Any]


class Priority(enum.IntEnum):
    """The priority of a job: a job of a higher priority preempts one of a lower. Jobs of one priority run in order."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2


@dataclass(slots=True)
class HostCounters:
    """Operations of the host, and bytes over the link."""

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
        """All bytes written to the device."""
        return self.input_bytes + self.constant_bytes + self.code_bytes + self.buffer_write_bytes

    @property
    def read_bytes(self) -> int:
        """All bytes read from the device."""
        return self.output_bytes + self.buffer_read_bytes

    def snapshot(self) -> HostCounters:
        """A copy."""
        return HostCounters(*_VALUES(self))

    def since(self, earlier: HostCounters) -> HostCounters:
        """The difference to an earlier snapshot."""
        return HostCounters(*map(operator.sub, _VALUES(self), _VALUES(earlier)))

    def mark(self) -> tuple[int, ...]:
        """All values, for :meth:`add_since`."""
        return _VALUES(self)

    def add(self, other: HostCounters, times: int = 1) -> None:
        """Add the counts of another object, ``times`` times."""
        for name, value in zip(_NAMES, _VALUES(other), strict=True):
            setattr(self, name, getattr(self, name) + times * value)

    def add_since(self, mark: tuple[int, ...], other: HostCounters) -> None:
        """Add what another object has counted since its mark."""
        for name, before, value in zip(_NAMES, mark, _VALUES(other), strict=True):
            if value != before:
                setattr(self, name, getattr(self, name) + value - before)


_NAMES = [item.name for item in dataclasses.fields(HostCounters)]
_VALUES: Callable[[HostCounters], tuple[int, ...]] = operator.attrgetter(*_NAMES)


@dataclass(slots=True, eq=False)
class Slot:
    """The device memory of one run. ``own``: addresses of the regions allocated for it. ``rows``: the region table as
    written to the device; ``usual``: its addresses, if all regions are its own."""

    table: int
    completion: int
    log: int
    own: dict[int, int] = field(default_factory=dict)
    rows: bytes = b""
    usual: dict[int, int] = field(default_factory=dict)

    def blocks(self) -> list[int]:
        """Addresses of all blocks of the slot."""
        return [self.table, self.completion, self.log, *self.own.values()]


@dataclass(slots=True, eq=False)
class LoadedProgram:
    """A program in device memory: constants and code stay there until it is unloaded.

    Made by :meth:`Driver.load`. ``resident``: its constants have been written, which the first run with arithmetic
    does. ``number``: identifies its pinned weights on the device. ``idle``: unused slots. ``running``: number of runs
    under way. ``memory``: the allocator of the driver that has loaded it.
    """

    program: Program
    code: int
    constants: int
    sizes: tuple[int, ...]
    number: int
    idle: list[Slot] = field(default_factory=list)
    running: int = 0
    loaded: bool = True
    resident: bool = False
    memory: object = field(default=None, repr=False, compare=False)

    @property
    def slot(self) -> Slot:
        """The slot of the next run."""
        return self.idle[-1]

    @property
    def regions(self) -> tuple[int, ...]:
        """The address of each region in the next run."""
        own = self.slot.own
        return tuple(self.constants if region == CONSTANTS else own[region] for region in range(len(self.sizes)))


def region_sizes(program: Program) -> tuple[int, ...]:
    """Bytes of each region: the size in the program, or the size of its constants, inputs and outputs if that is
    larger."""
    sizes = list(program.region_bytes)
    sizes[CONSTANTS] = max(sizes[CONSTANTS], program.constants.nbytes)
    for item in (*program.inputs, *program.outputs):
        sizes[item.region] = max(sizes[item.region], item.nbytes)
    return tuple(sizes)


class DriverJob:
    """One run of a program: created, then in a ring of the device, then ended.

    The constructor checks the inputs (InputError), and that the program supports the request (UsageError). ``inputs``:
    an array for each input binding that is not bound, of its shape and storage dtype; with ``timing_only`` none are
    needed and no outputs are read. ``bound``: regions of inputs and outputs at a device address of the caller; these
    are neither written nor read by the driver. ``ended``: the driver has seen that the device has finished it.
    ``error``: its error. ``looked``: its outputs required a check that the device is present. ``outputs``, in the
    storage dtype by name, and ``cycles`` of the completion record are set once it is finished.
    """

    __slots__ = (
        "addresses",
        "arrays",
        "bound",
        "cycles",
        "ended",
        "entry",
        "error",
        "flags",
        "loaded",
        "looked",
        "outputs",
        "priority",
        "program",
        "seqno",
        "slot",
        "timing_only",
    )

    def __init__(
        self,
        program: Program,
        inputs: Mapping[str, Array] | None = None,
        *,
        bound: Mapping[int, int] | None = None,
        priority: int = Priority.MEDIUM,
        timing_only: bool = False,
    ) -> None:
        self.program = program
        self.bound = bound or {}
        self.priority = int(priority)
        self.timing_only = timing_only
        self.arrays: list[tuple[Binding, Array]] = []
        if not timing_only:
            program.constants.check_there()
            written = [item for item in program.inputs if item.region not in self.bound] if bound else program.inputs
            self.arrays = _checked_inputs(written, inputs or {})
        self.seqno = self.cycles = self.flags = 0
        self.entry = 0  # address of its ring entry
        self.loaded: LoadedProgram | None = None  # from submission until it is finished
        self.slot: Slot | None = None
        self.addresses: Mapping[int, int] = {}
        self.ended = self.looked = False
        self.error: NpusimError | None = None
        self.outputs: dict[str, Array] = {}

    @property
    def read_back(self) -> list[Binding]:
        """The outputs to be read back when the job has ended."""
        return [] if self.timing_only else [item for item in self.program.outputs if item.region not in self.bound]


def _checked_inputs(bindings: Sequence[Binding], inputs: Mapping[str, Array]) -> list[tuple[Binding, Array]]:
    """Each of ``bindings`` with its array, C-contiguous. Raises InputError for a wrong name, dtype or shape."""
    if len(inputs) != len(bindings) or not all(map(inputs.__contains__, [binding.name for binding in bindings])):
        names = [binding.name for binding in bindings]
        missing = [f"{name!r} is missing" for name in names if name not in inputs]
        unknown = [f"{name!r} is unknown" for name in inputs if name not in names]
        takes = ", ".join(map(repr, names)) or "none"
        raise InputError(f"inputs: {', '.join(missing + unknown)}; the program takes {takes}")
    checked = []
    for binding in bindings:
        array = inputs[binding.name]
        if array.dtype != binding.dtype.storage:
            raise InputError(f"input {binding.name!r}: dtype must be {binding.dtype.storage}, got {array.dtype}")
        if array.shape != binding.shape:
            raise InputError(f"input {binding.name!r}: shape must be {binding.shape}, got {array.shape}")
        checked.append((binding, array if array.flags.c_contiguous else np.ascontiguousarray(array)))
    return checked
