"""One order of execution: from groups and the homes of their values to a command stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import chain, islice, product, takewhile

from npusim.compiler.buffers import Buffer
from npusim.compiler.codegen.issue import Item, Scheduler, Tile
from npusim.compiler.grouping.groups import Group, form_groups, join_ranges
from npusim.compiler.lower.base import ConstantPool, Context, Lowering, Pinned, SlotTable, TooManyError, facts_of
from npusim.compiler.lower.matrix import MatrixLowering
from npusim.compiler.schedule.attention import form_attention
from npusim.compiler.schedule.cascade import before_stripe, load_stripe
from npusim.compiler.schedule.exchange import giving
from npusim.compiler.schedule.layout import PlacedGraph, place
from npusim.compiler.schedule.memory_map import MemoryMap
from npusim.compiler.schedule.memory_plan import MemoryPlan, plan
from npusim.compiler.schedule.scratchpad import Fitted, ScheduleStep, fit, fit_in_turn
from npusim.compiler.schedule.sharding import Spread, spread
from npusim.compiler.schedule.step_costs import Known
from npusim.errors import CompileError
from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.hw.memory import align
from npusim.isa.base import Command
from npusim.ops.budget import Budget
from npusim.program import FIRST_IO, OpEntry


@dataclass(slots=True)
class Order:
    """A command stream, and what it works on: bytes of regions, constants, the groups that commands name, and what is
    where meanwhile. ``prologue``: how many commands, the first, load what stays in SRAM."""

    commands: list[Command]
    sizes: tuple[int, ...]
    constants: ConstantPool
    groups: list[Group]
    layout: MemoryPlan
    record: MemoryMap
    flows: bool
    prologue: int = 0
    spread: Spread | None = None
    """The parts of cores; None: tiles are shared out."""
    whole: bool = False
    """Of one core: values are whole where there might have been stripes."""
    near: bool = False
    """Planned as if all values were in L2."""
    channels: int = 0
    """Planned as if each core had so many channels; 0: all of them."""

    @property
    def parts(self) -> int:
        """Cores that have parts of their own; 0: tiles are shared out."""
        return self.spread.whole.config.cores if self.spread else 0

    @property
    def cores(self) -> int:
        """Those that have work."""
        return self.parts or self.record.context.config.cores

    @property
    def resident_bytes(self) -> int:
        """Of all cores together."""
        accesses = (access for command in self.commands[: self.prologue] for access in command.instruction.accesses())
        return sum(access.high - access.low for access in accesses if access is not None and access.write)

    def entries(self) -> Iterator[OpEntry]:
        """What the operator numbers of commands mean."""
        for group in self.groups:
            yield OpEntry(group.name, group.kind, tuple([op.name for op in group.ops]))
        if self.prologue:
            yield OpEntry("resident weights", "load")

    @property
    def label(self) -> str:
        """What distinguishes it from others, in words."""
        notes = ", for values in L2" if self.near else ""
        notes += f", on {self.channels} channels" if self.channels else ""
        if self.parts:
            return f"{self.parts} cores, parts of their own{notes}"
        cores = self.record.context.config.cores
        striped = any(step.cascade for step in self.layout.steps)
        return (f"{cores} cores" if cores > 1 else "one core, stripes" if striped else "one core, whole values") + notes


def another(
    graph: Graph,
    config: Config,
    budget: Budget,
    *,
    known: Known | None = None,
    flows: bool = True,
    pinned: Pinned | None = None,
) -> Order | None:
    """Another order; None if it takes more than there is."""
    try:
        return ordered(graph, config, copy(budget), known=known, flows=flows, pinned=pinned)
    except CompileError:
        return None


def ordered(
    graph: Graph,
    config: Config,
    budget: Budget,
    *,
    known: Known | None = None,
    flows: bool = True,
    pinned: Pinned | None = None,
) -> Order:
    """With what is ``known`` from an order with stripes: one without them. ``flows``: with those that fit."""
    groups = formed(graph, config, flows=False)
    # Every flow begins and ends with a product of matrices.
    flows = flows and sum(op.kind == "matmul" for op in graph.ops) > 1
    flowing = formed(graph, config, flows=True) if flows else groups
    if len(flowing) < len(groups):
        try:
            return Draft(graph, flowing, config, copy(budget), known, pinned, flows=True).finish()
        except CompileError:
            # They were thought to fit, and do not. What is known or pinned is of other groups then.
            if known is not None or pinned is not None:
                raise
    return Draft(graph, groups, config, budget, known, pinned, flows=False).finish()


def formed(graph: Graph, config: Config, *, flows: bool) -> list[Group]:
    if flows:
        return _joined(form_attention(form_groups(graph.ops, graph.outputs), graph.outputs, config), config)
    facts, key = facts_of(graph), ("formed", config.cores == 1)
    known: list[Group] | None = facts.get(key)
    if known is None:
        known = facts[key] = _joined(form_groups(graph.ops, graph.outputs), config)
    return known


def _joined(groups: list[Group], config: Config) -> list[Group]:
    # Each of several cores would find the range of its own tiles alone.
    return join_ranges(groups) if config.cores == 1 else groups


class Draft:
    """An order in the making: so far as it is made, it can be compared with another one."""

    def __init__(
        self, graph: Graph, groups: Sequence[Group], config: Config, budget: Budget, known: Known | None = None,
        pinned: Pinned | None = None, *, flows: bool,
    ) -> None:  # fmt: skip
        context = Context(config, ConstantPool(), pinned=pinned or Pinned(), facts=facts_of(graph))
        placement = place(graph, groups, context)
        self.layout = plan(placement, context, known)
        self._values = _region_bytes(graph, context, self.layout.scratch_bytes)
        _check_capacity(graph, (0, *self._values), config)  # before tiles are made of what fits nowhere
        self._graph, self._context, self._groups, self._flows = graph, context, placement.groups, flows
        self._record = MemoryMap(
            placement.groups, context, self.layout.alternatives, placement.buffers, self.layout.steps
        )
        self._scheduler = Scheduler(config, budget)
        fits, self._prologue = _fits(self.layout, context), 0
        if context.pinned.starts:  # all lowerings are made first: what stays is loaded before anything else
            made = list(fits)
            fits = iter(made)
            self._prologue = self._scheduler.prologue(len(placement.groups), list(_residents(made, context)))
        self._schedule = _schedule(self._scheduler, placement, fits, self._record)

    def until(self, group: int) -> list[Command]:
        """The commands for groups up to one, but for the last of them that wait for what comes behind: see
        :func:`until`. Raises CompileError."""
        for reached in self._schedule:
            if reached > group:
                break
        return until(self._scheduler.commands, group)

    def finish(self) -> Order:
        """The whole order. Raises CompileError if it takes more than there is."""
        for _ in self._schedule:
            pass
        commands = self._scheduler.finish()
        sizes = (align(self._context.constants.size), *self._values)
        _check_capacity(self._graph, sizes, self._context.config)
        return Order(
            commands, sizes, self._context.constants, self._groups, self.layout, self._record, self._flows,
            self._prologue,
        )  # fmt: skip


def until(commands: list[Command], group: int) -> list[Command]:
    """The commands in front of the first one for a group behind: loads run ahead of what is computed."""
    return list(takewhile(lambda command: command.op <= group, commands))


def _region_bytes(graph: Graph, context: Context, scratch_bytes: int) -> tuple[int, ...]:
    """The sizes of the regions behind that of constants."""
    tensors = (*graph.inputs, *graph.outputs)
    # An output that lies where an input does takes no region of its own.
    io = {buffer.region: buffer for buffer in (context.view(tensor).buffer for tensor in tensors)}
    regions = range(FIRST_IO, FIRST_IO + len(tensors))
    return scratch_bytes, *(io[region].nbytes if region in io else 0 for region in regions)


def in_parts(
    graph: Graph,
    config: Config,
    budget: Budget,
    *,
    axes: Sequence[int | None] | None = None,
    pinned: Pinned | None = None,
) -> Order | None:
    """The order in which every core has parts of its own; None if there is none, or if it takes more than there is.
    ``axes``: those of an order that is there, of whose parts some weights may be ``pinned``."""
    try:
        context = Context(config, ConstantPool(), pinned=pinned or Pinned(), facts=facts_of(graph))
        placement = place(graph, form_groups(graph.ops, graph.outputs), context)
        parts = spread(placement, context, axes)
        if parts is None:
            return None
        values = _region_bytes(graph, context, parts.scratch_bytes)
        _check_capacity(graph, (0, *values), config)
        first = parts.contexts[0]
        # Without a planner: what it could say of other homes is of the first core's parts alone.
        record = MemoryMap(placement.groups, first, None, placement.buffers, parts.layout.steps)
        commands, prologue = _schedule_spread(placement, parts, copy(budget), record)
        sizes = (align(context.constants.size), *values)
        _check_capacity(graph, sizes, config)
    except CompileError:
        return None
    return Order(
        commands, sizes, context.constants, placement.groups, parts.layout, record, flows=False, prologue=prologue,
        spread=parts,
    )  # fmt: skip


def _schedule_spread(
    placement: PlacedGraph, parts: Spread, budget: Budget, record: MemoryMap
) -> tuple[list[Command], int]:
    """The commands, and how many of them, the first, load what stays in SRAM."""
    scheduler = Scheduler(parts.whole.config, budget)
    born: dict[int, list[Buffer]] = {}
    for buffer in placement.buffers:
        born.setdefault(buffer.born, []).append(buffer)
    fits, prologue = _part_fits(parts), 0
    if parts.whole.pinned.starts:  # as in Draft
        made = list(fits)
        fits = iter(made)
        prologue = scheduler.prologue(len(placement.groups), list(_part_residents(made, parts)))
    for step, fitted, lowerings in fits:
        (group,) = step.groups
        for buffer in born.get(group.index, ()):
            scheduler.born(buffer)
        if fitted is None:
            continue
        record.add(step, fitted)
        tables = [SlotTable(core, fitted.specs[0], fitted.starts[0]) for core in range(parts.whole.config.cores)]
        if parts.parts[group.index] is None:
            streams = _streams(lowerings[0], tables)
        else:
            given = parts.gifts.get(group.index, ())
            streams = [
                chain(lowering.steps(table, 0, 1), giving(given, table.core))
                for lowering, table in zip(lowerings, tables, strict=False)
            ]
        try:
            scheduler.add(group.index, group.name, streams)
        except TooManyError as error:
            raise CompileError(f"{group.name} ({group.kind}): {error}") from None
    return scheduler.finish(), prologue


def _part_fits(parts: Spread) -> Iterator[tuple[ScheduleStep, Fitted | None, list[Lowering]]]:
    """The cores' lowerings of each step in turn, one for all if it is not cut; None where there is nothing to do."""
    for step, fitted in fit_in_turn(parts.layout.steps, parts.fit):
        yield step, fitted, parts.lowerings(step, fitted) if fitted else []


