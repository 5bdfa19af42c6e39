"""How simulated time passes for a device whose software has a clock of its own, or none: no wall clock is read."""

from __future__ import annotations

from collections.abc import Callable

from npusim.device.npu import NpuDevice

SLICE_PS = 10**8
"""Between two looks whether the software has said something: 100 us."""
LONGEST_PS = 10**13
"""In lockstep, the most that passes after one message, should the device never come to rest: 10 s."""


class Pace:
    """Lets time pass for the accesses of software and, while software is silent, for the device.

    ``lockstep``: the device comes to rest after each access, before the next one is looked at. Then the same accesses
    find it at the same time in every run; but nobody meets a job under way.
    """

    def __init__(self, device: NpuDevice, *, lockstep: bool = False) -> None:
        self._clock = device.machine.clock
        self._host = device.config.host
        self._lockstep = lockstep

    def access(self) -> None:
        """The time of one access to registers or configuration space."""
        self._clock.advance(self._host.mmio_ps)

    def copy(self, size: int) -> None:
        """The time of a bulk copy of so many bytes."""
        self._clock.advance(self._host.copy_ps(size))

    def settle(self) -> None:
        """Software has said something: in lockstep, let the device come to rest."""
        end = self._clock.now + LONGEST_PS
        while self._lockstep and self._clock.now < end and self._pass():
            pass

    def until(self, speaks: Callable[[], object]) -> None:
        """Let the device work until the software says something, or nothing more will happen by itself."""
        # Asking costs a system call, which an access to a device at rest need not pay.
        while self._clock.coming is not None and not speaks():
            self._pass()

    def _pass(self) -> bool:
        """Let a slice of time pass, longer where nothing happens in it; False if nothing is to come."""
        coming = self._clock.coming
        if coming is None:
            return False
        self._clock.advance(max(coming - self._clock.now, SLICE_PS))
        return True
