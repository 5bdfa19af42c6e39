"""The host of an in-process device: a bus that adds the access times of the config."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from npusim.device.bus import Bus, DmaError, RegisterModel, Turn, is_doubtful
from npusim.hw.config import Config
from npusim.isa.base import ByteArray
from npusim.sim.clock import Clock
from npusim.sim.memory import AddressError, DeviceMemory
from npusim.sim.watch import Watcher
from npusim.turns import in_use

_log = logging.getLogger("npusim.device")


class InProcess(RegisterModel, Protocol):
    """A device in the same process as its host."""

    def arithmetic(self, turn: Turn) -> Callable[[], bool] | None:
        """A function that repeats the arithmetic of a job while nothing else happens; it returns False for a fault.
        None if the timing of such jobs is not known."""


class HostBus(Bus):
    """Connects one device in this process. During an access of one thread, calls from other threads raise
    UsageError."""

    pinned = False

    def __init__(
        self, config: Config, clock: Clock, memory: DeviceMemory, device: InProcess, watchers: Sequence[Watcher]
    ) -> None:
        self._host = config.host
        self._clock, self.turn = clock, clock.turn
        self._memory = memory
        self._device = device
        self._watchers = watchers  # called for bulk copies
        self._pending: set[int] = set()  # vectors of messages that were not taken
        self._times = {"submit": config.host.submit_ps, "map": config.host.map_ps}
        self.connected = True
        self._copy_ps = lru_cache(64)(config.host.copy_ps)

    def read(self, bar: int, offset: int, size: int) -> int:
        if not self.turn.lock.acquire(False) and not self.turn.enter_after_visitors():
            raise in_use("bus", "read")
        try:
            self._clock.advance(self._host.mmio_ps)
            return self._device.read(bar, offset, size)
        finally:
            self.turn.lock.release()

    def write(self, bar: int, offset: int, size: int, value: int) -> None:
        if not self.turn.lock.acquire(False) and not self.turn.enter_after_visitors():
            raise in_use("bus", "write")
        try:
            self._clock.advance(self._host.mmio_ps)
            self._device.write(bar, offset, size, value)
        finally:
            self.turn.lock.release()

    def read_memory(self, address: int, size: int) -> bytearray:
        self._clock.advance(self._copy_ps(size))
        if self.connected:
            try:
                data = bytearray(self._memory.slice(address, size))
                for watcher in self._watchers[:]:
                    watcher.memory_read(address, size)
                return data
            except AddressError as fault:
                self._tell_misused("bulk read", fault)
        return bytearray(b"\xff") * size

    def write_memory(self, address: int, data: bytes | bytearray | memoryview) -> None:
        source = np.frombuffer(data, np.uint8)
        self._clock.advance(self._copy_ps(source.size))
        if self.connected:
            try:
                self._memory.slice(address, source.size)[:] = source
                if self._watchers:
                    self._tell_written(address, source.size)
            except AddressError as fault:
                self._tell_misused("bulk write", fault)

    def fill_memory(self, address: int, size: int, fill: Callable[[ByteArray], None]) -> None:
        self._clock.advance(self._copy_ps(size))
        if self.connected:
            try:
                fill(self._memory.slice(address, size))
                if self._watchers:
                    self._tell_written(address, size)
            except AddressError as fault:
                self._tell_misused("bulk write", fault)

    def _tell_misused(self, verb: str, fault: AddressError) -> None:
        _log.warning("%s: %s", verb, fault.explanation)
        for watcher in self._watchers[:]:
            watcher.misused(f"{verb}: {fault.explanation}")

    def _tell_written(self, address: int, size: int) -> None:
        for watcher in self._watchers[:]:
            watcher.memory_written(address, size)

    def note(self, what: str, address: int = 0, size: int = 0) -> None:
        for watcher in self._watchers[:]:
            watcher.noted(what, address, size)

    def wait_irq(self, timeout_ps: int) -> int:
        if self._watchers:
            for watcher in self._watchers[:]:
                watcher.waits(timeout_ps)
        if not self._clock.run_until(self._pending.__len__, timeout_ps):
            return 0
        # The host takes all pending interrupts at once, so the time is added once.
        self._clock.advance(self._host.irq_ps)
        vectors = 0
        for vector in self._pending:
            vectors |= 1 << vector
        self._pending.clear()
        for watcher in self._watchers[:]:
            watcher.takes(vectors)
        return vectors

    def now_ps(self) -> int:
        return self._clock.now

    def quiet_ps(self) -> int | None:
        coming = self._clock.coming
        return None if coming is None else coming - self._clock.now

    def host_work(self, kind: str) -> None:
        if kind not in self._times:
            raise ValueError(f"kind of host work must be one of {', '.join(self._times)}, got {kind!r}")
        self._clock.advance(self._times[kind])

    def repeat(self, rounds: Sequence[Sequence[Turn]], most: int) -> int:
        """See :meth:`Bus.repeat`. The time of a job does not depend on its data, so only arithmetic and time are left
        to do if the timing of each job is known."""
        ready = [[play for turn in turns if (play := self._ready(turn))] for turns in rounds]
        if any(len(plays) < len(turns) for plays, turns in zip(ready, rounds, strict=True)):
            return 0
        count = 0
        while count < most and all(play() for play in ready[count % len(rounds)]):
            count += 1
        for number, turns in enumerate(rounds):
            self._clock.advance(len(range(number, count, len(rounds))) * sum(turn.spent_ps for turn in turns))
        return count

    def _ready(self, turn: Turn) -> Callable[[], bool] | None:
        """A function that repeats one turn and returns whether the round continues; None if the timing of the job is
        not known."""
        compute = self._device.arithmetic(turn) if self.connected else None
        if compute is None:
            return None
        for address, data in turn.writes:  # nothing else writes there, so this is done once and not in every round
            self._memory.slice(address, data.size)[:] = data
        ends = [(address + max(size - 4, 0), min(size, 4)) for address, size in turn.reads]
        verdicts = [(address, self._memory.slice(address, size)) for address, size in ends]
        return lambda: compute() and not any(is_doubtful(address, end.tobytes()) for address, end in verdicts)

    def pending(self) -> list[int]:
        """The vectors whose messages software has not taken."""
        return sorted(self._pending)

    def restore(self, vectors: list[int], *, connected: bool) -> None:
        """Make these messages pending."""
        self._pending = set(vectors)
        self.connected = connected

    def cancel_irqs(self) -> None:
        """Drop the interrupt messages that software has not taken."""
        self._pending.clear()

    def level(self) -> None:
        """No effect, because this bus has no interrupt pin."""

    def irq(self, vector: int) -> None:
        """Send an interrupt message. Messages of one vector that were not taken are merged, as in hardware."""
        self._pending.add(vector)

    def dma_read(self, address: int, size: int) -> bytes:
        raise DmaError(address, "this bus reaches no host memory")

    def dma_write(self, address: int, data: bytes) -> None:
        raise DmaError(address, "this bus reaches no host memory")
