"""Save and restore the state of a whole device: its parts and the pending events."""

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


class PendingVectors(Protocol):
    """Interrupts that software has not taken yet."""

    connected: bool

    def pending(self) -> list[int]:
        """Their vectors, in the order in which they were sent."""

    def restore(self, vectors: list[int], *, connected: bool) -> None:
        """Make these vectors pending."""


def _void(event: Event) -> None:
    """Represents an event that was void before the checkpoint."""


class StatefulPart(Protocol):
    """A part of the device with state of its own, such as firmware or power management; also an EventOwner."""

    def awaits(self) -> list[list[str]]:
        """The events that must be pending, each as the methods that may handle it."""

    def state(self) -> Any:
        """The state as plain data."""

    def restore(self, saved: Saved) -> None:
        """Restore a saved state. Raises CheckpointError."""


class DeviceState:
    """The state of one device.

    ``parts``: further parts, by name. ``reset``: resets the whole device, as a loss of power does.
    """

    def __init__(
        self,
        machine: Machine,
        registers: RegisterFile,
        queues: SavedQueues,
        vectors: PendingVectors,
        parts: Mapping[str, StatefulPart],
        reset: Callable[[], None],
    ) -> None:
        self._machine = machine
        self._registers = registers
        self._queues = queues
        self._vectors = vectors
        self._parts = parts
        self._reset = reset

    def checkpoint(self) -> Checkpoint:
        """The current state. Raises CheckpointError while an event is being processed."""
        machine = self._machine
        machine.clock.check_outside("a checkpoint")
        if machine.adversary is not None:
            raise CheckpointError("a device with an adversary has no checkpoints: its delays are drawn at run time")
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
            "messages": self._vectors.pending(),
            "connected": self._vectors.connected,
            "parts": {name: part.state() for name, part in self._parts.items()},
            "queues": self._queues.state(owners),
            "links": [link.state(owners) for link in machine.links.values()],
            "events": self._events(owners),
            "pages": {name: [list(run) for run in rows] for name, rows in runs.items()},
        }
        return Checkpoint(state, pages)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore a checkpoint. Raises CheckpointError, after which the device is as after power-on."""
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
        self._vectors.restore(vectors, connected=saved["connected"].flag())
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
        """Reset to the state after power-on, at time ``now`` in ps."""
        self._reset()
        self._machine.clock.jump(now)
        # No link has a transfer any more; their byte counts start at this time.
        for link in self._machine.links.values():
            link.clear()
        self._vectors.restore([], connected=True)

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
            # Void events are kept too: a job is only fast-forwarded if no other event is pending.
            if callback is _void or (isinstance(owner, EventOwner) and owner.is_void(value)):
                events.append([time, None, None])
            else:
                name = owners.name(callback)
                assert isinstance(owner, EventOwner)
                events.append([time, name, owner.value_state(value)])
        return events

    def _restore_events(self, saved: Saved, owners: Owners) -> Due:
        """Schedule the saved events; return those that are not void."""
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
        """Check that every event that a part waits for is pending exactly once. Raises CheckpointError."""
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
