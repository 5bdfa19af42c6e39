"""Requests of a client: one run of a program, and device memory for tensors that stay on the device."""

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
    """Device memory at ``address``. ``users``: number of submitted jobs that use it and have not ended; only for the
    thread of the dispatcher."""

    address: int
    nbytes: int
    users: int = 0
    dropped: bool = False


class Keeper(Protocol):
    """The owner of the memory of buffers."""

    def drop_block(self, block: MemoryBlock) -> None:
        """Release a block that no client can use any more. Takes no lock, because the garbage collector may call it."""


class DeviceBuffer:
    """``nbytes`` bytes of device memory, made by :meth:`Executor.buffer`. Use it as a context manager, or call
    :meth:`release`.

    Jobs that were submitted with it keep the memory until they have ended, also after a release.
    """

    def __init__(self, executor: Keeper, block: MemoryBlock) -> None:
        self.executor = executor
        self.nbytes = block.nbytes
        self._block = block
        self._released = False

    @property
    def block(self) -> MemoryBlock:
        """The memory block. Raises UsageError after release."""
        if self._released:
            raise UsageError(f"a device buffer of {self.nbytes} bytes is used after its release")
        return self._block

    def release(self) -> None:
        """Release the memory once no job uses it. A second release has no effect."""
        if not self._released:
            self._released = True
            self.executor.drop_block(self._block)

    def __del__(self) -> None:
        """Release the memory if the buffer was not released."""
        self.release()

    def __enter__(self) -> DeviceBuffer:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One run of a program.

    ``inputs``: for each input an array of its shape in its storage dtype, which must not change until the job has
    ended, or a device buffer of at least its size, which is used in place. None are needed with ``timing_only``.
    ``outputs``: device buffers for outputs that stay on the device; the others are read back. ``budget_ps``: simulated
    time after submission at which the job is stopped with DeadlineError. ``host_mappings``: number of host memory pools
    to be mapped for this job, at a cost of ``host.map`` each.
    """

    program: Program
    inputs: Mapping[str, Array | DeviceBuffer] = field(default_factory=dict)
    outputs: Mapping[str, DeviceBuffer] = field(default_factory=dict)
    priority: Priority = Priority.MEDIUM
    budget_ps: int | None = None
    timing_only: bool = False
    host_mappings: int = 0
