"""Build a command stream from a graph and a schedule, for one core or several."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, takewhile
from typing import Any

from npusim.compiler.buffers import Buffer
from npusim.compiler.codegen.issue import Item, Scheduler, Tile
from npusim.compiler.grouping.groups import Group, form_groups, join_ranges
from npusim.compiler.lower.base import (
    ConstantPool,
    Context,
    Lowering,
    Pinned,
    SlotTable,
    TooManyError,
    facts_of,
    sram_budget,
)
from npusim.compiler.lower.matrix import MatrixLowering
from npusim.compiler.schedule.attention import form_attention
from npusim.compiler.schedule.cascade import Cascade
from npusim.compiler.schedule.core_plan import choose_cascades, choose_cuts, plan_shards
from npusim.compiler.schedule.dram import by_l2
from npusim.compiler.schedule.entries import check_entries, find_areas, find_runs, tensor_names
from npusim.compiler.schedule.exchange import CoreTransfer, sent_tiles
from npusim.compiler.schedule.layout import place
from npusim.compiler.schedule.memory_choices import MemoryChoices
from npusim.compiler.schedule.memory_plan import MemoryPlan, plan_memory
from npusim.compiler.schedule.names import LayerNames
from npusim.compiler.schedule.schedule import (
    BY_USE,
    DRAM,
    L2,
    OPERANDS_FIRST,
    ROLLING,
    SCRATCHPAD,
    LayerCascade,
    LayerShard,
    PinnedLayer,
    Schedule,
    TensorMemory,
)
from npusim.compiler.schedule.scratchpad import Fitted, ScheduleStep, fit_in_turn
from npusim.compiler.schedule.sharding import Shards, make_shards
from npusim.compiler.schedule.slots import Span
from npusim.compiler.schedule.tile_streams import Tiles, receive, shared_out, stripes_of_cores
from npusim.errors import CompileError, ScheduleError
from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.hw.memory import align
from npusim.isa.base import Command
from npusim.ops.budget import Budget
from npusim.program import FIRST_IO, OpEntry


@dataclass(slots=True)
class ProgramPlan:
    """Everything about a program that is decided before its commands are made.

    ``schedule``: the constraints. ``context``: shared by all cores, for the device that is planned for. That may have
    fewer cores and channels than the device that will execute the program.
    """

    schedule: Schedule
    graph: Graph
    context: Context
    groups: list[Group]
    shards: Shards
    layout: MemoryPlan
    constants: str
    """The order of the constants, one of ``ORDERS``."""
    names: dict[Buffer, str]
    """The names of the tensors between operators, by the buffers of all cores."""

    def complete(self) -> Schedule:
        """Return the schedule with every choice filled in. Building it gives the same program without a search."""
        asked, device, pinned = self.schedule, self.device, self.context.pinned
        layers = LayerNames(self.groups)
        return Schedule(
            cores=device.cores,
            channels=device.dma.channels,
            backing=asked.backing or DRAM,
            exchange=self.shards.passes if self.shards.are_cut else device.exchange is not None,
            large_tiles=pinned.large_tiles,
            constants=self.constants,
            fused_attention=self.attentions,
            shards=self.layer_shards,
            cascades=self.layer_cascades,
            memory=tuple(self._memory()),
            pinned=tuple(PinnedLayer(layers.names[group], start) for group, start in sorted(pinned.starts.items())),
            search=frozenset(),
        )

    def _memory(self) -> Iterator[TensorMemory]:
        """The memory areas of all tensors between operators."""
        found: dict[str, TensorMemory] = {}
        for buffer in self.layout.buffers:
            name = self.names.get(buffer)
            if name is None or not buffer.nbytes:
                continue
            # Cores may differ in whether their slice fits into the L2. Values in scratchpads may also pass through it.
            if name not in found or (buffer.in_l2 and found[name].area != SCRATCHPAD):
                area = SCRATCHPAD if buffer.on_chip else L2 if buffer.in_l2 else DRAM
                found[name] = TensorMemory(name, area, buffer.offset if buffer.on_chip else None)
        for step in self.layout.steps:
            for rolling in step.cascade.between if step.cascade else ():
                name = self.names[self.layout.whole_buffer(rolling.value.tensor)]
                found[name] = TensorMemory(name, ROLLING)
        yield from found.values()

    @property
    def estimated_ps(self) -> int:
        """The sum of the estimates of all steps on the first core, in picoseconds, without transfers between cores and
        without layers whose tiles several cores share."""
        costs, shards = self.layout.costs, self.shards.shards
        steps = (each for each in self.layout.steps if not self.shards.are_cut or shards[each.groups[0].index])
        return costs.total(steps) or 0 if costs is not None else 0

    @property
    def attentions(self) -> tuple[str, ...]:
        """The first layers of the fused attention blocks."""
        return tuple(group.name for group in self.groups if group.parts)

    @property
    def layer_cascades(self) -> tuple[LayerCascade, ...]:
        """The cascades, with the names of their layers."""
        layers = LayerNames(self.groups).names
        return tuple(_layer_cascade(step.cascade, layers) for step in self.layout.steps if step.cascade)

    @property
    def layer_shards(self) -> tuple[LayerShard, ...]:
        """How cores divide the layers that are cut or that not all cores work on."""
        names, cores = LayerNames(self.groups).names, self.device.cores
        return tuple(
            LayerShard(name, cut.axis, 0 if cut.cores == cores else cut.cores, cut.halo)
            for name, cut in zip(names, self.shards.cuts, strict=True)
            if cut.axis is not None or cut.cores < cores
        )

    @property
    def device(self) -> Config:
        """The device that is planned for."""
        return self.context.config


@dataclass(slots=True)
class Build:
    """The commands of a plan, and the sizes of its regions in bytes.

    ``fitted``: the steps with work, with their lowerings and slots. ``prologue``: the number of commands at the start
    that load pinned weights.
    """

    plan: ProgramPlan
    commands: list[Command]
    sizes: tuple[int, ...]
    fitted: list[tuple[ScheduleStep, Fitted]]
    prologue: int = 0

    @property
    def groups(self) -> list[Group]:
        """The groups, in the order of the operator numbers in commands."""
        return self.plan.groups

    @property
    def layout(self) -> MemoryPlan:
        """The steps and memory areas."""
        return self.plan.layout

    @property
    def constants(self) -> ConstantPool:
        """The constants of the program."""
        return self.plan.context.constants

    @property
    def cores(self) -> int:
        """The number of cores with work."""
        return self.plan.device.cores

    @property
    def resident_bytes(self) -> int:
        """Bytes of pinned weights in the scratchpads of all cores, if the device keeps them between jobs."""
        if not self.plan.device.compiler.resident_weights:
            return 0
        accesses = (access for command in self.commands[: self.prologue] for access in command.instruction.accesses())
        return sum(access.high - access.low for access in accesses if access is not None and access.write)

    def entries(self) -> Iterator[OpEntry]:
        """The operators, in the order of the operator numbers in commands."""
        for group in self.groups:
            result = group.outputs[0]
            made = f"{result.dtype.label}{list(result.shape)}"
            yield OpEntry(group.name, group.kind, tuple([op.name for op in group.ops]), made)
        if self.prologue:
            yield OpEntry("resident weights", "load")

    @property
    def label(self) -> str:
        """A short description that distinguishes the program from other candidates."""
        asked = self.plan.schedule
        notes = ", planned for L2" if asked.backing == L2 else ""
        notes += f", on {asked.channels} channels" if asked.channels else ""
        striped = any(step.cascade for step in self.layout.steps)
        if self.plan.shards.are_cut:
            return f"{self.cores} cores, sharded{', cascades' if striped else ''}{notes}"
        alone = "one core, cascades" if striped else "one core, no cascades"
        return (f"{self.cores} cores" if self.cores > 1 else alone) + notes


def build(graph: Graph, config: Config, schedule: Schedule, budget: Budget) -> Build:
    """Build the program of a graph on a device. Choices that the schedule leaves open are planned.

    Raises ScheduleError for a schedule that cannot be built, CompileError if something does not fit.
    """
    return build_plan(make_plan(graph, config, schedule), config, budget)


def build_plan(plan: ProgramPlan, config: Config, budget: Budget) -> Build:
    """Build a program that :func:`make_plan` has planned for a device. Raises as :func:`build`."""
    graph, schedule = plan.graph, plan.schedule
    try:
        return Emission(plan, copy(budget)).finish()
    except CompileError:
        # Fused attention was expected to fit and does not, so try without. Pinned weights would belong to other groups.
        is_open = schedule.searches("fused_attention") and not schedule.pinned
        if not (is_open and any(group.parts for group in plan.groups)):
            raise
    plan = make_plan(graph, config, schedule.with_("fused_attention"))
    plan.schedule = schedule
    return Emission(plan, copy(budget)).finish()


def make_plan(graph: Graph, config: Config, schedule: Schedule, facts: dict[Any, Any] | None = None) -> ProgramPlan:
    """Decide what a schedule leaves open. ``facts``: cached estimates of an earlier plan.

    Raises ScheduleError, CompileError.
    """
    device = planned_device(config, schedule)
    constants = ConstantPool(shares=any(op.kind == "repeat" for op in graph.ops))
    context = Context(device, constants, facts=facts_of(graph) if facts is None else facts)
    cut = device.cores > 1 and (schedule.searches("shards") or any(each.axis is not None for each in schedule.shards))
    groups, buffers = place(graph, form_all(graph, device, schedule), context)
    layers, names = LayerNames(groups), tensor_names(buffers)
    context.pinned = _pinned(schedule, layers, context)
    areas = find_areas(schedule, names, groups, context)
    runs = find_runs(schedule, layers, areas)
    cuts, order = choose_cuts(groups, context, schedule, runs, cut=cut)
    searched = device.compiler.may_cascade and schedule.searches("cascades")
    searched = searched and (device.cores == 1 or any(each.axis is not None for each in cuts))
    if not cut:
        order = schedule.constants or (OPERANDS_FIRST if device.cores == 1 else BY_USE)
    choices = MemoryChoices(searched, schedule.searches("memory"), cut or order == OPERANDS_FIRST, runs, areas)
    passes = schedule.exchange is not False
    if device.cores > 1 and cut and (searched or choices.cascade_runs) and not choices.are_complete:
        cuts, choices = choose_cascades(groups, buffers, context, cuts, choices, schedule)
    shards = make_shards(groups, context, cuts, passes=passes)
    if shards.are_cut:
        layout = plan_shards(groups, buffers, shards, choices, names)
    else:
        layout = plan_memory(groups, buffers, context, choices)
    plan = ProgramPlan(schedule, graph, context, groups, shards, layout, order, names)
    if schedule.has_entries:
        check_entries(schedule, plan.complete(), layers)
    return plan


def _pinned(schedule: Schedule, layers: LayerNames, context: Context) -> Pinned:
    """The addresses of pinned weights by group. They are at the end of the scratchpad."""
    starts = {layers.number(each.layer, "pinned"): each.offset or 0 for each in schedule.pinned}
    if not starts:
        return Pinned()
    # In the order in which they were placed: from the end downwards.
    ordered = dict(sorted(starts.items(), reverse=True))
    return Pinned(ordered, sram_budget(context.config) - min(starts.values()), bool(schedule.large_tiles))


def planned_device(config: Config, schedule: Schedule) -> Config:
    """The device restricted to what a schedule uses. Raises ScheduleError for resources that it lacks."""
    device, cores = config, schedule.cores or config.cores
    if cores > config.cores:
        raise ScheduleError(f"cores: must be at most {config.cores}, those of {config.name}, got {cores}")
    if schedule.backing == L2:
        near = by_l2(config)
        if near is None:
            raise ScheduleError(f"backing: must be {DRAM!r}, because {config.name} has no L2, got {L2!r}")
        device = near
    if schedule.exchange is False:
        device = replace(device, exchange=None)
    if not config.compiler.may_cascade and any(len(each.layers) > 1 for each in schedule.cascades):
        raise ScheduleError(f"cascades: must be empty, because the compiler of {config.name} makes none")
    channels = schedule.channels or device.dma.channels
    if channels > device.dma.channels:
        raise ScheduleError(f"channels: must be at most {device.dma.channels}, those of {config.name}, got {channels}")
    if (cores, channels) == (device.cores, device.dma.channels):
        return device  # the same object, which caches find without comparing all fields
    return replace(device, cores=cores, dma=replace(device.dma, channels=channels))


def form_all(graph: Graph, device: Config, schedule: Schedule) -> list[Group]:
    """The groups of a graph, with attention fused as the schedule says."""
    fuses = device.compiler.fuses
    facts, key = facts_of(graph), ("formed", device.cores == 1, fuses)
    known: list[Group] | None = facts.get(key)
    if known is None:
        known = facts[key] = _joined(form_groups(graph.ops, graph.outputs, fuses), device)
    # A fused attention begins and ends with a matrix product.
    searched = schedule.searches("fused_attention") and fuses == "all"
    if not (schedule.fused_attention or (searched and sum(op.kind == "matmul" for op in graph.ops) > 1)):
        return known
    groups = form_groups(graph.ops, graph.outputs, fuses)
    fused = form_attention(groups, graph.outputs, device, schedule.fused_attention, others=searched)
    return _joined(fused, device) if len(fused) < len(known) else known


def _joined(groups: list[Group], device: Config) -> list[Group]:
    # With several cores, each would only find the range of its own tiles.
    return join_ranges(groups) if device.cores == 1 else groups


def _layer_cascade(cascade: Cascade, layers: Sequence[str]) -> LayerCascade:
    names = tuple(layers[cascade.first : cascade.last + 1])
    loads = tuple(each.value.tensor.name for each in cascade.loaded)
    offsets = tuple(each.buffer.offset for each in cascade.rolling)
    return LayerCascade(names, cascade.height, cascade.apart, loads, offsets)


AHEAD = 24
"""With several cores, the number of steps considered together: constants of later ones load while the DRAM is idle."""


@dataclass(slots=True)
class Upcoming:
    """A step that is about to be issued.

    ``tiles``: groups whose constants can be loaded early, each with the tiles of every core; those of a cascade several
    times.
    """

    step: ScheduleStep
    fitted: Fitted | None
    turns: Iterator[tuple[Group, list[Iterable[Tile]]]]
    tiles: list[tuple[Group, list[Tiles]]] = field(default_factory=list)
    taken: list[Span] = field(init=False)
    """The bytes of the scratchpad that it uses."""

    def __post_init__(self) -> None:
        values = [(buffer.offset, buffer.offset + buffer.nbytes) for buffer in self.step.resident]
        self.taken = values + (self.fitted.taken() if self.fitted else [])


class Emission:
    """The commands of a plan, made on demand, so that the first of them can be compared with those of another plan."""

    def __init__(self, plan: ProgramPlan, budget: Budget) -> None:
        """Raises CompileError for a plan that does not fit into DRAM."""
        context, self._plan = plan.context, plan
        self._values = _region_bytes(plan.graph, context, plan.layout.scratch_bytes)
        # Before tiles are made for values that do not fit.
        _check_capacity(plan.graph, (0, *self._values), plan.device)
        self._fitted: list[tuple[ScheduleStep, Fitted]] = []
        self._scheduler = Scheduler(plan.device, budget)
        self._scheduler.alike.update(_alike(plan.groups))
        self._ahead = AHEAD if plan.device.cores > 1 and not plan.device.compiler.one_by_one else 1
        fits, self._prologue = self._fits(), 0
        if context.pinned.starts:  # pinned weights are loaded before anything else, so all lowerings are made first
            made = list(fits)
            fits = iter(made)
            shared: list[tuple[MatrixLowering, MatrixLowering]] = []
            loads = list(self._pinned_loads(made, shared))
            self._prologue = self._scheduler.prologue(len(plan.groups), loads)
            for lowering, other in shared:
                lowering.share_residents(other)
        self._issue = self._issued(fits)

    @property
    def steps(self) -> list[ScheduleStep]:
        """The steps of the plan."""
        return self._plan.layout.steps

    def until(self, group: int) -> list[Command]:
        """The commands up to a group, see :func:`commands_until`. Raises CompileError."""
        for reached in self._issue:
            if reached > group:
                break
        return commands_until(self._scheduler.commands, group)

    def finish(self) -> Build:
        """Return the whole program. Raises CompileError if it exceeds the device's memory or the budget."""
        for _ in self._issue:
            pass
        commands = self._scheduler.finish()
        sizes = (align(self._plan.context.constants.size), *self._values)
        _check_capacity(self._plan.graph, sizes, self._plan.device)
        return Build(self._plan, commands, sizes, self._fitted, self._prologue)

    def _fits(self) -> Iterator[_FittedStep]:
        """The steps in order, each with the lowerings of all cores; without lowerings if it has no work."""
        shards = self._plan.shards
        for step, fitted in fit_in_turn(self._plan.layout.steps, shards.fit, far=self._ahead > 1):
            yield step, fitted, shards.lowerings(step, fitted) if fitted else []

    def _issued(self, fits: Iterable[_FittedStep]) -> Iterator[int]:
        """Issue the steps in order. Yields the last group of each step after it has been issued."""
        born: dict[int, list[Buffer]] = {}
        waiting: Sequence[CoreTransfer] = ()
        for buffer in self._plan.layout.buffers:
            born.setdefault(buffer.born, []).append(buffer)
        left = iter(fits)
        upcoming = deque(self._upcoming(each) for each in islice(left, self._ahead))
        while upcoming:
            now = upcoming.popleft()
            for group in now.step.groups:
                for buffer in born.get(group.index, ()):
                    self._scheduler.born(buffer)
            between = None if self._ahead == 1 else partial(self._load_early, now, upcoming, [False])
            if now.fitted is not None:
                self._fitted.append((now.step, now.fitted))
                for group, streams in now.turns:
                    if waiting:
                        receive(streams, waiting)
                        waiting = ()
                    try:
                        self._scheduler.add(group.index, group.name, streams, between)
                    except TooManyError as error:
                        raise CompileError(f"{group.name} ({group.kind}): {error}") from None
            upcoming.extend(self._upcoming(each) for each in islice(left, 1))
            if self._ahead > 1:
                self._load_early(now, upcoming, [False])
            if now.fitted is not None:
                last = now.step.groups[-1].index
                waiting = self._plan.shards.transfers.get(last, ())
                yield last

    def _upcoming(self, fit: _FittedStep) -> Upcoming:
        step, fitted, lowerings = fit
        turns = self._turns(step, fitted, lowerings) if fitted else iter(())
        if fitted is None or (step.cascade is not None and self._ahead == 1):
            return Upcoming(step, fitted, turns)
        count, beside = 1, [()] if step.cascade is None else self._beside(fitted)
        if step.cascade is not None:  # the turns of the first stripe
            count = len(step.cascade.loaded) + 2 * len(step.groups)
        first: list[tuple[Group, list[Iterable[Tile]]]] = []
        found = []
        for group, streams in islice(turns, count):
            number = group.index - step.groups[0].index
            tiles = [Tiles(stream, beside[number]) for stream in streams]
            first.append((group, list[Iterable[Tile]](tiles)))
            found.append((group, tiles))
        return Upcoming(step, fitted, chain(first, turns), found)

    @staticmethod
    def _beside(fitted: Fitted) -> list[list[Span]]:
        """For each lowering of a cascade, the bytes of the slots of all others."""
        numbers = range(len(fitted.specs))
        return [[span for other in numbers if other != each for span in fitted.taken_by(other)] for each in numbers]

    def _load_early(self, now: Upcoming, upcoming: Iterable[Upcoming], is_over: list[bool]) -> None:
        """Load constants of later steps while the DRAM is idle, if nothing uses the bytes of their slots until then.

        ``now``: the step that is being issued. ``is_over``: whether nothing is left to load during this step.
        """
        if is_over[0] or not self._scheduler.needs_early_loads():
            return
        used = now.taken[:]
        for later in upcoming:
            for group, streams in later.tiles:
                while True:
                    loads = [(core, tiles.constants(used)) for core, tiles in enumerate(streams)]
                    if not any(items for _, items in loads):
                        break
                    self._scheduler.load_early(group.index, group.name, loads)
                    if not self._scheduler.needs_early_loads():
                        return
            used += later.taken
        is_over[0] = True

    def _turns(
        self, step: ScheduleStep, fitted: Fitted, lowerings: Sequence[Sequence[Lowering]]
    ) -> Iterator[tuple[Group, list[Iterable[Tile]]]]:
        """The groups of a step in the order of their turns, each with a stream of tiles for every core."""
        first, shards = step.groups[0], self._plan.shards
        # All cores have the same slots at the same addresses of their own scratchpads; only the tiles differ.
        tables = [
            [SlotTable(core, specs, starts) for core in shards.cores_of(first)]
            for specs, starts in zip(fitted.specs, fitted.starts, strict=True)
        ]
        transfers = shards.transfers.get(step.groups[-1].index, ())
        if step.cascade is not None:
            yield from stripes_of_cores(step, lowerings, tables)
            if transfers:
                yield step.groups[-1], [sent_tiles(transfers, table.core) for table in tables[-1]]
        elif shards.shards[first.index] is None:
            yield first, shared_out(lowerings[0][0], tables[0])
        else:
            yield (
                first,
                [
                    chain(lowering.steps(table, 0, 1), sent_tiles(transfers, table.core))
                    for (lowering,), table in zip(lowerings, tables[0], strict=False)
                ],
            )

    def _pinned_loads(
        self, fits: Iterable[_FittedStep], shared: list[tuple[MatrixLowering, MatrixLowering]]
    ) -> Iterator[tuple[int, Iterable[Item]]]:
        """(core, loads) of the pinned weights, in the order of first use. ``shared``: gets the lowerings with the
        weights of an earlier one, and that one."""
        pinned, shards = self._plan.context.pinned, self._plan.shards
        first: dict[tuple[int, int], MatrixLowering] = {}  # by core and address
        for _, _, of_cores in fits:
            for number, lowering in ((core, each) for core, mine in enumerate(of_cores) for each in mine):
                if not isinstance(lowering, MatrixLowering) or lowering.group.index not in pinned.starts:
                    continue
                # The iterations of a loop have the same weights.
                other = first.setdefault((number, pinned.starts[lowering.group.index]), lowering)
                if other is not lowering:
                    shared.append((lowering, other))
                    continue
                if shards.shards[lowering.group.index] is not None:
                    yield number, lowering.residents(number, 0, 1)
                    continue
                cores = shards.cores_of(lowering.group)
                for core in cores:
                    yield core, lowering.residents(core, core, len(cores))


