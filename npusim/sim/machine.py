"""The machine behind the registers: clock, memories, links, and the running job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from npusim.hw.config import Config
from npusim.program import CONSTANTS
from npusim.sim.adversary import Adversary
from npusim.sim.context import ContextMove
from npusim.sim.fast_forward import FastForward, foresee
from npusim.sim.job import Attempt, MachineJob
from npusim.sim.memory import JobMemory
from npusim.sim.parts import Parts
from npusim.sim.replayer import Course, Replayer
from npusim.sim.stepper import RESTORE, SAVE, Stepper
from npusim.sim.steps import Step, StepDecoder, Steps
from npusim.timeline import NO_OP

COURSES_KEPT = 32
"""Number of decoded programs that are kept, least recently used first out."""

MEMORIES_KEPT = 64
"""Number of region views that are kept, because programs run repeatedly in the same regions."""

Player = Stepper | Replayer | FastForward
"""Executes a job on the machine."""


class _Courses:
    """Timings of jobs that load pinned weights and of jobs that find them in SRAM."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.has_residents = steps.prologue > 0
        self.whole = Course(steps.all)

    @cached_property
    def layers(self) -> int:
        """The number of network layers in the program."""
        return len({step.op for step in self._steps.all if step.op != NO_OP})

    @cached_property
    def body(self) -> Course:
        return Course(self._steps.body())

    def course(self, *, held: bool) -> Course:
        """The timing of a job that finds the pinned weights in SRAM, or does not."""
        return self.body if held else self.whole


class DecodedProgram:
    """A decoded program. Raises InvalidProgramError if it breaks a rule. Programs compiled by this process are only
    decoded and verified when a job computes."""

    def __init__(self, decoder: StepDecoder, code: bytes, sizes: tuple[int, ...]) -> None:
        self._decoder, self.code, self.sizes = decoder, code, sizes
        known = decoder.known(code, sizes)
        self._timed = _Courses(known) if known is not None else self.verified

    @cached_property
    def verified(self) -> _Courses:
        """The verified steps."""
        return _Courses(self._decoder.steps(self.code, self.sizes))

    @property
    def layers(self) -> int:
        """The number of network layers in the program."""
        return self._timed.layers

    def courses(self, *, arithmetic: bool) -> _Courses:
        """Timings of its jobs, with or without arithmetic."""
        if arithmetic:
            self._timed = self.verified  # which serves both
        return self._timed


@dataclass(frozen=True, slots=True)
class Residents:
    """The weights that are pinned in SRAM.

    Set by the prologue of a job: its program, the address of its constants, and the number that software gave it. Jobs
    with the same values need not load the weights again. ``computed``: their bytes were loaded, not only their time
    simulated.
    """

    program: DecodedProgram
    constants: tuple[int, int]
    number: int
    computed: bool

    def serve(self, wanted: Residents) -> bool:
        """Whether a job finds its pinned weights in SRAM."""
        same = self.program is wanted.program and self.constants == wanted.constants and self.number == wanted.number
        return same and (self.computed or not wanted.computed)


@dataclass(slots=True, eq=False)
class Ending:
    """Callback at the end of a job: the job leaves the machine, its pinned weights stay in SRAM, then
    ``done(player)``."""

    machine: Machine
    program: DecodedProgram
    left: Residents | None
    done: Callable[[Player], None]

    def __call__(self, player: Player) -> None:
        self.machine.leave(player)
        self.machine.residents = self.left if player.fault is None and not player.preemptions else None
        self.done(player)


