"""Breakpoints: each watches the device for one condition. Without breakpoints nothing is watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from npusim.device.job import DeviceJob
from npusim.device.npu import NpuDevice
from npusim.device.stepping import begun
from npusim.isa.base import ByteArray, Space, offset_of, space_of
from npusim.sim import job as machine_job
from npusim.sim.steps import Step
from npusim.sim.watch import Watcher
from npusim.timeline import Timeline

ACCESSES = ("read", "write", "access", "value")
"""Kinds of watchpoints: read, write, either, or a changed byte."""
MEMORIES = ("dram", "sram", "acc", "l2")
SHARED = ("dram", "l2")


class Stop(NamedTuple):
    """Position and reason of a stop. ``number``: of the breakpoint, 0 for other reasons. ``unit``, ``command`` (its
    number in the stream) and ``layer``: of the instruction concerned, if any."""

    kind: str
    at_ps: int
    text: str
    number: int = 0
    unit: str = ""
    command: int | None = None
    layer: str = ""


class SymbolTable(Protocol):
    """Provides names for stops."""

    device: NpuDevice

    def layer(self, step: Step) -> str:
        """The operator of a step."""

    def command(self, step: Step) -> int | None:
        """The number of a step in the stream of the running job."""


class Breakpoint(Watcher):
    """Calls ``hit(self, stop)`` each time its condition is met."""

    kind: ClassVar[str] = ""

    def __init__(self, names: SymbolTable, number: int, hit: Callable[[Stop], None]) -> None:
        self.names = names
        self.number = number
        self.hits = 0
        self._hit = hit

    def __str__(self) -> str:
        return self.kind

    def again(self) -> None:
        """The device was restored to another time: drop cached state."""

    def stop(self, text: str, unit: str = "", step: Step | None = None) -> None:
        """Record that the condition is met."""
        self.hits += 1
        names = self.names
        command, layer = (None, "") if step is None else (names.command(step), names.layer(step))
        if step is not None:
            text += f": {unit} command {command} {step.kind}, layer {layer!r}"
        self._hit(Stop(self.kind, names.device.now_ps, text, self.number, unit, command, layer))


class AtLayer(Breakpoint):
    """Stops when the first instruction of an operator begins."""

    kind = "layer"

    def __init__(self, names: SymbolTable, number: int, hit: Callable[[Stop], None], layer: str) -> None:
        super().__init__(names, number, hit)
        self.layer = layer
        self.again()

    def __str__(self) -> str:
        return f"layer {self.layer}"

    def again(self) -> None:
        self._seen = begun(self.names.device.machine.current)

    def job_begins(self, job: machine_job.MachineJob) -> None:
        self._seen = set()

    def step_begins(self, unit: str, step: Step) -> None:
        if step.op not in self._seen:
            self._seen.add(step.op)
            if self.names.layer(step) == self.layer:
                self.stop("begins", unit, step)


class AtInstruction(Breakpoint):
    """Stops when an instruction begins: by number in the stream, by DRAM address, or by kind."""

    kind = "instruction"

    def __init__(
        self,
        names: SymbolTable,
        number: int,
        hit: Callable[[Stop], None],
        *,
        command: int | None = None,
        address: int | None = None,
        mnemonic: str = "",
    ) -> None:
        super().__init__(names, number, hit)
        self.command, self.address, self.mnemonic = command, address, mnemonic

    def __str__(self) -> str:
        if self.address is not None:
            return f"address {self.address:#x}"
        return f"instruction {self.mnemonic or self.command}"

    def step_begins(self, unit: str, step: Step) -> None:
        if self.mnemonic:
            here = step.kind == self.mnemonic
        elif self.address is not None:
            player = self.names.device.machine.current
            here = player is not None and player.job.code + step.begin == self.address
        else:
            here = self.names.command(step) == self.command
        if here:
            self.stop("begins", unit, step)


class AtRegister(Breakpoint):
    """Stops when software reads or writes a register, or writes one value."""

    kind = "register"
    steps = False

    def __init__(
        self, names: SymbolTable, number: int, hit: Callable[[Stop], None], register: str, value: int | None = None
    ) -> None:
        super().__init__(names, number, hit)
        self.register, self.value = register, value

    def __str__(self) -> str:
        return f"register {self.register}" + ("" if self.value is None else f" = {self.value:#x}")

    def register_read(self, register: str, value: int) -> None:
        if register == self.register and self.value is None:
            self.stop(f"software reads {value:#x} from {register}")

    def register_written(self, register: str, value: int) -> None:
        if register == self.register and self.value in (None, value):
            self.stop(f"software has written {value:#x} to {register}")


class SeqnoBreakpoint(Breakpoint):
    """Stops when the job with a seqno, or any job, is dispatched or has ended."""

    kind = "seqno"
    steps = False

    def __init__(self, names: SymbolTable, number: int, hit: Callable[[Stop], None], seqno: int | None) -> None:
        super().__init__(names, number, hit)
        self.seqno = seqno

    def __str__(self) -> str:
        return "seqno" if self.seqno is None else f"seqno {self.seqno}"

    def _is_it(self, job: machine_job.MachineJob) -> bool:
        return isinstance(job, DeviceJob) and job.entry is not None and self.seqno in (None, job.entry.seqno)

    def job_begins(self, job: machine_job.MachineJob) -> None:
        if self._is_it(job):
            self.stop(f"job with seqno {seqno_of(job)} gets the machine")

    def job_ends(self, job: machine_job.MachineJob, timeline: Timeline) -> None:
        if self._is_it(job):
            self.stop(f"job with seqno {seqno_of(job)} has ended{how(timeline)}")


class InterruptBreakpoint(Breakpoint):
    """Stops when the device sends an interrupt message."""

    kind = "interrupt"
    steps = False

    def interrupt(self, vector: int) -> None:
        self.stop(f"interrupt of vector {vector}")


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of a memory: ``dram`` by device address, ``sram`` and ``acc`` of one core by offset."""

    memory: str
    core: int
    address: int
    size: int

    @property
    def start(self) -> str:
        """The first byte as text."""
        where = self.memory if self.memory in SHARED else f"core{self.core}.{self.memory}"
        return f"{where} {self.address:#x}"

    def __str__(self) -> str:
        return f"{self.start}..{self.address + self.size:#x}"

    def of(self, device: NpuDevice) -> ByteArray:
        """The bytes, as a view."""
        return bytes_of(device, self.memory, self.core)[self.address : self.address + self.size]

    def meets(self, memory: str, core: int, low: int, high: int) -> bool:
        """Whether it overlaps [low, high) of a memory."""
        same = memory == self.memory and (memory in SHARED or core == self.core)
        return same and low < self.address + self.size and self.address < high


