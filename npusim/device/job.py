"""A job on the device and its stage."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from npusim.device.ring import RingEntry
from npusim.sim import job as machine_job
from npusim.sim.machine import Player
from npusim.timeline import DeviceFault


class JobStage(enum.Enum):
    """The stage of a job."""

    FETCHING = "ring entry and region table are on the way"
    RUNNING = "has the machine"
    LEAVING = "comes to a stop, then its context is saved"
    PARKED = "waits with its context in DRAM"
    RETURNING = "its context is restored"
    ENDING = "its completion record is on the way"


@dataclass(slots=True, eq=False)
class DeviceJob(machine_job.MachineJob):
    """A job taken from a ring. ``player``: executes it on the machine, once it has begun. ``context``: DRAM address of
    its saved context."""

    ring: int = 0
    stage: JobStage = JobStage.FETCHING
    entry: RingEntry | None = None
    player: Player | None = None
    fault: DeviceFault | None = None
    aborted: bool = False
    context: int = 0


def job_of(player: Player) -> DeviceJob:
    """The job that a player executes."""
    job = player.job
    assert isinstance(job, DeviceJob)
    return job
