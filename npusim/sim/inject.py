"""Misbehaviour on purpose: every way in which this device can be told to break. All of it is off by default."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Injection:
    """Set on ``NpuDevice.injection`` at any time; it takes effect from then on, for commands from the next job on.

    ``lose_interrupts``: so many interrupts are not delivered, though INT_STATUS shows them. ``hang``: unit name ->
    commands of a job that it completes before it stops for good, until the device is reset. ``dma_error``: unit name of
    a DMA channel -> the command of a job (0 = first) whose transfer fails. ``flips``: (DRAM address, bit) inverted when
    the next job starts, then forgotten. ``unplugged``: reads give all ones, writes go nowhere, no interrupt comes.
    """

    lose_interrupts: int = 0
    hang: dict[str, int] = field(default_factory=dict)
    dma_error: dict[str, int] = field(default_factory=dict)
    flips: list[tuple[int, int]] = field(default_factory=list)
    unplugged: bool = False
