"""Sync fences: states visible to everyone, a final first state, and one thread that waits for all."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from hal.nnapi import fence
from hal.nnapi.errors import StatusError
from hal.nnapi.fence import FenceStatus
from hal.nnapi.types import ErrorStatus
from hal.nnapi.waiter import merge, wait_all
from tests.support.waits_and_leaks import PATIENCE_S, descriptors, until

ACTIVE, SIGNALED, ERROR = FenceStatus.ACTIVE, FenceStatus.SIGNALED, FenceStatus.ERROR


def _waiters() -> int:
    return sum(thread.name == "nnapi-fences" for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before, waiters = descriptors(), _waiters()
    yield
    until(lambda: descriptors() <= before and _waiters() <= waiters)


class Seen:
    """What a wait reported, and how often."""

    def __init__(self) -> None:
        self.states: list[FenceStatus] = []
        self.event = threading.Event()

    def __call__(self, state: FenceStatus) -> None:
        self.states.append(state)
        self.event.set()

    def result(self) -> list[FenceStatus]:
        assert self.event.wait(PATIENCE_S)
        return self.states


@pytest.mark.parametrize(("act", "state"), [(fence.Fence.signal, SIGNALED), (fence.Fence.signal_error, ERROR)])
def test_every_duplicate_shows_the_state_as_often_as_one_looks(
    act: Callable[[fence.Fence], None], state: FenceStatus
) -> None:
    made = fence.create()
    handles = [made.dup() for _ in range(3)]
    assert [fence.status(fd) for (fd,) in handles] == [ACTIVE] * 3
    act(made)
    made.close()
    for _ in range(2):
        assert [fence.wait(handle) for handle in handles] == [state] * 3
    for (fd,) in handles:
        os.close(fd)


@pytest.mark.parametrize("error_first", [True, False])
def test_the_first_word_is_final(error_first: bool) -> None:
    with fence.create() as made:
        words = [made.signal_error, made.signal] if error_first else [made.signal, made.signal_error]
        for word in [*words, *words]:
            word()
        assert made.status is (ERROR if error_first else SIGNALED)


def test_an_abandoned_fence_is_in_error() -> None:
    made = fence.create()
    (closed,) = made.dup()
    made.close()
    made.close()
    with pytest.raises(StatusError, match="closed"):
        made.signal()
    (collected,) = fence.create().dup()
    gc.collect()
    assert [fence.status(closed), fence.status(collected)] == [ERROR, ERROR]
    os.close(closed)
    os.close(collected)


def test_a_client_may_signal_a_plain_eventfd() -> None:
    fd = os.eventfd(0)
    assert fence.status(fd) is ACTIVE
    os.eventfd_write(fd, 1)
    assert fence.status(fd) is SIGNALED
    os.close(fd)


@pytest.mark.parametrize("make", [os.pipe, lambda: tuple(end.detach() for end in socket.socketpair())])
@pytest.mark.parametrize(("said", "state"), [(b"", ERROR), (b"x", SIGNALED)])
def test_pipes_and_sockets(make: Callable[[], tuple[int, int]], said: bytes, state: FenceStatus) -> None:
    reading, writing = make()
    assert fence.status(reading) is ACTIVE
    if said:
        os.write(writing, said)
        assert fence.status(reading) is SIGNALED
    os.close(writing)
    assert [fence.status(reading), fence.wait([reading])] == [state, state]
    os.close(reading)


class Kernel:
    """Sync files of a kernel as seen from user space; an epoll instance stands for each.

    Like a sync file it has no file type, polls as readable when it is signalled, with or without an error, and never as
    writable. ``ioctl`` answers SYNC_IOC_FILE_INFO as drivers/dma-buf/sync_file.c does.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.members: dict[int, list[int]] = {}  # their statuses, by inode and descriptor of the instance
        self._events: list[tuple[select.epoll, int]] = []
        monkeypatch.setattr(fcntl, "ioctl", self.ioctl)

    def make(self, members: int = 1) -> tuple[int, Callable[..., None]]:
        """Return a descriptor, and a function that settles it with the statuses of its members."""
        poller, event = select.epoll(), os.eventfd(0)
        poller.register(event, select.EPOLLIN)
        self._events.append((poller, event))
        statuses = self.members[_target(poller.fileno())] = [0] * members

        def settle(*new: int) -> None:
            statuses[:] = new
            os.eventfd_write(event, 1)

        return poller.fileno(), settle

    def close(self) -> None:
        for poller, event in self._events:
            poller.close()
            os.close(event)

    def ioctl(self, descriptor: int, request: int, info: bytearray) -> int:
        members = self.members.get(_target(descriptor))
        if members is None or request != 0xC0383E04:
            raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")
        name, _, flags, count, pad, address = struct.unpack("=32siIIIQ", info)
        if flags or pad or 0 < count < len(members):
            raise OSError(errno.EINVAL, "Invalid argument")
        whole = 1 if all(members) else 0
        if count:
            for place, status in enumerate(members):
                entry = struct.pack("=32s32siIQ", b"fence", b"driver", status, 0, 0)
                ctypes.memmove(address + 80 * place, entry, 80)
                whole = status if whole > 0 else whole
        elif len(members) == 1:
            [whole] = members
        info[:] = struct.pack("=32siIIIQ", name, whole, 0, len(members), 0, address)
        return 0


