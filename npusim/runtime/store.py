"""What lies in device memory for an executor: programs that stay until their memory is needed, and buffers."""

from __future__ import annotations

from collections import Counter

from npusim.driver import Driver, LoadedProgram
from npusim.errors import DeviceMemoryError
from npusim.program import Program
from npusim.runtime.request import Block


class Residence:
    """``short``: a job waits for memory that a running one has; whatever gives memory back makes it False."""

    def __init__(self, driver: Driver) -> None:
        self.short = False
        self._driver = driver
        self._resident: dict[Program, LoadedProgram] = {}  # the one used longest ago first
        self._pins: Counter[Program] = Counter()
        self._jobs: Counter[Program] = Counter()  # that wait or run
        self._unwanted: set[Program] = set()

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

    def pin(self, program: Program) -> None:
        """Load a program and write its constants; it stays until as many :meth:`unpin` have followed."""
        self._driver.write_constants(self.load(program))
        self._pins[program] += 1
        self._unwanted.discard(program)

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
        for loaded in self._resident.values():
            if loaded.idle and loaded is not wanted:
                self._driver.trim(loaded)
                return True
        for program, loaded in self._resident.items():
            if not loaded.running and not self._pins[program] and loaded is not wanted:
                self._evict(program)
                return True
        return False

    def allocate(self, nbytes: int) -> Block:
        """New device memory. Raises DeviceMemoryError when there is none, even without idle programs."""
        while True:
            try:
                return Block(self._driver.allocate(nbytes), nbytes)
            except DeviceMemoryError:
                if not self.make_room(None):
                    raise

    def drop(self, block: Block) -> None:
        """Nobody can submit jobs with the block any more."""
        block.dropped = True
        self.short = False
        self.free_unused(block)

    def free_unused(self, block: Block) -> None:
        if block.dropped and not block.users:
            self._driver.free(block.address)
