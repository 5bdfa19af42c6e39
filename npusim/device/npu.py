"""The device behind the registers: accesses by software, interrupts, what tools may look at.

A device never raises at software: whatever goes wrong with a job ends in STATUS.FAULT, FAULT_CODE, FAULT_ADDR, a
completion record where there is one, and an interrupt. CONTROL makes it work again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from npusim.device.bus import BAR_MEMORY, BAR_REGISTERS, Turn
from npusim.device.host import HostBus
from npusim.device.jobs import JobQueues
from npusim.device.registers import BY_NAME, RINGS, RegisterFile
from npusim.hw.config import Config
from npusim.isa.base import ISA_VERSION
from npusim.sim.inject import Injection
from npusim.sim.job import Job
from npusim.sim.machine import Machine
from npusim.sim.memory import AddressError
from npusim.timeline import Timeline
from npusim.units import ps_to_cycles

_log = logging.getLogger("npusim.device")

INTERFACE_VERSION = 2
"""Of the registers and of what lies in memory. Raise it with whatever makes a driver fail that keeps to the document of
the version before; a register in space that was reserved, which reads as 0 on older devices, does not."""
VECTOR = 0
"""The one interrupt vector."""

_RESET, _CONTINUE = (field.mask for field in BY_NAME["CONTROL"].fields)


class NpuDevice:
    """A simulated device. Software gets :attr:`bus`; tools may look at :attr:`machine` and at :attr:`last_job`, which
    says what the last ended job did.

    ``listener``: called with the fence and the timeline of each job when it has ended. ``injection``: faults to inject,
    none by default; its fields may be changed at any time.
    """

    def __init__(self, config: Config, injection: Injection | None = None) -> None:
        self.config = config
        self.injection = injection or Injection()
        self.last_job: Timeline | None = None
        self.listener: Callable[[int, Timeline], None] | None = None
        self.machine = Machine(config, self.injection)
        self._clock = self.machine.clock
        rings = {f"{name}_doorbell": partial(self._doorbell, ring) for ring, name in enumerate(RINGS)}
        writes: dict[str, Callable[[int], None]] = {"control": self._control, "int_mask": self._int_mask}
        writes |= {"abort": self._abort, "preempt": self._preempt, **rings}
        self._registers = RegisterFile(_capabilities(config, self.machine), writes, {"cycles": self._hold_cycles})
        self._jobs = JobQueues(self.machine, self._registers, self._raise, self._job_ended)
        self._host = HostBus(config, self._clock, self.machine.memory, self)
        self.bus = self._host

    @property
    def misuse(self) -> list[str]:
        """What software did to the registers that had no effect, oldest first."""
        return self._registers.misuse

    @property
    def now_ps(self) -> int:
        """Simulated time since power-on."""
        return self._clock.now

    def unplug(self) -> None:
        """Take the device off the bus: reads give all ones from here on."""
        self.injection.unplugged = True
        self._host.connected = False

    def close(self) -> None:
        """Switch the device off for good: its memory goes back to the host at once, not when Python collects it."""
        self.unplug()
        self._jobs.reset()
        self.last_job = None
        self.machine.forget()
        self.machine.memory.release()

    def read(self, bar: int, offset: int, size: int) -> int:
        """An access by software; takes no time here."""
        if self.injection.unplugged or size not in (1, 2, 4, 8):
            return (1 << 8 * size) - 1
        if bar == BAR_REGISTERS:
            return self._registers.read(offset, size)
        if bar == BAR_MEMORY:
            try:
                return int.from_bytes(self.machine.memory.slice(offset, size).tobytes(), "little")
            except AddressError as fault:
                _log.warning("aperture read: %s", fault.explanation)
        return (1 << 8 * size) - 1

    def write(self, bar: int, offset: int, size: int, value: int) -> None:
        """An access by software; takes no time here."""
        if self.injection.unplugged or size not in (1, 2, 4, 8):
            return
        value &= (1 << 8 * size) - 1
        if bar == BAR_REGISTERS:
            self._registers.write(offset, size, value)
        elif bar == BAR_MEMORY:
            try:
                self.machine.memory.store(offset, value.to_bytes(size, "little"))
            except AddressError as fault:
                _log.warning("write: %s", fault.explanation)

    def arithmetic(self, turn: Turn) -> Callable[[], bool] | None:
        """For the bus: what a job computes; see :class:`npusim.device.host.InProcess`."""
        return self.machine.arithmetic(Job(turn.code, turn.code_bytes, turn.regions, self._clock.now))

    # Registers

    def _control(self, value: int) -> None:
        if value & _RESET:
            self._jobs.reset()
            self._registers.reset()
            # A message that is still on its way would come to a driver that has nothing it could be about.
            self._host.withdraw_irqs()
        elif value & _CONTINUE:
            self._jobs.go_on()

    def _int_mask(self, mask: int) -> None:
        # What came while the mask was closed has sent nothing: without this a driver that masks while it looks at its
        # jobs would never hear of it.
        if mask & self._registers.get("INT_STATUS"):
            self._deliver()

    def _hold_cycles(self) -> None:
        self._registers.set_pair("CYCLES", ps_to_cycles(self._clock.now, self.config.clock_hz))

    def _doorbell(self, ring: int, value: int) -> None:
        if value:
            self._jobs.doorbell(ring)

    def _preempt(self, value: int) -> None:
        base, size = self._registers.get_pair("CONTEXT_BASE"), self._registers.get_pair("CAP_CONTEXT")
        if value and not 0 < base <= self.config.dram.bytes - size:
            self._registers.complain(
                f"write of {value:#x} to PREEMPT: CONTEXT_BASE must not be 0 and must leave room for {size:#x} bytes "
                f"in DRAM of {self.config.dram.bytes:#x}, got {base:#x}"
            )
            self._registers.set("PREEMPT", 0)
        self._jobs.preempt(base if self._registers.get("PREEMPT") else 0)

    def _abort(self, value: int) -> None:
        if value:
            self._jobs.abort(self._registers.get_pair("ABORT_FENCE"))

    def _raise(self, bits: int) -> None:
        self._registers.set("INT_STATUS", self._registers.get("INT_STATUS") | bits)
        if bits & self._registers.get("INT_MASK"):
            self._deliver()

    def _deliver(self) -> None:
        if self.injection.lose_interrupts:
            self.injection.lose_interrupts -= 1
        elif not self.injection.unplugged:
            self._host.irq(VECTOR)

    def _job_ended(self, fence: int | None, timeline: Timeline) -> None:
        self.last_job = timeline
        if self.listener is not None and fence is not None:
            self.listener(fence, timeline)


def _capabilities(config: Config, machine: Machine) -> dict[str, int]:
    """The values of the registers that the config decides."""
    matrix, vector = config.matrix, config.vector
    context = (len(RINGS) - 1) * machine.context_bytes  # nobody parks a job of the highest class
    present = (matrix is not None) << 16 | (vector is not None) << 17 | (config.scalar is not None) << 18
    return {
        "VERSION": ISA_VERSION | INTERFACE_VERSION << 16,
        "CAP_UNITS": config.cores | config.dma.channels << 8 | present,
        "CAP_MATRIX": matrix.rows | matrix.cols << 16 if matrix else 0,
        "CAP_VECTOR": vector.lanes if vector else 0,
        "CAP_SRAM_LO": config.sram.bytes & 0xFFFF_FFFF,
        "CAP_SRAM_HI": config.sram.bytes >> 32,
        "CAP_ACC": matrix.accumulator_bytes if matrix else 0,
        "CAP_DRAM_LO": config.dram.bytes & 0xFFFF_FFFF,
        "CAP_DRAM_HI": config.dram.bytes >> 32,
        "CAP_CONTEXT_LO": context & 0xFFFF_FFFF,
        "CAP_CONTEXT_HI": context >> 32,
        "CAP_CLOCK": config.clock_hz // 1000,
        "CAP_QUEUE": config.queue_depth,
    }
