"""A sanitizer for drivers. It tracks which bytes the device owns between a doorbell and the moment at which the driver
can know that the job has ended, and checks accesses to them.

It watches at the device, so it works for every transport and language. It changes neither times nor bits. Each mistake
becomes a :class:`npusim.device.findings.Finding`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping

from npusim.device.findings import ConflictSide
from npusim.device.flights import ENTRY_SPAN, Flight, JobSpan, Load
from npusim.device.job_checks import Boarding, at_span
from npusim.device.registers import BY_NAME, RINGS
from npusim.device.ring import COMPLETION, ENTRY, HOST
from npusim.errors import UsageError
from npusim.sim import job as machine_job
from npusim.sim.parts import Parts
from npusim.sim.watch import Watcher
from npusim.timeline import Timeline

_log = logging.getLogger("npusim.device")

VARIABLE = "NPUSIM_DRIVER_CHECK"
"""Environment variable: 1 checks the driver of each device; poison also fills memory that nobody has written."""
_POISON = 0xA5
_OFF, _ON = (False, "", "0"), (True, "1")

RUNG_PS = 100 * 10**6
"""Longest time between a write to TAIL and its doorbell. After that the doorbell counts as forgotten."""
LOOK_PS = 100 * 10**6
"""Shortest time between the last read of a record and a RESET."""
DEAF_PS = 10 * 10**9
"""Longest time between the end of a job with a masked interrupt and the first read of its record."""

_RESET, _CONTINUE = (field.mask for field in BY_NAME["CONTROL"].fields)
_DONE = BY_NAME["INT_STATUS"].fields[0].mask
_DOORBELLS = {f"{name}_DOORBELL": ring for ring, name in enumerate(RINGS)}
_TAILS = {f"{name}_TAIL": ring for ring, name in enumerate(RINGS)}
_HEADS = {f"{name}_HEAD": ring for ring, name in enumerate(RINGS)}
_SHAPES = {f"{name}_{word}": ring for ring, name in enumerate(RINGS) for word in ("BASE_LO", "BASE_HI", "SIZE")}


class Checker(Boarding, Watcher):
    """Checks a driver. ``findings``: its mistakes, in order; each mistake is reported once per job.

    ``poison``: fill memory that the driver has allocated with 0xA5, and all of DRAM at power-on if software can access
    it without the bus. So the use of unwritten memory gives visible errors.
    """

    steps = False

    def __init__(self, machine: Parts, registers: Mapping[str, int], load: Load, *, poison: bool = False) -> None:
        super().__init__(machine, registers, load)
        self._poison = poison
        self._blocks: dict[int, int] = {}
        self._closed = False

    @classmethod
    def wanted(
        cls, check: bool | str | None, machine: Parts, registers: Mapping[str, int], load: Load
    ) -> Checker | None:
        """The checker for the argument ``check`` of a device, or for ``$NPUSIM_DRIVER_CHECK``. Raises UsageError."""
        if check is None:
            check = os.environ.get(VARIABLE, "")
        if check not in (*_OFF, *_ON, "poison"):
            raise UsageError(f"{VARIABLE}, check: must be 0, 1 or poison, got {check!r}")
        if check in _OFF:
            return None
        return cls(machine, registers, load, poison=check == "poison")

    def carried(self, *, mapped: bool, in_step: bool = False) -> None:
        """Call this for a transport that does not report when software waits for interrupts or takes them. ``mapped``:
        software accesses DRAM without the bus, so memory in use is only compared at the end of a job, and reads are
        unknown. ``in_step``: host time is device time, so delays of the driver can be checked."""
        self._remote, self._mapped, self._in_step = True, mapped, in_step
        self.powered_on()

    def powered_on(self) -> None:
        """DRAM is unwritten. If software maps it, fill it with the poison value."""
        if self._poison and self._mapped:
            self._memory.dram[:] = _POISON

    # Registers

    def register_written(self, register: str, value: int) -> None:
        self._look_at_clock()
        if self._gone:
            return  # the device was removed during this write
        if register in _DOORBELLS:
            if value & 1:
                self._doorbell(_DOORBELLS[register])
        elif register in _TAILS:
            self._tail(_TAILS[register])
        elif register in _SHAPES:
            self._shape(_SHAPES[register], register)
        elif register == "CONTROL":
            if value & _CONTINUE and not value & _RESET:
                self._go_on()
        elif register == "INT_STATUS":
            self._sent, self._acknowledged, self._taken = 0, True, None
        elif register == "PREEMPT":
            self._preempt(value)
        elif register == "ABORT":
            seqno = self._pair("ABORT_SEQNO")
            for flight in self._flights:
                flight.aborted |= flight.seqno == seqno

    def register_read(self, register: str, value: int) -> None:
        self._look_at_clock()
        if register in _HEADS:
            ring = _HEADS[register]
            self._know(flight for flight in self._flights if flight.ring == ring and flight.before(value))
        elif register == "SEQNO_LO":
            seqno = self._pair("SEQNO")
            last = [flight for flight in self._flights if flight.seqno == seqno and flight.ended_ps is not None]
            self._know(f for f in self._flights if last and f.ring == last[0].ring and f.number <= last[0].number)
        elif register == "STATUS" and not value & 2:  # no job runs or waits, or a fault is pending
            self._know(flight for flight in self._flights if value & 1)

    def _know(self, ended: Iterator[Flight]) -> None:
        """Mark jobs as ended that the driver can now know to have ended."""
        for flight in list(ended):
            if flight.ended_ps is not None:
                self._learn(flight)

    def _tail(self, ring: int) -> None:
        if self._registers[f"{RINGS[ring]}_TAIL"] == self._seen[ring]:
            self._moved.pop(ring, None)
        else:
            self._moved.setdefault(ring, self._clock.now)

    def _shape(self, ring: int, register: str) -> None:
        if any(flight.ring == ring and flight.ended_ps is None for flight in self._flights):
            self._say(
                "ring-changed", None, f"{register} was written while jobs are in the ring", f"write of {register}"
            )

    def _preempt(self, value: int) -> None:
        now, base, size = self._clock.now, self._pair("CONTEXT_BASE"), self._pair("CAP_CONTEXT")
        if not value:
            self._context = None
        elif not self._registers["PREEMPT"]:
            text = f"CONTEXT_BASE is {base:#x}, {size:#x} bytes are needed of DRAM of {self._memory.dram_bytes:#x}"
            self._say("preempt-without-context", None, text, "write of PREEMPT")
        else:
            self._context = JobSpan(base, base + size, True, "context area"), ConflictSide(now, "write of PREEMPT")

    def reset(self) -> None:
        """The device is about to be reset by any means."""
        now, blind = self._clock.now, self._blind
        for ring in range(len(RINGS)):
            oldest = next((flight for flight in self._flights if flight.ring == ring), None)
            if oldest is None or self._fault or oldest.aborted or oldest.excused:
                continue
            if not self._mapped and self._in_step and (oldest.looked_ps is None or oldest.looked_ps < now - LOOK_PS):
                looked = "never" if oldest.looked_ps is None else f"last at {oldest.looked_ps} ps"
                text = f"its record was looked at {looked}; is the job done, or lost?"
                blind.append((oldest, text, ConflictSide(now, "RESET")))
        for ring in self._moved:
            self._say_unrung(ring, "RESET")
        self._check_masked("RESET")
        self._check_acknowledged("RESET")
        self._was_reset = True
        self._begin_anew()
        self._blind = blind

    def _go_on(self) -> None:
        self._fault = None
        # The device drops the entries before HEAD, whether or not it wrote records for them.
        self._know(flight for flight in self._flights if flight.before(self._registers[_head(flight)]))
        self._flights = [flight for flight in self._flights if not flight.before(self._registers[_head(flight)])]

    # From doorbell to end

    def job_ends(self, job: machine_job.MachineJob, timeline: Timeline) -> None:
        now, ring = self._clock.now, getattr(job, "ring", 0)
        if timeline.fault is not None:
            self._fault = ConflictSide(now, f"fault {timeline.fault.code.name}")
        flight = next((each for each in self._flights if each.ring == ring and each.ended_ps is None), None)
        if flight is None:
            return
        flight.ended_ps = now
        flight.masked = not self._registers["INT_MASK"] & _DONE
        if self._mapped:
            self._flights.remove(flight)  # it is not visible when the driver reads its record
        for span in flight.spans:
            if span.written:
                self._written.add(span.low, span.high)
            elif span in flight.digests and flight.changed(span, self._memory.dram[span.low : span.high]):
                self._say_changed(flight, span, f"write through the mapping, before {now} ps")

    def interrupt(self, vector: int) -> None:
        self._sent += 1
        if self._remote:
            self._excuse()  # it is not visible when the driver takes the interrupt

    def _excuse(self) -> None:
        """An interrupt was sent. If it can only refer to one job, the driver can know that this job has ended."""
        if len(self._flights) == 1 and self._flights[0].ended_ps is not None:
            self._flights[0].excused = True

    def _learn(self, flight: Flight) -> None:
        """The driver knows that a job has ended, and owns its bytes again."""
        self._flights.remove(flight)

    # Memory

    def memory_read(self, address: int, size: int) -> None:
        self._look_at_clock()
        if not size or self._mapped:
            return
        end, what = address + size, f"read of {size} bytes at {address:#x}"
        if self._freed.meets(address, end):
            self._say("used-after-free", None, f"{address:#x} was freed", what)
        for flight in list(self._flights):
            entry = flight.entry
            if entry is not None and address < entry.completion + COMPLETION.size and entry.completion < end:
                flight.looked_ps = self._clock.now
                if flight.ended_ps is not None:
                    self._learn(flight)
        for flight, span in self._owners(address, end):
            if span.written and not span.alone:
                self._say(
                    "output-early",
                    flight,
                    f"{at_span(span)}{_luck(flight)}",
                    what,
                    ConflictSide(flight.rung_ps, "doorbell"),
                )

    def copied(self, source: int, destination: int, size: int) -> None:
        # A copy from DRAM is the driver's access, and is seen here even if the driver's own accesses are not.
        if not source & HOST:
            self.memory_read(source, size)
        if not destination & HOST:
            self.memory_written(destination, size)

    def memory_written(self, address: int, size: int) -> None:
        self._look_at_clock()
        if not size:
            return
        end, what = address + size, f"write of {size} bytes at {address:#x}"
        if self._freed.meets(address, end):
            self._say("used-after-free", None, f"{address:#x} was freed", what)
        for flight, span in self._owners(address, end):
            is_entry = span.low == flight.address and span.what == ENTRY_SPAN
            # The flag CANCELLED is the only part that may change.
            if not is_entry or not flight.cancelled_only(self._memory.slice(span.low, ENTRY.size).tobytes()):
                self._say_changed(flight, span, what)
        if self._context is not None and self._context[0].meets(address, end):
            text = f"the {at_span(self._context[0])} is the device's while PREEMPT is enabled"
            self._say("changed-in-flight", None, text, what, self._context[1])
        for number, held in self._residents.items():
            if held.changed is None and address < held.high and held.low < end:
                self._residents[number] = held._replace(changed=ConflictSide(self._clock.now, what))
        self._written.add(address, end)
        self._fresh.add(address, end)

    def _owners(self, low: int, high: int) -> Iterator[tuple[Flight, JobSpan]]:
        for flight in self._flights:
            if not flight.excused:
                yield from ((flight, span) for span in flight.spans if span.meets(low, high))

    def _say_changed(self, flight: Flight, span: JobSpan, what: str) -> None:
        self._say(
            "changed-in-flight",
            flight,
            f"{at_span(span)}{_luck(flight)}",
            what,
            ConflictSide(flight.rung_ps, "doorbell"),
        )

    # Reports of transports and drivers

    def waits(self, timeout_ps: int) -> None:
        if timeout_ps <= 0:
            return
        if self._taken is not None:
            text = "INT_STATUS was not written since the previous interrupt"
            self._say("interrupt-unacknowledged", None, text, "wait for the next one", self._taken)
        for ring in self._moved:
            self._say_unrung(ring, "wait for an interrupt")
        if self._flights and not self._registers["INT_MASK"] & _DONE:
            oldest = self._flights[0]
            text = f"INT_MASK is {self._registers['INT_MASK']:#x}"
            self._say("wait-masked", oldest, text, "wait for an interrupt", ConflictSide(oldest.rung_ps, "doorbell"))

    def takes(self, vectors: int) -> None:
        self._taken = ConflictSide(self._clock.now, "interrupt")
        self._excuse()

    def misused(self, problem: str) -> None:
        self._say("register-misuse", None, problem, problem)

    def noted(self, what: str, address: int, size: int) -> None:
        if what == "allocated":
            self._allocated(address, size)
        elif what == "freed":
            self._free(address, size)
        elif what == "done":
            for block, taken in self._blocks.items():
                self._say("leaked", None, f"{taken} bytes at {block:#x}", f"end of the driver, block {block:#x}")
            self._blocks.clear()

    def _allocated(self, address: int, size: int) -> None:
        self._blocks[address] = size
        self._freed.remove(address, address + size)
        self._written.remove(address, address + size)  # the old contents are undefined now
        if self._poison:
            self._memory.slice(address, size)[:] = _POISON

    def _free(self, address: int, size: int) -> None:
        end, what = address + self._blocks.pop(address, size), f"free of {address:#x}"
        for flight, span in self._owners(address, end):
            text = f"{at_span(span)}{_luck(flight)}"
            self._say("freed-in-flight", flight, text, what, ConflictSide(flight.rung_ps, "doorbell"))
        for span, since in self._fixed():
            if span.meets(address, end):
                self._say("freed-in-flight", None, f"the {at_span(span)} is still set up", what, since)
        self._freed.add(address, end)

    def restored(self) -> None:
        """The device was restored from a checkpoint. Earlier actions of the driver are unknown: jobs in the device are
        not checked, and all memory counts as written."""
        self._begin_anew()
        self._was_reset = True
        self._seen = [self._registers[f"{name}_TAIL"] for name in RINGS]
        self._written.add(0, self._memory.dram_bytes)

    def unplugged(self) -> None:
        """The device was removed from the bus, so its jobs no longer own memory."""
        self._begin_anew()
        self._gone = True

    def switched_off(self, *, gone: bool) -> None:
        """The device is powered off. ``gone``: it was unplugged before, so that the driver could not finish its
        jobs."""
        if gone or self._closed:
            return
        self._closed, what = True, "device switched off"
        for ring in self._moved:
            self._say_unrung(ring, what)
        self._check_acknowledged(what)
        if self._fault is not None:
            self._say("fault-ignored", None, "CONTROL was not written since", what, self._fault)
        for flight in self._flights:
            if flight.ended_ps is None:
                self._say("left-in-flight", flight, flight.name, what, ConflictSide(flight.rung_ps, "doorbell"))
            elif flight.masked:
                ended = ConflictSide(flight.ended_ps, "end of the job")
                self._say("wait-masked", flight, "masked by INT_MASK at its end, and not looked at", what, ended)
            elif not flight.excused and not self._mapped and self._fault is None:
                ended = ConflictSide(flight.ended_ps, "end of the job")
                self._say("never-looked-at", flight, flight.name, what, ended)

    def _check_masked(self, what: str) -> None:
        """Check that ended jobs with masked interrupts were looked at."""
        for flight in self._flights:
            if self._remote and flight.masked and flight.ended_ps is not None:
                ended = ConflictSide(flight.ended_ps, "end of the job")
                self._say("wait-masked", flight, "masked by INT_MASK at its end, and not looked at", what, ended)

    def _check_acknowledged(self, what: str) -> None:
        """Check that interrupts were acknowledged, for transports that do not report when software takes interrupts."""
        if self._sent > 1 and not self._acknowledged and not self._flights:
            text = f"{self._sent} interrupts were sent since the reset, INT_STATUS was never written"
            self._say("interrupt-unacknowledged", None, text, what)

    # Words

    def _look_at_clock(self) -> None:
        if not self._in_step:
            return
        now = self._clock.now
        for ring, since in list(self._moved.items()):
            if now - since > RUNG_PS:
                self._say_unrung(ring, "next access")
        for flight in self._flights:
            if flight.masked and flight.ended_ps is not None and now - flight.ended_ps > DEAF_PS:
                text = "masked by INT_MASK at its end, and not looked at since"
                self._say("wait-masked", flight, text, "next access", ConflictSide(flight.ended_ps, "end of the job"))

    def _say_unrung(self, ring: int, what: str) -> None:
        name = RINGS[ring]
        text = f"{name}_TAIL is {self._registers[f'{name}_TAIL']}, at the previous doorbell it was {self._seen[ring]}"
        self._say("no-doorbell", None, text, what, ConflictSide(self._moved[ring], f"write of {name}_TAIL"))


def _head(flight: Flight) -> str:
    return f"{RINGS[flight.ring]}_HEAD"


def _luck(flight: Flight) -> str:
    if flight.ended_ps is None:
        return f" of {flight.name}, in flight"
    return f" of {flight.name}, which had ended at {flight.ended_ps} ps, but the driver had not read its record"
