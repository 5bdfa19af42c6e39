"""Waiting for fences in the background, with one thread that exists only while fences are pending."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence

from .errors import StatusError
from .fence import Fence, FenceStatus, Handle, check, status

Then = Callable[[FenceStatus], None]

LONGEST_POLL_S = 3600.0
"""Longest wait of epoll; longer waits are split."""

_log = logging.getLogger("hal.nnapi")


class Pending:
    """An active wait."""

    def __init__(self, waiter: _Waiter, descriptors: Sequence[int], then: Then, end_s: float | None) -> None:
        self._waiter = waiter
        self.descriptors: set[int] = set()
        self.then = then
        self.end_s = end_s
        try:
            for descriptor in descriptors:
                # Duplicated: the client may close its own while we wait, and epoll accepts a descriptor only once.
                self.descriptors.add(os.dup(descriptor))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptors."""
        while self.descriptors:
            os.close(self.descriptors.pop())

    def cancel(self) -> bool:
        """Cancel the wait, so that ``then`` is not called. Returns False if it was already called or is being
        called."""
        return self._waiter.remove(self)


def wait_all(handles: Sequence[Handle], then: Then, timeout_s: float | None = None) -> Pending | None:
    """Call ``then`` exactly once when all fences are signalled (SIGNALED), one is in error (ERROR), or the time is up
    (ACTIVE).

    ``then`` is called without locks, either from the waiting thread or immediately; in the latter case None is
    returned. It must be short. Null handles and descriptors that are not fences fail immediately with StatusError
    (INVALID_ARGUMENT), without a call. If no descriptors or threads are available, an OSError or RuntimeError is
    raised.
    """
    descriptors = [check(handle) for handle in handles]
    states = [status(descriptor) for descriptor in descriptors]
    # one error decides, whatever the others are
    if FenceStatus.ERROR in states:
        _call(then, FenceStatus.ERROR)
        return None
    waiting = [fd for fd, state in zip(descriptors, states, strict=True) if state is FenceStatus.ACTIVE]
    if not waiting:
        _call(then, FenceStatus.SIGNALED)
        return None
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    pending = Pending(_WAITER, waiting, then, end_s)
    try:
        _WAITER.add(pending)
    except BaseException:
        pending.close()
        raise
    return pending


def merge(handles: Sequence[Handle]) -> Fence:
    """Return a fence that is signalled when all of these are, and in error as soon as one of them is."""
    fence = Fence()

    def settle(state: FenceStatus) -> None:
        if state is FenceStatus.SIGNALED:
            fence.signal()
        else:
            fence.signal_error()

    wait_all(handles, settle)
    return fence


class _Waiter:
    """The thread, its pending fences, and its descriptors."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[int, Pending] = {}  # by descriptor
        self._epoll: select.epoll | None = None
        self._wake = -1

    def add(self, pending: Pending) -> None:
        with self._lock:
            if self._epoll is None:
                self._start()
            assert self._epoll is not None
            registered: list[int] = []
            try:
                for descriptor in pending.descriptors:
                    self._epoll.register(descriptor, select.EPOLLIN)
                    registered.append(descriptor)
            except OSError:
                for descriptor in registered:
                    self._epoll.unregister(descriptor)
                raise
            self._pending.update(dict.fromkeys(registered, pending))
            os.eventfd_write(self._wake, 1)

    def remove(self, pending: Pending) -> bool:
        with self._lock:
            if not pending.descriptors:
                return False
            self._drop(pending)
            # The thread may sleep until the end of this wait; it should end now if this was the last one.
            os.eventfd_write(self._wake, 1)
            return True

    def _start(self) -> None:
        with contextlib.ExitStack() as undo:
            epoll = undo.enter_context(contextlib.closing(select.epoll()))
            wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(os.close, wake)
            epoll.register(wake, select.EPOLLIN)
            threading.Thread(target=self._run, args=(epoll, wake), name="nnapi-fences", daemon=True).start()
            undo.pop_all()
        self._epoll, self._wake = epoll, wake

    def _run(self, epoll: select.epoll, wake: int) -> None:
        while True:
            with self._lock:
                settled = self._expire()
                if not self._pending:  # decided under the lock that add takes, so no wait falls between two threads
                    self._epoll = None  # the next wait starts a new thread
                timeout = self._timeout()
                ended = self._epoll is None
            _call_all(settled)
            if ended:
                epoll.close()
                os.close(wake)
                return
            # Callbacks may have taken time or started new waits, so the timeout is computed again.
            ready = [descriptor for descriptor, _ in epoll.poll(0 if settled else timeout)]
            with self._lock:
                settled = self._settle(ready, wake)
            _call_all(settled)

    def _expire(self) -> list[tuple[Then, FenceStatus]]:
        now = time.monotonic()
        late = {id(p): p for p in self._pending.values() if p.end_s is not None and p.end_s <= now}
        for pending in late.values():
            self._drop(pending)
        return [(pending.then, FenceStatus.ACTIVE) for pending in late.values()]

    def _timeout(self) -> float | None:
        ends = [pending.end_s for pending in self._pending.values() if pending.end_s is not None]
        return min(max(0.0, min(ends) - time.monotonic()), LONGEST_POLL_S) if ends else None

    def _settle(self, ready: Sequence[int], wake: int) -> list[tuple[Then, FenceStatus]]:
        settled = []
        for descriptor in ready:
            if descriptor == wake:
                os.eventfd_read(wake)
                continue
            pending = self._pending.get(descriptor)
            if pending is None:  # cancelled meanwhile
                continue
            try:
                state = status(descriptor)
            except StatusError as error:
                _log.warning("a fence became unreadable: %s", error)
                state = FenceStatus.ERROR
            if state is FenceStatus.ERROR:
                self._drop(pending)
            elif state is FenceStatus.SIGNALED:
                self._close(pending, descriptor)
            if not pending.descriptors:
                settled.append((pending.then, state))
        return settled

    def _drop(self, pending: Pending) -> None:
        for descriptor in list(pending.descriptors):
            self._close(pending, descriptor)

    def _close(self, pending: Pending, descriptor: int) -> None:
        assert self._epoll is not None
        # Closing alone would not end the watch: epoll watches the open file, which the client's descriptors keep open.
        self._epoll.unregister(descriptor)
        del self._pending[descriptor]
        pending.descriptors.discard(descriptor)
        os.close(descriptor)


_WAITER = _Waiter()


def _call_all(settled: Sequence[tuple[Then, FenceStatus]]) -> None:
    for then, state in settled:
        _call(then, state)


def _call(then: Then, state: FenceStatus) -> None:
    try:
        then(state)
    except Exception:  # noqa: BLE001 - it is logged, and the others must go on
        _log.exception("what waited for fences failed")