def _part_residents(
    fits: Iterable[tuple[ScheduleStep, Fitted | None, list[Lowering]]], parts: Spread
) -> Iterator[tuple[int, Iterable[Item]]]:
    """As :func:`_residents`: each core loads what its own part reads."""
    cores = range(parts.whole.config.cores)
    for _, _, lowerings in fits:
        for core, lowering in enumerate(lowerings):
            if not isinstance(lowering, MatrixLowering) or lowering.group.index not in parts.whole.pinned.starts:
                continue
            if parts.parts[lowering.group.index] is None:
                for each in cores:
                    yield each, lowering.residents(each, each, len(cores))
            else:
                yield core, lowering.residents(core, 0, 1)


def _schedule(
    scheduler: Scheduler, placement: PlacedGraph, fits: Iterable[tuple[ScheduleStep, Fitted | None]], record: MemoryMap
) -> Iterator[int]:
    """Issue one step after the other; the last group of each, when it has been."""
    cores = range(record.context.config.cores)
    born: dict[int, list[int]] = {}
    for number, buffer in enumerate(placement.buffers):
        born.setdefault(buffer.born, []).append(number)
    for step, fitted in fits:
        for group in step.groups:
            for number in born.get(group.index, ()):
                scheduler.born(placement.buffers[number])
        if fitted is None:
            continue
        record.add(step, fitted)
        # Every core has the same slots at the same addresses in its own SRAM; only the tiles differ.
        tables = [
            [SlotTable(core, specs, starts) for core in cores]
            for specs, starts in zip(fitted.specs, fitted.starts, strict=True)
        ]
        for group, streams in _turns(step, fitted, tables):
            try:
                scheduler.add(group.index, group.name, streams)
            except TooManyError as error:
                raise CompileError(f"{group.name} ({group.kind}): {error}") from None
        yield step.groups[-1].index


