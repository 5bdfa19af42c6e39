"""Threads for asynchronous preparations and executions, highest priority first."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import threading
from collections.abc import Callable

Task = Callable[[], None]
_Entry = tuple[int, int, Task, threading.Timer | None]

IDLE_S = 2.0
"""Seconds after which an idle thread ends."""
_log = logging.getLogger("hal.nnapi")


class TaskPool:
    """Runs tasks of priority 0 on up to ``most`` threads, which start and end on demand. Each higher priority has
    ``most`` more, so that urgent tasks do not wait for blocked ones.

    The next task is the oldest one of the highest priority. No lock is held while a task runs. The threads are daemons:
    process exit does not wait for a simulation.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._waiting: list[_Entry] = []
        self._serial = itertools.count()
        self._idle = 0
        self._threads: set[threading.Thread] = set()
        self._closed = False
        self._changed = threading.Condition()

    def submit(self, task: Task, priority: int = 0, patience_s: float | None = None) -> None:
        """Queue a task. Raises RuntimeError if the pool is closed or no thread can be started.

        A task that still waits for a thread after ``patience_s`` seconds gets a new one.
        """
        with self._changed:
            if self._closed:
                raise RuntimeError(f"{self._name} is closed")
            serial, timer = next(self._serial), None
            if patience_s is not None:
                timer = threading.Timer(patience_s, self._overdue, [serial])
                timer.daemon = True
            entry = (-priority, serial, task, timer)  # serial numbers differ, so tasks are never compared
            heapq.heappush(self._waiting, entry)
            try:
                # Idle threads take waiting tasks. A new thread is only needed if there are more tasks than idle
                # threads.
                if len(self._waiting) > self._idle and len(self._threads) < self._most * (1 + priority):
                    self._start_thread()
            except RuntimeError:
                if not self._threads:  # nobody would ever run it
                    self._waiting.remove(entry)
                    heapq.heapify(self._waiting)
                    raise
            if timer is not None:
                with contextlib.suppress(RuntimeError):  # without a new thread it waits like the others
                    timer.start()
            self._changed.notify()

    def _overdue(self, serial: int) -> None:
        with self._changed:
            found = next((entry for entry in self._waiting if entry[1] == serial), None)
            if found is None:
                return
            self._waiting.remove(found)
            heapq.heapify(self._waiting)
            self._threads.add(threading.current_thread())
        self._run(found[2])
        with self._changed:
            self._threads.discard(threading.current_thread())

    def close(self) -> None:
        """Refuse new tasks and wait for accepted tasks. A task may call this."""
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
            self._run(task)
            del task  # what it holds must not live until the next task arrives

    def _run(self, task: Task) -> None:
        try:
            task()
        except BaseException:  # noqa: BLE001 - one task must not end the thread of the others, not even by SystemExit
            _log.exception("%s: a task failed", self._name)

    def _next(self) -> Task | None:
        """The next task; None if this thread should end."""
        with self._changed:
            self._idle += 1
            try:
                while not self._waiting:
                    if self._closed or not self._changed.wait(IDLE_S):
                        # A task may have arrived at the timeout, submitted because this thread was idle.
                        if self._waiting:
                            break
                        self._threads.discard(threading.current_thread())
                        return None
                _, _, task, timer = heapq.heappop(self._waiting)
                if timer is not None:
                    timer.cancel()
                return task
            finally:
                self._idle -= 1
