"""A driver that drives nothing: a template to copy when you write one of your own.

It has the verbs that :class:`npusim.driver.reference.Driver` has for one job at a time, and keeps their promises about
arguments, memory and errors; every place where a real driver talks to its device is marked TALK, with what has to be
said there. It computes nothing: outputs are as the device's memory is at power-on, zeros.
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
    """What ``load`` returns belongs to the driver; callers only hand it back."""

    program: Program
    blocks: tuple[int, ...]
    loaded: bool = True


class NullDriver:
    """Give it any bus; it does not touch it."""

    def __init__(self, bus: Bus) -> None:
        # TALK: read the ID register before you write anything. All ones: there is no device. Another ID: not yours.
        # TALK: reset the device, tell it where its ring is, unmask its interrupts, check that it says READY.
        self._bus = bus
        self._memory = Allocator(0, MEMORY_BYTES)  # TALK: the size is in the capability registers
        self._seqno = 0

    def load(self, program: Program) -> NullProgram:
        """Take device memory for the program: all of it or, on DeviceMemoryError, nothing."""
        blocks: list[int] = []
        try:
            for size in (len(program.code), *program.region_bytes):
                blocks.append(self._memory.allocate(size, f"program {program.name!r}"))
        except BaseException:
            self._memory.free_all(blocks)
            raise
        # TALK: copy the code, the constants and the region table into device memory, once; runs reuse them.
        return NullProgram(program, tuple(blocks))

    def unload(self, loaded: NullProgram) -> None:
        """Give the memory back. After this the program cannot be run: say so instead of running freed memory."""
        self._check(loaded)
        loaded.loaded = False
        self._memory.free_all(loaded.blocks)

    def run(
        self, loaded: NullProgram, inputs: Mapping[str, npt.NDArray[Any]] | None = None, *, timing_only: bool = False
    ) -> DriverJob:
        """Check everything before the device sees anything; then submit, wait, read back."""
        self._check(loaded)
        job = DriverJob(loaded.program, inputs, timing_only=timing_only)  # has checked the inputs
        # TALK: copy the inputs, job.arrays, into their regions.
        self._seqno += 1
        job.seqno = self._seqno
        # TALK: write a ring entry with this seqno, move the tail, ring the doorbell.
        # TALK: wait for the interrupt, but not for ever: look at the completion record now and then.
        # TALK: on a fault read code and address, reset the device, raise DeviceFaultError.
        job.ended = True
        for binding in job.read_back:
            # TALK: copy the output from its region. If it ends in a word of ones or zeros, is the device still there?
            job.outputs[binding.name] = np.zeros(binding.shape, binding.dtype.storage)
        return job

    @staticmethod
    def _check(loaded: NullProgram) -> None:
        if not loaded.loaded:
            raise UsageError(f"program {loaded.program.name!r} has been unloaded")
