"""Helpers for tests of what must end and leave nothing behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60


def within(work: Callable[[], Any]) -> Any:
    """Run ``work`` in a thread, which must end, and return its result."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it hangs"
    assert results, "it failed"
    return results[0]


def resources() -> tuple[int, int]:
    """Return (open descriptors, threads) of the process."""
    return descriptors(), threading.active_count()


def until(condition: Callable[[], bool], what: Callable[[], object] = lambda: "") -> None:
    """Wait until a condition holds, with garbage collection. ``what`` describes the state if it never does."""
    end, pause_s = time.monotonic() + PATIENCE_S, 0.001
    while not condition():
        assert time.monotonic() < end, f"did not happen within {PATIENCE_S} s: {what()}"
        gc.collect()
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)


def descriptors() -> int:
    """Return the number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def asleep(thread: threading.Thread) -> None:
    """Wait until a thread blocks in a call. It is checked five times because it may have waited for the interpreter
    lock."""

    def blocks() -> bool:
        with open(f"/proc/self/task/{thread.native_id}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] == "S"

    until(lambda: thread.native_id is not None)
    for _ in range(5):
        time.sleep(0.01)
        until(blocks)


def settled(before: tuple[int, int]) -> None:
    """Wait until the process has no more resources than before."""
    until(
        lambda: all(now <= then for now, then in zip(resources(), before, strict=True)),
        lambda: f"{resources()} instead of {before}: {sorted(thread.name for thread in threading.enumerate())}",
    )


def in_threads(targets: list[Callable[[], None]]) -> list[BaseException]:
    """Call each target in a thread and wait for all; return their exceptions."""
    errors: list[BaseException] = []

    def guarded(target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
    assert not any(thread.is_alive() for thread in threads)
    return errors
