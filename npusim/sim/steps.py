"""From the bytes of a program to the steps that the units take: decoded, verified and priced once per program.

Of what this process has compiled the steps are known without that, as long as nobody executes them (ADR 0033).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from npusim.errors import NpusimError
from npusim.hw.config import Config
from npusim.hw.cost import ahead_ps, cost_model, depths
from npusim.isa._stream import steps
from npusim.isa.base import Command, Instruction, Unit, decode, of_unit, unit_name
from npusim.isa.control import Residents
from npusim.isa.emitted import emitted
from npusim.isa.verify import verify
from npusim.limits import limits_of
from npusim.sim.fabric import Fabric
from npusim.timeline import Span
from npusim.work import ControlWork, DmaWork, MatrixWork, Port, ScalarWork, VectorWork, Work

HALT = -1
"""``Step.engine`` of the command that ends the job."""


@dataclass(frozen=True, slots=True)
class CommandCost:
    """What a command costs, which depends on its work alone. Times in ps, sizes in bytes.

    ``fixed_ps`` passes first, longer if other units of the core want the SRAM too, of which this one takes ``share``
    (see :mod:`npusim.sim.banks`); then, if ``bus_bytes``, that many bytes flow over the link to DRAM at no more than
    ``rate`` bytes a second, or over another ``link``. ``alone_ps`` is the whole duration when nobody else uses SRAM and
    memories. Of a unit that looks ahead ``ahead_ps``, the first part of ``fixed_ps``, may pass while it still works on
    older commands; for the first ``front_ps`` of all no other one begins.
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
        """What bound a command that took so long: a memory, if what others cost it there is the largest part."""
        if taken_ps == self.alone_ps:
            return self.bound
        if not self.bus_bytes:
            return "memory" if taken_ps >= 2 * self.alone_ps else self.bound
        # What has passed while an older transfer still flowed is latency; what came on top, the others' bytes.
        moving = self.alone_ps - self.fixed_ps
        longer = max(0, taken_ps - self.alone_ps)
        return "memory" if moving + longer >= taken_ps - longer - moving else self.bound


NOTHING = CommandCost(0, 0)
"""Halting takes no time of its own."""


@dataclass(slots=True, eq=False)
class Step:
    """One command, ready to run. ``engine`` is an index into :attr:`UnitLayout.names`."""

    engine: int
    waits: tuple[tuple[int, int], ...]
    charge: CommandCost
    begin: int  # byte offsets of the command in the stream: for messages,
    end: int  # and to know when it has been fetched
    core: int
    op: int
    instruction: Instruction
    rank: int = 0  # of its transfer among others, by need

    @property
    def kind(self) -> str:
        return self.instruction.mnemonic

    def span(self, unit: str, start_ps: int, end_ps: int) -> Span:
        """What it leaves in the timeline."""
        charge = self.charge
        return Span(
            unit, start_ps, end_ps, self.op, self.instruction.mnemonic, charge.macs, charge.bytes,
            charge.bound_in(end_ps - start_ps), charge.reads + charge.writes,
        )  # fmt: skip


@dataclass(slots=True, eq=False)
class Steps:
    """The steps of a stream. ``prologue``: how many of them, the first, load residents, in ``prologue_bytes`` of the
    stream; ``sram_bytes``: what those fill."""

    all: Sequence[Step]
    prologue: int = 0
    prologue_bytes: int = 0
    sram_bytes: int = 0

    def body(self) -> list[Step]:
        """The steps of a job whose residents are there: what loads them counts as complete and is not fetched."""
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
    """Rank transfers by need: by where the first command stands that waits for one, or for one behind it in its
    channel."""
    queues: list[list[Step]] = [[] for _ in range(engines)]
    needs: list[list[int]] = [[] for _ in range(engines)]
    end = steps[-1].end if steps else 0
    for step in steps:
        for number, count in step.waits:
            needs[number][count - 1] = min(needs[number][count - 1], step.begin)
        if step.engine != HALT:
            queues[step.engine].append(step)
            needs[step.engine].append(end)
    for queue, wanted in zip(queues, needs, strict=True):
        need = end
        for step, at in zip(reversed(queue), reversed(wanted), strict=True):
            step.rank = need = min(need, at)


class UnitLayout:
    """The units of a device in a fixed order: per core matrix, vector, scalar where present, then the DMA channels.

    ``depths``: how many commands each may have begun at once.
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
    """A program is refused. Arguments: byte offset of the command in the stream, explanation."""

    def __init__(self, offset: int, explanation: str, /) -> None:
        super().__init__(offset, explanation)
        self.offset = offset
        self.explanation = explanation


class _Draft:
    """Steps as far as a stream has come, ``end`` bytes; ``step`` makes one of a command and the bytes where it begins
    and ends."""

    def __init__(self, step: Callable[[Command, int, int], Step]) -> None:
        self._step = step
        self._steps: list[Step] = []
        self.made = Steps(self._steps)
        self.end = self._over = 0

    def add(self, command: Command, end: int) -> None:
        """The next command, which ends at a byte."""
        made = self.made
        if isinstance(command.instruction, Residents):  # for the sequencer, which reads it as it fetches
            self._over = end + command.instruction.stream_bytes
            made.prologue_bytes, made.sram_bytes = self._over - end, command.instruction.sram_bytes
        else:
            self._steps.append(self._step(command, self.end, end))
            made.prologue += end <= self._over
        self.end = end


class StepDecoder:
    """Makes the steps of programs for one device; looks at each distinct piece of work once."""

    def __init__(self, config: Config, layout: UnitLayout, fabric: Fabric) -> None:
        self._config = config
        self._layout = layout
        self._fabric = fabric
        self._cost = cost_model(config).cost
        self._charges: dict[Work, CommandCost] = {}

    def steps(self, stream: bytes, region_bytes: Sequence[int]) -> Steps:
        """The steps of a stream. Raises RefusedError for what cannot be decoded or breaks a rule of ``isa.verify``."""
        draft = _Draft(self._step)

        def checked() -> Iterator[Command]:
            for command in decode(stream):
                yield command  # comes back here when verify has passed it
                draft.add(command, draft.end + command.size)

        try:
            verify(checked(), limits_of(self._config, region_bytes))
        except NpusimError as error:
            raise InvalidProgramError(draft.end, str(error)) from None
        return self._ranked(draft.made)

    def known(self, stream: bytes, region_bytes: Sequence[int]) -> Steps | None:
        """The steps of a stream that the compiler of this process has written for such a device, not to be executed:
        neither decoded nor verified. None for any other. Raises RefusedError for a routine that is gone since."""
        found = emitted(stream, limits_of(self._config, region_bytes))
        if found is None:
            return None
        if not any(type(command.instruction) is Residents for command in found.commands):
            # What is refused is said below: there it is known where.
            with contextlib.suppress(NpusimError):
                return self._ranked(Steps(steps(found.commands, found.ends, self._layout.index, self._charged, Step)))
        draft = _Draft(self._step)
        try:
            for command, end in zip(found.commands, found.ends, strict=True):
                draft.add(command, end)
        except NpusimError as error:
            raise InvalidProgramError(draft.end, str(error)) from None
        return self._ranked(draft.made)

    def _ranked(self, steps: Steps) -> Steps:
        if self._config.interconnect.arbitration == "need":  # nobody else asks
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
                fixed, alone, bus_bytes, rate, bytes=work.bytes, reads=work.reads, writes=work.writes,
                bound=price.bound, link=link, ahead_ps=ahead, front_ps=front,
            )  # fmt: skip
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
