"""Interrupts as descriptors of the peer's: what VFIO calls INTx, MSI and MSI-X; how they are set, masked and tried."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Sequence

INTX, MSI, MSIX = range(3)
_KINDS = {"intx": INTX, "msi": MSI, "msix": MSIX}
_EVENTFD = "anon_inode:[eventfd]"


class EventfdInterrupts:
    """``counts``: how many there are of each kind. OSError with a number for a request that cannot be.

    The pin is level-triggered, an eventfd is not: so whoever is told that the pin is asserted is not told again before
    it has unmasked it.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = tuple(counts)
        self._files: list[dict[int, int]] = [{} for _ in counts]
        self._asserted = self._masked = False

    def message(self, vector: int, kind: str) -> None:
        """An MSI or MSI-X message leaves; it is lost if nobody has said where it goes."""
        self._signal(_KINDS[kind], vector)

    def level(self, asserted: bool) -> None:
        """The pin."""
        self._asserted = asserted
        self._settle()

    def assign(self, kind: int, first: int, count: int, files: Sequence[int]) -> None:
        """Eventfds for so many vectors from the first on, none to take theirs away. They are ours from here on; if this
        raises, they are not."""
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
        """Forget descriptors, all of a kind if no count is given."""
        count = self.counts[kind] if count is None else count
        self.check(kind, first, count)
        for vector in range(first, first + count):
            if vector in self._files[kind]:
                os.close(self._files[kind].pop(vector))

    def trigger(self, kind: int, vectors: Sequence[int]) -> None:
        """As if the device had sent them."""
        for vector in vectors:
            self.check(kind, vector, 1)
        for vector in vectors:
            self._signal(kind, vector)

    def mask(self, kind: int, masked: bool, vectors: Sequence[int]) -> None:
        """Of the pin; messages are masked where software finds their masks, in the function."""
        if kind != INTX:
            raise OSError(errno.EINVAL, "messages are masked in the function")
        if vectors:
            self._masked = masked
            self._settle()

    def clear(self) -> None:
        """The peer has gone: forget all that it has said."""
        for kind in range(len(self.counts)):
            self.disable(kind)
        self._masked = False

    def check(self, kind: int, first: int, count: int) -> None:
        """OSError if there are not as many interrupts of that kind."""
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
        # One whose counter is full has its peer woken already, and would keep us waiting.
        poll = select.poll()
        poll.register(file, select.POLLOUT)
        if poll.poll(0):
            os.eventfd_write(file, 1)


def check_eventfds(files: Sequence[int]) -> None:
    """OSError for a descriptor of another kind: it may block who writes to it."""
    for file in files:
        if os.readlink(f"/proc/self/fd/{file}") != _EVENTFD:
            raise OSError(errno.EINVAL, "an interrupt must be an eventfd")
