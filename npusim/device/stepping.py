"""A device whose clock somebody else owns: to a time, to a condition, by instructions, layers or cycles."""

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
"""An hour of simulated time: longer than anything should take."""
WHATS = ("instruction", "layer", "cycle")


class Stepped(Protocol):
    """What it takes of a device."""

    machine: Machine

    @property
    def now_ps(self) -> int:
        """Simulated time since power-on."""

    def watch(self, watcher: Watcher) -> None:
        """Tell it what happens."""

    def unwatch(self, watcher: Watcher) -> None:
        """Tell it nothing more."""


def run_until(device: Stepped, until: int | Callable[[], object], limit_ps: int) -> bool:
    """See :meth:`npusim.device.npu.NpuDevice.run_until`."""
    clock = device.machine.clock
    clock.check_outside("to run the clock")
    if callable(until):
        watcher = Watcher()  # while somebody looks after each event, each thing that happens is one
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
    """Counts instructions that end."""

    count = 0

    def step_ends(self, unit: str, step: Step) -> None:
        self.count += 1


class Layers(Watcher):
    """Counts operators of which the first instruction begins."""

    def __init__(self, player: Player | None) -> None:
        """``player``: what has the machine; the operators that it has begun do not count."""
        self.count = 0
        self._seen = begun(player)

    def job_begins(self, job: MachineJob) -> None:
        self._seen.clear()

    def step_begins(self, unit: str, step: Step) -> None:
        if step.op not in self._seen and step.op != NO_OP:
            self._seen.add(step.op)
            self.count += 1


def begun(player: Player | None) -> set[int]:
    """The operators of which an instruction has begun."""
    if not isinstance(player, Stepper):
        return set()
    under_way = [step for engine in player.engines for step, _ in engine.flight]
    # One that hangs has begun and is not in flight.
    under_way += [each.step for each in player.engines if not each.flight and each.begin != NEVER and each.step]
    return {step.op for step in (*player.order, *under_way)}
