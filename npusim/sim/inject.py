"""Misbehaviour on purpose: every way in which this device can be told to break. All of it is off by default."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableSequence, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, SupportsIndex

import numpy as np

from npusim.errors import UsageError


@dataclass(slots=True)
class Injection:
    """``NpuDevice.injection``: fields may change at any time; ``hang`` and ``dma_error`` act from the next job on.

    ``lose_interrupts``: so many interrupts are not delivered, though INT_STATUS shows them. ``hang``: unit name -> how
    many commands it completes in a job before it stops, in every job until the entry is removed. ``dma_error``: unit
    name of a DMA channel -> which command of every job (0 = first) fails on the bus. ``flips``: (DRAM address, bit)
    inverted when the next job starts, then forgotten. ``unplugged``: reads give all ones, writes go nowhere, no
    interrupt comes.

    Raises UsageError, at the assignment and leaving the value out, for a unit that the device lacks, an address outside
    its DRAM, a negative count. An Injection that is made before its device is held against it when the device is made.
    """

    # First, because the checks of the other fields look at it. Units and bytes of DRAM; None until there is a device.
    _device: tuple[Sequence[str], int] | None = field(default=None, init=False, repr=False, compare=False)
    lose_interrupts: int = 0
    hang: dict[str, int] = field(default_factory=dict)
    dma_error: dict[str, int] = field(default_factory=dict)
    flips: list[tuple[int, int]] = field(default_factory=list)
    unplugged: bool = False

    def __setattr__(self, name: str, value: Any) -> None:
        # A misspelt unit would be a fault that never happens: a test that waits for it would pass for nothing. So what
        # is put into the containers later is checked as well, and a container that is assigned becomes one of ours.
        if name in ("hang", "dma_error"):
            value = _Counts(partial(self._check_count, name), value)
        elif name == "flips":
            value = _Flips(self._check_flip, value)
        elif name == "lose_interrupts":
            _check_number(name, value)
        object.__setattr__(self, name, value)

    def bind(self, units: Sequence[str], dram_bytes: int) -> None:
        """The device to break has these units and that much DRAM. Raises UsageError if it cannot break like this, or
        if there is a device already: two would share ``lose_interrupts``, and the end of one would unplug the other."""
        if self._device is not None:
            raise UsageError("this Injection belongs to another device; make one for each")
        self._device = units, dram_bytes
        try:
            self.hang, self.dma_error, self.flips = self.hang, self.dma_error, self.flips  # are checked by that
        except UsageError:
            self._device = None
            raise

    @property
    def active(self) -> bool:
        """Whether the device is told to break in any way."""
        return bool(self.lose_interrupts or self.hang or self.dma_error or self.flips or self.unplugged)

    def _check_count(self, name: str, unit: str, count: int) -> None:
        _check_number(f"{name}[{unit!r}]", count)
        if self._device is None:
            return
        units = [each for each in self._device[0] if name == "hang" or ".dma" in each]
        if unit not in units:
            kind = "unit" if name == "hang" else "DMA channel"
            raise UsageError(f"{name}: {kind} must be one of {', '.join(units)}, got {unit!r}")

    def _check_flip(self, flip: tuple[int, int]) -> None:
        address, bit = flip
        _check_number("flips: address", address, self._device[1] - 1 if self._device else None)
        _check_number("flips: bit", bit, 7)


def _check_number(name: str, value: object, most: int | None = None) -> None:
    if not isinstance(value, int | np.integer) or value < 0 or (most is not None and value > most):
        allowed = "a whole number >= 0" if most is None else f"a whole number from 0 to {most:#x}"
        raise UsageError(f"{name} must be {allowed}, got {value!r}")


class _Counts(dict[str, int]):
    """Numbers by unit. A dict, because it is asked for each unit of each job."""

    def __init__(self, check: Callable[[str, int], None], counts: dict[str, int]) -> None:
        super().__init__()
        self._check = check
        self.update(counts)

    def __setitem__(self, unit: str, count: int) -> None:
        self.update({unit: count})

    def update(self, *counts: Any, **more: Any) -> None:
        new = dict(*counts, **more)
        for unit, count in new.items():
            self._check(unit, count)
        super().update(new)

    def _merge(self, counts: dict[str, int]) -> Self:
        self.update(counts)
        return self

    __ior__: Any = _merge

    def setdefault(self, unit: str, count: Any = 0) -> int:
        if unit not in self:
            self[unit] = count
        return self[unit]


class _Flips(list[tuple[int, int]]):
    """Bits to invert."""

    def __init__(self, check: Callable[[tuple[int, int]], None], flips: Iterable[tuple[int, int]]) -> None:
        super().__init__()
        self._check = check
        self.extend(flips)

    def __setitem__(self, index: Any, flips: Any) -> None:
        new = list(flips) if isinstance(index, slice) else [flips]
        for flip in new:
            self._check(flip)
        super().__setitem__(index, new if isinstance(index, slice) else flips)

    def extend(self, flips: Iterable[tuple[int, int]]) -> None:
        self[len(self) :] = flips

    def insert(self, index: SupportsIndex, flip: tuple[int, int]) -> None:
        self[index:index] = [flip]

    append: Any = MutableSequence.append
    __iadd__: Any = MutableSequence.__iadd__
