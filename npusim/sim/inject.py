"""Misbehaviour on purpose: every way in which this device can be told to break. All of it is off by default."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Injection:
    """``NpuDevice.injection``: fields may change at any time; ``hang`` and ``dma_error`` act from the next job on.

    ``lose_interrupts``: so many interrupts are not delivered, though INT_STATUS shows them. ``hang``: unit name -> how
    many commands it completes in a job before it stops, in every job until the entry is removed. ``dma_error``: unit
    name of a DMA channel -> which command of every job (0 = first) fails on the bus. ``flips``: (DRAM address, bit)
    inverted when the next job starts, then forgotten. ``unplugged``: reads give all ones, writes go nowhere, no
    interrupt comes.
    """

    lose_interrupts: int = 0
    hang: dict[str, int] = field(default_factory=dict)
    dma_error: dict[str, int] = field(default_factory=dict)
    flips: list[tuple[int, int]] = field(default_factory=list)
    unplugged: bool = False
