"""Programs of a driver: compiled once for equal graphs, kept while a prepared model needs them."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable

from npusim.compiler.pipeline import compile_graph
from npusim.executor import Executor
from npusim.graph import Graph
from npusim.program import Program

REMEMBERED = 32
"""Programs that are found again when an equal graph comes: getSupportedOperations is followed by prepareModel."""
REMEMBERED_BYTES = 256 << 20
"""Their constants together."""

Confirm = Callable[[], object]


class ProgramStore:
    """Compiles graphs for the executor's device, and takes programs that nobody needs any more off it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._recent: OrderedDict[str, Program] = OrderedDict()
        self._users: Counter[Program] = Counter()
        self._released: deque[list[Program]] = deque()
        self._lock = threading.RLock()  # release may be called while Python collects, in the midst of the others

    def compile(self, graph: Graph, scope: str = "", confirm: Confirm = lambda: None) -> Program:
        """The program for a graph. Raises UnsupportedError, CompileError.

        ``scope``: whose memory the graph's constants are views of. A program reads them until they are on the device,
        so that it must not be used for an equal graph whose constants lie elsewhere. ``confirm`` raises if they were
        not all there when they were read: then nothing is remembered.
        """
        key = graph.fingerprint() + scope
        forgotten: list[Program] = []
        with self._lock:
            program = self._recent.get(key)
            if program is not None and program.constants.lost:  # what it would read is not the client's memory any more
                del self._recent[key]
                forgotten += [] if program in self._users else [program]
                program = None
            if program is not None:
                self._recent.move_to_end(key)
        if program is None:
            program = compile_graph(graph, self._executor.config, key)
            confirm()
            with self._lock:
                program = self._recent.setdefault(key, program)
                forgotten += self._trim()
        self._unload(forgotten)
        self._count_released()
        return program

    def compile_for(self, graph: Graph, scope: str = "", confirm: Confirm = lambda: None) -> Program:
        """The program for a graph, which a prepared model needs from now on."""
        program = self.compile(graph, scope, confirm)
        self.acquire([program])
        return program

    def acquire(self, programs: Iterable[Program]) -> None:
        """A prepared model needs these from now on."""
        with self._lock:
            self._users.update(programs)
        self._count_released()

    def release(self, programs: Iterable[Program]) -> None:
        """A prepared model needs these no more. Waits for nobody: finalizers may call it anywhere."""
        self._released.append(list(programs))
        self._count_released()

    def _count_released(self) -> None:
        """Unload what was released. If somebody holds the lock - it may be this thread, which the collector of garbage
        has interrupted - that one does it afterwards."""
        while self._released and self._lock.acquire(blocking=False):
            unused = []
            try:
                while self._released:
                    for program in self._released.popleft():
                        self._users[program] -= 1
                        if self._users[program] <= 0:
                            del self._users[program]
                            unused.append(program)
            finally:
                self._lock.release()
            self._unload(unused)

    def close(self) -> None:
        """Forget everything: programs may hold memory of clients."""
        with self._lock:
            self._recent.clear()
            self._users.clear()

    def _trim(self) -> list[Program]:
        """Forget programs beyond the limits; gives those that nobody uses."""
        dropped: list[Program] = []
        total = sum(program.constants.nbytes for program in self._recent.values())
        while len(self._recent) > REMEMBERED or (total > REMEMBERED_BYTES and len(self._recent) > 1):
            _, program = self._recent.popitem(last=False)
            total -= program.constants.nbytes
            if program not in self._users:
                dropped.append(program)
        return dropped

    def _unload(self, programs: Iterable[Program]) -> None:
        for program in programs:
            self._executor.unload(program)
