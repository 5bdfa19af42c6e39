"""The job of a machine, and the arithmetic of its commands."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.errors import ProgramError
from npusim.sim.memory import AddressError, JobMemory
from npusim.sim.steps import Step
from npusim.timeline import DeviceFault, FaultCode


@dataclass(slots=True, eq=False)
class MachineJob:
    """``code_bytes`` of instructions at DRAM address ``code``, and (address, bytes) of each region.

    ``started_ps``: when the device took it; times in the timeline are relative to it. ``arithmetic``: False leaves out
    the arithmetic on data only. ``residents``: number chosen by software for the pinned weights; jobs with the same
    number share them, 0: not shared. ``held``: the pinned weights were still in SRAM. ``tail_ps``: time from its last
    step to the write of its record.
    """

    code: int = 0
    code_bytes: int = 0
    regions: tuple[tuple[int, int], ...] = ()
    started_ps: int = 0
    arithmetic: bool = True
    residents: int = 0
    held: bool = False
    tail_ps: int = 0


Attempt = tuple[DeviceFault, BaseException | None] | None
"""The result of the arithmetic of a command: None, or the fault and the exception of the simulator behind it."""


def attempt(memory: JobMemory, job: MachineJob, step: Step) -> Attempt:
    """Do the arithmetic of a command."""
    try:
        step.instruction.execute(memory, step.core)
    except Exception as error:  # noqa: BLE001 - a device never raises at software, even if its model is wrong
        return failed(job, step, error)
    return None


def failed(job: MachineJob, step: Step, error: Exception) -> Attempt:
    """The result of a command whose arithmetic raised ``error``."""
    command = job.code + step.begin
    if isinstance(error, ProgramError):
        return DeviceFault(FaultCode.DATA, command, str(error)), None
    if isinstance(error, ValueError):  # a kernel may refuse fields that passed the checks of the instruction
        return DeviceFault(FaultCode.PROGRAM, command, f"{step.kind}: {error}"), None
    if isinstance(error, AddressError):
        return DeviceFault(FaultCode.ADDRESS, error.address, f"{step.kind}: {error.explanation}"), None
    return DeviceFault(FaultCode.INTERNAL, command, f"{step.kind}: {type(error).__name__}: {error}"), error
