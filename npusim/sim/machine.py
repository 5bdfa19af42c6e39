"""The machine behind the registers: clock, memories, the link to DRAM, and the job that has it all to itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from npusim.hw.config import Config
from npusim.program import CONSTANTS
from npusim.sim.adversary import Adversary
from npusim.sim.context import ContextMove
from npusim.sim.fast_forward import FastForward, foresee
from npusim.sim.job import Attempt, MachineJob, attempt
from npusim.sim.memory import JobMemory
from npusim.sim.parts import Parts
from npusim.sim.replayer import Course, Replayer
from npusim.sim.stepper import RESTORE, SAVE, Stepper
from npusim.sim.steps import Step, StepDecoder, Steps
from npusim.timeline import NO_OP

COURSES_KEPT = 32
"""Programs whose decoded form stays in the host's memory, the most recently used ones."""

MEMORIES_KEPT = 64
"""Views of regions that stay made: a program runs again and again in the same ones."""

Player = Stepper | Replayer | FastForward
"""What carries a job through the machine."""


class _Courses:
    """The courses of jobs that load residents and, if there are any, of those that find them in SRAM."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.has_residents = steps.prologue > 0
        self.whole = Course(steps.all)

    @cached_property
    def layers(self) -> int:
        """How many layers of a network there are commands for."""
        return len({step.op for step in self._steps.all if step.op != NO_OP})

    @cached_property
    def body(self) -> Course:
        return Course(self._steps.body())

    def course(self, *, held: bool) -> Course:
        """How a job goes that finds the residents in SRAM, or does not."""
        return self.body if held else self.whole


class DecodedProgram:
    """A program. Raises RefusedError for one that breaks a rule; what the compiler of this process has written is
    decoded and verified when a job computes, and only then."""

    def __init__(self, decoder: StepDecoder, code: bytes, sizes: tuple[int, ...]) -> None:
        self._decoder, self.code, self.sizes = decoder, code, sizes
        known = decoder.known(code, sizes)
        self._timed = _Courses(known) if known is not None else self.verified

    @cached_property
    def verified(self) -> _Courses:
        """What may be executed."""
        return _Courses(self._decoder.steps(self.code, self.sizes))

    @property
    def layers(self) -> int:
        """How many layers of a network its commands are for."""
        return self._timed.layers

    def courses(self, *, arithmetic: bool) -> _Courses:
        """How jobs of it go, with or without what they compute."""
        if arithmetic:
            self._timed = self.verified  # which serves both
        return self._timed


@dataclass(frozen=True, slots=True)
class Residents:
    """What is in SRAM: what the prologue of a program has loaded, from constants at a place, which jobs of a number
    say that they share. ``computed``: its bytes are there, too; a job without arithmetic moves none."""

    program: DecodedProgram
    constants: tuple[int, int]
    number: int
    computed: bool

    def serve(self, wanted: Residents) -> bool:
        """Whether a job that wants residents finds them."""
        same = self.program is wanted.program and self.constants == wanted.constants and self.number == wanted.number
        return same and (self.computed or not wanted.computed)


@dataclass(slots=True, eq=False)
class Ending:
    """What comes when a job has ended: it leaves the machine, and ``left`` in SRAM, then ``done(player)``."""

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
        """The time of an access to so many bytes of control data in DRAM."""
        self.decoded = lru_cache(COURSES_KEPT)(lambda code, sizes: DecodedProgram(decoder, code, sizes))
        memory = self.memory
        self.memory_of = lru_cache(MEMORIES_KEPT)(lambda regions: JobMemory(memory, regions))
        self.current: Player | None = None
        """What has the machine: a job that runs, or whose context is on the way."""
        self.moving: ContextMove | None = None
        """The context that is on its way."""
        self.residents: Residents | None = None
        """What the next job may find in SRAM."""

    def loading_ps(self, job: MachineJob) -> int:
        """How long instructions of a job are on the way before it can begin, beside those of its stream.

        Raises as :meth:`start`.
        """
        each = self.config.layer_bytes
        size = each * self._decoded_of(job).layers if each else 0
        return self.control_ps(size) if size else 0

    def start(self, job: MachineJob, done: Callable[[Player], None]) -> Player:
        """Begin a job; ``done(player)`` is called when it has ended and left the machine.

        Raises RefusedError for a bad program, AddressError for regions outside of DRAM.
        """
        if self.watchers:
            for watcher in self.watchers[:]:
                watcher.job_begins(job)
        # By the bytes, not by the address: software may write another program to the same place.
        program, memory = self._decoded_of(job), self.memory_of(job.regions)
        courses = program.courses(arithmetic=job.arithmetic)
        found, left = self.residents, None
        if courses.has_residents and job.residents:
            left = Residents(program, job.regions[CONSTANTS], job.residents, job.arithmetic)
            job.held = found is not None and found.serve(left)
            left = found if job.held else left
        # Whoever runs writes where it likes. Only a job that comes to its end, and had the machine to itself, leaves
        # what it has loaded: nobody need know what a fault, an abort or another job in between has done.
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
        """Let go what is remembered of programs: machines are held by others in a circle, and so that would wait until
        Python looks for such."""
        self.decoded.cache_clear()
        self.memory_of.cache_clear()
        self.current = None
        self.forget_residents()

    def forget_residents(self) -> None:
        """Whatever the next job finds in SRAM, it loads its own."""
        self.residents = None

    def _decoded_of(self, job: MachineJob) -> DecodedProgram:
        code = self.memory.slice(job.code, job.code_bytes)
        return self.decoded(code.tobytes(), tuple([size for _, size in job.regions]))

    def _foreseeable(self, job: MachineJob, course: Course) -> bool:
        """Whether a job will go as the last one of its program, and nobody can look before its end."""
        # The lead is compared, too: a doorbell that came while the device was busy shifts what follows it.
        # Where the record lies may be elsewhere, too.
        assert course.timeline is not None
        on_time = self.clock.now - job.started_ps == course.lead_ps
        on_time = on_time and course.lead_ps + course.length_ps + job.tail_ps == course.timeline.time_ps
        if not on_time or self.step_watchers or self.adversary:
            return False
        return self.clock.is_quiet(course.length_ps)

    def _fast_forward(self, job: MachineJob, course: Course, ended: Callable[[Player], None]) -> FastForward | None:
        """Who plays a job that only times from what it will do; None if somebody watches, or if there is something
        else to come. Whoever looks meanwhile sees nothing of a job that computes nothing; who
        interferes has it step by step, see :meth:`step_by_step`."""
        if self.step_watchers or self.adversary:
            return None
        found = foresee(self, course, self.clock.now - job.started_ps)
        if found is None or not self.clock.is_empty(found.length_ps):
            return None
        return FastForward(self, job, course, found, ended)

    def step_by_step(self, player: Player) -> Player:
        """The same job where it is now; one that goes in one go from now on by steps, so that it can be stopped."""
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
        """What a job computes, to be done any number of times while nothing else happens; it gives False for a fault.
        None if the course of such jobs is not known, or depends on what was before, or if somebody
        watches."""
        program = self._decoded_of(job)
        courses = program.verified
        course = courses.whole
        if course.timeline is None or courses.has_residents or self.watchers or self.adversary:
            return None
        self.forget_residents()
        memory, order = self.memory_of(job.regions), course.order
        return lambda: all(attempt(memory, job, step) is None for step in order)

    @property
    def context_bytes(self) -> int:
        """What one job can have in the memories of all cores."""
        return self.config.cores * (self.memory.sram_bytes + self.memory.acc_bytes) + self.memory.l2_bytes

    def save(self, stepper: Stepper, address: int, saved: Callable[[Player], None]) -> None:
        """Copy the memories of the cores that a stopped job uses to DRAM; ``saved(stepper)``: the machine is free.

        A core's bytes lie at ``address`` plus its number times the bytes of a core. Raises AddressError.
        """
        self.move(stepper, SAVE, address, saved).begin()

    def restore(self, stepper: Stepper, address: int, restored: Callable[[Player], None]) -> None:
        """The way back: give the machine to a parked job and copy its bytes into the cores' memories."""
        move = self.move(stepper, RESTORE, address, restored)
        self.forget_residents()
        self.current = stepper
        stepper.join_link()
        move.begin()

    def move(self, stepper: Stepper, kind: str, address: int, told: Callable[[Player], None]) -> ContextMove:
        """The context of a job, which is to be on its way."""
        self.moving = ContextMove(self, stepper, kind, address, self._moved, told)
        return self.moving

    def _moved(self, move: ContextMove) -> None:
        self.moving = None
        if move.kind == SAVE:
            self.leave(move.stepper)
        move.told(move.stepper)

    def leave(self, player: Player) -> None:
        """Take a job off the machine, if it is there; what it has on the link is dropped."""
        if self.current is player:
            player.leave_link()
            for link in self.links.values():
                link.clear()
            self.current = self.moving = None

    def drop(self, player: Player) -> None:
        """End a job where it is, on the machine or parked, without a word to whoever waits for it."""
        player.abandon()
        self.leave(player)
