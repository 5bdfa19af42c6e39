"""Consistency checks between the parts of a restored device, because a checkpoint may be forged.

Each value has been validated alone before. These checks cover relations between values: which dispatched commands of a
job are queued, started and finished; which unit waits for which; which events are pending. All of this follows from the
program and a few counters, so it must match exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from npusim.device.job import DeviceJob, JobStage
from npusim.errors import CheckpointError
from npusim.hw.units.dma import FETCH_BYTES
from npusim.sim.engine import NEVER, Engine
from npusim.sim.machine import Machine
from npusim.sim.replayer import Replayer
from npusim.sim.sequencer import Sequencer
from npusim.sim.stepper import SAVE, Stepper
from npusim.sim.steps import HALT, Step


def bad(where: str, what: str) -> CheckpointError:
    """The error for inconsistent parts."""
    return CheckpointError(f"state: {where}: {what}")


def check_jobs(
    machine: Machine, begun: Sequence[DeviceJob | None], current: DeviceJob | None, context_base: int
) -> None:
    """Check the stages of the jobs, which job runs, and each job alone. Raises CheckpointError."""
    dram, size = machine.memory.dram_bytes, machine.context_bytes
    if context_base and context_base + len(begun) * size > dram:
        raise bad("queues.context_base", "has no room for the contexts of all jobs")
    jobs = [job for job in begun if job is not None]
    here = [job for job in jobs if job.stage is not JobStage.PARKED]
    if here != ([] if current is None else [current]):
        raise bad("queues.current", "must be the one job that has begun and is not parked")
    moving = machine.moving
    if moving is not None and (current is None or moving.stepper is not current.player):
        raise bad("queues.moving", "must be the context of the current job")
    on_machine = current is not None and current.stage in (JobStage.RUNNING, JobStage.LEAVING, JobStage.RETURNING)
    if machine.current is not (current.player if current is not None and on_machine else None):
        raise bad("queues.machine", "must be the job that runs, or whose context is on its way")
    for job in jobs:
        _check_stage(machine, job, f"queues.jobs[{job.ring}]")
        if isinstance(job.player, Stepper) and not job.player.over:
            check_stepper(job.player, f"queues.jobs[{job.ring}].player")
        if job.context + size > dram and job.stage in (JobStage.LEAVING, JobStage.PARKED, JobStage.RETURNING):
            raise bad(f"queues.jobs[{job.ring}].context", "must lie completely in DRAM")


def _check_stage(machine: Machine, job: DeviceJob, where: str) -> None:
    player, moving = job.player, machine.moving
    if (job.stage is JobStage.FETCHING) != (player is None) and job.stage is not JobStage.ENDING:
        raise bad(f"{where}.player", f"does not match the stage {job.stage.name}")
    if player is not None and player.over != (job.stage is JobStage.ENDING):
        raise bad(f"{where}.player.over", f"does not match the stage {job.stage.name}")
    mine = moving is not None and moving.stepper is player
    if mine != (job.stage is JobStage.RETURNING) and job.stage is not JobStage.LEAVING:
        raise bad("queues.moving", f"does not match the stage {job.stage.name} of its job")
    if not isinstance(player, Stepper) or player.over:
        return
    if mine and (moving is not None and moving.kind == SAVE) != (job.stage is JobStage.LEAVING):
        raise bad("queues.moving", f"moves in the wrong direction for the stage {job.stage.name} of its job")
    away = mine or job.stage is JobStage.PARKED
    if player.parked != away or player.holding != (away or job.stage is JobStage.LEAVING):
        raise bad(f"{where}.player.parked, holding", f"do not match the stage {job.stage.name}")


# Jobs that are executed event by event


def check_stepper(stepper: Stepper, where: str) -> None:
    """Check the state of a job against its progress. Raises CheckpointError."""
    sequencer = stepper.sequencer
    given: dict[int, list[Step]] = {number: [] for number in range(len(stepper.engines))}
    for step in stepper.steps[: sequencer.dispatched]:
        if step.engine != HALT:
            given[step.engine].append(step)
    waiters: dict[Engine, list[tuple[int, Engine]]] = {engine: [] for engine in stepper.engines}
    for number, engine in enumerate(stepper.engines):
        _check_engine(stepper, engine, given[number], f"{where}.{engine.name}")
        if engine.blocker is not None and engine.step is not None:
            waiters[engine.blocker].append((engine.step.waits[engine.wait_at][1], engine))
    for engine in stepper.engines:
        # As multisets, because the order depends on when they began to wait.
        if Counter(engine.waiters) != Counter(waiters[engine]):
            raise bad(f"{where}.{engine.name}.waiters", "must be the units that wait for it, and for how many commands")
    ended = Counter(step for number, engine in enumerate(stepper.engines) for step in given[number][: engine.completed])
    if Counter(stepper.order) != ended:
        raise bad(f"{where}.spans", "must be those of the commands that are over, one each")
    left = sum(len(steps) for steps in given.values()) - sum(ended.values())
    if stepper.outstanding != left:
        raise bad(f"{where}.outstanding", f"must be {left}")
    _check_sequencer(stepper, sequencer, f"{where}.sequencer")
    if stepper.link_mark > stepper.link.busy_ps:
        raise bad(f"{where}.link_mark", f"must be at most {stepper.link.busy_ps}")


def _check_engine(stepper: Stepper, engine: Engine, given: list[Step], where: str) -> None:
    here = [step for step, _ in engine.flight] + [engine.step] * (engine.step is not None)
    if [*here, *(step for _, step in engine.queue)] != given[engine.completed :]:
        raise bad(where, "flight, step and queue must be the commands that are dispatched and not over, in their order")
    if len(engine.queue) > stepper.queue_depth:
        raise bad(f"{where}.queue", f"must have at most {stepper.queue_depth} commands")
    if engine.queue and engine.step is None and not engine.asking and len(engine.flight) < engine.depth:
        raise bad(f"{where}.step", "must be a command, as the unit is free for the first in its queue")
    if engine.asking and (engine.depth == 1 or not engine.flight[-1][0].charge.front_ps):
        raise bad(f"{where}.asking", "must be false: the last command does not ask for the unit alone")
    done = given[: engine.completed]
    for name in ("macs", "bytes"):
        if getattr(engine, name) != (total := sum(getattr(step.charge, name) for step in done)):
            raise bad(f"{where}.{name}", f"must be {total}")
    waits = () if engine.step is None else engine.step.waits
    if engine.blocker is not None:
        number, count = waits[engine.wait_at] if engine.wait_at < len(waits) else (-1, 0)
        if number < 0 or stepper.engines[number] is not engine.blocker or engine.blocker.completed >= count:
            raise bad(f"{where}.blocker", "must be the unit that the command waits for")
    if engine.held and (engine.blocker is not None or engine.wait_at != len(waits) or not stepper.holding):
        raise bad(f"{where}.held", "must be false: the command waits for something else")
    arriving = engine.blocker is None and not engine.held
    if not arriving and any(stepper.engines[number].completed < count for number, count in waits[: engine.wait_at]):
        raise bad(f"{where}.wait_at", "exceeds a wait that does not hold")


def _check_sequencer(stepper: Stepper, sequencer: Sequencer, where: str) -> None:
    steps, fetched, dispatched = stepper.steps, sequencer.fetched, sequencer.dispatched
    if dispatched and steps[dispatched - 1].end > fetched:
        raise bad(f"{where}.dispatched", "exceeds the fetched bytes")
    halves = {fetched, min(fetched + FETCH_BYTES, sequencer.total)}
    if (fetched % FETCH_BYTES and fetched != sequencer.total) or sequencer.requested not in halves:
        raise bad(f"{where}.fetched, requested", f"must be whole pieces of {FETCH_BYTES} bytes, one apart at most")
    if sequencer.requested > fetched and not sequencer.fetching:
        raise bad(f"{where}.fetching", "must be true, as bytes are on their way")
    blocked = sequencer.blocked
    if blocked is not None:
        step = steps[dispatched] if dispatched < len(steps) else None
        if step is None or step.engine == HALT or stepper.engines[step.engine] is not blocked:
            raise bad(f"{where}.blocked", "must be the unit that the next command is for")
        if len(blocked.queue) < stepper.queue_depth and not stepper.holding:
            raise bad(f"{where}.blocked", "must be null, as there is room in its queue")


# What is to come


class Due:
    """Pending events by part: methods that an event calls; ``METHOD on LINK`` for the end of a transfer; ``METHOD on
    MEMORY`` for the end of an access to its banks."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}
        self._times: dict[tuple[str, str], int] = {}

    def add(self, part: str, what: str, time: int = 0) -> None:
        """Add an event."""
        self._counts.setdefault(part, Counter())[what] += 1
        self._times[part, what] = time

    def time(self, part: str, what: str) -> int:
        """The time of an event that occurs once."""
        return self._times.get((part, what), 0)

    def take(self, part: str, *allowed: str) -> None:
        """Remove an event. Exactly one of these must be pending; without arguments, none. Raises CheckpointError."""
        counts = self._counts.get(part, Counter())
        there = [each for each in allowed if counts[each]]
        if allowed and (len(there) != 1 or counts[there[0]] != 1):
            raise bad(f"events of {part}", f"must be {' or '.join(allowed)}, once")
        for each in there:
            del counts[each]

    def taken(self, part: str, what: str) -> int:
        """Remove all events of that kind and return their number."""
        return self._counts.get(part, Counter()).pop(what, 0)

    def check_taken(self) -> None:
        """Check that no other event is pending. Raises CheckpointError."""
        for part, counts in self._counts.items():
            for what, count in counts.items():
                if count:
                    raise bad(f"events of {part}", f"must not be {what}, as nothing waits for it")