def _target(descriptor: int) -> int:
    """Return the same value for duplicates of a descriptor: the inode of the only event that the instance watches."""
    with open(f"/proc/self/fdinfo/{descriptor}") as file:
        return int(next((line.split()[1] for line in file if line.startswith("tfd:")), -1))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    kernel = Kernel(monkeypatch)
    yield kernel
    kernel.close()


@pytest.mark.parametrize(("statuses", "state"), [([1], SIGNALED), ([-5], ERROR), ([1, 1], SIGNALED), ([1, -22], ERROR)])
def test_sync_files_of_the_kernel(kernel: Kernel, statuses: list[int], state: FenceStatus) -> None:
    fd, settle = kernel.make(len(statuses))
    assert [fence.check([fd]), fence.status(fd), fence.wait([fd], 0.01)] == [fd, ACTIVE, ACTIVE]
    seen, joined = Seen(), merge([[fd]])
    wait_all([[fd]], seen)
    assert seen.states == []
    settle(*statuses)
    assert [fence.status(fd), fence.wait([fd])] == [state] * 2
    assert seen.result() == [state]
    with joined:
        assert fence.wait(joined.handle, PATIENCE_S) is state
    late = Seen()
    wait_all([[fd], [fd]], late)
    assert late.states == [state]


def test_a_sync_file_wakes_up_who_waits(kernel: Kernel) -> None:
    fd, settle = kernel.make()
    timer = threading.Timer(0.01, settle, [1])
    timer.start()
    assert fence.wait([fd], PATIENCE_S) is SIGNALED
    timer.join()


def test_sync_files_and_eventfds_are_waited_for_together(kernel: Kernel) -> None:
    fd, settle = kernel.make()
    seen = Seen()
    with fence.create() as own:
        wait_all([own.handle, [fd]], seen)
        settle(1)
        assert fence.wait(own.handle, 0.01) is ACTIVE
        own.signal()
        assert seen.result() == [SIGNALED]


@pytest.mark.parametrize("handle", [None, [], [0.5], [-1], [999_999], [1 << 40], "ab", 3, [0, 0]])
def test_null_and_broken_handles_are_refused(handle: Sequence[int] | None) -> None:
    with pytest.raises(StatusError) as caught:
        fence.check(handle)
    assert caught.value.status is ErrorStatus.INVALID_ARGUMENT
    with pytest.raises(StatusError):
        wait_all([handle], pytest.fail)


def test_descriptors_that_are_no_fences_are_refused() -> None:
    reading, writing = os.pipe()
    file = os.open(__file__, os.O_RDONLY)
    memory = os.memfd_create("is not a fence")
    pid = os.pidfd_open(os.getpid())
    for fd in (writing, file, memory, pid):
        with pytest.raises(StatusError, match="is not a fence"):
            fence.check([fd])
    for fd in (reading, writing, file, memory, pid):
        os.close(fd)


def test_wait_gives_up_in_time() -> None:
    with fence.create() as made:
        handle = made.handle
        assert fence.wait(handle, 0) is ACTIVE
        began = time.monotonic()
        assert fence.wait(handle, 0.02) is ACTIVE
        assert 0.02 <= time.monotonic() - began < PATIENCE_S


def test_wait_wakes_up() -> None:
    with fence.create() as made:
        handle = made.dup()
        timer = threading.Timer(0.01, made.signal)
        timer.start()
        assert fence.wait(handle, PATIENCE_S) is SIGNALED
        timer.join()
        os.close(handle[0])


