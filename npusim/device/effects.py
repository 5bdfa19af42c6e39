"""The effects of faults on a device. See :mod:`npusim.faults.what` for the faults."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, singledispatchmethod
from typing import Protocol, cast

from npusim.device.registers import ALL_ONES, BY_NAME, RegisterFile
from npusim.faults import (
    Ecc,
    Fail,
    Flip,
    Hang,
    LoseWrite,
    MessageFault,
    Resets,
    Slow,
    Stuck,
    Throttle,
    Unplug,
    What,
    Wrong,
)
from npusim.faults.what import EVER, JOB, MEMORIES, RESET
from npusim.isa.base import ByteArray
from npusim.sim.breaks import Acted, Repeated
from npusim.sim.clock import Event
from npusim.sim.job import MachineJob
from npusim.sim.machine import Machine
from npusim.sim.stepper import Stepper
from npusim.timeline import DeviceFault, FaultCode

_RESET_BIT = BY_NAME["CONTROL"].fields[0].mask
_READY = BY_NAME["STATUS"].fields[0].mask


class Body(Protocol):
    """Interface of the device for faults."""

    machine: Machine
    registers: RegisterFile

    def send(self, vector: int) -> None:
        """Send an interrupt message."""

    def unplug(self) -> None:
        """Remove the device from the bus."""

    def plug(self) -> None:
        """Plug the device in again, in the state after power-on."""


@dataclass(eq=False)
class _Altered:
    """A changed register read: bits of ``mask`` are taken from ``value``, bits of ``invert`` are inverted. ``left``:
    remaining reads, -1: unlimited."""

    mask: int
    value: int
    invert: int
    left: int
    acted: Acted


@dataclass(eq=False)
class _Storm:
    """Spurious messages: the remaining number, and the interval in ps."""

    left: int
    apart_ps: int
    over: bool = False

    def end(self) -> None:
        self.over = True


@dataclass(eq=False)
class _Lasting:
    """A fault that lasts until a time, a reset, the end of a job, or for ever."""

    until: str
    job: MachineJob | None
    end: Callable[[], None]


class Effects:
    """The active faults of one device."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._machine = body.machine
        self._clock, self._breaks = body.machine.clock, body.machine.breaks
        self._altered: dict[str, list[_Altered]] = {}
        self._lost: dict[str, Repeated[Acted]] = {}
        self._messages = Repeated[tuple[MessageFault, Acted]]()
        self._resets: list[tuple[Resets, Acted]] = []
        self._errors: list[tuple[DeviceFault, Acted]] = []  # memory errors that the next job will find
        self._lasting: list[_Lasting] = []
        self._epoch = 0
        self._status = 0  # value of STATUS once the reset has finished
        self.beginning: MachineJob | None = None
        """The job that is being dispatched."""
        self.resetting = False

    # Hooks of the device

    def read(self, register: str, value: int) -> int:
        """The value that software reads from a register that holds ``value``."""
        for how in tuple(self._altered.get(register, ())):
            how.acted()
            value = (value & ~how.mask | how.value) ^ how.invert
            how.left -= 1
            if not how.left:
                self._altered[register].remove(how)
        return value

    def loses(self, register: str, value: int) -> bool:
        """Whether a write is lost."""
        if lost := self._lost.get(register):
            lost.take()()
            return True
        return self.resetting and not (register == "CONTROL" and value & _RESET_BIT)

    def deliver(self, vector: int) -> None:
        """The vectors to send for a message of the device."""
        if not self._messages:
            self._body.send(vector)
            return
        what, acted = self._messages.take()
        acted()
        if what.interrupt == "double":
            self._body.send(vector)
        if what.interrupt != "lose":
            self._clock.before(what.delay_ps, self._send_late, (self._epoch, vector))

    def _send_late(self, event: Event) -> None:
        epoch, vector = cast("tuple[int, int]", event.value)
        if epoch == self._epoch:  # a reset drops delayed messages
            self._body.send(vector)

    def was_reset(self) -> None:
        """The reset has finished: no jobs, registers as after power-on."""
        self._epoch += 1
        self.resetting = False
        self._breaks.forget()
        self._end_those({JOB, RESET})
        self._show_clock()

    def reset_asked(self) -> None:
        """Software has requested a reset, which took no time so far."""
        if not self._resets:
            return
        what, acted = self._resets[0]
        acted()
        registers = self._body.registers
        self._status, self.resetting = registers.get("STATUS"), True
        registers.set("STATUS", 0)
        if what.reset == "late":
            del self._resets[0]
            self._clock.before(what.delay_ps, self._come_back, self._epoch)

    def _come_back(self, event: Event) -> None:
        if event.value == self._epoch:
            self._ready()

    def _ready(self) -> None:
        self.resetting = False
        self._body.registers.set("STATUS", self._status)

    def job_begins(self, job: MachineJob) -> None:
        """A job is dispatched: faults that wait for a job apply to it."""
        for lasting in self._lasting:
            if lasting.until == JOB and lasting.job is None:
                lasting.job = job

    def job_runs(self) -> None:
        """The first command of a job starts: it ends with the first memory error since the last job."""
        if self._errors:
            self._fail(*self._errors.pop(0))

    def job_ends(self, job: MachineJob) -> None:
        """The record of a job is written."""
        for lasting in tuple(self._lasting):
            if lasting.until == JOB and lasting.job is job:
                self._end(lasting)

    def end_all(self) -> None:
        """Undo all effects."""
        self._end_those({JOB, RESET, EVER})
        for container in (self._altered, self._lost, self._messages, self._resets, self._errors, self._breaks.failing):
            container.clear()
        if self.resetting:
            self._ready()
        self._epoch += 1

    # What lasts

    def _last(self, lasts: int | str, end: Callable[[], None]) -> None:
        job = None
        if lasts == JOB:
            current = self._machine.current
            job = self.beginning or (current.job if isinstance(current, Stepper) else None)
        lasting = _Lasting(lasts if isinstance(lasts, str) else EVER, job, end)
        self._lasting.append(lasting)
        if not isinstance(lasts, str):
            self._clock.before(lasts, self._time_is_up, lasting)

    def _time_is_up(self, event: Event) -> None:
        self._end(cast("_Lasting", event.value))

    def _end(self, lasting: _Lasting) -> None:
        if lasting in self._lasting:
            self._lasting.remove(lasting)
            lasting.end()

    def _end_those(self, words: Set[str]) -> None:
        for lasting in tuple(self._lasting):
            if lasting.until in words:
                self._end(lasting)

    # What happens

    @singledispatchmethod
    def do(self, what: What, acted: Acted) -> None:
        """Apply a fault now. ``acted()``: called once the fault has had an effect, now or later."""
        raise TypeError(f"not a fault: {what!r}")

    @do.register
    def _flip(self, what: Flip, acted: Acted) -> None:
        self._memory(what.flip, what.core)[what.address] ^= 1 << what.bit
        acted()

    @do.register
    def _hang(self, what: Hang, acted: Acted) -> None:
        self._breaks.hang(what.hang, acted)
        self._last(what.lasts, partial(self._breaks.go_on, what.hang, acted))

    @do.register
    def _slow(self, what: Slow, acted: Acted) -> None:
        slow, row = self._breaks.slow.setdefault(what.slow, []), (what.factor, acted)
        slow.append(row)
        self._last(what.lasts, partial(slow.remove, row))

    @do.register
    def _fail_transfers(self, what: Fail, acted: Acted) -> None:
        self._breaks.failing.setdefault(what.fail, Repeated()).add(acted, what.count)

    @do.register
    def _interrupts(self, what: MessageFault, acted: Acted) -> None:
        if what.interrupt not in ("spurious", "storm"):
            self._messages.add((what, acted), what.count)
            return
        acted()
        storm = _Storm(what.count, what.delay_ps)
        self._last(EVER, storm.end)
        self._send_of(storm)

    def _send_of(self, storm: _Storm) -> None:
        self._body.send(0)
        storm.left -= 1
        if storm.left:
            self._clock.before(storm.apart_ps, self._send_more, storm)

    def _send_more(self, event: Event) -> None:
        storm = cast("_Storm", event.value)
        if not storm.over:
            self._send_of(storm)

    @do.register
    def _stuck(self, what: Stuck, acted: Acted) -> None:
        register = BY_NAME[what.stuck]
        field = next((each for each in register.fields if each.name == what.field), None)
        mask, value = (ALL_ONES, what.value) if field is None else (field.mask, what.value << field.low)
        how = _Altered(mask, value, 0, -1, acted)
        rows = self._altered.setdefault(what.stuck, [])
        rows.append(how)
        self._last(what.lasts, partial(rows.remove, how))

    @do.register
    def _wrong(self, what: Wrong, acted: Acted) -> None:
        self._altered.setdefault(what.wrong, []).append(_Altered(0, 0, what.invert, what.count, acted))

    @do.register
    def _lose_write(self, what: LoseWrite, acted: Acted) -> None:
        self._lost.setdefault(what.lose_write, Repeated()).add(acted, what.count)

    @do.register
    def _ecc(self, what: Ecc, acted: Acted) -> None:
        registers = self._body.registers
        counter = f"ECC_{what.ecc.upper()}"
        registers.set(counter, registers.get(counter) + 1)
        registers.set_pair("ECC_ADDR", what.address)
        registers.set("ECC_WHERE", MEMORIES.index(what.memory) | what.core << 8)
        if what.ecc == "corrected":
            acted()
            return
        place = what.memory if what.memory == MEMORIES[0] else f"{what.memory} of core {what.core}"
        fault = DeviceFault(
            FaultCode.ECC, what.address, f"{place}: an error at {what.address:#x} that cannot be corrected"
        )
        if self.beginning is None and isinstance(self._machine.current, Stepper):
            self._fail(fault, acted)
        else:
            self._errors.append((fault, acted))

    @do.register
    def _throttle(self, what: Throttle, acted: Acted) -> None:
        row = (what.throttle, acted)
        self._breaks.clock.append(row)
        self._show_clock()
        self._last(what.lasts, partial(self._unthrottle, row))

    def _unthrottle(self, row: tuple[Fraction, Acted]) -> None:
        self._breaks.clock.remove(row)
        self._show_clock()

    @do.register
    def _unplug(self, what: Unplug, acted: Acted) -> None:
        self._body.unplug()
        acted()
        self._last(what.lasts, self._body.plug)

    @do.register
    def _reset(self, what: Resets, acted: Acted) -> None:
        row = (what, acted)
        self._resets.append(row)
        if what.reset == "never":
            self._last(what.lasts, partial(self._resets.remove, row))

    def _fail(self, fault: DeviceFault, acted: Acted) -> None:
        """End the running job with a fault."""
        player = self._machine.current
        if isinstance(player, Stepper) and not player.over:
            acted()
            player.fail(fault)

    def _memory(self, name: str, core: int) -> ByteArray:
        memory = self._machine.memory
        return memory.dram if name == MEMORIES[0] else memory.sram[core] if name == MEMORIES[1] else memory.acc[core]

    def _show_clock(self) -> None:
        factor, hz = self._breaks.clock_factor(), self._machine.config.clock_hz
        self._body.registers.set("CLOCK", hz * factor.denominator // (1000 * factor.numerator))
