"""Triggers of faults. In a script, the first key of a class identifies it.

Events are counted from the time at which the script is added: from power-on, except for faults that are added later.
"""

from __future__ import annotations

import dataclasses

from npusim.hw.keys import Choice, Count, Quantity, Text, key
from npusim.units import Dimension

MOST = 1 << 40
"""Largest count in a script."""

_NTH = Count(1, MOST)
_TIMES = Count(0, MOST)
_AFTER = Quantity(Dimension.TIME)
_AFTER_DOC = "so much later"
_TIMES_DOC = "how often, from the first time on; 0: each time"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AtTime:
    """At a simulated time, before any other event at that picosecond."""

    time_ps: int = key(Quantity(Dimension.TIME), "the time since power-on")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AtDoorbell:
    """A doorbell is rung. Triggers before the device handles it."""

    doorbell: int = key(_NTH, "the n-th doorbell")
    ring: str = key(Text(), "count this ring only: LOW, MEDIUM, HIGH", "")
    times: int = key(_TIMES, _TIMES_DOC, 1)
    after_ps: int = key(_AFTER, _AFTER_DOC, 0)


STAGES = ("begins", "runs", "ends")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AtSeqno:
    """A job with this seqno reaches a stage."""

    seqno: int = key(Count(0, (1 << 64) - 1), "the seqno of the job; the reference driver counts from 1")
    stage: str = key(Choice(STAGES), "it is dispatched, its first command starts, its record is written", "begins")
    times: int = key(_TIMES, _TIMES_DOC, 1)
    after_ps: int = key(_AFTER, _AFTER_DOC, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AtJob:
    """The n-th job reaches a stage."""

    job: int = key(_NTH, "the n-th job that comes to this stage")
    stage: str = key(Choice(STAGES), "it is dispatched, its first command starts, its record is written", "begins")
    times: int = key(_TIMES, _TIMES_DOC, 1)
    after_ps: int = key(_AFTER, _AFTER_DOC, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AtRead:
    """Software reads a register. Triggers before the value is returned."""

    read: str = key(Text(), "the register")
    nth: int = key(_NTH, "its n-th read", 1)
    times: int = key(_TIMES, _TIMES_DOC, 1)
    after_ps: int = key(_AFTER, _AFTER_DOC, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AtWrite:
    """Software writes a register. Triggers before the write has an effect."""

    write: str = key(Text(), "the register")
    nth: int = key(_NTH, "its n-th write", 1)
    times: int = key(_TIMES, _TIMES_DOC, 1)
    after_ps: int = key(_AFTER, _AFTER_DOC, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AtCommand:
    """A command of a unit starts."""

    command: int = key(_NTH, "the n-th command of the unit")
    unit: str = key(Text(), "the unit, such as core0.matrix")
    per: str = key(Choice(("device", "job")), "count over all jobs, or within each job", "device")
    times: int = key(_TIMES, _TIMES_DOC, 1)
    after_ps: int = key(_AFTER, _AFTER_DOC, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AtLabel:
    """An operator of the model begins or ends. Its name is as in timelines."""

    label: str = key(Text(), "the name of the operator, or of one that was fused into it")
    edge: str = key(Choice(("begins", "ends")), "its first command starts, or its last one is complete", "begins")
    nth: int = key(_NTH, "the n-th time", 1)
    times: int = key(_TIMES, _TIMES_DOC, 1)
    after_ps: int = key(_AFTER, _AFTER_DOC, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AtInterrupt:
    """The device is about to send an interrupt message."""

    interrupt: int = key(_NTH, "the n-th message since power-on, lost ones included")
    times: int = key(_TIMES, _TIMES_DOC, 1)
    after_ps: int = key(_AFTER, _AFTER_DOC, 0)


When = AtTime | AtDoorbell | AtSeqno | AtJob | AtRead | AtWrite | AtCommand | AtLabel | AtInterrupt
WHEN: tuple[type[When], ...] = (
    AtTime,
    AtDoorbell,
    AtSeqno,
    AtJob,
    AtRead,
    AtWrite,
    AtCommand,
    AtLabel,
    AtInterrupt,
)
"""All triggers."""
