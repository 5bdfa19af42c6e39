"""The way back: checkpoints now and then, and the events between them counted, which come again in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from npusim.device.checkpoint import Checkpoint
from npusim.device.npu import NpuDevice
from npusim.device.stepping import InstructionCounter, Layers
from npusim.errors import UsageError
from npusim.sim.watch import Watcher

APART = 4000
"""Events after which a checkpoint is taken: what a way back replays at most, some 50 ms."""
KEPT = 24


class HistoryPosition(NamedTuple):
    """Events since the history began, and the time, which may be later than the last of them."""

    events: int
    now_ps: int


class _Software(Watcher):
    """Notes that software has touched the device: what is replayed would be without that."""

    steps = False
    touched = False

    def register_read(self, register: str, value: int) -> None:
        self.touched = True

    register_written = register_read

    def memory_written(self, address: int, size: int) -> None:
        self.touched = True


class History:
    """Where a device has been, as far as it was run from here alone. ``keep`` False: nothing is kept."""

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
        """Run the clock to a time, or until ``done()``."""
        if self._keep:
            self._mark()
            self._stops.append(self._at)
        self._count(done, limit_ps)

    def _mark(self) -> None:
        """A checkpoint here, where the last one is long ago; of all that came before software's doing none is good."""
        if self._at.now_ps != self._device.now_ps or self._software.touched:
            self._marks, self._stops = [], []
            self._at, self._software.touched = HistoryPosition(0, self._device.now_ps), False
        if not self._marks or self._at.events - self._marks[-1][0].events >= APART:
            self._marks.append((self._at, self._device.checkpoint()))
            if len(self._marks) > KEPT:
                del self._marks[1::2]  # the first stays, and every second of the others

    def _count(self, done: Callable[[], object], limit_ps: int) -> None:
        asked = -1

        def counted() -> object:
            nonlocal asked
            asked += 1
            return done()

        clock = self._device.machine.clock
        watcher = Watcher()  # each thing that happens must be an event, then as now
        self._device.watch(watcher)
        try:
            clock.run_looked_at(counted, limit_ps)
        finally:
            self._device.unwatch(watcher)
            self._at = HistoryPosition(self._at.events + max(asked, 0), clock.now)

    def back(self, what: str, count: int) -> str:
        """Go back; says how far."""
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
        """Where so many instructions or layers less had come."""
        behind: list[
            HistoryPosition
        ] = []  # where one has just ended or begun, the last of them first among those to undo
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
        """The places from one to another, the latter included, where one has just ended or begun."""
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
        """Be where the device was."""
        place, checkpoint = [mark for mark in self._marks if mark[0] <= target][-1]
        self._restore(place, checkpoint)
        left = target.events - place.events

        def done() -> bool:
            nonlocal left
            left -= 1
            return left < 0

        self._count(done, target.now_ps)
        clock = self._device.machine.clock
        if clock.now < target.now_ps:  # nothing happened in between
            self._count(lambda: False, target.now_ps)
        self._forget_later()

    def _go_time(self, time_ps: int) -> None:
        place, checkpoint = [mark for mark in self._marks if mark[0].now_ps <= time_ps][-1]
        self._restore(place, checkpoint)
        self._count(lambda: False, time_ps)
        self._forget_later()

    def _forget_later(self) -> None:
        """Marks behind the present are as good as before, as long as nobody interferes; they are made again."""
        self._marks = [mark for mark in self._marks if mark[0] <= self._at]
