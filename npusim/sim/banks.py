"""The SRAM of one core while several of its units use it: together they get no more than the bandwidth of its banks.

An instruction has a share of the bank bandwidth that it uses when alone. While the shares of the active instructions
add up to no more than the whole, none is slowed down, because they access different banks. Otherwise they conflict, and
all are slowed down by the same factor. DMA is not included, because units do not use its buffers at the same time.

A share is an integer fraction of WHOLE, and the rest of an instruction is kept in ps * WHOLE: only the factor is
rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from simpy.events import Event

from npusim.hw.units.base import WHOLE
from npusim.sim.clock import Clock
from npusim.sim.owner import EventOwner, Owners
from npusim.sim.saved import LONGEST_PS, Saved
from npusim.units import ceil_div


@dataclass(slots=True, eq=False)
class ActiveInstruction:
    """An instruction in execution on one unit."""

    left: int
    share: int
    done: Callable[[], None]
    timer: int = 0


class Banks(EventOwner):
    """The SRAM of one core during one job."""

    EVENTS = ("_ended",)

    __slots__ = ("_clock", "_demand", "_speed", "_updated", "_works")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._works: list[ActiveInstruction] = []
        self._demand = 0
        self._speed = WHOLE
        self._updated = clock.now

    def start(self, duration_ps: int, share: int, done: Callable[[], None]) -> None:
        """Start an instruction that takes ``duration_ps`` alone and ``share`` of WHOLE of the bandwidth; ``done()`` is
        called at its end."""
        self._flow()
        work = ActiveInstruction(duration_ps * WHOLE, share, done)
        self._works.append(work)
        self._demand += share
        # If the speed has not changed, the other timers stay valid and only the new instruction needs one.
        if not self._adapt():
            self._time(work)

    def _flow(self) -> None:
        """Subtract the progress since the last change."""
        now = self._clock.now
        done = (now - self._updated) * self._speed
        if done:
            for work in self._works:
                work.left -= done
        self._updated = now

    def _adapt(self) -> bool:
        """Set the speed of all instructions. Returns whether it has changed, and so every end."""
        demand = self._demand
        # Inlined, as it is evaluated for each instruction.
        speed = WHOLE if demand <= WHOLE else WHOLE * WHOLE // demand
        if speed == self._speed:
            return False
        self._speed = speed
        for work in self._works:
            self._time(work)
        return True

    def _time(self, work: ActiveInstruction) -> None:
        work.timer += 1
        delay = max(0, ceil_div(work.left, self._speed))
        self._clock.after(delay, self._ended, (work, work.timer))

    def _ended(self, event: Event) -> None:
        work, timer = cast("tuple[ActiveInstruction, int]", event.value)
        if timer != work.timer:
            return  # the speed has changed since, and another timer is running
        self._flow()
        self._works.remove(work)
        self._demand -= work.share
        self._adapt()
        work.done()

    def shares(self) -> list[float]:
        """The shares of the active instructions, for inspection."""
        return [work.share / WHOLE for work in self._works]

    # Its state

    def awaited(self) -> list[Callable[[], None]]:
        """The callbacks at the ends of instructions."""
        return [work.done for work in self._works]

    def which(self, value: Any) -> str:
        return f" {self.value_state(value)}"

    def is_void(self, value: Any) -> bool:
        work, timer = cast("tuple[ActiveInstruction, int]", value)
        unit = getattr(work.done, "__self__", None)  # its job may have ended without a call to the banks
        return timer != work.timer or work not in self._works or (isinstance(unit, EventOwner) and unit.is_void(None))

    def value_state(self, value: Any) -> int:
        """The index of the instruction that ends."""
        return self._works.index(cast("tuple[ActiveInstruction, int]", value)[0])

    def value_of(self, method: str, saved: Saved) -> tuple[ActiveInstruction, int]:
        work = self._works[saved.index(len(self._works))]
        return work, work.timer

    def state(self, owners: Owners) -> list[list[Any]]:
        """The active instructions as plain data."""
        self._flow()
        return [[work.left, work.share, owners.name(work.done)] for work in self._works]

    def restore(self, saved: Saved, owners: Owners) -> None:
        """Restore the state at the current time. Raises CheckpointError."""
        self._works = []
        for item in saved:
            left, share, done = item.items(3)
            self._works.append(
                ActiveInstruction(
                    left.integer(-WHOLE * WHOLE, WHOLE * LONGEST_PS), share.integer(0, WHOLE), owners.callback(done), 1
                )
            )
        self._demand = sum(work.share for work in self._works)
        self._speed = WHOLE if self._demand <= WHOLE else WHOLE * WHOLE // self._demand
        self._updated = self._clock.now
