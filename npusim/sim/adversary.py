"""An adversary for drivers: random delays within the contract of the device, different for each seed.

docs/device.md guarantees orders but not times: the delay from a doorbell to the start of a job, of control accesses, of
transfers, of interrupt messages, and how messages are merged. The order in which two jobs of different rings end is
therefore open, too. A correct driver works with all of these times; a driver that relies on the usual times fails with
some of them.
"""

from __future__ import annotations

import os
import random

from npusim.errors import UsageError, shown

VARIABLE = "NPUSIM_ADVERSARY"
"""Environment variable with a seed for each device."""

_SCALES = (0, 10**6, 10**7, 10**8, 10**9)
"""Upper bounds of delays in ps: none, 1 us, 10 us, 100 us, 1 ms."""
_SHORT = (0, 10**5, 10**6)
"""Upper bounds of frequent delays in ps."""


class Adversary:
    """Delays in ps, deterministic for a seed and a sequence of calls. Raises UsageError for an invalid seed."""

    def __init__(self, seed: int) -> None:
        if type(seed) is not int or seed < 0:
            raise UsageError(f"adversary: the seed must be a whole number >= 0, got {shown(seed)}")
        self.seed = seed
        self._random = random.Random(seed)
        # Each seed has its own bounds, because slow interrupts with fast doorbells find other errors than a mixture of
        # everything.
        self._doorbell, self._interrupt, self._control = (self._random.choice(_SCALES) for _ in range(3))
        self._transfer = self._random.choice(_SHORT)

    @classmethod
    def wanted(cls, seed: int | None) -> Adversary | None:
        """The adversary of a seed, or of ``$NPUSIM_ADVERSARY``. Raises UsageError."""
        if seed is None:
            text = os.environ.get(VARIABLE, "")
            if not text:
                return None
            if not (text.isascii() and text.isdecimal()):
                raise UsageError(f"{VARIABLE}: must be a whole number >= 0, got {shown(text)}")
            seed = int(text)
        return cls(seed)

    def doorbell_ps(self) -> int:
        """Delay from a doorbell, or from the end of a job, until the device takes the next one."""
        return self._some(self._doorbell)

    def interrupt_ps(self) -> int:
        """Delay from raising an interrupt to its arrival."""
        return self._some(self._interrupt)

    def control_ps(self) -> int:
        """Additional time to read an entry or a table, or to write a record."""
        return self._some(self._control)

    def transfer_ps(self) -> int:
        """Time that a DMA transfer waits for others."""
        return self._some(self._transfer)

    def _some(self, most: int) -> int:
        return self._random.randrange(most) if most and self._random.random() < 0.75 else 0
