"""Threads for what a client need not wait for: preparations and executions, the most urgent first."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable

Task = Callable[[], None]

IDLE_S = 2.0
"""A thread that has had nothing to do for so long ends."""
_log = logging.getLogger("hal.nnapi")


class TaskPool:
    """Runs tasks of priority 0 on up to ``most`` threads, which come and go with the work; each higher priority has
    ``most`` more, so that urgent tasks do not wait for others that wait.

    Of the tasks that wait the one with the highest priority is next, among equals the oldest. No lock is held while a
    task runs. The threads are daemons: a process that ends does not wait for a simulation.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._waiting: list[tuple[int, int, Task]] = []
        self._serial = itertools.count()
        self._idle = 0
        self._threads: set[threading.Thread] = set()
        self._closed = False
        self._changed = threading.Condition()

    def submit(self, task: Task, priority: int = 0) -> None:
        """Have a task run soon. Raises RuntimeError if the pool is closed, or no thread can be started."""
        with self._changed:
            if self._closed:
                raise RuntimeError(f"{self._name} is closed")
            entry = (-priority, next(self._serial), task)  # serials differ, so tasks are never compared
            heapq.heappush(self._waiting, entry)
            try:
                # Idle threads take what waits; a new one is needed only if there are more tasks than such threads.
                if len(self._waiting) > self._idle and len(self._threads) < self._most * (1 + priority):
                    self._start_thread()
            except RuntimeError:
                if not self._threads:  # nobody would ever run it
                    self._waiting.remove(entry)
                    heapq.heapify(self._waiting)
                    raise
            self._changed.notify()

    def close(self) -> None:
        """Take no more tasks, and wait until those that were taken have run; a task may call this too."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in threads:
            thread.join()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{next(self._serial)}", daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            self._threads.discard(thread)
            raise

    def _work(self) -> None:
        while (task := self._next()) is not None:
            try:
                task()
            except BaseException:  # noqa: BLE001 - one task must not end the thread of the others, not even by SystemExit
                _log.exception("%s: a task failed", self._name)
            del task  # whatever it holds must not live until the next one comes

    def _next(self) -> Task | None:
        """The next task; None when this thread is to end."""
        with self._changed:
            self._idle += 1
            try:
                while not self._waiting:
                    if self._closed or not self._changed.wait(IDLE_S):
                        # It may have come just as the time was up, and whoever submitted it counted on this thread.
                        if self._waiting:
                            break
                        self._threads.discard(threading.current_thread())
                        return None
                return heapq.heappop(self._waiting)[2]
            finally:
                self._idle -= 1
