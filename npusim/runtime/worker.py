"""The thread that runs a dispatcher: takes messages, runs the device, delivers results.

One thread at a time has the turn. When the worker is idle, a caller may take the turn for a short job, which saves two
thread switches.
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
"""How long in seconds the end of the process waits for workers."""

_MAIN = threading.main_thread().ident

STEPS_LENT = 3
"""A short job ends within two steps; longer ones are left to the worker."""

Message = Callable[[], object]


class Worker:
    """Executes messages in order, and steps of the dispatcher between them. Sleeps when there is nothing to do.

    The thread is a daemon and refers to the dispatcher only, so it keeps neither the process nor an executor alive.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._messages: deque[Message] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()  # one item per message
        self._turn = threading.Lock()
        self._owner = 0  # the thread that has the turn
        self._lock = threading.Lock()
        self._stopping = False
        self.stopped = False
        self.process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="npusim-executor", daemon=True)
        try:
            with DefaultFloats():  # a thread inherits the mode of its creator
                self._thread.start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, f"executor: {error}") from None
        _WORKERS.add(self)

    def post(self, message: Message) -> None:
        """Add a message, which is lost if the worker has ended. Takes no lock, so finalizers may call it."""
        self._messages.append(message)
        self._bell.put(None)

    def send(self, message: Message) -> bool:
        """Add a message that will be executed; False if the worker has ended."""
        with self._lock:
            if not self.stopped:
                self.post(message)
            return not self.stopped

    def lend(self, message: Message) -> bool:
        """Execute a message and the first steps after it on the calling thread, if nothing else is pending.

        Returns False without doing anything otherwise. Not on the main thread, where KeyboardInterrupt could interrupt
        the device.
        """
        caller = threading.get_ident()
        if caller == _MAIN or not self._turn.acquire(blocking=False):
            return False
        try:
            # Earlier messages come first, so that jobs of one thread keep their order.
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
        # The worker does the rest. It sleeps, so it must be woken.
        if self._is_busy():
            self._bell.put(None)
        return True

    def _is_busy(self) -> bool:
        return self._dispatcher.busy

    def stop(self) -> None:
        """Tell the thread to end."""
        self.post(self._stop)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end of the thread. No effect on the thread itself or on the owner of the turn."""
        if threading.get_ident() not in (self._owner, self._thread.ident):
            self._thread.join(timeout_s)

    def is_current(self) -> bool:
        """Whether the caller has the turn."""
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
                # All waiting and later clients get this error.
                self._dispatcher.lose(JobAbortedError("the executor was closed"))
                # From here on send() refuses messages, so that none is left unexecuted.
                with self._lock:
                    self.stopped = True
                while self._messages:
                    self._guard(self._messages.popleft())
                self._dispatcher.deliver()
                self._dispatcher.close()
                try:
                    self._dispatcher.device.faults.check()
                except UsageError as error:  # the user may not know of faults, for example if the environment adds them
                    _log.error("%s", error)

    def _work(self) -> None:
        """Execute pending messages; then run the device until there are more, or nothing to do."""
        while True:
            while self._messages:
                self._guard(self._messages.popleft())
            self._dispatcher.deliver()
            if self._stopping or not self._dispatcher.busy:
                return
            self._guard(self._dispatcher.step)
            self._dispatcher.deliver()

    def _guard(self, work: Message) -> None:
        """An unexpected error makes the device unusable, but does not end the thread."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - nobody may be left waiting
            _log.exception("executor")
            self._dispatcher.lose(DeviceFaultError("INTERNAL", 0, f"{type(error).__name__}: {error}"))


class Reply(Generic[_T]):
    """A message with a result that the sender waits for."""

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
        """The result of the work. Raises its error."""
        self._ready.wait()
        if self._error is not None:
            raise self._error
        return self._values[0]


_WORKERS: weakref.WeakSet[Worker] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """Stop all workers before the interpreter exits."""
    workers = [worker for worker in _WORKERS if worker.process == os.getpid()]
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.join(EXIT_S)