def test_all_must_be_signalled() -> None:
    fences = [fence.create() for _ in range(3)]
    handles = [made.dup() for made in fences]
    seen = Seen()
    pending = wait_all(handles, seen)
    assert pending is not None
    for (fd,) in handles:
        os.close(fd)  # the wait has its own
    fences[2].signal()
    fences[0].signal()
    until(lambda: len(pending.descriptors) == 1)
    assert seen.states == []
    fences[1].signal()
    assert seen.result() == [SIGNALED]


def test_one_error_is_enough() -> None:
    fences = [fence.create() for _ in range(3)]
    handles = [made.dup() for made in fences]
    seen = Seen()
    wait_all(handles, seen)
    fences[1].signal_error()
    assert seen.result() == [ERROR]
    fences[0].signal()
    late = Seen()
    assert wait_all(handles, late) is None
    assert late.states == [ERROR]
    for (fd,) in handles:
        os.close(fd)


def test_what_is_settled_needs_no_thread() -> None:
    before = _waiters()
    with fence.create() as made:
        made.signal()
        handle = made.dup()
        seen = Seen()
        assert wait_all([handle, handle], seen) is None
        assert wait_all([], seen) is None
        assert seen.states == [SIGNALED, SIGNALED]
        assert _waiters() <= before
        os.close(handle[0])


def test_time_is_up() -> None:
    with fence.create() as early, fence.create() as late:
        handles = [early.dup(), late.dup()]
        short, long = Seen(), Seen()
        wait_all([handles[1]], long, timeout_s=60)
        wait_all(handles, short, timeout_s=0.01)
        assert short.result() == [ACTIVE]
        early.signal()
        late.signal()
        assert long.result() == [SIGNALED]
        assert short.states == [ACTIVE]
        for (fd,) in handles:
            os.close(fd)


def test_a_cancelled_wait_is_silent() -> None:
    with fence.create() as made:
        handle = made.dup()
        cancelled, other = Seen(), Seen()
        pending = wait_all([handle], cancelled)
        wait_all([handle], other)
        assert pending is not None
        assert pending.cancel()
        assert not pending.cancel()
        made.signal()
        assert other.result() == [SIGNALED]
        assert cancelled.states == []
        os.close(handle[0])


def test_a_callback_that_fails_is_logged_and_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def fail(state: FenceStatus) -> None:
        raise ValueError("from the callback")

    with fence.create() as made:
        handle = made.dup()
        seen = Seen()
        wait_all([handle], fail)
        wait_all([handle], seen)
        made.signal()
        assert seen.result() == [SIGNALED]
        os.close(handle[0])
    until(lambda: "from the callback" in caplog.text)


def test_a_callback_may_wait_again() -> None:
    first, second = fence.create(), fence.create()
    handles = [first.dup(), second.dup()]
    seen = Seen()
    wait_all([handles[0]], lambda _: wait_all([handles[1]], seen) and None)
    first.signal()
    second.signal()
    assert seen.result() == [SIGNALED]
    for (fd,) in handles:
        os.close(fd)


@pytest.mark.parametrize(("error", "state"), [(False, SIGNALED), (True, ERROR)])
def test_merge(error: bool, state: FenceStatus) -> None:
    fences = [fence.create() for _ in range(3)]
    handles = [made.dup() for made in fences]
    merged = merge(handles)
    handle = merged.dup()
    assert merged.status is ACTIVE
    for made in fences[:2]:
        made.signal()
    assert merged.status is ACTIVE
    if error:
        fences[2].close()
    else:
        fences[2].signal()
    assert fence.wait(handle, PATIENCE_S) is state
    assert merge([]).status is SIGNALED
    for (fd,) in (*handles, handle):
        os.close(fd)


def test_one_thread_waits_for_all_and_nobody_is_forgotten() -> None:
    count = 200
    fences = [fence.create() for _ in range(count)]
    handles = [made.dup() for made in fences]
    seen = [Seen() for _ in range(count)]

    def work(start: int) -> None:
        for index in range(start, count, 4):
            wait_all([handles[index], handles[(index * 7 + 1) % count]], seen[index])
            fences[(index * 7 + 1) % count].signal()

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: _waiters() <= 1)
    for made in fences:
        made.signal()
    assert [one.result() for one in seen] == [[SIGNALED]] * count
    for (fd,) in handles:
        os.close(fd)