_FittedStep = tuple[ScheduleStep, Fitted | None, list[list[Lowering]]]


def _alike(groups: Sequence[Group]) -> Iterator[tuple[int, int]]:
    """Groups of the iterations of loops, each with that of two iterations before: every second one has the same
    addresses. The first three iterations are free: the first one finds other neighbours."""
    ends = [-1]
    for group in groups:
        if group.ops[0].kind != "repeat":
            continue
        ends.append(group.index)
        if group.ops[0].attrs["times"]:
            size = ends[-1] - ends[-2]
            yield from ((number, number - 2 * size) for number in range(ends[3] + 1, ends[-1] + 1) if len(ends) > 4)
            ends = ends[-1:]


def commands_until(commands: list[Command], group: int) -> list[Command]:
    """The commands before the first one of a later group. Loads run ahead, so some commands up to ``group`` may be
    missing."""
    return list(takewhile(lambda command: command.op <= group, commands))


def _region_bytes(graph: Graph, context: Context, scratch_bytes: int) -> tuple[int, ...]:
    """The sizes in bytes of the regions that follow the constants."""
    tensors = (*graph.inputs, *graph.outputs)
    # An output that shares the buffer of an input has no region of its own.
    io = {buffer.region: buffer for buffer in (context.view(tensor).buffer for tensor in tensors)}
    regions = range(FIRST_IO, FIRST_IO + len(tensors))
    return scratch_bytes, *(io[region].nbytes if region in io else 0 for region in regions)


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
