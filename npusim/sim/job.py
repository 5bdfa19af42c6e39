"""What a machine is asked to run, and its arithmetic, one command after another."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.errors import ProgramError
from npusim.sim.memory import AddressError, JobMemory
from npusim.sim.steps import Step
from npusim.timeline import DeviceFault, FaultCode


@dataclass(slots=True, eq=False)
class MachineJob:
    """``code_bytes`` of instructions at DRAM address ``code``, and (address, bytes) of each region.

    ``started_ps``: when the device took it; times in the timeline count from there. ``arithmetic`` False: everything
    happens but the arithmetic on the data. ``residents``: a number of software's for what the program's prologue loads;
    jobs of one number load the same. 0: it is loaded each time. ``held``: it was in SRAM still, and was not loaded.
    ``tail_ps``: what follows its last step before its record is written, where that lies.
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
"""What came of a command's arithmetic: None, or the fault and what the simulator itself raised for it."""


def attempt(memory: JobMemory, job: MachineJob, step: Step) -> Attempt:
    """Do a command's arithmetic."""
    command = job.code + step.begin
    try:
        step.instruction.execute(memory, step.core)
    except ProgramError as error:
        return DeviceFault(FaultCode.DATA, command, str(error)), None
    except ValueError as error:  # a kernel refuses fields that the instruction's own check has let through
        return DeviceFault(FaultCode.PROGRAM, command, f"{step.kind}: {error}"), None
    except AddressError as error:
        return DeviceFault(FaultCode.ADDRESS, error.address, f"{step.kind}: {error.explanation}"), None
    except Exception as error:  # noqa: BLE001 - a device never raises at software, even if its model is wrong
        return DeviceFault(FaultCode.INTERNAL, command, f"{step.kind}: {type(error).__name__}: {error}"), error
    return None
