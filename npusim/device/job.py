"""What the device knows of a job that it has begun."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from npusim.device.ring import ENTRY_MAGIC, MAX_REGIONS, JobFlag, RingEntry
from npusim.sim.fault import Fault
from npusim.sim.replay import Replay
from npusim.sim.run import Run

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
class Begun:
    """A job that the device has taken from a ring. ``context``: where it is parked."""

    ring: int
    started_ps: int
    stage: Stage = Stage.FETCHING
    entry: RingEntry | None = None
    run: Run | Replay | None = None
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