class AtMemory(Breakpoint):
    """A watchpoint. Instructions count as accesses to all bytes between the first and the last of an operand. ``value``
    only stops if a byte has changed."""

    kind = "watch"

    def __init__(
        self, names: SymbolTable, number: int, hit: Callable[[Stop], None], where: Range, access: str, label: str = ""
    ) -> None:
        super().__init__(names, number, hit)
        self.where, self.access = where, access
        self.label = label or str(where)
        self.again()

    def __str__(self) -> str:
        return f"{self.access} of {self.label}"

    def again(self) -> None:
        self._before = self.where.of(self.names.device).copy()

    def step_ends(self, unit: str, step: Step) -> None:
        if self.access == "value":
            self._compare(unit, step)
            return
        for memory, core, low, high, write in touched(self.names.device, step):
            if self.where.meets(memory, core, low, high) and self.access in ("access", "write" if write else "read"):
                self.stop(f"{'write' if write else 'read'} of {self.label}", unit, step)
                return

    def memory_read(self, address: int, size: int) -> None:
        if self.access in ("read", "access") and self.where.meets("dram", 0, address, address + size):
            self.stop(f"software reads {self.label}")

    def memory_written(self, address: int, size: int) -> None:
        if not self.where.meets("dram", 0, address, address + size):
            return
        if self.access == "value":
            self._compare("software", None)
        elif self.access != "read":
            self.stop(f"software has written {self.label}")

    def _compare(self, unit: str, step: Step | None) -> None:
        now = self.where.of(self.names.device)
        changed = np.flatnonzero(now != self._before)
        if changed.size:
            first = int(changed[0])
            old, new = int(self._before[first]), int(now[first])
            self._before = now.copy()
            at = self.where.address + first
            text = f"{self.label} has changed, {changed.size} bytes, the first at {at:#x}: {old:#04x} -> {new:#04x}"
            self.stop(text, unit, step)


def bytes_of(device: NpuDevice, memory: str, core: int) -> ByteArray:
    """A whole memory as a view: of a core, or one of SHARED."""
    there = device.machine.memory
    whole = {"dram": [there.dram], "sram": there.sram, "acc": there.acc, "l2": [there.l2]}[memory]
    return whole[0 if memory in SHARED else core]


def touched(device: NpuDevice, step: Step) -> Iterator[tuple[str, int, int, int, bool]]:
    """(memory, core, first byte, end, whether it writes) for each operand of a step of the running job."""
    player = device.machine.current
    if player is None:
        return
    for access in step.instruction.accesses():
        if access is None:
            continue
        space, low = space_of(access.address), offset_of(access.address) + access.low
        size = access.high - access.low
        if space >= Space.REGION:
            base = player.job.regions[space - Space.REGION][0]
            yield "dram", 0, base + low, base + low + size, access.write
            continue
        if space == Space.L2:
            yield "l2", 0, low, low + size, access.write
            continue
        memory = "sram" if space == Space.SRAM else "acc"
        instruction = step.instruction
        for core in instruction.targets(step.core) if access.write else (instruction.reads_of(step.core),):
            yield memory, core, low, low + size, access.write


def seqno_of(job: machine_job.MachineJob) -> int | None:
    """The seqno of a job, if its entry could be read."""
    return job.entry.seqno if isinstance(job, DeviceJob) and job.entry is not None else None


def how(timeline: Timeline) -> str:
    """How a job has ended, as text."""
    if timeline.fault is not None:
        fault = timeline.fault
        return f" with fault {fault.code.name} at {fault.address:#x}: {fault.explanation}"
    return ", aborted" if timeline.aborted else f" after {timeline.cycles} cycles"
