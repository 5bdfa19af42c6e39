"""Kinds of faults. In a script, the first key of a class identifies it."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

from npusim.errors import UsageError, shown
from npusim.hw.keys import Choice, Count, Flag, Quantity, Ratio, Refuse, Text, ValueType, key
from npusim.units import Dimension, parse, show

WORD = (1 << 32) - 1
MOST_MESSAGES = 1_000_000
MEMORIES = ("dram", "sram", "accumulators")
EVER, RESET, JOB = "ever", "reset", "job"


@dataclasses.dataclass(frozen=True)
class Lasts(ValueType):
    """A duration, or the name of the event that ends it."""

    words: tuple[str, ...] = (EVER, RESET)

    def read(self, value: object, refuse: Refuse, bare: bool) -> Any:
        if isinstance(value, str) and value in self.words:
            return value
        if bare and isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        try:
            if isinstance(value, str) and (found := parse(value, Dimension.TIME)):
                return found
        except UsageError:
            pass
        words = ", ".join(f"'{word}'" for word in self.words)
        refuse("", f"must be {words} or a time such as '80 ns', got {shown(value)}")
        return None

    def text(self, value: Any) -> str:
        return f'"{value if isinstance(value, str) else show(value, Dimension.TIME)}"'

    def allowed(self) -> str:
        return f"{', '.join(self.words)}, or a time"

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"enum": list(self.words)}, Quantity(Dimension.TIME).schema()]}


_LASTS_DOC = "how long: a time; ever; reset: to the next RESET"
_OF_JOB_DOC = _LASTS_DOC + "; job: to the end of the job that it meets, well or not"
_OF_JOB = Lasts((JOB, RESET, EVER))
_CORE = Count(0, 255)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flip:
    """A bit of a memory changes without any report."""

    flip: str = key(Choice(MEMORIES), "the memory")
    address: int = key(Count(0, (1 << 48) - 1), "address of the byte in that memory")
    bit: int = key(Count(0, 7), "the bit of the byte")
    core: int = key(_CORE, "core of the SRAM or accumulators", 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hang:
    """A unit or the sequencer stops without a report. Its current work is not completed."""

    hang: str = key(Text(), "the unit, such as core0.matrix, or sequencer")
    lasts: int | str = key(_OF_JOB, _OF_JOB_DOC, JOB)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slow:
    """Commands of a unit take longer, from the next one to start."""

    slow: str = key(Text(), "the unit, such as core0.dma0")
    factor: Fraction = key(Ratio(1 << 20, positive=True), "factor of the duration")  # noqa: RUF009 - key() makes a field
    lasts: int | str = key(_OF_JOB, _OF_JOB_DOC, EVER)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fail:
    """A transfer fails on the bus: the current one of the channel, or its next one."""

    fail: str = key(Text(), "the DMA channel, such as core0.dma0")
    count: int = key(Count(1, WORD), "number of transfers", 1)


MESSAGES = ("lose", "delay", "double", "spurious", "storm")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MessageFault:
    """Interrupt messages are lost, late, doubled or without a cause."""

    interrupt: str = key(
        Choice(MESSAGES),
        "lose, delay or double the next message; spurious, storm: messages without a cause",
    )
    count: int = key(Count(1, MOST_MESSAGES), "number of messages", 1)
    delay_ps: int = key(Quantity(Dimension.TIME, 1), "delay of the message, or of its copy; interval of a storm", 10**6)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stuck:
    """A register, or a field of it, always reads as one value, whatever it contains."""

    stuck: str = key(Text(), "the register")
    field: str = key(Text(), "field of the register; default: the whole register", "")
    value: int = key(Count(0, WORD), "value that is read")
    lasts: int | str = key(Lasts(), _LASTS_DOC, EVER)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wrong:
    """The next reads of a register give a wrong value."""

    wrong: str = key(Text(), "the register")
    invert: int = key(Count(1, WORD), "mask of the inverted bits")
    count: int = key(Count(1, WORD), "number of reads", 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoseWrite:
    """The next writes of a register have no effect."""

    lose_write: str = key(Text(), "the register")
    count: int = key(Count(1, WORD), "number of writes", 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ecc:
    """A memory with an error-correcting code detects an error. A corrected one is counted; an uncorrected one causes
    fault ECC in the current job."""

    ecc: str = key(Choice(("corrected", "uncorrected")), "whether the error is corrected")
    memory: str = key(Choice(MEMORIES), "memory with the error", "dram")
    address: int = key(Count(0, (1 << 48) - 1), "address of the byte in that memory")
    core: int = key(_CORE, "core of the SRAM or accumulators", 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Throttle:
    """The clock of the device is slower: sequencer, units and DMA channels, but not the DRAM."""

    throttle: Fraction = key(Ratio(1 << 20, positive=True), "factor of the clock period")  # noqa: RUF009 - likewise
    lasts: int | str = key(Lasts(), _LASTS_DOC, EVER)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unplug:
    """The device is removed; when plugged in again, it is in the state after power-on, with empty memory."""

    unplug: bool = key(Flag(), "true")
    lasts: int | str = key(Lasts((EVER,)), "duration: a time, or ever", EVER)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resets:
    """The next RESET takes longer, or does not end. Meanwhile STATUS reads as 0 and writes have no effect."""

    reset: str = key(Choice(("late", "never")), "whether the reset ends")
    delay_ps: int = key(Quantity(Dimension.TIME, 1), "late: duration of the reset", 10**9)
    lasts: int | str = key(Lasts((EVER,)), "never: how long RESET has no effect: a time since the fault, or ever", EVER)


What = Flip | Hang | Slow | Fail | MessageFault | Stuck | Wrong | LoseWrite | Ecc | Throttle | Unplug | Resets
WHAT: tuple[type[What], ...] = (
    Flip,
    Hang,
    Slow,
    Fail,
    MessageFault,
    Stuck,
    Wrong,
    LoseWrite,
    Ecc,
    Throttle,
    Unplug,
    Resets,
)
"""All kinds of faults."""
