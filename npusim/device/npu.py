"""The device behind its registers: accesses by software, interrupts, and access for tools.

A device never raises exceptions for software. An error in a job is reported in STATUS.FAULT, FAULT_CODE, FAULT_ADDR, a
completion record if there is one, and an interrupt. A write to CONTROL lets the device continue.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial

from npusim.device.bus import BAR_MEMORY, BAR_REGISTERS, Transport, Turn
from npusim.device.check import Checker
from npusim.device.checkpoint import Checkpoint
from npusim.device.copies import Copies
from npusim.device.device_state import DeviceState
from npusim.device.faults import Faults
from npusim.device.firmware import Firmware
from npusim.device.host import HostBus
from npusim.device.interrupts import InterruptController
from npusim.device.port import ControlPort, HostPort
from npusim.device.queuestate import SavedQueues
from npusim.device.registers import BY_NAME, COPY, RINGS, RegisterFile
from npusim.device.stepping import HOUR_PS, run_until, step
from npusim.errors import CheckpointError
from npusim.faults import Faulty
from npusim.hw.config import Config
from npusim.isa.base import ISA_VERSION
from npusim.sim.adversary import Adversary
from npusim.sim.job import MachineJob
from npusim.sim.machine import Machine
from npusim.sim.memory import AddressError
from npusim.sim.watch import Watcher
from npusim.timeline import Timeline
from npusim.turns import exclusive
from npusim.units import ps_to_cycles

_log = logging.getLogger("npusim.device")

INTERFACE_VERSION = 2
"""Version of the registers and of the data structures in memory. Increment it for a change that breaks a driver written
for the previous version. A new register at a reserved address, which reads as 0 on older devices, is no such change."""
switched_on: list[Callable[[NpuDevice], None]] = []
"""Functions called with every device that is powered on in this process, for tools that watch a whole program."""

_RESET, _CONTINUE = (field.mask for field in BY_NAME["CONTROL"].fields)


class NpuDevice:
    """A simulated device. Software uses :attr:`bus`. Tools may inspect :attr:`machine` and :attr:`last_job`, the
    timeline of the last job that ended. Only one thread may use it at a time: during a call, calls from other threads
    raise UsageError. :meth:`watch`, :attr:`faults`, :meth:`unplug` and methods that only read may be called from any
    thread.

    ``listener``: called with the seqno and the timeline of each job that has ended. ``faults``: a script of faults,
    default none; :attr:`faults` accepts more at any time. ``check``: whether to check the driver
    (:class:`npusim.device.check.Checker`); ``"poison"`` also fills memory that nobody has written; None uses
    ``$NPUSIM_DRIVER_CHECK``. Findings are in ``checker``. ``adversary``: seed for delays that the contract of the
    device leaves open (:class:`npusim.sim.adversary.Adversary`); None uses ``$NPUSIM_ADVERSARY``. ``shared_memory``:
    keep DRAM in a file that other processes can map, ``machine.memory.dram_file``. Raises ConfigError for faults that
    the device does not support.
    """

    def __init__(
        self,
        config: Config,
        faults: Faulty | None = None,
        *,
        check: bool | str | None = None,
        adversary: int | None = None,
        shared_memory: bool = False,
    ) -> None:
        self.config = config
        self.last_job: Timeline | None = None
        self.listener: Callable[[int, Timeline], None] | None = None
        self.machine = Machine(config, Adversary.wanted(adversary), shared_memory=shared_memory)
        self._clock = self.machine.clock
        self.turn = self._clock.turn
        pci, watchers = config.pci, self.machine.watchers
        effects: dict[str, Callable[[int], None]] = {}  # filled below, once the parts exist
        self.registers = registers = RegisterFile(
            _capabilities(config, self.machine), effects, {"cycles": self._hold_cycles}, watchers, _parts(config)
        )
        self._host = HostBus(config, self._clock, self.machine.memory, self, watchers)
        self.bus = self._host
        self.connected = True
        """Whether the device is on its bus; see :meth:`unplug`."""
        self.plugged = 0
        """How often the device was plugged in again."""
        self.vectors = pci.vectors if pci else 1
        """Number of interrupt vectors."""
        self._interrupts = InterruptController(
            registers, self._clock, self.vectors, watchers, self._host, self.machine.adversary
        )
        raise_ = self._interrupts.raise_
        # None if the device has no copy engine; then it has no register for it either.
        self._copies: Copies | None = None
        self._firmware: Firmware | None = None
        port = ControlPort(self.machine)
        if pci and pci.address_bits:
            port = HostPort(self.machine, pci, lambda: self._interrupts.transport)
            self._copies = Copies(self.machine, registers, port, pci, raise_)
        if config.firmware:
            self._firmware = Firmware(config.firmware, self._clock, registers, port)
        self._jobs = SavedQueues(self.machine, registers, port, raise_, self._job_ended)
        effects |= self._effects()
        parts = {"interrupts": self._interrupts, "copies": self._copies, "firmware": self._firmware}
        self._state = DeviceState(
            self.machine,
            registers,
            self._jobs,
            self._host,
            {name: part for name, part in parts.items() if part},
            self.lose_power,
        )
        self.checker = Checker.wanted(check, self.machine, registers.values, port.load)
        if self.checker is not None:
            self.watch(self.checker)
        self.faults = Faults(self, self._begin_faults, self._end_faults)
        for told in tuple(switched_on):
            told(self)
        if faults is not None:
            self.faults.add(faults)

    def _effects(self) -> dict[str, Callable[[int], None]]:
        """The side effects of register writes, by name."""
        interrupts = self._interrupts
        return {
            "control": self._control,
            "int_mask": interrupts.mask_written,
            "int_status": interrupts.status_written,
            "int_route": interrupts.route_written,
            "int_moderation": interrupts.moderation_written,
            "abort": self._abort,
            "preempt": self._preempt,
            "fw_boot": self._boot,
            f"{COPY}_doorbell": partial(self._doorbell, None),
            **{f"{name}_doorbell": partial(self._doorbell, ring) for ring, name in enumerate(RINGS)},
        }

    @property
    def misuse(self) -> list[str]:
        """Accesses by software that had no effect, oldest first."""
        return self.registers.misuse

    @property
    def now_ps(self) -> int:
        """Simulated time since power-on, in ps."""
        return self._clock.now

    @property
    def interrupts_pending(self) -> bool:
        """The level of the interrupt line: whether INT_STATUS has a bit that is enabled in INT_MASK."""
        return self._interrupts.pending

    @property
    def transport(self) -> Transport:
        """Destination of interrupts and of accesses to host memory."""
        return self._interrupts.transport

    @exclusive
    def connect(self, transport: Transport) -> None:
        """Send interrupts and accesses to host memory to this transport instead of :attr:`bus`."""
        self._interrupts.transport = transport

    @exclusive
    def reset(self) -> None:
        """The effect of CONTROL.RESET: drop jobs and copies and reset the registers. Firmware, DRAM and clock are
        kept."""
        if self.checker is not None:
            self.checker.reset()
        self._jobs.reset()
        if self._copies:
            self._copies.reset()
        self.registers.reset()
        self._interrupts.reset()
        if self._firmware:
            self._firmware.show()
        # The driver has no job left to which a late message could refer.
        self._interrupts.transport.cancel_irqs()
        self._interrupts.transport.level()
        if self.faults.active:
            self.faults.was_reset()

    @exclusive
    def lose_power(self) -> None:
        """Reset to the state after power-on, except for the clock and for DRAM, which keeps its contents."""
        self.reset()
        if self._firmware:
            self._firmware.lose()
        for memory in (*self.machine.memory.sram, *self.machine.memory.acc, self.machine.memory.l2):
            memory[:] = 0

    def watch(self, watcher: Watcher) -> None:
        """Call a :class:`npusim.sim.watch.Watcher` for all events from now on, including those of jobs under way. Waits
        for a thread that is in a call."""
        with self.turn.visit():
            self._jobs.watch(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Remove a watcher. Waits for a thread that is in a call. Raises ValueError if it is not registered."""
        with self.turn.visit():
            self._jobs.unwatch(watcher)

    @property
    def jobs(self) -> SavedQueues:
        """The jobs that were taken from the rings, for inspection."""
        return self._jobs

    @property
    def messages(self) -> list[int]:
        """Interrupt messages on :attr:`bus` that software has not taken, as vectors."""
        return self._host.pending()

    @exclusive
    def run_until(self, until: int | Callable[[], object], *, limit_ps: int = HOUR_PS) -> bool:
        """Advance the device to a time since power-on in ps, or until ``until()`` is true. Returns whether that was
        reached.

        All events up to and including that time are processed. A condition is evaluated first and after each event, for
        at most ``limit_ps``. Use it after submitting jobs, instead of waiting for them. Raises UsageError for a time in
        the past.
        """
        return run_until(self, until, limit_ps)

    @exclusive
    def step(self, what: str = "instruction", count: int = 1, *, limit_ps: int = HOUR_PS) -> bool:
        """Advance the device until ``count`` instructions have ended (``instruction``), operators have begun
        (``layer``) or cycles have passed (``cycle``). Returns whether that happened within ``limit_ps``. Raises
        UsageError."""
        return step(self, what, count, limit_ps)

    @exclusive
    def checkpoint(self) -> Checkpoint:
        """The state of the device, including jobs under way; see docs/guide/debugger.md.

        It does not include ``last_job``, ``listener``, watchers, or the state of the driver. Raises CheckpointError
        while an event is being processed, that is, in a watcher or a listener.
        """
        if self.faults.active:
            raise CheckpointError("a device with scheduled faults has no checkpoints: remove them first")
        return self._state.checkpoint()

    @exclusive
    def restore(self, checkpoint: Checkpoint | str | os.PathLike[str]) -> None:
        """Restore a checkpoint, or the checkpoint in a file, of the same description: same bits and same times from
        then on.

        Raises CheckpointError, or UsageError for a file that cannot be read; a device whose restore has begun is then
        in the state after power-on.
        """
        self._state.restore(checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint.read(checkpoint))
        self.connected = self._interrupts.connected = self._host.connected
        self.last_job = None
        if self.checker is not None:
            self.checker.restored()

    def pretend(self, **registers: int) -> None:
        """Give registers other values, which resets keep. For tests of drivers."""
        for name, value in registers.items():
            self.registers.pretend(name, value)

    def unplug(self) -> None:
        """Take the device off the bus: reads return all ones, and it sends no interrupts."""
        if self.checker is not None:
            self.checker.unplugged()
        self.connected = self._host.connected = self._interrupts.connected = False

    @exclusive
    def plug(self) -> None:
        """Plug the device in again, in the state after power-on with DRAM zeroed. Only the clock continues."""
        self.lose_power()
        self.plugged += 1
        self.machine.memory.release()
        if self.checker is not None:
            self.checker.powered_on()
        self.connected = self._host.connected = self._interrupts.connected = True

    def send(self, vector: int) -> None:
        """Send an interrupt message without a cause."""
        self._interrupts.send(vector)

    @exclusive
    def close(self) -> None:
        """Power the device off for good and release its memory at once."""
        if self.checker is not None:
            self.checker.switched_off(gone=not self.connected)
        self.unplug()
        self._jobs.reset()
        self.last_job = None
        self.machine.forget()
        self.machine.memory.release()

    def read(self, bar: int, offset: int, size: int) -> int:
        """An access by software. It takes no simulated time here."""
        if not self.connected or size not in (1, 2, 4, 8):
            return (1 << 8 * size) - 1
        if bar == BAR_REGISTERS:
            return self.registers.read(offset, size)
        if bar == BAR_MEMORY:
            try:
                value = int.from_bytes(self.machine.memory.slice(offset, size).tobytes(), "little")
                for watcher in self.machine.watchers[:]:
                    watcher.memory_read(offset, size)
                return value
            except AddressError as fault:
                self._misused("aperture read", fault)
        return (1 << 8 * size) - 1

    def write(self, bar: int, offset: int, size: int, value: int) -> None:
        """An access by software. It takes no simulated time here."""
        if not self.connected or size not in (1, 2, 4, 8):
            return
        value &= (1 << 8 * size) - 1
        if bar == BAR_REGISTERS:
            self.registers.write(offset, size, value)
        elif bar == BAR_MEMORY:
            try:
                self.machine.memory.store(offset, value.to_bytes(size, "little"))
                for watcher in self.machine.watchers[:]:
                    watcher.memory_written(offset, size)
            except AddressError as fault:
                self._misused("aperture write", fault)

    def _begin_faults(self, watcher: Watcher) -> None:
        self.watch(watcher)
        self.registers.breaks = self._interrupts.breaks = self.faults

    def _end_faults(self, watcher: Watcher) -> None:
        self.unwatch(watcher)
        self.registers.breaks = self._interrupts.breaks = None

    def _misused(self, verb: str, fault: AddressError) -> None:
        _log.warning("%s: %s", verb, fault.explanation)
        for watcher in self.machine.watchers[:]:
            watcher.misused(f"{verb}: {fault.explanation}")

    @exclusive
    def arithmetic(self, turn: Turn) -> Callable[[], bool] | None:
        """The arithmetic of a job, for the bus; see :class:`npusim.device.host.InProcess`."""
        return self.machine.arithmetic(MachineJob(turn.code, turn.code_bytes, turn.regions, self._clock.now))

    # Registers

    def _control(self, value: int) -> None:
        if value & _RESET:
            self.reset()
            if self.faults.active:
                self.faults.reset_asked()
        elif value & _CONTINUE:
            self._jobs.go_on()
            if self._copies:
                self._copies.go_on()

    def _hold_cycles(self) -> None:
        self.registers.set_pair("CYCLES", ps_to_cycles(self._clock.now, self.config.clock_hz))

    def _doorbell(self, ring: int | None, value: int) -> None:
        """``ring``: None is the copy ring, which works without firmware because it may transfer the image."""
        if not value:
            return
        if ring is None:
            assert self._copies is not None
            self._copies.doorbell()
        elif self._firmware and not self._firmware.running:
            self.registers.complain(f"write to {RINGS[ring]}_DOORBELL: no firmware runs, see FW_STATUS")
        else:
            self._jobs.doorbell(ring)

    def _boot(self, value: int) -> None:
        if value and self._firmware:
            self._firmware.boot()

    def _preempt(self, value: int) -> None:
        base, size = self.registers.get_pair("CONTEXT_BASE"), self.registers.get_pair("CAP_CONTEXT")
        if value and not 0 < base <= self.config.dram.bytes - size:
            self.registers.complain(
                f"write of {value:#x} to PREEMPT: CONTEXT_BASE must not be 0 and must leave room for {size:#x} bytes "
                f"in DRAM of {self.config.dram.bytes:#x}, got {base:#x}"
            )
            self.registers.set("PREEMPT", 0)
        self._jobs.preempt(base if self.registers.get("PREEMPT") else 0)

    def _abort(self, value: int) -> None:
        if value:
            self._jobs.abort(self.registers.get_pair("ABORT_SEQNO"))

    def _job_ended(self, seqno: int | None, timeline: Timeline) -> None:
        self.last_job = timeline
        if self.listener is not None and seqno is not None:
            self.listener(seqno, timeline)


def _parts(config: Config) -> list[str]:
    """The optional parts of the device, by the names used in ``Register.part``."""
    pci = config.pci
    has = {
        "vectors": pci is not None,
        "moderation": pci is not None and pci.moderation,
        "host": pci is not None and pci.address_bits > 0,
        "firmware": config.firmware is not None,
    }
    return [part for part, there in has.items() if there]


def _capabilities(config: Config, machine: Machine) -> dict[str, int]:
    """Values of the registers that depend on the config."""
    matrix, vector = config.matrix, config.vector
    context = (len(RINGS) - 1) * machine.context_bytes  # jobs of the highest priority are never preempted
    present = (matrix is not None) << 16 | (vector is not None) << 17 | (config.scalar is not None) << 18
    pci = config.pci
    host = pci.address_bits | pci.vectors << 8 | pci.moderation << 16 if pci else 0
    return {
        "CAP_HOST": host | (config.firmware is not None) << 17,
        "STATUS": 8 if config.firmware else 1,  # FIRMWARE or READY
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
        "CLOCK": config.clock_hz // 1000,
        "CAP_QUEUE": config.queue_depth,
    }
