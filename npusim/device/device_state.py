"""A device as one piece of state: what its parts say, the events that are to come, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from npusim.device.checkpoint import (
    Checkpoint,
    memory_state,
    restore_memory,
)
from npusim.device.consistent import Due, check_due
from npusim.device.jobstate import owner_name
from npusim.device.queuestate import SavedQueues
from npusim.device.registers import ALL_ONES, MISUSE_KEPT, RINGS, RegisterFile
from npusim.errors import CheckpointError
from npusim.sim.clock import Event
from npusim.sim.machine import Machine
from npusim.sim.owner import EventOwner, Owners
from npusim.sim.saved import LONGEST_PS, Saved
from npusim.sim.stepper import Stepper


class Carrier(Protocol):
    """Who carries the device: interrupts that software has not taken yet."""

    connected: bool

    def pending(self) -> list[int]:
        """Their vectors."""

    def restore(self, vectors: list[int], *, connected: bool) -> None:
        """Have these pending."""


def _void(event: Event) -> None:
    """An event that does nothing: it was overtaken before the checkpoint."""


class Part(Protocol):
    """A part besides those that every device has, or that has nothing to do with jobs; an EventOwner, too."""

    def awaits(self) -> list[list[str]]:
        """The events that must be to come, each as the methods of which it may be one."""

    def state(self) -> Any:
        """As plain data."""

    def restore(self, saved: Saved) -> None:
        """Be as it was. Raises CheckpointError."""


class DeviceState:
    """The parts of one device; ``parts``: others besides those with names of their own; ``reset``: of the
    whole device, as when its power is lost."""

    def __init__(
        self,
        machine: Machine,
        registers: RegisterFile,
        queues: SavedQueues,
        carrier: Carrier,
        parts: Mapping[str, Part],
        reset: Callable[[], None],
    ) -> None:
        self._machine = machine
        self._registers = registers
        self._queues = queues
        self._carrier = carrier
        self._parts = parts
        self._reset = reset

    def checkpoint(self) -> Checkpoint:
        """Everything as it is now. Raises CheckpointError in the midst of an event."""
        machine = self._machine
        machine.clock.check_outside("a checkpoint")
        if machine.adversary is not None:
            raise CheckpointError("a device with an adversary has no checkpoints: its delays are drawn as it goes")
        self._queues.step_by_step()
        owners = self._owners()
        self._queues.own(owners)
        runs, pages = memory_state(machine.memory)
        state = {
            "config": machine.config.to_table(),
            "fingerprint": machine.config.fingerprint(),
            "now_ps": machine.clock.now,
            "registers": dict(self._registers.values),
            "misuse": list(self._registers.misuse),
            "messages": self._carrier.pending(),
            "connected": self._carrier.connected,
            "parts": {name: part.state() for name, part in self._parts.items()},
            "queues": self._queues.state(owners),
            "links": [link.state(owners) for link in machine.links.values()],
            "events": self._events(owners),
            "pages": {name: [list(run) for run in rows] for name, rows in runs.items()},
        }
        return Checkpoint(state, pages)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Be that device at that moment. Raises CheckpointError; then the device is as after power-on."""
        self._machine.clock.check_outside("to restore a checkpoint")
        saved = Saved(checkpoint.state)
        if saved["fingerprint"].text() != self._machine.config.fingerprint():
            raise CheckpointError(
                f"the checkpoint is of another device than this {self._machine.config.name!r}: make one of its config()"
            )
        try:
            self._restore(saved, checkpoint)
        except BaseException:
            self._clear(0)
            self._machine.memory.release()
            raise

    def _restore(self, saved: Saved, checkpoint: Checkpoint) -> None:
        machine = self._machine
        self._clear(saved["now_ps"].integer(0, LONGEST_PS))
        restore_memory(machine.memory, saved["pages"], checkpoint.pages)
        self._restore_registers(saved)
        vectors = [item.integer(0, 31) for item in saved["messages"]]
        self._carrier.restore(vectors, connected=saved["connected"].flag())
        for name, part in self._parts.items():
            part.restore(saved["parts"][name])
        owners = self._owners()
        self._queues.restore(saved["queues"], owners)
        links = machine.links.values()
        for link, item in zip(links, saved["links"].items(len(links)), strict=True):
            link.restore(item, owners)
        self._queues.check()
        self._check_events(self._restore_events(saved["events"], owners), owners)

    def _clear(self, now: int) -> None:
        """As after power-on, at a time."""
        self._reset()
        self._machine.clock.jump(now)
        # None has a transfer any more; from here on they count from this time.
        for link in self._machine.links.values():
            link.clear()
        self._carrier.restore([], connected=True)

    def _owners(self) -> Owners:
        owners = Owners()
        for name, link in self._machine.links.items():
            owners.add(f"link {name}", link)
        for name, part in self._parts.items():
            assert isinstance(part, EventOwner)
            owners.add(name, part)
        return owners

    def _restore_registers(self, saved: Saved) -> None:
        values = saved["registers"]
        if sorted(values.names()) != sorted(self._registers.values):
            raise CheckpointError(f"{values.path}: are not those of this device")
        self._registers.values.update({name: values[name].integer(0, ALL_ONES) for name in values.names()})
        self._registers.misuse[:] = [item.text() for item in saved["misuse"]][:MISUSE_KEPT]

    def _events(self, owners: Owners) -> list[list[Any]]:
        events: list[list[Any]] = []
        for time, callback, value in self._machine.clock.pending():
            owner = getattr(callback, "__self__", None)
            # What was overtaken is kept, too: whether another event comes is what decides how a job is carried.
            if callback is _void or (isinstance(owner, EventOwner) and owner.is_void(value)):
                events.append([time, None, None])
            else:
                name = owners.name(callback)
                assert isinstance(owner, EventOwner)
                events.append([time, name, owner.value_state(value)])
        return events

    def _restore_events(self, saved: Saved, owners: Owners) -> Due:
        """What is to come besides what does nothing."""
        clock, due = self._machine.clock, Due()
        last = clock.now
        for item in saved:
            time, name, value = item.items(3)
            last = time.integer(last, LONGEST_PS)
            if name.missing:
                clock.after(last - clock.now, _void)
                continue
            owner = owners.owner(name.items(2)[0])
            method = name.items(2)[1].text()
            found = owner.value_of(method, value)
            clock.after(last - clock.now, owners.callback(name), found)
            part = name.items(2)[0].text()
            due.add(part, method + owner.which(found), last)
        return due

    def _check_events(self, due: Due, owners: Owners) -> None:
        """Each part is told what it waits for, once. Raises CheckpointError."""
        for link_name, link in self._machine.links.items():
            for done in link.awaited():
                part, method = owners.name(done)
                due.add(part, f"{method} on {link_name}")
            due.take(f"link {link_name}", *["_ended"] * link.runs)
        for ring, job in enumerate(self._queues.begun):
            if job is not None and isinstance(job.player, Stepper) and not job.player.over:
                for core, banks in enumerate(job.player.banks):
                    for number, done in enumerate(banks.awaited()):
                        part, method = owners.name(done)
                        due.add(part, f"{method} on core{core}.sram")
                        due.take(f"{owner_name(ring)}/core{core}.sram", f"_ended {number}")
        check_due(self._machine, self._queues.begun, [owner_name(ring) for ring in range(len(RINGS))], due)
        for name, owner in self._parts.items():
            for methods in owner.awaits():
                due.take(name, *methods)
        due.check_taken()
