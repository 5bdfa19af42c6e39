"""Interrupts as eventfds of the peer: INTx, MSI and MSI-X of VFIO; assignment, masks and triggers."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Sequence

INTX, MSI, MSIX = range(3)
_KINDS = {"intx": INTX, "msi": MSI, "msix": MSIX}
_EVENTFD = "anon_inode:[eventfd]"


class EventfdInterrupts:
    """``counts``: number of interrupts of each kind. Raises OSError with a number for an invalid request.

    The pin is level-triggered but an eventfd is not, so an asserted pin is signalled once until it is unmasked.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = tuple(counts)
        self._files: list[dict[int, int]] = [{} for _ in counts]
        self._asserted = self._masked = False

    def message(self, vector: int, kind: str) -> None:
        """Send an MSI or MSI-X message; it is lost without an eventfd."""
        self._signal(_KINDS[kind], vector)

    def level(self, asserted: bool) -> None:
        """Set the level of the pin."""
        self._asserted = asserted
        self._settle()

    def assign(self, kind: int, first: int, count: int, files: Sequence[int]) -> None:
        """Assign eventfds to consecutive vectors, or none to remove them. They are owned from here on, unless this
        raises."""
        self.check(kind, first, count)
        if files and len(files) != count:
            raise OSError(errno.EINVAL, f"{len(files)} descriptors for {count} interrupts")
        check_eventfds(files)
        self.disable(kind, first, count)
        self._files[kind].update(zip(range(first, first + count), files, strict=False))
        if kind == INTX and files:
            self._masked = False
            self._settle()

    def disable(self, kind: int, first: int = 0, count: int | None = None) -> None:
        """Remove descriptors; all of a kind if no count is given."""
        count = self.counts[kind] if count is None else count
        self.check(kind, first, count)
        for vector in range(first, first + count):
            if vector in self._files[kind]:
                os.close(self._files[kind].pop(vector))

    def trigger(self, kind: int, vectors: Sequence[int]) -> None:
        """Trigger vectors as if the device had sent them."""
        for vector in vectors:
            self.check(kind, vector, 1)
        for vector in vectors:
            self._signal(kind, vector)

    def mask(self, kind: int, masked: bool, vectors: Sequence[int]) -> None:
        """Mask the pin; messages are masked in the function."""
        if kind != INTX:
            raise OSError(errno.EINVAL, "messages are masked in the function")
        if vectors:
            self._masked = masked
            self._settle()

    def clear(self) -> None:
        """The peer has closed: remove everything."""
        for kind in range(len(self.counts)):
            self.disable(kind)
        self._masked = False

    def check(self, kind: int, first: int, count: int) -> None:
        """Raise OSError unless there are that many interrupts of a kind."""
        if not 0 <= kind < len(self.counts) or first + count > self.counts[kind]:
            raise OSError(errno.EINVAL, f"interrupts {first} to {first + count - 1} of kind {kind}")

    def _settle(self) -> None:
        if self._asserted and not self._masked and self._files[INTX]:
            self._masked = True
            self._signal(INTX, 0)

    def _signal(self, kind: int, vector: int) -> None:
        file = self._files[kind].get(vector)
        if file is None:
            return
        # If the counter is full, the peer is notified already, and a write would block.
        poll = select.poll()
        poll.register(file, select.POLLOUT)
        if poll.poll(0):
            os.eventfd_write(file, 1)


def check_eventfds(files: Sequence[int]) -> None:
    """Raise OSError for other descriptors, which may block writers."""
    for file in files:
        if os.readlink(f"/proc/self/fd/{file}") != _EVENTFD:
            raise OSError(errno.EINVAL, "an interrupt must be an eventfd")
