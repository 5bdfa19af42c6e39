"""Watchers of a running machine: debugger, fault script, coverage.

A watcher is called as things happen, at their simulated time, and may inspect everything. Without watchers this costs
nothing: when a job is dispatched, it is checked once whether it is watched; if so, it is executed event by event by
units that call the watchers. Cycles and bits are the same.
"""

from __future__ import annotations

from typing import ClassVar

from npusim.sim.job import MachineJob
from npusim.sim.steps import Step
from npusim.timeline import Timeline


class Watcher:
    """The callbacks, which do nothing by default. An exception ends the current call of the bus, and the device can
    continue from there.

    ``steps``: False for a watcher without callbacks for single commands, so that jobs may be replayed or
    fast-forwarded.
    """

    steps: ClassVar[bool] = True

    def job_begins(self, job: MachineJob) -> None:
        """A job is about to run; on a device it is a :class:`npusim.device.job.DeviceJob`."""

    def dispatched(self, unit: str, step: Step, at_ps: int) -> None:
        """A command is dispatched to the queue of its unit and arrives at ``at_ps``, now or some cycles later."""

    def step_begins(self, unit: str, step: Step) -> None:
        """The waits of a command are fulfilled and it starts."""

    def step_ends(self, unit: str, step: Step) -> None:
        """A command has ended and its arithmetic is done. Units that wait for it are notified after this call."""

    def job_ends(self, job: MachineJob, timeline: Timeline) -> None:
        """The record of a job is written, its interrupt is not raised yet; or the job was refused, and has no
        record."""

    def register_read(self, register: str, value: int) -> None:
        """Software has read a register."""

    def register_written(self, register: str, value: int) -> None:
        """Software has written ``value`` to a register, and the effect is done."""

    def memory_read(self, address: int, size: int) -> None:
        """Software has read bytes of DRAM through the aperture or by a bulk copy."""

    def memory_written(self, address: int, size: int) -> None:
        """Software has written bytes of DRAM."""

    def copied(self, source: int, destination: int, size: int) -> None:
        """The copy engine has copied bytes; the addresses are in DRAM or in host memory."""

    def interrupt(self, vector: int) -> None:
        """The device sends an interrupt message."""

    def waits(self, timeout_ps: int) -> None:
        """Software begins to wait for an interrupt. Only called by transports that can tell."""

    def takes(self, vectors: int) -> None:
        """Software takes interrupts, as bits. Only called by transports that can tell."""

    def misused(self, problem: str) -> None:
        """An access by software had no effect, or was outside of memory."""

    def noted(self, what: str, address: int, size: int) -> None:
        """The driver reports that memory was ``allocated`` or ``freed``, or that it is ``done``."""
