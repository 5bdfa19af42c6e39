"""Rules for simulated time on devices whose software has its own clock or none. No host clock is read."""

from __future__ import annotations

from collections.abc import Callable

from npusim.device.npu import NpuDevice

SLICE_PS = 10**8
"""Simulated time between checks for messages: 100 us."""
LONGEST_PS = 10**13
"""In lockstep, the most simulated time after one message, in case the device does not become idle: 10 s."""


class Pace:
    """Advances time for accesses of software and, while software is silent, for the device.

    ``lockstep``: the device becomes idle after each access before the next one is processed. Then equal accesses occur
    at equal times in every run, but never during a job.
    """

    def __init__(self, device: NpuDevice, *, lockstep: bool = False) -> None:
        self._clock = device.machine.clock
        self._host = device.config.host
        self._lockstep = lockstep

    def access(self) -> None:
        """Picoseconds of one access to registers or configuration space."""
        self._clock.advance(self._host.mmio_ps)

    def copy(self, size: int) -> None:
        """Picoseconds of a bulk copy of ``size`` bytes."""
        self._clock.advance(self._host.copy_ps(size))

    def settle(self) -> None:
        """Software has sent a message: in lockstep, run the device until it is idle."""
        end = self._clock.now + LONGEST_PS
        while self._lockstep and self._clock.now < end and self._pass():
            pass

    def until(self, speaks: Callable[[], object]) -> None:
        """Run the device until software sends a message, or no events are pending."""
        # The check is a system call, which an access to an idle device need not pay.
        while self._clock.coming is not None and not speaks():
            self._pass()

    def _pass(self) -> bool:
        """Advance by a slice, or more if nothing happens; False if no events are pending."""
        coming = self._clock.coming
        if coming is None:
            return False
        self._clock.advance(max(coming - self._clock.now, SLICE_PS))
        return True
