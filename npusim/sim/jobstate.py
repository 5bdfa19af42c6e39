"""Save and restore the players of jobs for checkpoints.

Only the bytes of a program are saved: steps are decoded and verified again, and referenced by number. Known timings are
not saved, except that a job in replay keeps its timeline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from npusim.errors import CheckpointError
from npusim.sim.engine import NEVER, Engine
from npusim.sim.job import Attempt, MachineJob
from npusim.sim.machine import Ending, Machine
from npusim.sim.owner import Owners
from npusim.sim.replayer import Course, Replayer
from npusim.sim.saved import Saved
from npusim.sim.sequencer import Sequencer
from npusim.sim.stepper import RESTORE, SAVE, Stepper
from npusim.sim.steps import HALT, Step
from npusim.timeline import NO_OP, SEQUENCER, Counters, DeviceFault, FaultCode, Span, Timeline, UnitCounters

_ENGINE = ("busy_ps", "bytes", "completed", "idle_ps", "macs", "wait_at")
_SEQUENCER = ("busy_ps", "dispatched", "fetched", "idle_ps", "requested")
_SEQUENCER_FLAGS = ("fetching", "halted")
_JOB = ("active", "outstanding", "preemptions", "reads", "suspended_ps", "writes")
_JOB_TIMES = ("begun_ps", "ended_ps", "parked_ps", "started_ps")
_JOB_FLAGS = ("disturbed", "holding", "over", "parked")
_SPECIAL = (SAVE, RESTORE)
"""Spans of context moves have the numbers -1 and -2 in a state."""


# Faults


def fault_state(fault: DeviceFault | None, error: BaseException | None = None) -> list[Any] | None:
    """The state of a fault, with the text of the exception behind it."""
    if fault is None:
        return None
    return [int(fault.code), fault.address, fault.explanation, None if error is None else f"{error}"]


def fault_of(saved: Saved) -> tuple[DeviceFault | None, BaseException | None]:
    """Inverse of :func:`fault_state`; the exception becomes a RuntimeError."""
    if saved.missing:
        return None, None
    code, address, explanation, error = saved.items(4)
    known = [item for item in FaultCode if item == code.integer(1, max(FaultCode))]
    if not known:
        raise code.refuse("a fault code")
    raised = None if error.missing else RuntimeError(error.text())
    return DeviceFault(known[0], address.integer(0, (1 << 64) - 1), explanation.text()), raised


def _stalls(saved: Saved) -> dict[str, int]:
    return {name: saved[name].integer() for name in saved.names()}


# Steppers


def stepper_state(stepper: Stepper, owners: Owners) -> dict[str, Any]:
    """The state of a job executed event by event; ``owners`` knows its parts."""
    if stepper.disturbed:
        raise CheckpointError("a job disturbed by a scheduled fault has no checkpoints: let it end first")
    numbers = {step: number for number, step in enumerate(stepper.steps)}
    state: dict[str, Any] = {name: getattr(stepper, name) for name in (*_JOB, *_JOB_TIMES, *_JOB_FLAGS)}
    state |= {"dram_busy_ps": stepper.dram_busy_ps, "link_mark": stepper.link_mark}
    state["fault"] = fault_state(stepper.fault, stepper.error)
    state["stops"] = stepper.stopped is not None
    state["spans"] = _spans_state(stepper, numbers)
    state["known"] = _known_state(stepper.known, numbers)
    state["units"] = [_engine_state(engine, numbers, stepper.engines) for engine in stepper.engines]
    state["sequencer"] = _sequencer_state(stepper.sequencer, stepper.engines)
    state["banks"] = [banks.state(owners) for banks in stepper.banks]
    return state


def _spans_state(stepper: Stepper, numbers: Mapping[Step, int]) -> list[list[int]]:
    rows, ended = [], iter(stepper.order)
    for span in stepper.spans:
        special = span.unit == SEQUENCER
        number = -1 - _SPECIAL.index(span.kind) if special else numbers[next(ended)]
        rows.append([number, span.start_ps, span.end_ps])
    return rows


def _known_state(known: Mapping[Step, Attempt], numbers: Mapping[Step, int]) -> list[Any]:
    return [[numbers[step], fault_state(*result) if result else None] for step, result in known.items()]


def _engine_state(engine: Engine, numbers: Mapping[Step, int], engines: Sequence[Engine]) -> dict[str, Any]:
    state: dict[str, Any] = {name: getattr(engine, name) for name in _ENGINE}
    state |= {"begin": engine.begin, "mark": engine.mark, "held": engine.held, "stalls": dict(engine.stalls)}
    state["queue"] = [[at, numbers[step]] for at, step in engine.queue]
    state["flight"] = [[numbers[step], ready] for step, ready in engine.flight]
    state["asking"] = engine.asking
    state["step"] = None if engine.step is None else numbers[engine.step]
    state["blocker"] = None if engine.blocker is None else engines.index(engine.blocker)
    state["waiters"] = [[count, engines.index(waiter)] for count, waiter in engine.waiters]
    return state


def _sequencer_state(sequencer: Sequencer, engines: Sequence[Engine]) -> dict[str, Any]:
    state: dict[str, Any] = {name: getattr(sequencer, name) for name in (*_SEQUENCER, *_SEQUENCER_FLAGS)}
    state |= {"last": sequencer.last, "op": sequencer.op, "reason": sequencer.reason}
    state["stalls"] = dict(sequencer.stalls)
    state["blocked"] = None if sequencer.blocked is None else engines.index(sequencer.blocked)
    return state


def restored_stepper(
    machine: Machine, job: MachineJob, course: Course, ending: Ending, stopped: Callable[[Stepper], None], saved: Saved
) -> Stepper:
    """Restore a stepper, except its banks, see :func:`restore_banks`. Raises CheckpointError."""
    steps = course.steps
    known = {}
    for item in saved["known"]:
        number, result = item.items(2)
        fault, error = fault_of(result)
        known[steps[number.index(len(steps))]] = (fault, error) if fault else None
    stepper = Stepper(machine, job, machine.memory_of(job.regions), steps, ending, course.learn, known)
    now = machine.clock.now
    for name in _JOB:
        setattr(stepper, name, saved[name].integer())
    for name in _JOB_TIMES:
        setattr(stepper, name, saved[name].integer(0, now))
    for name in _JOB_FLAGS:
        setattr(stepper, name, saved[name].flag())
    stepper.dram_busy_ps, stepper.link_mark = saved["dram_busy_ps"].integer(), saved["link_mark"].integer()
    stepper.fault, stepper.error = fault_of(saved["fault"])
    stepper.stopped = stopped if saved["stops"].flag() else None
    if stepper.holding and stepper.stopped is None:
        raise saved["stops"].refuse("true, as the job will be parked")
    memory = machine.memory
    moved = len(stepper.cores) * (memory.sram_bytes + memory.acc_bytes) + memory.l2_bytes
    _restore_spans(stepper, moved, saved["spans"])
    for engine, item in zip(stepper.engines, saved["units"].items(len(stepper.engines)), strict=True):
        _restore_engine(stepper, engine, item)
    _restore_sequencer(stepper, saved["sequencer"])
    return stepper


def restore_banks(stepper: Stepper, owners: Owners, saved: Saved) -> None:
    """Restore the active instructions of the banks; ``owners`` must know their units."""
    for banks, item in zip(stepper.banks, saved["banks"].items(len(stepper.banks)), strict=True):
        banks.restore(item, owners)


def _restore_spans(stepper: Stepper, size: int, saved: Saved) -> None:
    """``size``: bytes of the context of the job."""
    steps, now = stepper.steps, stepper.clock.now - stepper.started_ps
    for item in saved:
        number, start, end = item.integers(3, -len(_SPECIAL))
        if not start <= end <= now or number >= len(steps) or (number >= 0 and steps[number].engine == HALT):
            raise item.refuse("a step of the program, its start and end, both in the past")
        if number < 0:
            kind = _SPECIAL[-1 - number]
            stepper.spans.append(Span(SEQUENCER, start, end, NO_OP, kind, 0, size, "memory", size))
        else:
            step = steps[number]
            stepper.spans.append(step.span(stepper.engines[step.engine].name, start, end))
            stepper.order.append(step)


def _restore_engine(stepper: Stepper, engine: Engine, saved: Saved) -> None:
    steps, engines, now = stepper.steps, stepper.engines, stepper.clock.now
    own = engines.index(engine)

    def step_of(number: Saved) -> Step:
        step = steps[number.index(len(steps))]
        if step.engine != own:
            raise number.refuse(f"a command of {engine.name}")
        return step

    for name in _ENGINE:
        setattr(engine, name, saved[name].integer())
    engine.begin, engine.mark = saved["begin"].integer(NEVER, now), saved["mark"].integer(0, now)
    engine.held, engine.stalls = saved["held"].flag(), _stalls(saved["stalls"])
    engine.step = None if saved["step"].missing else step_of(saved["step"])
    engine.queue.clear()
    for item in saved["queue"]:
        at, number = item.items(2)
        engine.queue.append((at.integer(), step_of(number)))
    engine.flight.clear()
    for item in saved["flight"].items():
        number, ready = item.items(2)
        engine.flight.append((step_of(number), ready.integer()))
    engine.asking = saved["asking"].flag()
    if len(engine.flight) > engine.depth:
        raise saved["flight"].refuse(f"at most {engine.depth} commands")
    if bool(engine.flight) != (engine.begin != NEVER):
        raise saved["flight"].refuse("the commands that have begun, of which the first has the unit")
    if engine.asking and not engine.flight:
        raise saved["asking"].refuse("false, as no command has begun")
    engine.blocker = None if saved["blocker"].missing else engines[saved["blocker"].index(len(engines))]
    engine.waiters = []
    for item in saved["waiters"]:
        count, waiter = item.items(2)
        engine.waiters.append((count.integer(), engines[waiter.index(len(engines))]))
    if engine.step is None and (engine.held or engine.blocker or (engine.queue and not engine.flight)):
        raise saved["step"].refuse("a command, as the unit has one")
    arriving = engine.blocker is None and not engine.held  # then the stall is that of the previous command
    if engine.step is not None and not arriving and engine.wait_at > len(engine.step.waits):
        raise saved["wait_at"].refuse(f"at most {len(engine.step.waits)}")


def _restore_sequencer(stepper: Stepper, saved: Saved) -> None:
    sequencer, engines, steps = stepper.sequencer, stepper.engines, stepper.steps
    for name in _SEQUENCER:
        setattr(sequencer, name, saved[name].integer())
    for name in _SEQUENCER_FLAGS:
        setattr(sequencer, name, saved[name].flag())
    sequencer.last, sequencer.op = saved["last"].integer(), saved["op"].integer(0, NO_OP)
    sequencer.reason, sequencer.stalls = saved["reason"].text(), _stalls(saved["stalls"])
    sequencer.blocked = None if saved["blocked"].missing else engines[saved["blocked"].index(len(engines))]
    saved["dispatched"].integer(0, len(steps))
    if sequencer.halted and sequencer.dispatched != len(steps):
        raise saved["halted"].refuse("false, as there are commands to dispatch")
    if not sequencer.fetched <= sequencer.requested <= sequencer.total:
        raise saved["requested"].refuse(f"from {sequencer.fetched} to {sequencer.total}")
    if sequencer.dispatched == len(steps) and (sequencer.blocked or sequencer.fetched < sequencer.total):
        raise saved["dispatched"].refuse(f"less than {len(steps)}, as commands are to come")


# Replayers


def replayer_state(timeline: Timeline, *, over: bool) -> dict[str, Any]:
    """The state of a job in replay."""
    return {"timeline": timeline_state(timeline), "over": over}


def restored_replayer(machine: Machine, job: MachineJob, ending: Ending, saved: Saved) -> Replayer:
    """Restore a replayer with its arithmetic done. Raises CheckpointError."""
    # A separate course, so that a timeline from a file affects this job only.
    course = Course(())
    course.timeline = timeline_of(saved["timeline"])
    replayer = Replayer(machine, job, machine.memory_of(job.regions), course, ending)
    replayer.over = saved["over"].flag()
    return replayer


def timeline_state(timeline: Timeline) -> dict[str, Any]:
    """The state of the timeline of an undisturbed job."""
    counters = timeline.counters
    units = {
        name: [unit.busy_ps, unit.idle_ps, unit.instructions, unit.macs, unit.bytes, dict(unit.stalls)]
        for name, unit in counters.units.items()
    }
    totals = [counters.dram_read_bytes, counters.dram_write_bytes, counters.dram_busy_ps, counters.instructions]
    spans = [list(span) for span in timeline.spans]
    return {"time_ps": timeline.time_ps, "cycles": timeline.cycles, "spans": spans, "units": units, "totals": totals}


def timeline_of(saved: Saved) -> Timeline:
    """Inverse of :func:`timeline_state`."""
    spans = []
    for item in saved["spans"]:
        unit, start, end, op, kind, macs, moved, bound, dram_bytes = item.items(9)
        spans.append(
            Span(
                unit.text(),
                start.integer(),
                end.integer(),
                op.integer(0, NO_OP),
                kind.text(),
                macs.integer(),
                moved.integer(),
                bound.text(),
                dram_bytes.integer(),
            )
        )
    units = {}
    for name in saved["units"].names():
        *numbers, stalls = saved["units"][name].items(6)
        busy, idle, instructions, macs_done, moved_bytes = [number.integer() for number in numbers]
        units[name] = UnitCounters(busy, idle, _stalls(stalls), instructions, macs_done, moved_bytes)
    duration = saved["time_ps"].integer()
    counters = Counters(duration, units, *saved["totals"].integers(4))
    return Timeline(spans, counters, saved["cycles"].integer(), duration)
