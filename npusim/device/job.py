"""A job of a device, and where it is on its way."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from npusim.device.ring import RingEntry
from npusim.sim import job as machine_job
from npusim.sim.machine import Player
from npusim.timeline import DeviceFault


class JobStage(enum.Enum):
    """Where a job is on its way."""

    FETCHING = "ring entry and region table are on the way"
    RUNNING = "has the machine"
    LEAVING = "comes to a stop, then its context is saved"
    PARKED = "waits with its context in DRAM"
    RETURNING = "its context is restored"
    ENDING = "its completion record is on the way"


@dataclass(slots=True, eq=False)
class DeviceJob(machine_job.MachineJob):
    """A job that the device has taken from a ring. ``player``: what carries it through the machine, once it has begun
    there; ``context``: where it is parked."""

    ring: int = 0
    stage: JobStage = JobStage.FETCHING
    entry: RingEntry | None = None
    player: Player | None = None
    fault: DeviceFault | None = None
    aborted: bool = False
    context: int = 0


def job_of(player: Player) -> DeviceJob:
    """Whose player it is."""
    job = player.job
    assert isinstance(job, DeviceJob)
    return job
