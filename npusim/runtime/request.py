"""What a client asks for: one run of a program, and device memory for what stays on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt

from npusim.driver import Priority
from npusim.errors import UsageError
from npusim.program import Program

Array = npt.NDArray[Any]


@dataclass(slots=True, eq=False)
class MemoryBlock:
    """Device memory at ``address``. ``users``: jobs that were submitted with it and have not ended, as far as the
    dispatcher's thread knows, to whom alone it belongs."""

    address: int
    nbytes: int
    users: int = 0
    dropped: bool = False


class Keeper(Protocol):
    """Who takes the memory of buffers back."""

    def drop_block(self, block: MemoryBlock) -> None:
        """Nobody can submit jobs with the block any more. Takes no lock: Python may collect a buffer anywhere."""


class DeviceBuffer:
    """``nbytes`` bytes of device memory, made by :meth:`Executor.buffer`. A context manager; or call :meth:`release`.

    Jobs that were submitted with it keep the memory until they have ended, whatever happens to the buffer.
    """

    def __init__(self, executor: Keeper, block: MemoryBlock) -> None:
        self.executor = executor
        self.nbytes = block.nbytes
        self._block = block
        self._released = False

    @property
    def block(self) -> MemoryBlock:
        """The memory behind it. Raises UsageError after release."""
        if self._released:
            raise UsageError(f"a device buffer of {self.nbytes} bytes is used after its release")
        return self._block

    def release(self) -> None:
        """Give the memory back, as soon as no job uses it. A second release does nothing."""
        if not self._released:
            self._released = True
            self.executor.drop_block(self._block)

    def __del__(self) -> None:
        self.release()

    def __enter__(self) -> DeviceBuffer:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One run of a program, as a client wants it.

    ``inputs``: for each input an array of its shape in its storage dtype, which is copied to the device and must not
    change until the job has ended, or a device buffer of at least its size, which is used where it lies. None are
    needed with ``timing_only``. ``outputs``: device buffers for outputs that stay on the device; the others are read
    back. ``budget_ps``: simulated time from submission after which the job is stopped with DeadlineError.
    ``host_mappings``: pools of host memory that have to be mapped for this job, at ``host.map`` each.
    """

    program: Program
    inputs: Mapping[str, Array | DeviceBuffer] = field(default_factory=dict)
    outputs: Mapping[str, DeviceBuffer] = field(default_factory=dict)
    priority: Priority = Priority.MEDIUM
    budget_ps: int | None = None
    timing_only: bool = False
    host_mappings: int = 0
