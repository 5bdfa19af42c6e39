"""An adversary of drivers: takes the time that the contract leaves open, and takes it differently for each seed.

docs/device.md promises orders and leaves times open: how long after its doorbell a job is taken, how long what the
device reads and writes is on the way, how long a transfer waits for others, when an interrupt message arrives and with
which others it is one. So which of two jobs in different rings ends first is open, too. A driver that is right is right
with any of these times; one that relies on what this device happens to do today is found with some of them.
"""

from __future__ import annotations

import os
import random

from npusim.errors import UsageError, shown

VARIABLE = "NPUSIM_ADVERSARY"
"""Of the environment: a seed for each device."""

_SCALES = (0, 10**6, 10**7, 10**8, 10**9)
"""ps: nothing, then up to 1 us, 10 us, 100 us, 1 ms."""
_SHORT = (0, 10**5, 10**6)
"""Of what happens often."""


class Adversary:
    """Delays in ps; the same for the same seed and the same course. Raises UsageError for a seed that is none."""

    def __init__(self, seed: int) -> None:
        if type(seed) is not int or seed < 0:
            raise UsageError(f"adversary: the seed must be a whole number >= 0, got {shown(seed)}")
        self.seed = seed
        self._random = random.Random(seed)
        # A temper for each seed: one whose interrupts are slow and whose doorbells are quick shows what one that does
        # a little of everything would not.
        self._doorbell, self._interrupt, self._control = (self._random.choice(_SCALES) for _ in range(3))
        self._transfer = self._random.choice(_SHORT)

    @classmethod
    def wanted(cls, seed: int | None) -> Adversary | None:
        """That of a seed, or of ``$NPUSIM_ADVERSARY``. Raises UsageError."""
        if seed is None:
            text = os.environ.get(VARIABLE, "")
            if not text:
                return None
            if not (text.isascii() and text.isdecimal()):
                raise UsageError(f"{VARIABLE}: must be a whole number >= 0, got {shown(text)}")
            seed = int(text)
        return cls(seed)

    def doorbell_ps(self) -> int:
        """From a doorbell, or from the end of a job, until the device looks for the next one."""
        return self._some(self._doorbell)

    def interrupt_ps(self) -> int:
        """From the raising of an interrupt to its arrival."""
        return self._some(self._interrupt)

    def control_ps(self) -> int:
        """On top of what it takes to read an entry or a table, or to write a record."""
        return self._some(self._control)

    def transfer_ps(self) -> int:
        """That a DMA transfer waits for somebody else's."""
        return self._some(self._transfer)

    def _some(self, most: int) -> int:
        return self._random.randrange(most) if most and self._random.random() < 0.75 else 0
