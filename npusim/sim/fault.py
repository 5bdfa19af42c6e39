"""Why a job ended without its result."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class FaultCode(enum.IntEnum):
    """The value of the register FAULT_CODE and of a completion record."""

    NONE = 0
    RING = 1  # a ring entry or ring register makes no sense
    PROGRAM = 2  # the instruction stream cannot be decoded, or breaks a rule of isa.verify
    ADDRESS = 3  # an address outside the machine's memory
    DATA = 4  # the data makes an instruction illegal, such as an index outside its axis
    DEADLOCK = 5  # no unit can go on
    DMA = 6  # a DMA transfer failed on the bus
    INTERNAL = 7  # the simulator itself failed


@dataclass(frozen=True, slots=True)
class Fault:
    """``address``: the device address of the offending access or of the command; 0 where there is none."""

    code: FaultCode
    address: int
    explanation: str