def _fits(layout: MemoryPlan, context: Context) -> Iterator[tuple[ScheduleStep, Fitted | None]]:
    """The lowerings of each step in turn; None where there is nothing to do."""
    return fit_in_turn(layout.steps, lambda step, low_end, avoid: fit(step, context, low_end, avoid))


def _residents(
    fits: Iterable[tuple[ScheduleStep, Fitted | None]], context: Context
) -> Iterator[tuple[int, Iterable[Item]]]:
    """(core, loads) of what stays in SRAM, in the order in which it is wanted."""
    for _, fitted in fits:
        for lowering in fitted.lowerings if fitted else ():
            if isinstance(lowering, MatrixLowering) and lowering.group.index in context.pinned.starts:
                for core in range(context.config.cores):
                    yield core, lowering.residents(core, core, context.config.cores)


def _turns(
    step: ScheduleStep, fitted: Fitted, tables: Sequence[Sequence[SlotTable]]
) -> Iterator[tuple[Group, list[Iterable[Tile]]]]:
    """What the groups of a step do, in order: a stream of steps for each core."""
    if step.cascade is None:
        yield step.groups[0], _streams(fitted.lowerings[0], tables[0])
        return
    for image, (stripe, rows) in product(range(step.cascade.images), enumerate(step.cascade.stripes)):
        moved = step.cascade.moved(stripe)
        # What the next stripe wants does not stand before what the first group of this one does: its weights, once.
        ahead: list[tuple[Group, list[Iterable[Tile]]]] = []
        for rolling in step.cascade.loaded:
            reader = step.groups[rolling.value.readers[0].reader]
            at_once, behind = load_stripe(step.cascade, rolling, image, stripe)
            ahead.append((reader, [behind]))
            yield reader, [at_once]
        for number, (first, end) in enumerate(rows[: len(step.groups)]):
            # Also where nothing is made: padding below the image may be wanted then.
            before = before_stripe(step.cascade, number, image, stripe)
            streams: list[Iterable[Tile]] = [before]
            if first < end:
                streams = _streams(fitted.lowerings[number].stripe(image, (first, end), moved), tables[number])
                if stripe:
                    yield step.groups[number], [before]
                else:
                    streams = [_with_loads(streams[0], before)]
            yield step.groups[number], streams
            if not number:
                yield from ahead


def _with_loads(steps: Iterable[Tile], before: Sequence[Tile]) -> Iterator[Tile]:
    """Steps that come after padding: it waits until its bytes are free, which what the first step loads does not."""
    left = iter(steps)
    first, *others = chain(islice(left, 1), before)
    for step in others:
        first.loads += step.loads
    yield first
    yield from left


def _streams(lowering: Lowering, tables: Sequence[SlotTable]) -> list[Iterable[Tile]]:
    return [lowering.steps(table, core, len(tables)) for core, table in enumerate(tables)]


def _check_capacity(graph: Graph, sizes: tuple[int, ...], config: Config) -> None:
    needed = sum(sizes)
    if config.constants is not None and sizes[0] > config.constants.bytes:
        raise CompileError(
            f"{graph.name}: has {sizes[0]} bytes of constants, {config.name} has {config.constants.bytes} for them"
        )
    if needed > config.dram.bytes:
        raise CompileError(
            f"{graph.name}: needs {needed} bytes of DRAM (constants {sizes[0]}, intermediate values {sizes[1]}), "
            f"{config.name} has {config.dram.bytes}"
        )
