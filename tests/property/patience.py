"""For tests of what must end, and leave nothing behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 30


def within(work: Callable[[], Any]) -> Any:
    """What ``work`` gives on a thread of its own, which must end."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it hangs"
    assert results, "it failed"
    return results[0]


def resources() -> tuple[int, int]:
    """(open descriptors, threads) of the process."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def settled(before: tuple[int, int], patience_s: float = PATIENCE_S) -> None:
    """Wait until the process has no more than it had."""
    end = time.monotonic() + patience_s
    while any(now > then for now, then in zip(resources(), before, strict=True)):
        gc.collect()
        names = sorted(thread.name for thread in threading.enumerate())
        assert time.monotonic() < end, f"{resources()} instead of {before}: {names}"
        time.sleep(0.01)
