"""Save and restore the queues of jobs for checkpoints."""

from __future__ import annotations

from typing import Any, cast

from npusim.device.consistent import check_jobs
from npusim.device.job import DeviceJob, JobStage, job_of
from npusim.device.jobs import JobQueues
from npusim.device.jobstate import (
    ADDRESS,
    SavedPrograms,
    Told,
    job_of_state,
    job_state,
    owner_name,
    residents_of,
    residents_state,
)
from npusim.device.registers import RINGS
from npusim.device.ring import ENTRY, RingEntry
from npusim.errors import CheckpointError
from npusim.sim.context import ContextMove
from npusim.sim.jobstate import restore_banks
from npusim.sim.memory import AddressError
from npusim.sim.owner import EventOwner, Owners
from npusim.sim.replayer import Replayer
from npusim.sim.saved import Saved
from npusim.sim.stepper import RESTORE, SAVE, Stepper

_COUNT = 0xFFFF_FFFF


class SavedQueues(JobQueues, EventOwner):
    """Job queues whose state can be saved and restored."""

    EVENTS = ("_code_came", "_entry_came", "_record_went", "_table_came")

    def is_void(self, value: Any) -> bool:
        epoch, job, _, _ = cast("tuple[int, DeviceJob, int, int]", value)
        return epoch != self._epoch or self._begun[job.ring] is not job

    def which(self, value: Any) -> str:
        return f" {cast('tuple[int, DeviceJob, int, int]', value)[1].ring}"

    def value_state(self, value: Any) -> list[int]:
        _, job, address, size = cast("tuple[int, DeviceJob, int, int]", value)
        return [job.ring, address, size]

    def value_of(self, method: str, saved: Saved) -> tuple[int, DeviceJob, int, int]:
        ring, address, size = saved.integers(3, 0, ADDRESS)
        job = self._begun[ring] if ring < len(RINGS) else None
        if job is None or (job.entry is None) != (method == "_entry_came"):
            raise saved.refuse("an access for a job that has begun")
        if method == "_entry_came" and size != ENTRY.size:
            raise saved.refuse(f"an access of {ENTRY.size} bytes")
        return self._epoch, job, address, size

    def own(self, owners: Owners) -> None:
        """Register the owners of events of the queues and of their jobs."""
        owners.add("queues", self)
        for ring, job in enumerate(self._begun):
            if job is not None and isinstance(job.player, Stepper | Replayer):
                job.player.own(owners, owner_name(ring))
        if self._machine.moving is not None:
            owners.add("context", self._machine.moving)

    def state(self, owners: Owners) -> dict[str, Any]:
        """The state as plain data. Jobs must be executed event by event. ``owners``: the owners registered by
        :meth:`own`."""
        programs, machine, records = SavedPrograms(self._machine), self._machine, self._records()
        jobs = [
            None if job is None else job_state(job, programs, owners, records.get(ring, 0))
            for ring, job in enumerate(self._begun)
        ]
        faulted, move = self._faulted, machine.moving
        return {
            "jobs": jobs,
            "current": None if self._current is None else self._current.ring,
            "faulted": None if faulted is None else [faulted.ring, faulted.entry is not None],
            "tails": list(self._tails),
            "context_base": self._context_base,
            "machine": None if machine.current is None else job_of(machine.current).ring,
            "moving": None if move is None else [job_of(move.stepper).ring, move.kind, move.address, move.begun_ps],
            "residents": residents_state(machine.residents, programs, 0),
            "programs": programs.state,
        }

    def _records(self) -> dict[int, int]:
        """Times in ps at which the records of ended jobs will be written, by ring."""
        return {
            cast("tuple[int, DeviceJob, int, int]", value)[1].ring: time
            for time, callback, value in self._machine.clock.pending()
            if callback == self._record_went and not self.is_void(value)
        }

    def restore(self, saved: Saved, owners: Owners) -> None:
        """Restore a state after a reset, with registers and DRAM restored already. Raises CheckpointError."""
        machine = self._machine
        programs = SavedPrograms.restored(machine, saved["programs"])
        told = Told(self.played, self._stopped)
        items = saved["jobs"].items(len(RINGS))
        for ring, item in enumerate(items):
            if not item.missing:
                self._begun[ring] = job_of_state(machine, item, programs, told)
                if item["ring"].integer() != ring:
                    raise item["ring"].refuse(f"{ring}")
        self._current = self._job_named(saved["current"])
        if not saved["faulted"].missing:
            faulted_ring, has_entry = saved["faulted"].items(2)
            # The job at which the device was halted needs no entry: its record is written, and it will be dropped.
            entry = RingEntry(*[0] * len(RingEntry._fields)) if has_entry.flag() else None
            self._faulted = DeviceJob(ring=faulted_ring.index(len(RINGS)), stage=JobStage.ENDING, entry=entry)
        self._tails = saved["tails"].integers(len(RINGS), 0, _COUNT)
        self._context_base = saved["context_base"].integer(0, ADDRESS)
        machine.residents = residents_of(saved["residents"], programs)
        owning = self._job_named(saved["machine"])
        machine.current = None if owning is None else owning.player
        if not saved["moving"].missing:
            self._move_of(saved["moving"])
        self.own(owners)
        for job, item in zip(self._begun, items, strict=True):
            if job is not None and isinstance(job.player, Stepper):
                restore_banks(job.player, owners, item["player"])

    def check(self) -> None:
        """Check that the restored state is consistent. Raises CheckpointError."""
        check_jobs(self._machine, self._begun, self._current, self._context_base)

    def _job_named(self, saved: Saved) -> DeviceJob | None:
        """The started job of a ring; None for null."""
        if saved.missing:
            return None
        job = self._begun[saved.index(len(RINGS))]
        if job is None:
            raise saved.refuse("the number of a ring whose job has begun")
        return job

    def _move_of(self, saved: Saved) -> None:
        ring, kind, address, begun_ps = saved.items(4)
        job = self._job_named(ring)
        if job is None or not isinstance(job.player, Stepper) or kind.value not in (SAVE, RESTORE):
            raise saved.refuse("a job's ring, the kind of its context move, an address and a time")
        told = self._parked if kind.value == SAVE else self._returned
        try:
            move: ContextMove = self._machine.move(job.player, kind.value, address.integer(0, ADDRESS), told)
        except AddressError as error:
            raise CheckpointError(f"{saved.path}: {error.explanation}") from None
        move.begun_ps = begun_ps.integer(0, self._machine.clock.now)
