"""The thread that works with a dispatcher: takes messages, lets the device work, delivers results.

Whoever has the turn works; when the thread rests, a caller may take the turn for a short job of his own, which spares
both of them the way through the system's scheduler.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from npusim._core import DefaultFloats
from npusim.errors import DeviceFaultError, JobAbortedError, UsageError
from npusim.runtime.dispatcher import Dispatcher

_log = logging.getLogger("npusim.runtime")
_T = TypeVar("_T")

EXIT_S = 5.0
"""How long the end of the process waits for a worker to come to rest."""

_MAIN = threading.main_thread().ident

STEPS_LENT = 3
"""A short job is over after two steps; what takes longer is left to the thread."""

Message = Callable[[], object]


class Worker:
    """Runs messages in their order, and the dispatcher's steps between them. Sleeps when there is nothing to do.

    The thread is a daemon and refers to the dispatcher only: it keeps neither the process nor an executor alive.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._messages: deque[Message] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()  # rung for each message
        self._turn = threading.Lock()
        self._owner = 0  # the thread that has the turn
        self._lock = threading.Lock()
        self._stopping = False
        self.stopped = False
        self.process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="npusim-executor", daemon=True)
        try:
            with DefaultFloats():  # a thread begins with the mode of whoever starts it
                self._thread.start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, f"executor: {error}") from None
        _WORKERS.add(self)

    def post(self, message: Message) -> None:
        """Leave a message; nobody reads it after the end. Takes no lock: finalizers may call it anywhere."""
        self._messages.append(message)
        self._bell.put(None)

    def send(self, message: Message) -> bool:
        """Leave a message that will certainly be run; False if the worker has ended."""
        with self._lock:
            if not self.stopped:
                self.post(message)
            return not self.stopped

    def lend(self, message: Message) -> bool:
        """Run a message on the caller's thread, and the first steps after it, if nothing else is to be done before.

        False, and nothing was done, if there is. Not for the main thread: an interrupt from the keyboard would come
        in the midst of the device's work.
        """
        caller = threading.get_ident()
        if caller == _MAIN or not self._turn.acquire(blocking=False):
            return False
        try:
            # Whatever was left before comes first: jobs of one thread keep their order, done here or there.
            if self._messages or self._stopping or self.stopped or self._is_busy():
                return False
            self._owner = caller
            with DefaultFloats():
                self._guard(message)
                self._dispatcher.deliver()
                for _ in range(STEPS_LENT):
                    if self._messages or not self._is_busy():
                        break
                    self._guard(self._dispatcher.step)
                    self._dispatcher.deliver()
        finally:
            self._owner = 0
            self._turn.release()
        # What is left over is the thread's, which sleeps and has to be told.
        if self._is_busy():
            self._bell.put(None)
        return True

    def _is_busy(self) -> bool:
        return self._dispatcher.busy

    def stop(self) -> None:
        """Ask the thread to end."""
        self.post(self._stop)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for its end; for whoever has the turn, and on the thread itself, this does nothing."""
        if threading.get_ident() not in (self._owner, self._thread.ident):
            self._thread.join(timeout_s)

    def is_current(self) -> bool:
        """Whether the caller is the thread that works."""
        return threading.get_ident() == self._owner

    def _stop(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        try:
            while not self._stopping:
                if not self._dispatcher.busy:
                    self._bell.get()
                with self._turn:
                    self._owner = threading.get_ident()
                    self._work()
                    self._owner = 0
        finally:
            with self._turn:
                self._owner = threading.get_ident()
                # Whoever waits, and whoever comes now, hears that it is over.
                self._dispatcher.lose(JobAbortedError("the executor was closed"))
                # From here on send() refuses, so that nothing is left that nobody would run.
                with self._lock:
                    self.stopped = True
                while self._messages:
                    self._guard(self._messages.popleft())
                self._dispatcher.deliver()
                self._dispatcher.close()
                try:
                    self._dispatcher.device.faults.check()
                except UsageError as error:  # for those whom nobody closes: programs that know nothing of faults
                    _log.error("%s", error)

    def _work(self) -> None:
        """Read the messages that are there; let the device work until there are more, or nothing to do."""
        while True:
            while self._messages:
                self._guard(self._messages.popleft())
            self._dispatcher.deliver()
            if self._stopping or not self._dispatcher.busy:
                return
            self._guard(self._dispatcher.step)
            self._dispatcher.deliver()

    def _guard(self, work: Message) -> None:
        """An error that nobody foresaw is the end of the device, not of the thread."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - nobody may be left waiting
            _log.exception("executor")
            self._dispatcher.lose(DeviceFaultError("INTERNAL", 0, f"{type(error).__name__}: {error}"))


class Reply(Generic[_T]):
    """A message whose sender waits for what comes of it."""

    def __init__(self, work: Callable[[], _T]) -> None:
        self._work = work
        self._ready = threading.Event()
        self._values: list[_T] = []
        self._error: BaseException | None = None

    def __call__(self) -> None:
        try:
            self._values.append(self._work())
        except BaseException as error:  # noqa: BLE001 - it is the sender's
            self._error = error
        self._ready.set()

    def wait(self) -> _T:
        """What the work gave; raises what it raised."""
        self._ready.wait()
        if self._error is not None:
            raise self._error
        return self._values[0]


_WORKERS: weakref.WeakSet[Worker] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """Bring the threads to rest before the interpreter goes."""
    workers = [worker for worker in _WORKERS if worker.process == os.getpid()]
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.join(EXIT_S)
