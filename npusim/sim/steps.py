"""Decodes, verifies and prices the bytes of a program once: the steps that the units execute.

Programs compiled by this process need not be decoded as long as they are not executed (ADR 0033).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from npusim.errors import NpusimError
from npusim.hw.config import Config
from npusim.hw.cost import ahead_ps, cost_model, depths
from npusim.isa._stream import steps
from npusim.isa.base import Command, Instruction, Unit, decode, of_unit, unit_name
from npusim.isa.control import Residents
from npusim.isa.emitted import emitted
from npusim.isa.repeat import Repeat, blocks
from npusim.isa.verify import RefusedCommandError, verify
from npusim.limits import limits_of
from npusim.sim.fabric import Fabric
from npusim.timeline import Span
from npusim.work import ControlWork, DmaWork, MatrixWork, Port, ScalarWork, VectorWork, Work

HALT = -1
"""``Step.engine`` of the command that ends the job."""


@dataclass(frozen=True, slots=True)
class CommandCost:
    """The cost of a command, which depends on its work alone. Times in ps, sizes in bytes.

    First ``fixed_ps`` pass, or longer if other units of the core use SRAM too, of whose bandwidth this command uses
    ``share`` (see :mod:`npusim.sim.banks`). Then ``bus_bytes`` bytes, if any, flow over the link to DRAM, or another
    ``link``, at no more than ``rate`` bytes/s. ``alone_ps``: total time if nothing else uses SRAM and memories. On a
    unit with look-ahead, ``ahead_ps``, the first part of ``fixed_ps``, may overlap older commands; no other command
    begins during its first ``front_ps``.
    """

    fixed_ps: int
    alone_ps: int
    bus_bytes: int = 0
    rate: int = 0
    share: int = 0
    macs: int = 0
    bytes: int = 0
    reads: int = 0
    writes: int = 0
    bound: str = "latency"
    link: Port = Port.DRAM
    ahead_ps: int = 0
    front_ps: int = 0

    def bound_in(self, taken_ps: int) -> str:
        """The bottleneck of a command that took ``taken_ps``: a memory, if waiting for others is the largest part."""
        if taken_ps == self.alone_ps:
            return self.bound
        if not self.bus_bytes:
            return "memory" if taken_ps >= 2 * self.alone_ps else self.bound
        # Time that overlapped an older transfer is latency; additional time is caused by the bytes of others.
        moving = self.alone_ps - self.fixed_ps
        longer = max(0, taken_ps - self.alone_ps)
        return "memory" if moving + longer >= taken_ps - longer - moving else self.bound


NOTHING = CommandCost(0, 0)
"""The cost of the command that halts."""


@dataclass(slots=True, eq=False)
class Step:
    """One decoded command. ``engine``: an index into :attr:`UnitLayout.names`."""

    engine: int
    waits: tuple[tuple[int, int], ...]
    charge: CommandCost
    begin: int  # byte offset of the command in the stream, for messages
    end: int  # bytes that have been fetched when it is complete; a repeated block is fetched again
    core: int
    op: int
    instruction: Instruction
    rank: int = 0  # priority of its transfer: the position at which it is needed

    @property
    def kind(self) -> str:
        return self.instruction.mnemonic

    def span(self, unit: str, start_ps: int, end_ps: int) -> Span:
        """Its span for the timeline."""
        charge = self.charge
        return Span(
            unit,
            start_ps,
            end_ps,
            self.op,
            self.instruction.mnemonic,
            charge.macs,
            charge.bytes,
            charge.bound_in(end_ps - start_ps),
            charge.reads + charge.writes,
        )


@dataclass(slots=True, eq=False)
class Steps:
    """The steps of a stream. ``prologue``: number of steps at the start that load pinned weights, in ``prologue_bytes``
    bytes of the stream. ``sram_bytes``: size of these weights."""

    all: Sequence[Step]
    prologue: int = 0
    prologue_bytes: int = 0
    sram_bytes: int = 0

    def body(self) -> list[Step]:
        """The steps of a job whose weights are pinned already: the prologue counts as complete and is not fetched."""
        complete = Counter(step.engine for step in self.all[: self.prologue])
        return [
            replace(
                step,
                waits=tuple([(unit, count - complete[unit]) for unit, count in step.waits if count > complete[unit]]),
                end=step.end - self.prologue_bytes,
            )
            for step in self.all[self.prologue :]
        ]


def _set_ranks(steps: Sequence[Step], engines: int) -> None:
    """Rank transfers by need: by the position of the first command that waits for one, or for a later one of its
    channel."""
    queues: list[list[Step]] = [[] for _ in range(engines)]
    needs: list[list[int]] = [[] for _ in range(engines)]
    end = steps[-1].end if steps else 0
    begin = 0
    for step in steps:
        for number, count in step.waits:
            needs[number][count - 1] = min(needs[number][count - 1], begin)
        if step.engine != HALT:
            queues[step.engine].append(step)
            needs[step.engine].append(end)
        begin = step.end
    for queue, wanted in zip(queues, needs, strict=True):
        need = end
        for step, at in zip(reversed(queue), reversed(wanted), strict=True):
            step.rank = need = min(need, at)


class UnitLayout:
    """The units of a device in a fixed order: per core matrix, vector, scalar if present, then the DMA channels.

    ``depths``: how many commands each unit may have begun at once.
    """

    def __init__(self, config: Config) -> None:
        parts = {Unit.MATRIX: config.matrix, Unit.VECTOR: config.vector, Unit.SCALAR: config.scalar}
        present = [unit for unit, part in parts.items() if part is not None]
        units: list[int] = [*present, *(Unit.DMA + channel for channel in range(config.dma.channels))]
        pairs = [(core, unit) for core in range(config.cores) for unit in units]
        self.index = {pair: number for number, pair in enumerate(pairs)}
        self.names = tuple(unit_name(core, unit) for core, unit in pairs)
        each = depths(config)
        self.depths = tuple([of_unit(unit, each) for _, unit in pairs])


class InvalidProgramError(Exception):
    """A program is invalid. Arguments: byte offset of the command in the stream, explanation."""

    def __init__(self, offset: int, explanation: str, /) -> None:
        super().__init__(offset, explanation)
        self.offset = offset
        self.explanation = explanation


def _expanded(commands: Sequence[Command], step: Callable[[Command, int, int], Step]) -> Steps:
    """The steps of a stream. ``step`` makes one from a command, its place in the stream, and the bytes that have been
    fetched when it is complete. Raises ProgramError for an invalid repetition.
    """
    made: list[Step] = []
    found = Steps(made)
    place = fetched = over = 0
    for each in blocks(commands):
        command, block = (each, None) if isinstance(each, Command) else each
        start, place = place, place + command.size
        fetched += command.size
        if block is not None:
            sizes = [one.size for one in block.commands]
            places = [place, *accumulate(sizes, initial=place)][1:]
            for iteration in range(block.times):
                for one, size, at in zip(block.iteration(iteration), sizes, places, strict=False):
                    fetched += size
                    made.append(step(one, at, fetched))
            place += sum(sizes)
        elif isinstance(command.instruction, Residents):  # for the sequencer, which handles it during the fetch
            over = fetched + command.instruction.stream_bytes
            found.prologue_bytes, found.sram_bytes = over - fetched, command.instruction.sram_bytes
        else:
            made.append(step(command, start, fetched))
            found.prologue += fetched <= over
    return found


class StepDecoder:
    """Makes the steps of programs for one device. Each distinct piece of work is priced once."""

    def __init__(self, config: Config, layout: UnitLayout, fabric: Fabric) -> None:
        self._config = config
        self._layout = layout
        self._fabric = fabric
        self._cost = cost_model(config).cost
        self._charges: dict[Work, CommandCost] = {}

    def steps(self, stream: bytes, region_bytes: Sequence[int]) -> Steps:
        """The steps of a stream. Raises InvalidProgramError for bytes that cannot be decoded or violate a rule of
        ``isa.verify``."""
        commands: list[Command] = []

        def decoded() -> Iterator[Command]:
            for command in decode(stream):
                commands.append(command)
                yield command

        try:
            verify(decoded(), limits_of(self._config, region_bytes))
            return self._ranked(_expanded(commands, self._step))
        except NpusimError as error:
            number = error.index if isinstance(error, RefusedCommandError) else len(commands)
            offset = sum(command.size for command in commands[:number])
            raise InvalidProgramError(offset, str(error)) from None

    def known(self, stream: bytes, region_bytes: Sequence[int]) -> Steps | None:
        """The steps of a stream compiled by this process for such a device, neither decoded nor verified, and not to be
        executed. None for other streams. Raises InvalidProgramError for a routine that was removed since."""
        found = emitted(stream, limits_of(self._config, region_bytes))
        if found is None:
            return None
        if not any(type(command.instruction) in (Residents, Repeat) for command in found.commands):
            # The error is raised below, with its position.
            with contextlib.suppress(NpusimError):
                return self._ranked(Steps(steps(found.commands, found.ends, self._layout.index, self._charged, Step)))
        reached = 0

        def step(command: Command, place: int, end: int) -> Step:
            nonlocal reached
            reached = place
            return self._step(command, place, end)

        try:
            return self._ranked(_expanded(found.commands, step))
        except NpusimError as error:
            raise InvalidProgramError(reached, str(error)) from None

    def _ranked(self, steps: Steps) -> Steps:
        if self._config.interconnect.arbitration == "need":  # ranks are not used otherwise
            _set_ranks(steps.all, len(self._layout.names))
        return steps

    def _step(self, command: Command, begin: int, end: int) -> Step:
        instruction = command.instruction
        work = instruction.asked()
        if isinstance(work, ControlWork):
            return Step(HALT, (), NOTHING, begin, end, 0, command.op, instruction)
        index = self._layout.index
        engine = index[command.core, command.unit]
        waits = tuple([(index[core, unit], count) for core, unit, count in command.waits if count])
        return Step(engine, waits, self._charged(work), begin, end, command.core, command.op, instruction)

    def _charged(self, work: Work) -> CommandCost:
        charge = self._charges.get(work)
        if charge is None:
            charge = self._charges[work] = self._charge(work)
        return charge

    def _charge(self, work: Work) -> CommandCost:
        if isinstance(work, ControlWork):
            return NOTHING
        price = self._cost(work)
        if isinstance(work, DmaWork) and not work.is_local:
            fixed, bus_bytes, rate, ahead, front = self._fabric.transfer(work)
            link = self._fabric.link(work)
            alone = fixed + self._fabric.flow_ps(bus_bytes, rate, link)
            return CommandCost(
                fixed,
                alone,
                bus_bytes,
                rate,
                bytes=work.bytes,
                reads=work.reads,
                writes=work.writes,
                bound=price.bound,
                link=link,
                ahead_ps=ahead,
                front_ps=front,
            )
        ahead, front = ahead_ps(self._config, work, price)
        if isinstance(work, DmaWork):
            ahead = front = min(price.ps, self._fabric.front_ps)
        return CommandCost(
            price.ps,
            price.ps,
            share=price.share,
            macs=work.macs if isinstance(work, MatrixWork) else 0,
            bytes=work.bytes if isinstance(work, DmaWork | VectorWork | ScalarWork) else 0,
            bound=price.bound,
            ahead_ps=ahead,
            front_ps=front,
        )
