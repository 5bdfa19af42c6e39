"""Who looks on while a machine works: a debugger, a script of faults, what counts what was covered.

A watcher is told of things as they happen, at their simulated time, and may look at everything. It costs nothing where
there is none: whether a job is watched is asked when it gets the machine, and then it goes step by step, its units
being of a kind that tells. The cycles and the bits are the same.
"""

from __future__ import annotations

from typing import ClassVar

from npusim.sim.job import MachineJob
from npusim.sim.steps import Step
from npusim.timeline import Timeline


class Watcher:
    """Is told what happens; the methods of this class do nothing. One that raises ends the call of the bus in which
    time was passing, and the device can go on from there.

    ``steps`` False: it is not told of single commands, and jobs may go in one go, as they do when nobody watches.
    """

    steps: ClassVar[bool] = True

    def job_begins(self, job: MachineJob) -> None:
        """A job is about to have the machine; in a device it is a :class:`npusim.device.job.MachineJob`."""

    def dispatched(self, unit: str, step: Step, at_ps: int) -> None:
        """A command goes to the queue of its unit, where it arrives at a time, now or some cycles later."""

    def step_begins(self, unit: str, step: Step) -> None:
        """All that a command waits for is there: its time starts now."""

    def step_ends(self, unit: str, step: Step) -> None:
        """The time of a command is over and its arithmetic done; nobody who waits for it has been told yet."""

    def job_ends(self, job: MachineJob, timeline: Timeline) -> None:
        """The record of a job is written, its interrupt not yet raised; or it was refused, and has no record."""

    def register_read(self, register: str, value: int) -> None:
        """Software has read a register."""

    def register_written(self, register: str, value: int) -> None:
        """Software has written a register, ``value`` as it gave it; what that does is done."""

    def memory_read(self, address: int, size: int) -> None:
        """Software has read bytes of DRAM, through the aperture or by a bulk copy."""

    def memory_written(self, address: int, size: int) -> None:
        """Software has written bytes of DRAM."""

    def copied(self, source: int, destination: int, size: int) -> None:
        """The device has copied bytes for software, by its ring of copies; an address is of DRAM or of host memory."""

    def interrupt(self, vector: int) -> None:
        """An interrupt message leaves the device."""

    def waits(self, timeout_ps: int) -> None:
        """Software begins to wait for an interrupt. Only transports that see it tell this."""

    def takes(self, vectors: int) -> None:
        """Software takes interrupts, as bits. Likewise."""

    def misused(self, problem: str) -> None:
        """Software has done what has no effect, or reached for memory that is not there."""

    def noted(self, what: str, address: int, size: int) -> None:
        """The driver says of its own memory that it was ``allocated`` or ``freed``, or that it is ``done``."""
