"""Advance a device whose clock is controlled by the caller: to a time, to a condition, by instructions, layers or
cycles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from npusim.errors import UsageError
from npusim.sim.engine import NEVER
from npusim.sim.job import MachineJob
from npusim.sim.machine import Machine, Player
from npusim.sim.stepper import Stepper
from npusim.sim.steps import Step
from npusim.sim.watch import Watcher
from npusim.timeline import NO_OP

HOUR_PS = 3600 * 10**12
"""An hour of simulated time, the limit if none is given."""
WHATS = ("instruction", "layer", "cycle")


class Stepped(Protocol):
    """Interface of a device that can be advanced."""

    machine: Machine

    @property
    def now_ps(self) -> int:
        """Simulated time since power-on, in ps."""

    def watch(self, watcher: Watcher) -> None:
        """Register a watcher."""

    def unwatch(self, watcher: Watcher) -> None:
        """Remove a watcher."""


def run_until(device: Stepped, until: int | Callable[[], object], limit_ps: int) -> bool:
    """See :meth:`npusim.device.npu.NpuDevice.run_until`."""
    clock = device.machine.clock
    clock.check_outside("to run the clock")
    if callable(until):
        watcher = Watcher()  # while there is a watcher, every action of the device is an event of its own
        device.watch(watcher)
        try:
            return clock.run_looked_at(until, clock.now + limit_ps)
        finally:
            device.unwatch(watcher)
    if until < clock.now:
        raise UsageError(f"time must not go back: {until} ps is before {clock.now} ps, which is now")
    clock.advance(until - clock.now)
    return True


def step(device: Stepped, what: str, count: int, limit_ps: int) -> bool:
    """See :meth:`npusim.device.npu.NpuDevice.step`."""
    if what not in WHATS or count < 1:
        raise UsageError(f"step: must be one of {', '.join(WHATS)}, at least 1 of them, got {count} {what!r}")
    now = device.now_ps
    if what == "cycle":
        return run_until(device, now + min(count * device.machine.cycle_ps, limit_ps), limit_ps)
    counter = InstructionCounter() if what == "instruction" else Layers(device.machine.current)
    device.watch(counter)
    try:
        return device.machine.clock.run_looked_at(lambda: counter.count >= count, now + limit_ps)
    finally:
        device.unwatch(counter)


class InstructionCounter(Watcher):
    """Counts instructions that have ended."""

    count = 0

    def step_ends(self, unit: str, step: Step) -> None:
        self.count += 1


class Layers(Watcher):
    """Counts operators whose first instruction has begun."""

    def __init__(self, player: Player | None) -> None:
        """``player``: executes the running job. Operators that it has begun already do not count."""
        self.count = 0
        self._seen = begun(player)

    def job_begins(self, job: MachineJob) -> None:
        self._seen.clear()

    def step_begins(self, unit: str, step: Step) -> None:
        if step.op not in self._seen and step.op != NO_OP:
            self._seen.add(step.op)
            self.count += 1


def begun(player: Player | None) -> set[int]:
    """The operators with an instruction that has begun."""
    if not isinstance(player, Stepper):
        return set()
    under_way = [step for engine in player.engines for step, _ in engine.flight]
    # A hanging instruction has begun but is not in flight.
    under_way += [each.step for each in player.engines if not each.flight and each.begin != NEVER and each.step]
    return {step.op for step in (*player.order, *under_way)}
