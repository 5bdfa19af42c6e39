"""A driver without a device: a template for drivers.

It has the methods of :class:`npusim.driver.reference.Driver` for one job at a time, with the same guarantees for
arguments, memory and errors. Comments marked TALK say where a real driver talks to its device, and how. It computes
nothing: outputs are zeros, like device memory at power-on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.device.bus import Bus
from npusim.driver.alloc import Allocator
from npusim.driver.jobs import DriverJob
from npusim.errors import UsageError
from npusim.program import Program

MEMORY_BYTES = 1 << 30


@dataclass(slots=True, eq=False)
class NullProgram:
    """The result of ``load``. It belongs to the driver; callers only pass it back."""

    program: Program
    blocks: tuple[int, ...]
    loaded: bool = True


class NullDriver:
    """Accepts any bus and does not use it."""

    def __init__(self, bus: Bus) -> None:
        # TALK: read the ID register before any write. All ones: no device. Another ID: a device for another driver.
        # TALK: reset the device, set up its rings, unmask its interrupts, check STATUS.READY.
        self._bus = bus
        self._memory = Allocator(0, MEMORY_BYTES)  # TALK: read the size from the capability registers
        self._seqno = 0

    def load(self, program: Program) -> NullProgram:
        """Allocate device memory for the program: all of it or, on DeviceMemoryError, nothing."""
        blocks: list[int] = []
        try:
            for size in (len(program.code), *program.region_bytes):
                blocks.append(self._memory.allocate(size, f"program {program.name!r}"))
        except BaseException:
            self._memory.free_all(blocks)
            raise
        # TALK: copy code, constants and region table into device memory once; runs reuse them.
        return NullProgram(program, tuple(blocks))

    def unload(self, loaded: NullProgram) -> None:
        """Free the memory. A later run must raise an error instead of using freed memory."""
        self._check(loaded)
        loaded.loaded = False
        self._memory.free_all(loaded.blocks)

    def run(
        self, loaded: NullProgram, inputs: Mapping[str, npt.NDArray[Any]] | None = None, *, timing_only: bool = False
    ) -> DriverJob:
        """Check all arguments before using the device; then submit, wait, read back."""
        self._check(loaded)
        job = DriverJob(loaded.program, inputs, timing_only=timing_only)  # checks the inputs
        # TALK: copy the inputs, job.arrays, into their regions.
        self._seqno += 1
        job.seqno = self._seqno
        # TALK: write a ring entry with this seqno, write TAIL, ring the doorbell. TALK: wait for the interrupt with a
        # time-out, and read the completion record now and then. TALK: on a fault read code and address, reset the
        # device, raise DeviceFaultError.
        job.ended = True
        for binding in job.read_back:
            # TALK: copy the output from its region. If it ends in a word of ones or zeros, check that the device is
            # present.
            job.outputs[binding.name] = np.zeros(binding.shape, binding.dtype.storage)
        return job

    @staticmethod
    def _check(loaded: NullProgram) -> None:
        if not loaded.loaded:
            raise UsageError(f"program {loaded.program.name!r} has been unloaded")
