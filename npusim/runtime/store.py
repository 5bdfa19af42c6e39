"""Who keeps programs: what is compiled, who needs it, what lies on the device, and what goes when room is short."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from npusim._core import DefaultFloats
from npusim.cache import Cache
from npusim.driver import Driver, LoadedProgram
from npusim.errors import DeviceMemoryError
from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.program import ConstantData, Program
from npusim.runtime.request import MemoryBlock

_K = TypeVar("_K")
_V = TypeVar("_V")

REMEMBERED = 32
"""Programs that are found again when an equal graph comes: getSupportedOperations is followed by prepareModel."""
REMEMBERED_BYTES = 256 << 20
"""Their constants together."""


class Recent(OrderedDict[_K, _V], Generic[_K, _V]):
    """So many values at most, by key; one that is not asked for any more is the first to go."""

    def __init__(self, limit: int, dropped: Callable[[_V], object]) -> None:
        """``dropped`` is told of each value that goes to make room."""
        super().__init__()
        self._limit = limit
        self._dropped = dropped

    def recall(self, key: _K) -> _V | None:
        """The value of a key, if it is there."""
        value = self.get(key)
        if value is not None:
            self.move_to_end(key)
        return value

    def find(self, key: _K, make: Callable[[], _V]) -> _V:
        """The value of a key; made, if it is not there."""
        value = self.recall(key)
        if value is None:
            value = self[key] = make()
            while len(self) > self._limit:
                self._dropped(self.popitem(last=False)[1])
        return value


class ProgramStore:
    """Compiles graphs for one device, once for equal graphs, and knows who needs which program. For any thread.

    ``unload`` takes a program that nobody needs any more off the device. ``cache``: files in which programs are kept.
    ``remembered``: programs that are found again though nobody needs them at the moment.
    """

    def __init__(
        self,
        config: Config,
        unload: Callable[[Program], object],
        cache: Cache | None = None,
        remembered: int = REMEMBERED,
    ) -> None:
        self._config = config
        self._unload_one = unload
        self._cache = cache
        self._remembered = remembered
        self._recent: OrderedDict[str, Program] = OrderedDict()
        self._users: Counter[Program] = Counter()
        self._released: deque[list[Program]] = deque()
        self._lock = threading.RLock()  # release may be called while Python collects, in the midst of the others

    def compile(
        self,
        key: str,
        graph: Callable[[], Graph],
        confirm: Callable[[], object] = lambda: None,
        *,
        needed: bool = False,
        computing: str | None = None,
    ) -> Program:
        """The program for a graph. Raises UnsupportedError, CompileError.

        ``key`` tells everything apart that leads to other programs; whose memory the constants are views of, too: a
        program reads them until they are on the device. ``confirm`` raises if they were not all there when they were
        read: then nothing is remembered. ``needed``: from now on, as with :meth:`acquire`.
        ``computing``: of a program for timing alone, which has no constants, the key of the one that computes: that
        one is as good, if it is there.
        """
        forgotten: list[Program] = []
        known = [key] if computing is None else [key, computing]
        with self._lock:
            program = next(filter(None, (self._remembered_one(each, forgotten) for each in known)), None)
        if program is None:
            if self._cache is not None:
                program = next(filter(None, map(self._cache.get, known)), None)
            if program is None:
                from npusim.compiler.pipeline import compile_graph

                with DefaultFloats():  # constants are folded, scales multiplied
                    program = compile_graph(graph(), self._config, key)
                confirm()
                if computing is not None:
                    program.constants = ConstantData(program.constants.nbytes, (), left_out=True)
                if self._cache:
                    self._cache.put(program)
            # Compiled without the lock, which would stop every other model; of two that were made at once one is kept.
            with self._lock:
                program = self._recent.setdefault(key, program)
                forgotten += self._trim()
        self._unload(forgotten)
        if needed:
            self.acquire([program])
        self._count_released()
        return program

    def _remembered_one(self, key: str, forgotten: list[Program]) -> Program | None:
        """The program of a key, if what it would read is still there; it is the last to go."""
        program = self._recent.get(key)
        if program is not None and program.constants.lost:
            del self._recent[key]
            forgotten += [] if program in self._users else [program]
            return None
        if program is not None:
            self._recent.move_to_end(key)
        return program

    def acquire(self, programs: Iterable[Program]) -> None:
        """Somebody needs these from now on, until as many :meth:`release`."""
        with self._lock:
            self._users.update(programs)
        self._count_released()

    def release(self, programs: Iterable[Program]) -> None:
        """They are needed no more. Waits for nobody: finalizers may call it anywhere."""
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
        total = sum(program.constants.held_bytes for program in self._recent.values())
        while len(self._recent) > self._remembered or (total > REMEMBERED_BYTES and len(self._recent) > 1):
            _, program = self._recent.popitem(last=False)
            total -= program.constants.held_bytes
            if program not in self._users:
                dropped.append(program)
        return dropped

    def _unload(self, programs: Iterable[Program]) -> None:
        for program in programs:
            self._unload_one(program)


class Residence:
    """The programs on the device, and its memory. Programs stay until their memory is needed; for the thread that owns
    the driver. ``short``: a job waits for memory that a running one has; whatever gives memory back makes it False."""

    def __init__(self, driver: Driver) -> None:
        self.short = False
        self._driver = driver
        self._capacity = driver.free_bytes
        self._resident: dict[Program, LoadedProgram] = {}  # the one used longest ago first
        self._pins: Counter[Program] = Counter()
        self._jobs: Counter[Program] = Counter()  # that wait or run
        self._unwanted: set[Program] = set()
        self._blocks: dict[MemoryBlock, None] = {}

    def close(self) -> None:
        """The device is to be switched off, nothing runs on it: give everything back, what clients hold, too."""
        for program in list(self._resident):
            self._evict(program)
        for block in self._blocks:
            self._driver.free(block.address)
        self._blocks.clear()
        self.forget()

    def forget(self) -> None:
        """The device is lost, and all that was on it."""
        self._resident.clear()
        self._pins.clear()
        self._unwanted.clear()

    def load(self, program: Program) -> LoadedProgram:
        """Put a program onto the device, if it is not there; others make room. Raises DeviceMemoryError."""
        while program not in self._resident:
            try:
                self._resident[program] = self._driver.load(program, slots=0)
            except DeviceMemoryError:
                if not self.make_room(None):
                    raise
        loaded = self._resident[program] = self._resident.pop(program)
        return loaded

    def resident(self, program: Program) -> LoadedProgram | None:
        """A program that is on the device."""
        return self._resident.get(program)

    def pin(self, program: Program, *, to_run: bool = False) -> None:
        """Load a program and write its constants; it stays until as many :meth:`unpin` have followed.

        ``to_run``: only if, besides all programs that are pinned, there is room for a run of any of them.
        """
        if to_run:
            prints = [self._driver.footprint(each) for each in {program, *self._pins}]
            needed = sum(stays for stays, _ in prints) + max(run for _, run in prints)
            if needed > self._capacity:
                raise DeviceMemoryError(
                    f"program {program.name!r}: {len(prints)} programs and a run of one of them need {needed} bytes of "
                    f"device memory, there are {self._capacity}"
                )
        self._driver.write_constants(self.load(program))
        self.keep(program)

    def keep(self, program: Program) -> None:
        """Likewise, from when a job first brings it."""
        self._pins[program] += 1
        self._unwanted.discard(program)

    def unpin(self, program: Program) -> None:
        self._pins[program] -= 1
        if self._pins[program] <= 0:
            del self._pins[program]

    def unload(self, program: Program) -> None:
        """Take a program off the device, or do so when the jobs that were submitted with it have ended."""
        self._pins.pop(program, None)
        self._unwanted.add(program)
        self._unload_unwanted(program)

    def job_begins(self, program: Program) -> None:
        """A job of that program has been submitted."""
        self._jobs[program] += 1

    def job_ends(self, program: Program) -> None:
        """One of them has ended."""
        self._jobs[program] -= 1
        if not self._jobs[program]:
            del self._jobs[program]
        self._unload_unwanted(program)

    def _unload_unwanted(self, program: Program) -> None:
        if program in self._unwanted and not self._jobs[program]:
            self._unwanted.remove(program)
            if program in self._resident:
                self._evict(program)
                self.short = False

    def _evict(self, program: Program) -> None:
        self._driver.unload(self._resident.pop(program))

    def make_room(self, wanted: LoadedProgram | None) -> bool:
        """Give up memory that nobody uses at the moment, the cheapest to restore first; False if there is none."""
        # A slot costs a copy of tables to restore; a program costs its code and constants. So slots go first.
        for loaded in self._resident.values():
            if loaded.idle and loaded is not wanted:
                self._driver.trim(loaded)
                return True
        for program, loaded in self._resident.items():
            if not loaded.running and not self._pins[program] and loaded is not wanted:
                self._evict(program)
                return True
        return False

    def allocate(self, nbytes: int) -> MemoryBlock:
        """New device memory. Raises DeviceMemoryError when there is none, even without idle programs."""
        while True:
            try:
                block = MemoryBlock(self._driver.allocate(nbytes), nbytes)
            except DeviceMemoryError:
                if not self.make_room(None):
                    raise
            else:
                self._blocks[block] = None
                return block

    def drop(self, block: MemoryBlock) -> None:
        """Nobody can submit jobs with the block any more."""
        block.dropped = True
        self.short = False
        self.free_unused(block)

    def free_unused(self, block: MemoryBlock) -> None:
        if block.dropped and not block.users and block in self._blocks:
            del self._blocks[block]
            self._driver.free(block.address)
