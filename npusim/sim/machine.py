"""The machine behind the registers: clock, memories, the link to DRAM, and the job that has it all to itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from npusim.hw.config import Config
from npusim.isa.base import ByteArray
from npusim.sim.inject import Injection
from npusim.sim.job import Attempt, Job, attempt
from npusim.sim.memory import JobMemory
from npusim.sim.parts import Parts
from npusim.sim.replayer import Course, Replayer
from npusim.sim.stepper import RESTORE, SAVE, Stepper
from npusim.sim.steps import Decoder, Step

COURSES_KEPT = 32
"""Programs whose decoded form stays in the host's memory, the most recently used ones."""

MEMORIES_KEPT = 64
"""Views of regions that stay made: a program runs again and again in the same ones."""

Player = Stepper | Replayer
"""What carries a job through the machine."""


class Machine(Parts):
    """A device without its registers. Deterministic: the same calls give the same events at the same picoseconds."""

    def __init__(self, config: Config, injection: Injection | None = None) -> None:
        super().__init__(config, injection)
        fabric, decoder = self.fabric, Decoder(config, self.layout, self.fabric)
        self.control_ps = lru_cache(64)(lambda size: fabric.latency_ps + fabric.flow_ps(size))
        """The time of an access to so many bytes of control data in DRAM, a few kB at most."""
        self._course = lru_cache(COURSES_KEPT)(lambda code, sizes: Course(decoder.steps(code, sizes)))
        memory = self.memory
        self._memory_of = lru_cache(MEMORIES_KEPT)(lambda regions: JobMemory(memory, regions))
        self.current: Player | None = None
        """What has the machine: a job that runs, or whose context is on the way."""

    def start(self, job: Job, done: Callable[[Player], None]) -> Player:
        """Begin a job; ``done(player)`` is called when it has ended and left the machine.

        Raises RefusedError for a bad program, AddressError for regions outside of DRAM.
        """

        def ended(player: Player) -> None:
            self.leave(player)
            done(player)

        # By the bytes, not by the address: software may write another program to the same place.
        course, memory = self._course_of(job), self._memory_of(job.regions)
        known: Mapping[Step, Attempt] = {}
        if course.timeline is not None and self._foreseeable(job, course):
            self.current = replayer = Replayer(self, job, memory, course, ended)
            known = replayer.begin()
            if not known:
                return replayer
        self.current = stepper = Stepper(self, job, memory, course.steps, ended, course.learn, known)
        stepper.sequencer.begin()
        return stepper

    def _course_of(self, job: Job) -> Course:
        code = self.memory.slice(job.code, job.code_bytes)
        return self._course(code.tobytes(), tuple([size for _, size in job.regions]))

    def _foreseeable(self, job: Job, course: Course) -> bool:
        """Whether a job will go as the last one of its program, and nobody can look before its end."""
        # The lead is compared, too: a doorbell that came while the device was busy shifts what follows it.
        breaks = self.injection.hang or self.injection.dma_error
        on_time = self.clock.now - job.started_ps == course.lead_ps
        return on_time and not breaks and self.clock.is_quiet(course.length_ps)

    def arithmetic(self, job: Job) -> Callable[[], bool] | None:
        """What a job computes, to be done any number of times while nothing else happens; it gives False for a fault.
        None if the course of such jobs is not known, or if the machine is told to break."""
        course = self._course_of(job)
        if course.timeline is None or self.injection.active:
            return None
        memory, order = self._memory_of(job.regions), course.order
        return lambda: all(attempt(memory, job, step) is None for step in order)

    @property
    def context_bytes(self) -> int:
        """What one job can have in the memories of all cores."""
        return self.config.cores * (self.memory.sram_bytes + self.memory.acc_bytes)

    def save(self, stepper: Stepper, address: int, saved: Callable[[], None]) -> None:
        """Copy the memories of the cores that a stopped job uses to DRAM; ``saved()``: the machine is free.

        A core's bytes lie at ``address`` plus its number times the bytes of a core. Raises AddressError.
        """
        areas = self._context(stepper, address)

        def done() -> None:
            for core, area in areas:
                area[: self.memory.sram_bytes] = self.memory.sram[core]
                area[self.memory.sram_bytes :] = self.memory.acc[core]
            self.leave(stepper)
            saved()

        self._move_context(stepper, SAVE, done)

    def restore(self, stepper: Stepper, address: int, restored: Callable[[], None]) -> None:
        """The way back: give the machine to a parked job and copy its bytes into the cores' memories."""
        areas = self._context(stepper, address)
        self.current = stepper
        stepper.join_link()

        def done() -> None:
            for core, area in areas:
                self.memory.sram[core][:] = area[: self.memory.sram_bytes]
                self.memory.acc[core][:] = area[self.memory.sram_bytes :]
            restored()

        self._move_context(stepper, RESTORE, done)

    def leave(self, player: Player) -> None:
        """Take a job off the machine, if it is there; what it has on the link is dropped."""
        if self.current is player:
            player.leave_link()
            self.link.clear()
            self.constants_link.clear()
            self.current = None

    def _context(self, stepper: Stepper, address: int) -> list[tuple[int, ByteArray]]:
        """The area of each core that the job uses."""
        size = self.memory.sram_bytes + self.memory.acc_bytes
        return [(core, self.memory.slice(address + core * size, size)) for core in stepper.cores]

    def _move_context(self, stepper: Stepper, kind: str, done: Callable[[], None]) -> None:
        """The DRAM's latency, then the bytes at the rate that the DMA channels of these cores reach together."""
        count = len(stepper.cores)
        size = count * (self.memory.sram_bytes + self.memory.acc_bytes)
        rate = max(count, 1) * self.config.dma.channels * self.fabric.channel_rate
        begin = self.clock.now

        def flowed() -> None:
            if not stepper.over:
                stepper.moved_context(kind, begin, size)
                done()

        self.clock.after(
            self.fabric.latency_ps, lambda _: None if stepper.over else self.link.start(size, rate, flowed)
        )

    def drop(self, player: Player) -> None:
        """End a job where it is, on the machine or parked, without a word to whoever waits for it."""
        player.abandon()
        self.leave(player)
