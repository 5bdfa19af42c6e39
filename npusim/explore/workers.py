"""Evaluation of designs in this process, or in worker processes of this machine. If a worker dies, no design is lost.

A worker is a fresh interpreter at the other end of a pipe. It needs no guard in the caller's main module, and ends when
the pipe closes, however the parent has ended.
"""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, Pipe, wait
from typing import TYPE_CHECKING, Protocol

from npusim.errors import UsageError
from npusim.explore.figures import FAILED, StudyRow
from npusim.report.format import printable
from npusim.units import ceil_div

if TYPE_CHECKING:
    from npusim.explore.evaluate import Evaluate
    from npusim.explore.space import Design

MOST_DEATHS = 2
"""A design that has ended this number of workers has failed."""
AHEAD = 2
"""Designs that are queued at a worker, so that it need not wait for the parent."""


class Pool(Protocol):
    """Evaluates designs. Rows are returned in any order."""

    def rows(self, designs: Iterable[Design]) -> Iterator[StudyRow]: ...

    def close(self) -> None: ...


class Here:
    """Evaluates in this process, one design after the other."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate

    def rows(self, designs: Iterable[Design]) -> Iterator[StudyRow]:
        """The row of each design, in order."""
        return (evaluated(self._evaluate, design) for design in designs)

    def close(self) -> None:
        """Nothing to release."""


def evaluated(evaluate: Evaluate, design: Design) -> StudyRow:
    """The row of a design. An unexpected exception during its evaluation makes it a failed one."""
    try:
        return evaluate(design)
    except Exception as error:  # noqa: BLE001 one design of thousands; the reason is in its row
        return failed(design, f"a defect of npusim: {type(error).__name__}: {error}".rstrip(": "))


def failed(design: Design, reason: str) -> StudyRow:
    """The row of a design whose evaluation did not end."""
    reason = printable(reason, lines=False)
    return StudyRow(design.number, design.base, design.settings, design.config.fingerprint(), FAILED, reason)


class _Worker:
    """One process and its queue of designs; it works on the first."""

    def __init__(self) -> None:
        here, there = Pipe()
        code = f"import sys; sys.path[:] = {sys.path!r}; from npusim.explore.worker import main; main({there.fileno()})"
        # Not in the foreground group of the terminal: Ctrl-C is for the parent, which closes the pipe.
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], pass_fds=[there.fileno()], stdin=subprocess.DEVNULL, process_group=0
        )
        there.close()
        self.pipe: Connection = here
        self.todo: collections.deque[Design] = collections.deque()
        self.stretch: collections.deque[Design] = collections.deque()
        """Designs reserved for this worker, unless another one becomes idle first."""
        self.ready = False

    def begin(self, blob: bytes) -> _Worker:
        """Send the evaluation. Large data wait until the process reads them."""
        with contextlib.suppress(OSError):  # if it has died, reading its answer reports that
            self.pipe.send_bytes(blob)
        return self

    def give(self, design: Design) -> None:
        self.todo.append(design)
        self.pipe.send(design)

    def end(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.wait()


class Processes:
    """``count`` workers on this machine, started with the first design."""

    def __init__(self, evaluate: Evaluate, count: int) -> None:
        self._blob = pickle.dumps(evaluate, pickle.HIGHEST_PROTOCOL)
        self._count = count
        self._workers: list[_Worker] = []
        self._deaths: collections.Counter[int] = collections.Counter()
        self._stillborn = 0

    @property
    def pids(self) -> list[int]:
        """The current processes."""
        return [worker.process.pid for worker in self._workers]

    def rows(self, designs: Iterable[Design]) -> Iterator[StudyRow]:
        """The row of each design, in order of completion."""
        waiting = collections.deque(designs)
        new = [_Worker() for _ in range(len(self._workers), min(self._count, len(waiting)))]
        self._workers += [worker.begin(self._blob) for worker in new]
        while waiting or any(worker.todo or worker.stretch for worker in self._workers):
            for worker in list(self._workers):
                yield from self._fill(worker, waiting)
            busy = {worker.pipe: worker for worker in self._workers if worker.todo or not worker.ready}
            for pipe in wait(list(busy)):
                yield from self._hear(busy[pipe], waiting)  # type: ignore[index]

    def _fill(self, worker: _Worker, waiting: collections.deque[Design]) -> Iterator[StudyRow]:
        try:
            while (
                len(worker.todo) < (AHEAD if worker.ready else 1)
                and (design := self._next(worker, waiting)) is not None
            ):
                worker.give(design)
        except OSError:
            yield from self._bury(worker, waiting)

    def _next(self, worker: _Worker, waiting: collections.deque[Design]) -> Design | None:
        """The next design of a worker. Neighbouring designs share cached work, so each worker has its own range. An
        idle worker takes the second half of the longest range."""
        if not worker.stretch:
            longest = max((waiting, *(each.stretch for each in self._workers)), key=len)
            for _ in range(ceil_div(len(longest), 2)):
                worker.stretch.appendleft(longest.pop())
        return worker.stretch.popleft() if worker.stretch else None

    def _hear(self, worker: _Worker, waiting: collections.deque[Design]) -> Iterator[StudyRow]:
        try:
            said = worker.pipe.recv()
        except (EOFError, OSError):
            yield from self._bury(worker, waiting)
            return
        if said is None:
            worker.ready = True
            self._stillborn = 0
        else:
            worker.todo.popleft()
            yield said

    def _bury(self, worker: _Worker, waiting: collections.deque[Design]) -> Iterator[StudyRow]:
        """A worker has died: its queue goes to others, and its current design gets one failure."""
        worker.pipe.close()
        how = _ended(worker.process.wait())
        self._workers.remove(worker)
        todo = list(worker.todo)
        if not worker.ready:
            self._stillborn += 1
            if self._stillborn > MOST_DEATHS * self._count:
                raise UsageError(f"worker processes end during their start ({how}); --workers 0 needs none")
        elif todo:
            self._deaths[todo[0].number] += 1
            if self._deaths[todo[0].number] == MOST_DEATHS:
                yield failed(todo.pop(0), f"{MOST_DEATHS} processes that evaluated it ended ({how})")
        waiting.extendleft(reversed([*todo, *worker.stretch]))
        if waiting or any(each.stretch for each in self._workers):
            self._workers.append(_Worker().begin(self._blob))

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()


def _ended(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def default_count() -> int:
    """The number of processors available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
