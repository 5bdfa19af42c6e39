"""Save and restore the context of a job: its contents of SRAM, accumulators and L2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simpy.events import Event

from npusim.isa.base import ByteArray
from npusim.sim.owner import EventOwner
from npusim.sim.parts import Parts
from npusim.sim.stepper import SAVE, Stepper


@dataclass(slots=True, eq=False)
class ContextMove(EventOwner):
    """A move of a context: the latency of DRAM, then the bytes at the combined rate of the DMA channels of the job's
    cores.

    ``kind``: SAVE or RESTORE. ``address``: of the context; each core's bytes are at it plus the core number times the
    bytes of a core, and the L2 follows all cores. ``done(move)`` is called at the end. Raises AddressError for an area
    outside of DRAM.
    """

    EVENTS = ("flow", "flowed")

    machine: Parts
    stepper: Stepper
    kind: str
    address: int
    done: Callable[[ContextMove], None]
    told: Callable[[Stepper], None]
    begun_ps: int = 0
    _areas: list[tuple[int, ByteArray]] = field(init=False)
    _l2: ByteArray = field(init=False)

    def __post_init__(self) -> None:
        memory, size = self.machine.memory, self._core_bytes
        self._areas = [(core, memory.slice(self.address + core * size, size)) for core in self.stepper.cores]
        self._l2 = memory.slice(self.address + self.machine.config.cores * size, memory.l2_bytes)

    @property
    def _core_bytes(self) -> int:
        return self.machine.memory.sram_bytes + self.machine.memory.acc_bytes

    @property
    def size(self) -> int:
        """Bytes of all cores that the job uses, and of the L2."""
        return len(self._areas) * self._core_bytes + self.machine.memory.l2_bytes

    def is_void(self, value: Any) -> bool:
        return self.stepper.over

    def begin(self) -> None:
        """Start now."""
        self.begun_ps = self.machine.clock.now
        self.machine.clock.after(self.machine.fabric.latency_ps, self.flow)

    def flow(self, event: Event) -> None:
        """The first byte has arrived."""
        if not self.stepper.over:
            machine = self.machine
            rate = max(len(self._areas), 1) * machine.fabric.core_rate
            machine.link.start(self.size, rate, self.flowed)

    def flowed(self) -> None:
        """The last byte has arrived. All bytes are copied at this time."""
        if self.stepper.over:
            return
        self.stepper.moved_context(self.kind, self.begun_ps, self.size)
        memory = self.machine.memory
        for core, area in self._areas:
            if self.kind == SAVE:
                area[: memory.sram_bytes] = memory.sram[core]
                area[memory.sram_bytes :] = memory.acc[core]
            else:
                memory.sram[core][:] = area[: memory.sram_bytes]
                memory.acc[core][:] = area[memory.sram_bytes :]
        if self.kind == SAVE:
            self._l2[:] = memory.l2
        else:
            memory.l2[:] = self._l2
        self.done(self)