def check_due(machine: Machine, begun: Sequence[DeviceJob | None], names: Sequence[str], due: Due) -> None:
    """Check that the events of jobs are exactly those that their parts wait for. ``names``: of the jobs. Raises
    CheckpointError."""
    for job, name in zip(begun, names, strict=True):
        if job is None:
            continue
        due.take("queues", *(f"{method} {job.ring}" for method in _awaited(job)))
        player = job.player
        if isinstance(player, Stepper) and not player.over:
            _check_stepper_due(machine, player, name, due)
        elif isinstance(player, Replayer):
            ended = (
                due.time(name, "_ended") + job.tail_ps
                if not player.over
                else due.time("queues", f"_record_went {job.ring}")
            )
            due.take(name, *["_ended"] * (not player.over))
            assert player.course.timeline is not None
            if ended - job.started_ps != player.course.timeline.time_ps:
                raise bad(f"{name}.timeline.time_ps", f"must be {ended - job.started_ps}, as the job will have taken")
    due.take("context", *["flow", "flowed on dram"] * (machine.moving is not None))


def _awaited(job: DeviceJob) -> list[str]:
    """The control accesses one of which must be pending."""
    if job.stage is JobStage.ENDING:
        return ["_record_went"]
    if job.stage is not JobStage.FETCHING:
        return []
    return ["_entry_came"] if job.entry is None else ["_table_came", "_code_came"]


