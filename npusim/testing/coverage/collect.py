"""Collects the coverage of devices while tests run, from the power-on of each device."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar

from npusim.device import job as device_job
from npusim.device import npu
from npusim.device.registers import BY_NAME, RINGS
from npusim.errors import NpusimError
from npusim.isa.base import Command, Instruction, decode
from npusim.isa.matrix_extras import NO_EXTRAS
from npusim.sim.job import MachineJob
from npusim.sim.memory import DeviceMemory
from npusim.sim.watch import Watcher
from npusim.testing.coverage.universe import (
    CoveragePoint,
    addresses,
    extras,
    label,
    listed,
    register_items,
    space_name,
)
from npusim.timeline import Timeline


class Collector:
    """Counts how often each point was exercised, on all devices of this process between :meth:`start` and
    :meth:`stop`."""

    def __init__(self) -> None:
        self.counts: Counter[CoveragePoint] = Counter()
        self._programs: dict[bytes, Counter[CoveragePoint]] = {}

    def start(self) -> None:
        """Watch every device that is powered on from now on."""
        npu.switched_on.append(self._watch)

    def stop(self) -> None:
        """Stop watching new devices."""
        npu.switched_on.remove(self._watch)

    def _watch(self, device: npu.NpuDevice) -> None:
        device.watch(_Ear(self, device.machine.memory))

    def program(self, code: bytes) -> Counter[CoveragePoint]:
        """The coverage points of a stream; none if it cannot be decoded."""
        digest = hashlib.blake2b(code, digest_size=16).digest()
        if digest not in self._programs:
            try:
                found = Counter(point for command in decode(code) for point in of_command(command))
            except NpusimError:
                found = Counter()
            self._programs[digest] = found
        return self._programs[digest]


class _Ear(Watcher):
    """Observes one device. The commands of a job are taken from its program."""

    steps: ClassVar[bool] = False

    def __init__(self, collector: Collector, memory: DeviceMemory) -> None:
        self._collector, self._memory = collector, memory
        self._code: dict[MachineJob, bytes] = {}  # its contents when the job began

    def job_begins(self, job: MachineJob) -> None:
        self._code[job] = self._memory.slice(job.code, job.code_bytes).tobytes()

    def job_ends(self, job: MachineJob, timeline: Timeline) -> None:
        counts = self._collector.counts
        code = self._code.pop(job, None)
        if code is not None and timeline.fault is None and not timeline.aborted:
            counts.update(self._collector.program(code))
        counts.update(of_job(job, timeline))

    def register_read(self, register: str, value: int) -> None:
        self._collector.counts.update(_of_register(register, "read", "read as 1", value))

    def register_written(self, register: str, value: int) -> None:
        self._collector.counts.update(_of_register(register, "written", "written 1", value))


def of_command(command: Command) -> Iterable[CoveragePoint]:
    """The coverage points of one executed command."""
    instruction: Instruction = command.instruction
    mnemonic = instruction.mnemonic
    yield CoveragePoint("instructions", mnemonic, "issued")
    for name in listed(type(instruction)):
        yield CoveragePoint("instructions", mnemonic, f"{name} {label(getattr(instruction, name))}")
    for name in addresses(type(instruction)):
        yield CoveragePoint("instructions", mnemonic, f"{name} in {space_name(getattr(instruction, name))}")
    for name in extras(type(instruction)):
        given: Any = instruction
        if getattr(given.extras, name) != getattr(NO_EXTRAS, name):
            yield CoveragePoint("instructions", mnemonic, f"with {name}")


def of_job(job: MachineJob, timeline: Timeline) -> Iterable[CoveragePoint]:
    """The coverage points of an ended job, without those of its commands."""
    end = "fault" if timeline.fault else "aborted" if timeline.aborted else "done"
    yield CoveragePoint("jobs", "job", end)
    if timeline.fault:
        yield CoveragePoint("faults", timeline.fault.code.name, "happened")
    if end == "done" and isinstance(job, device_job.DeviceJob):
        yield CoveragePoint("jobs", RINGS[job.ring], "done")
    if not job.arithmetic:
        yield CoveragePoint("jobs", "job", "without arithmetic")
    if timeline.preemptions:
        yield CoveragePoint("jobs", "job", "preempted")
    if timeline.preemptions > 1:
        yield CoveragePoint("jobs", "job", "preempted again")
    if timeline.residents_held:
        yield CoveragePoint("jobs", "job", "residents held")
    for unit, counters in timeline.counters.units.items():
        for other, spent in counters.stalls.items():
            if spent:
                yield CoveragePoint("stalls", _kind(unit), f"on {_kind(other)}")


def _of_register(name: str, access: str, bit_is: str, value: int) -> Iterable[CoveragePoint]:
    register = BY_NAME[name]
    items = register_items(register)
    yield CoveragePoint("registers", name, access)
    for field in register.fields:
        for bit in range(field.low, field.low + field.width):
            item = f"{field.name}[{bit}] {bit_is}"
            if value >> bit & 1 and item in items:
                yield CoveragePoint("registers", name, item)


def _kind(unit: str) -> str:
    """The kind of a unit: ``dma`` for ``core0.dma1``; other names are returned unchanged."""
    return unit.rpartition(".")[2].rstrip("0123456789")
