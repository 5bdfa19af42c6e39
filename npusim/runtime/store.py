"""Storage of programs: those compiled, those in use, those on the device, and eviction."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable

from npusim._core import DefaultFloats
from npusim.cache import Cache
from npusim.compiler.schedule.schedule import FREE, Schedule
from npusim.driver import Driver, LoadedProgram
from npusim.errors import DeviceMemoryError
from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.program import ConstantData, Program
from npusim.runtime.request import MemoryBlock

REMEMBERED = 32
"""Number of unused programs that are kept: the NNAPI calls getSupportedOperations and then prepareModel with the same
model."""
REMEMBERED_BYTES = 256 << 20
"""Limit for the constants of these programs together, in bytes."""


class ProgramStore:
    """Compiles graphs for one device, once for equal graphs, and counts the users of each program. Thread-safe.

    ``unload`` removes a program without users from the device. ``cache``: cache files. ``remembered``: number of
    programs without users that are kept.
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
        self._lock = threading.RLock()  # reentrant, because the garbage collector may call release within other methods

    def compile(
        self,
        key: str,
        graph: Callable[[], Graph],
        confirm: Callable[[], object] = lambda: None,
        *,
        needed: bool = False,
        computing: str | None = None,
        schedule: Schedule = FREE,
    ) -> Program:
        """Compile a graph or find its program. Raises UnsupportedError, CompileError.

        ``key`` must differ for graphs with different programs, and for constants in memory of different clients, which
        a program reads until it is on the device. ``confirm`` raises an error if constants were truncated while read;
        then nothing is kept. ``needed``: count a user, as :meth:`acquire`. ``computing``: for a program that is only
        timed and has no constants, the key of the program that computes, which is used instead if it exists.
        ``schedule``: choices of the compiler that are given.
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

                with DefaultFloats():  # the compiler folds constants and multiplies scales
                    program = compile_graph(graph(), self._config, key, schedule)
                confirm()
                if computing is not None:
                    program.constants = ConstantData(program.constants.nbytes, (), left_out=True)
                if self._cache:
                    self._cache.put(program)
            # Compilation runs without the lock, which would block other models. If two threads compile the same graph,
            # one program is kept.
            with self._lock:
                program = self._recent.setdefault(key, program)
                forgotten += self._trim()
        self._unload(forgotten)
        if needed:
            self.acquire([program])
        self._count_released()
        return program

    def _remembered_one(self, key: str, forgotten: list[Program]) -> Program | None:
        """The program of a key if its constants can still be read; it becomes the most recently used."""
        program = self._recent.get(key)
        if program is not None and program.constants.lost:
            del self._recent[key]
            forgotten += [] if program in self._users else [program]
            return None
        if program is not None:
            self._recent.move_to_end(key)
        return program

    def acquire(self, programs: Iterable[Program]) -> None:
        """Count a user of these programs, until as many :meth:`release`."""
        with self._lock:
            self._users.update(programs)
        self._count_released()

    def release(self, programs: Iterable[Program]) -> None:
        """Remove a user of these programs. Does not wait, so finalizers may call it."""
        self._released.append(list(programs))
        self._count_released()

    def _count_released(self) -> None:
        """Unload released programs. If the lock is taken, possibly by this thread before the garbage collector
        interrupted it, the owner of the lock does it afterwards."""
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
        """Forget all programs, because they may hold memory of clients."""
        with self._lock:
            self._recent.clear()
            self._users.clear()

    def _trim(self) -> list[Program]:
        """Forget programs beyond the limits; returns those without users."""
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
    """The programs on the device, and its memory, for the thread that owns the driver. Programs stay until their memory
    is needed. ``short``: a job waits for memory that a running job uses; reset when memory is released."""

    def __init__(self, driver: Driver) -> None:
        self.short = False
        self._driver = driver
        self._capacity = driver.free_bytes
        self._resident: dict[Program, LoadedProgram] = {}  # least recently used first
        self._pins: Counter[Program] = Counter()
        self._jobs: Counter[Program] = Counter()  # waiting and running jobs
        self._unwanted: set[Program] = set()
        self._blocks: dict[MemoryBlock, None] = {}

    def close(self) -> None:
        """Release everything before the device is powered off, including memory of clients."""
        for program in list(self._resident):
            self._evict(program)
        for block in self._blocks:
            self._driver.free(block.address)
        self._blocks.clear()
        self.forget()

    def forget(self) -> None:
        """The device and its contents are lost."""
        self._resident.clear()
        self._pins.clear()
        self._unwanted.clear()

    def load(self, program: Program) -> LoadedProgram:
        """Load a program, if it is not loaded yet, evicting others if needed. Raises DeviceMemoryError."""
        while program not in self._resident:
            try:
                self._resident[program] = self._driver.load(program, slots=0)
            except DeviceMemoryError:
                if not self.make_room(None):
                    raise
        loaded = self._resident[program] = self._resident.pop(program)
        return loaded

    def resident(self, program: Program) -> LoadedProgram | None:
        """The loaded program of a program on the device."""
        return self._resident.get(program)

    def pin(self, program: Program, *, to_run: bool = False) -> None:
        """Load a program with its constants and keep it until as many :meth:`unpin`.

        ``to_run``: only if there is also room for a run of any pinned program.
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
        """Keep a program after a job has loaded it, until as many :meth:`unpin`."""
        self._pins[program] += 1
        self._unwanted.discard(program)

    def unpin(self, program: Program) -> None:
        """Undo one :meth:`pin` or :meth:`keep`."""
        self._pins[program] -= 1
        if self._pins[program] <= 0:
            del self._pins[program]

    def unload(self, program: Program) -> None:
        """Remove a program from the device, once its submitted jobs have ended."""
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
        """Release unused memory, the cheapest to restore first; False if there is none."""
        # To restore a slot only tables are copied; to restore a program, its code and constants. So slots are released
        # first.
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
        """Allocate device memory. Raises DeviceMemoryError if there is not enough, even without idle programs."""
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
        """Release a block that no client can use any more."""
        block.dropped = True
        self.short = False
        self.free_unused(block)

    def free_unused(self, block: MemoryBlock) -> None:
        """Free a dropped block once no job uses it."""
        if block.dropped and not block.users and block in self._blocks:
            del self._blocks[block]
            self._driver.free(block.address)