def _check_stepper_due(machine: Machine, stepper: Stepper, name: str, due: Due) -> None:
    links = {id(link): link_name for link_name, link in machine.links.items()}
    sequencer, active = stepper.sequencer, 0
    for engine in stepper.engines:
        where = f"{name}/{engine.name}"
        arriving = engine.step is not None and engine.blocker is None and not engine.held
        due.take(where, *["_arrived"] * arriving)
        due.take(where, *["_asked"] * engine.asking)
        if engine.begin != NEVER:
            step, _ = engine.flight[0]
            charge = step.charge
            if charge.share:
                due.take(where, f"_finish on core{step.core}.sram")
            elif charge.bus_bytes:
                due.take(where, "_flow", f"_finish on {links[id(stepper.ways[charge.link])]}")
            else:
                due.take(where, "_finish")
        active += arriving + len(engine.flight)
    halting = sequencer.dispatched == len(stepper.steps) and not sequencer.halted
    if sequencer.fetching:
        flows = sequencer.requested > sequencer.fetched
        due.take(f"{name}/sequencer", f"_fetched on {links[id(stepper.code_link)]}" if flows else "_stream")
    due.take(f"{name}/sequencer", *["_halting"] * halting)
    active += sequencer.fetching + halting
    parking = due.taken(name, "_arrived")
    if parking > (stepper.holding and not stepper.parked):
        raise bad(f"events of {name}", "must not be _arrived, as nothing waits for it")
    if stepper.active != active + parking:
        raise bad(f"{name}.active", f"must be {active + parking}, the number of pending events")
    if stepper.parked != (not stepper.active):
        raise bad(f"{name}.active", "must be 0 for a job that is parked, and for no other")