class Machine(Parts):
    """A device without its registers. Deterministic: the same calls give the same events at the same picoseconds."""

    def __init__(self, config: Config, adversary: Adversary | None = None, *, shared_memory: bool = False) -> None:
        super().__init__(config, adversary, shared_memory=shared_memory)
        fabric, decoder = self.fabric, StepDecoder(config, self.layout, self.fabric)
        self.control_ps = lru_cache(64)(lambda size: fabric.latency_ps + fabric.flow_ps(size))
        """Time in ps of an access to control data of ``size`` bytes in DRAM."""
        self.decoded = lru_cache(COURSES_KEPT)(lambda code, sizes: DecodedProgram(decoder, code, sizes))
        memory = self.memory
        self.memory_of = lru_cache(MEMORIES_KEPT)(lambda regions: JobMemory(memory, regions))
        self.current: Player | None = None
        """The job that runs, or whose context is being moved."""
        self.moving: ContextMove | None = None
        """The context move under way."""
        self.residents: Residents | None = None
        """The weights that are pinned in SRAM."""

    def loading_ps(self, job: MachineJob) -> int:
        """Time in ps to load instructions that are not part of the stream, before a job can begin.

        Raises as :meth:`start`.
        """
        each = self.config.compiler.layer_bytes
        size = each * self._decoded_of(job).layers if each else 0
        return self.control_ps(size) if size else 0

    def start(self, job: MachineJob, done: Callable[[Player], None]) -> Player:
        """Start a job; ``done(player)`` is called when it has ended and left the machine.

        Raises InvalidProgramError for a bad program, AddressError for regions outside of DRAM.
        """
        if self.watchers:
            for watcher in self.watchers[:]:
                watcher.job_begins(job)
        # Looked up by bytes, not by address, because software may write another program to the same address.
        program, memory = self._decoded_of(job), self.memory_of(job.regions)
        courses = program.courses(arithmetic=job.arithmetic)
        found, left = self.residents, None
        if courses.has_residents and job.residents:
            left = Residents(program, job.regions[CONSTANTS], job.residents, job.arithmetic)
            job.held = found is not None and found.serve(left)
            left = found if job.held else left
        # A running job may overwrite SRAM. Only a job that ends normally without preemption leaves its weights pinned.
        self.residents = None
        course = courses.course(held=job.held)
        ended = Ending(self, program, left, done)
        known: Mapping[Step, Attempt] = {}
        if course.timeline is not None and self._foreseeable(job, course):
            self.current = replayer = Replayer(self, job, memory, course, ended)
            known = replayer.begin()
            if not known:
                return replayer
        elif not job.arithmetic and (player := self._fast_forward(job, course, ended)) is not None:
            self.current = player
            player.begin()
            return player
        self.current = stepper = Stepper(self, job, memory, course.steps, ended, course.learn, known)
        stepper.sequencer.begin()
        return stepper

    def forget(self) -> None:
        """Drop cached programs. They refer back to the machine, so they would only be freed by the garbage
        collector."""
        self.decoded.cache_clear()
        self.memory_of.cache_clear()
        self.current = None
        self.forget_residents()

    def forget_residents(self) -> None:
        """Make the next job load its weights."""
        self.residents = None

    def _decoded_of(self, job: MachineJob) -> DecodedProgram:
        code = self.memory.slice(job.code, job.code_bytes)
        return self.decoded(code.tobytes(), tuple([size for _, size in job.regions]))

    def _foreseeable(self, job: MachineJob, course: Course) -> bool:
        """Whether a job will have the timing of the previous one of its program, and nobody can look before its end."""
        # The lead must be equal too: a doorbell during a busy time shifts what follows. The record may have another
        # address.
        assert course.timeline is not None
        on_time = self.clock.now - job.started_ps == course.lead_ps
        on_time = on_time and course.lead_ps + course.length_ps + job.tail_ps == course.timeline.time_ps
        if not on_time or self.step_watchers or self.adversary:
            return False
        return self.clock.is_quiet(course.length_ps)

    def _fast_forward(self, job: MachineJob, course: Course, ended: Callable[[Player], None]) -> FastForward | None:
        """A fast-forward for a job that is only timed; None if somebody watches or other events are pending. Such a job
        has no visible effects before its end; when needed it is executed by steps, see :meth:`step_by_step`."""
        if self.step_watchers or self.adversary:
            return None
        found = foresee(self, course, self.clock.now - job.started_ps)
        if found is None or not self.clock.is_empty(found.length_ps):
            return None
        return FastForward(self, job, course, found, ended)

    def step_by_step(self, player: Player) -> Player:
        """The same job at the current time, executed event by event from now on, so that it can be stopped."""
        if not isinstance(player, FastForward) or player.over:
            return player
        made: list[Stepper] = []

        def begin() -> None:
            made.append(player.stepper(self.memory_of(player.job.regions)))
            made[0].sequencer.begin()

        player.abandon()
        self.clock.relive(player.begun_ps, begin)
        self.current = made[0]
        return made[0]

    def arithmetic(self, job: MachineJob) -> Callable[[], bool] | None:
        """A function that repeats the arithmetic of a job while nothing else happens; it returns False for a fault.
        None if the timing of such jobs is not known or depends on earlier jobs, or if somebody watches."""
        program = self._decoded_of(job)
        courses = program.verified
        course = courses.whole
        if course.timeline is None or courses.has_residents or self.watchers or self.adversary:
            return None
        self.forget_residents()
        memory = self.memory_of(job.regions)
        return lambda: not course.compute(memory, job)

    @property
    def context_bytes(self) -> int:
        """Bytes of one job in the memories of all cores."""
        return self.config.cores * (self.memory.sram_bytes + self.memory.acc_bytes) + self.memory.l2_bytes

    def save(self, stepper: Stepper, address: int, saved: Callable[[Player], None]) -> None:
        """Copy the memories of the cores that a stopped job uses to DRAM; ``saved(stepper)`` is called when the machine
        is free.

        The bytes of a core are at ``address`` plus its number times the bytes of a core. Raises AddressError.
        """
        self.move(stepper, SAVE, address, saved).begin()

    def restore(self, stepper: Stepper, address: int, restored: Callable[[Player], None]) -> None:
        """Inverse of :meth:`save`: make a parked job the current one and copy its context back."""
        move = self.move(stepper, RESTORE, address, restored)
        self.forget_residents()
        self.current = stepper
        stepper.join_link()
        move.begin()

    def move(self, stepper: Stepper, kind: str, address: int, told: Callable[[Player], None]) -> ContextMove:
        """A context move of a job, not started yet."""
        self.moving = ContextMove(self, stepper, kind, address, self._moved, told)
        return self.moving

    def _moved(self, move: ContextMove) -> None:
        self.moving = None
        if move.kind == SAVE:
            self.leave(move.stepper)
        move.told(move.stepper)

    def leave(self, player: Player) -> None:
        """Remove a job from the machine and drop its transfers, if it is there."""
        if self.current is player:
            player.leave_link()
            for link in self.links.values():
                link.clear()
            self.current = self.moving = None

    def drop(self, player: Player) -> None:
        """End a running or parked job without calling ``done``."""
        player.abandon()
        self.leave(player)
