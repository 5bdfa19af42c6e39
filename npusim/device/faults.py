"""The faults of a device: when they happen, and which have happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from npusim.device.effects import Body, Effects
from npusim.device.registers import BY_NAME, RINGS, WO
from npusim.errors import UsageError
from npusim.faults import (
    AtCommand,
    AtDoorbell,
    AtInterrupt,
    AtJob,
    AtLabel,
    AtRead,
    AtSeqno,
    AtTime,
    AtWrite,
    Fault,
    Faulty,
    script_of,
)
from npusim.faults.script import Hardware, Script, check_script, lead
from npusim.faults.what import MEMORIES
from npusim.sim.clock import Clock, Event
from npusim.sim.job import MachineJob
from npusim.sim.machine import Machine
from npusim.sim.stepper import Stepper
from npusim.sim.steps import HALT, Step
from npusim.sim.watch import Watcher
from npusim.timeline import Injected, Timeline
from npusim.units import Dimension, show

_DOORBELL = "_DOORBELL"


@dataclass(slots=True, eq=False)
class _Entry:
    """A fault of a script: how many matching events there were, and whether it has happened and had an effect."""

    fault: Fault
    where: str
    seen: int = 0
    happened_ps: int | None = None
    felt: bool = False
    off: bool = False


@dataclass(slots=True, eq=False)
class _Felt:
    """Records once that a fault had an effect."""

    happened: list[Injected]
    clock: Clock
    entry: _Entry
    before: bool = False

    def __call__(self) -> None:
        if not self.before:
            self.before = self.entry.felt = True
            self.happened.append(Injected(self.clock.now, self.entry.where, lead(type(self.entry.fault.what))))


@dataclass(slots=True, eq=False)
class _Run:
    """A running job: names of its operators, which of them have begun, and the remaining commands of each."""

    operators: Sequence[Sequence[str]]
    left: Counter[int] = field(default_factory=Counter)
    begun: set[int] = field(default_factory=set)
    running: bool = False
    seen: Counter[_Entry] = field(default_factory=Counter)


class Faults(Watcher):
    """The faults of one device: :attr:`npusim.device.npu.NpuDevice.faults`. The device is only watched while there are
    faults.

    ``happened``: the faults that had an effect, in order.
    """

    def __init__(self, body: Body, watch: Callable[[Watcher], None], unwatch: Callable[[Watcher], None]) -> None:
        self._machine = body.machine
        self._clock = body.machine.clock
        self._effects = Effects(body)
        self._watch, self._unwatch = watch, unwatch
        self._entries: list[_Entry] = []
        self._of: dict[type[Any], list[_Entry]] = {}
        self._runs: dict[MachineJob, _Run] = {}
        self._operators: dict[int, Sequence[Sequence[str]]] = {}
        self.active = False
        """Whether there are any faults."""
        self.happened: list[Injected] = []

    def to_table(self) -> list[dict[str, Any]]:
        """All faults so far, as a TOML table."""
        return Script(tuple(entry.fault for entry in self._entries)).to_table()

    def add(self, faults: Faulty) -> None:
        """Add faults from now on. Instructions that have started before the first fault are not affected. For any
        thread: it waits for a thread that is in a call of the device.

        Raises ConfigError, and adds none, if the device does not support one of them.
        """
        script = script_of(faults)
        check_script(script, _hardware(self._machine))
        with self._clock.turn.visit():
            self._add(script)

    def _add(self, script: Script) -> None:
        for number, fault in enumerate(script.faults, 1):
            if isinstance(fault.when, AtTime) and fault.when.time_ps < self._clock.now:
                now = show(self._clock.now, Dimension.TIME)
                raise UsageError(f"{script.where(number)}: when.time: must not be before now, which is {now}")
        if script.faults and not self.active:
            self.active = True
            self._watch(self)
        for number, fault in enumerate(script.faults, 1):
            entry = _Entry(fault, script.where(number))
            self._entries.append(entry)
            self._of.setdefault(type(fault.when), []).append(entry)
            if isinstance(fault.when, AtTime):
                self._later(entry, fault.when.time_ps - self._clock.now)

    def clear(self) -> None:
        """Remove all faults and undo their effects; an unplugged device is plugged in. For any thread, like
        :meth:`add`."""
        with self._clock.turn.visit():
            if not self.active:
                return
            self._effects.end_all()
            for entry in self._entries:
                entry.off = True
            self._entries, self._of, self._runs = [], {}, {}
            self.active = False
            self._unwatch(self)

    def name_operators(self, code: int, names: Sequence[Sequence[str]]) -> None:
        """Set the names of the operators of the program at a device address, for faults by label. Each operator has
        several names."""
        self._operators[code] = names

    def check(self) -> None:
        """Raise UsageError if a fault has not happened or had no effect."""
        problems = [f"{entry.where}: {self._why(entry)}" for entry in self._entries if not entry.felt]
        if problems:
            count = f"{len(problems)} faults" if len(problems) > 1 else "a fault"
            raise UsageError(f"{count} of the script did not happen:\n" + "\n".join(problems))

    def _why(self, entry: _Entry) -> str:
        when, what = entry.fault.when, entry.fault.what
        if entry.happened_ps is not None:
            at = show(entry.happened_ps, Dimension.TIME)
            return f"what.{lead(type(what))} was active from {at}, but nothing matched"
        now = show(self._clock.now, Dimension.TIME)
        match when:
            case AtTime():
                return f"when.time is {show(when.time_ps, Dimension.TIME)}, and it is {now} now"
            case AtLabel(label=label):
                names = sorted({name for rows in self._operators.values() for row in rows for name in row})
                if label not in names:
                    return f"when.label: no operator is called {label!r}; there are {', '.join(names) or 'none'}"
        return f"when.{lead(type(when))}: not reached by {now}; {entry.seen} such events were counted"

    # When

    def _match(self, kind: type[Any], which: Callable[[Any], bool] = lambda when: True) -> None:
        """An event has happened that faults of this kind may wait for."""
        for entry in tuple(self._of.get(kind, ())):
            if which(entry.fault.when):
                entry.seen += 1
                self._count(entry, entry.seen)

    def _count(self, entry: _Entry, seen: int) -> None:
        when: Any = entry.fault.when
        first = 1 if isinstance(when, AtSeqno) else getattr(when, "nth", None) or getattr(when, lead(type(when)))
        if seen >= first and (not when.times or seen < first + when.times):
            if when.after_ps:
                self._later(entry, when.after_ps)
            else:
                self._happen(entry)

    def _later(self, entry: _Entry, delay_ps: int) -> None:
        self._clock.before(delay_ps, self._due, entry)

    def _due(self, event: Event) -> None:
        entry: _Entry = event.value  # type: ignore[assignment]
        if not entry.off:
            self._happen(entry)

    def _happen(self, entry: _Entry) -> None:
        if entry.happened_ps is None:
            entry.happened_ps = self._clock.now
        self._effects.do(entry.fault.what, _Felt(self.happened, self._clock, entry))

    # Queries of the device while there are faults

    def read(self, register: str, value: int) -> int:
        """The value that software reads from a register that holds ``value``."""
        self._match(AtRead, lambda when: when.read == register)
        return self._effects.read(register, value)

    def loses(self, register: str, value: int) -> bool:
        """Whether a write that is about to take effect is lost."""
        self._match(AtWrite, lambda when: when.write == register)
        if register.endswith(_DOORBELL) and value & 1:
            ring = register.removesuffix(_DOORBELL)
            self._match(AtDoorbell, lambda when: when.ring in ("", ring))
        return self._effects.loses(register, value)

    def deliver(self, vector: int) -> None:
        """The vectors to send for a message that is about to be sent."""
        self._match(AtInterrupt)
        self._effects.deliver(vector)

    def was_reset(self) -> None:
        """The device has been reset by any means."""
        self._runs.clear()
        self._effects.was_reset()

    def reset_asked(self) -> None:
        """The device has been reset by CONTROL."""
        self._effects.reset_asked()

    # What a watcher is told

    def job_begins(self, job: MachineJob) -> None:
        self._runs[job] = _Run(self._operators.get(job.code, ()))
        self._effects.beginning = job
        self._effects.job_begins(job)
        self._stage(job, "begins")
        self._effects.beginning = None

    def step_begins(self, unit: str, step: Step) -> None:
        player = self._machine.current
        assert isinstance(player, Stepper)
        run = self._runs.setdefault(player.job, _Run(self._operators.get(player.job.code, ())))
        if not run.running:
            run.running = True
            steps = (each.op for each in player.steps if each.engine != HALT)
            run.left = Counter(steps) - Counter(each.op for each in player.order)
            self._effects.job_runs()
            self._stage(player.job, "runs")
        for entry in tuple(self._of.get(AtCommand, ())):
            when = entry.fault.when
            assert isinstance(when, AtCommand)
            if when.unit == unit:
                entry.seen += 1
                run.seen[entry] += 1
                self._count(entry, run.seen[entry] if when.per == "job" else entry.seen)
        if step.op not in run.begun:
            run.begun.add(step.op)
            self._label(run, step.op, "begins")

    def step_ends(self, unit: str, step: Step) -> None:
        player = self._machine.current
        run = self._runs.get(player.job) if isinstance(player, Stepper) else None
        if run is not None and run.running:
            run.left[step.op] -= 1
            if not run.left[step.op]:
                self._label(run, step.op, "ends")

    def job_ends(self, job: MachineJob, timeline: Timeline) -> None:
        self._runs.pop(job, None)
        self._stage(job, "ends")
        self._effects.job_ends(job)
        timeline.injected = tuple(each for each in self.happened if each.at_ps >= job.started_ps)

    def _stage(self, job: MachineJob, stage: str) -> None:
        seqno = _seqno_of(job)
        self._match(AtSeqno, lambda when: when.stage == stage and when.seqno == seqno)
        self._match(AtJob, lambda when: when.stage == stage)

    def _label(self, run: _Run, op: int, edge: str) -> None:
        names = run.operators[op] if op < len(run.operators) else ()
        self._match(AtLabel, lambda when: when.edge == edge and when.label in names)


def _seqno_of(job: MachineJob) -> int | None:
    entry = getattr(job, "entry", None)
    return None if entry is None else entry.seqno


def _hardware(machine: Machine) -> Hardware:
    memory, units = machine.memory, machine.layout.names
    readable = {
        register.name: {item.name: (1 << item.width) - 1 for item in register.fields}
        for register in BY_NAME.values()
        if register.access is not WO
    }
    writable = [register.name for register in BY_NAME.values() if register.access.value != "read only"]
    sizes = (memory.dram_bytes, memory.sram_bytes, memory.acc_bytes)
    return Hardware(
        units,
        [unit for unit in units if ".dma" in unit],
        RINGS,
        readable,
        writable,
        dict(zip(MEMORIES, sizes, strict=True)),
        machine.config.cores,
    )
