"""Reverse execution: checkpoints at intervals, and replay of the events between them, which are deterministic."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from npusim.device.checkpoint import Checkpoint
from npusim.device.npu import NpuDevice
from npusim.device.stepping import InstructionCounter, Layers
from npusim.errors import UsageError
from npusim.sim.watch import Watcher

APART = 4000
"""Events between checkpoints: the most that is replayed to go back, about 50 ms."""
KEPT = 24


class HistoryPosition(NamedTuple):
    """Events since the start of the history, and the time, which may be later than the last event."""

    events: int
    now_ps: int


class _Software(Watcher):
    """Records that software has accessed the device: such accesses cannot be replayed."""

    steps = False
    touched = False

    def register_read(self, register: str, value: int) -> None:
        self.touched = True

    register_written = register_read

    def memory_written(self, address: int, size: int) -> None:
        self.touched = True


class History:
    """The positions of a device, as far as it was advanced through this object. ``keep`` False: keep nothing."""

    def __init__(self, device: NpuDevice, *, keep: bool) -> None:
        self._device = device
        self._keep = keep
        self._marks: list[tuple[HistoryPosition, Checkpoint]] = []
        self._stops: list[HistoryPosition] = []
        self._at = HistoryPosition(0, -1)
        self._software = _Software()
        if keep:
            device.watch(self._software)

    def run(self, done: Callable[[], object], limit_ps: int) -> None:
        """Advance the clock to a time in ps, or until ``done()``."""
        if self._keep:
            self._mark()
            self._stops.append(self._at)
        self._count(done, limit_ps)

    def _mark(self) -> None:
        """Make a checkpoint if the last one is far back. Accesses by software invalidate all earlier ones."""
        if self._at.now_ps != self._device.now_ps or self._software.touched:
            self._marks, self._stops = [], []
            self._at, self._software.touched = HistoryPosition(0, self._device.now_ps), False
        if not self._marks or self._at.events - self._marks[-1][0].events >= APART:
            self._marks.append((self._at, self._device.checkpoint()))
            if len(self._marks) > KEPT:
                del self._marks[1::2]  # keep the first, and every second of the others

    def _count(self, done: Callable[[], object], limit_ps: int) -> None:
        asked = -1

        def counted() -> object:
            nonlocal asked
            asked += 1
            return done()

        clock = self._device.machine.clock
        watcher = Watcher()  # a watcher, so that everything is an event both now and in the replay
        self._device.watch(watcher)
        try:
            clock.run_looked_at(counted, limit_ps)
        finally:
            self._device.unwatch(watcher)
            self._at = HistoryPosition(self._at.events + max(asked, 0), clock.now)

    def back(self, what: str, count: int) -> str:
        """Go back. Returns a text that says how far."""
        if not self._marks or self._at.now_ps != self._device.now_ps or self._software.touched:
            raise UsageError("back: there is no history: the device was not run by the debugger alone since software")
        here = self._at
        if what == "cycle":
            self._go_time(max(self._marks[0][0].now_ps, here.now_ps - count * self._device.machine.cycle_ps))
        elif what == "stop":
            before = [place for place in self._stops if place < here]
            self._go(before[-min(count, len(before))] if before else self._marks[0][0])
        elif what in ("instruction", "layer"):
            self._go(self._boundary(what, count, here))
        else:
            raise UsageError(f"back: must be instruction, layer, cycle or stop, got {what!r}")
        self._stops = [place for place in self._stops if place < self._at]
        start = self._marks[0][0]
        return "the beginning of the history" if self._at == start else f"back by {count} {what}"

    def _boundary(self, what: str, count: int, here: HistoryPosition) -> HistoryPosition:
        """The position at which ``count`` instructions or layers fewer had passed."""
        behind: list[HistoryPosition] = []  # positions of ends or starts, the last one to undo first
        end = here
        for place, checkpoint in reversed(self._marks):
            if place >= here:
                continue
            behind = self._boundaries(place, checkpoint, end, what) + behind
            end = place
            if len(behind) > count:
                return behind[-1 - count]
        return self._marks[0][0]

    def _boundaries(
        self, place: HistoryPosition, checkpoint: Checkpoint, end: HistoryPosition, what: str
    ) -> list[HistoryPosition]:
        """The positions after ``place`` up to ``end`` at which one has ended or begun."""
        self._restore(place, checkpoint)
        found: list[HistoryPosition] = []
        counter = InstructionCounter() if what == "instruction" else Layers(self._device.machine.current)
        known = events = 0

        def done() -> bool:
            nonlocal known, events
            if counter.count > known:
                known = counter.count
                found.append(HistoryPosition(place.events + events, self._device.now_ps))
            events += 1
            return place.events + events > end.events

        self._device.watch(counter)
        try:
            self._count(done, end.now_ps)
        finally:
            self._device.unwatch(counter)
        return found

    def _restore(self, place: HistoryPosition, checkpoint: Checkpoint) -> None:
        self._device.restore(checkpoint)
        self._at = place

    def _go(self, target: HistoryPosition) -> None:
        """Restore a position."""
        place, checkpoint = [mark for mark in self._marks if mark[0] <= target][-1]
        self._restore(place, checkpoint)
        left = target.events - place.events

        def done() -> bool:
            nonlocal left
            left -= 1
            return left < 0

        self._count(done, target.now_ps)
        clock = self._device.machine.clock
        if clock.now < target.now_ps:  # no event in between
            self._count(lambda: False, target.now_ps)
        self._forget_later()

    def _go_time(self, time_ps: int) -> None:
        place, checkpoint = [mark for mark in self._marks if mark[0].now_ps <= time_ps][-1]
        self._restore(place, checkpoint)
        self._count(lambda: False, time_ps)
        self._forget_later()

    def _forget_later(self) -> None:
        """Drop checkpoints after the current position; they are made again."""
        self._marks = [mark for mark in self._marks if mark[0] <= self._at]
