"""What the device knows of a job that it has begun."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from npusim.device.ring import ENTRY_MAGIC, MAX_REGIONS, JobFlag, RingEntry
from npusim.sim import job
from npusim.sim.machine import Player
from npusim.timeline import Fault

_FLAGS = int(JobFlag.TIMING_ONLY | JobFlag.WITHDRAWN)


class Stage(enum.Enum):
    """Where a job is on its way."""

    FETCHING = "ring entry and region table are on the way"
    RUNNING = "has the machine"
    LEAVING = "comes to a stop, then its context is saved"
    PARKED = "waits with its context in DRAM"
    RETURNING = "its context is restored"
    ENDING = "its completion record is on the way"


@dataclass(slots=True, eq=False)
class Job(job.Job):
    """A job that the device has taken from a ring. ``player``: what carries it through the machine, once it has begun
    there; ``context``: where it is parked."""

    ring: int = 0
    stage: Stage = Stage.FETCHING
    entry: RingEntry | None = None
    player: Player | None = None
    fault: Fault | None = None
    aborted: bool = False
    context: int = 0

    @property
    def fence(self) -> int | None:
        """None before the ring entry has come."""
        return self.entry.fence if self.entry else None


def bad_entry(entry: RingEntry) -> str:
    """What is wrong with a ring entry; empty if nothing is."""
    if entry.magic != ENTRY_MAGIC:
        return f"ring entry: first word must be {ENTRY_MAGIC:#x}, got {entry.magic:#x}"
    if entry.flags & ~_FLAGS or entry.reserved:
        return f"ring entry: reserved bits are set: flags {entry.flags:#x}, reserved {entry.reserved:#x}"
    if entry.region_count > MAX_REGIONS:
        return f"ring entry: region count must be <= {MAX_REGIONS}, got {entry.region_count}"
    return ""
