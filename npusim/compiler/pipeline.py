"""Graph to Program: legalise, fuse, group, place, lower, schedule, emit, verify."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, product
from operator import itemgetter

from npusim._stream import tally
from npusim.compiler.decisions import Decision, decisions
from npusim.compiler.dynamic import dynamic_quantization
from npusim.compiler.exchange import giving
from npusim.compiler.flows import form_flows
from npusim.compiler.forecast import forecast
from npusim.compiler.fuse import fold_affine, integerize
from npusim.compiler.groups import VIEWS, Group, form_groups, join_ranges
from npusim.compiler.legalize import legalize, separate_outputs, unsupported
from npusim.compiler.lower.base import ConstantPool, Context, Lowering, Pinned, SlotTable, TooManyError, facts_of
from npusim.compiler.lower.matrix import MatrixLowering
from npusim.compiler.memory import Ends, Fitted, Known, Layout, Stretch, fit, plan
from npusim.compiler.narrow import narrow_weights
from npusim.compiler.outside import by_l2
from npusim.compiler.place import Placement, place
from npusim.compiler.prices import rewriting
from npusim.compiler.record import Record
from npusim.compiler.resident import body, candidates, choices
from npusim.compiler.schedule import Item, Scheduler, Tile
from npusim.compiler.settled import Settled
from npusim.compiler.shorten import shortened
from npusim.compiler.spread import Spread, spread
from npusim.compiler.state import growths
from npusim.compiler.stripes import before_stripe, load_stripe
from npusim.compiler.tile import acc_bytes
from npusim.compiler.values import Buffer, align
from npusim.dtypes import DType
from npusim.errors import CompileError, UnsupportedError
from npusim.graph import Graph, Op
from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.isa.base import Command, Unit
from npusim.isa.control import Residents
from npusim.isa.emitted import emit
from npusim.isa.verify import Limits
from npusim.ops.budget import COPIES, Budget
from npusim.ops.build import real_bytes
from npusim.program import FIRST_IO, Binding, ConstantData, OpEntry, Program
from npusim.work import DmaWork, MatrixWork


def compile_graph(graph: Graph | Settled, config: Config, key: str = "") -> Program:
    """Compile for one device; the same graph and config give the same bytes.

    Raises UnsupportedError for operators that the device has no unit for, CompileError for what does not fit.
    """
    # Collected again when all that the program was made of is gone: it is looked at no more.
    with uncollected():
        return _compiled(graph, config, key, None)[0]


@dataclass(slots=True)
class Explained:
    """A program, and why it became what it is. ``orders``: those that were compared, in words, with the picoseconds
    that they are forecast to take; the chosen one first."""

    program: Program
    decisions: list[Decision]
    orders: list[tuple[str, int]] = field(default_factory=list)


def explain_graph(graph: Graph, config: Config) -> Explained:
    """Compile as :func:`compile_graph` does, and say why values live where they do. Raises the same errors."""
    tried: list[tuple[int, _Order]] = []
    with uncollected():
        program, best = _compiled(graph, config, "", tried)
    tried = tried or [(forecast(best.commands, config), best)]
    orders = [(order.label, time) for time, order in sorted(tried, key=lambda pair: (pair[1] is not best, pair[0]))]
    return Explained(program, decisions(best.record), orders)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's search for cycles: what a compilation makes it keeps or lets go at once, and so much of it that
    the same objects would be looked at again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # The first of several threads switches it on again; the others then pay for it, no more.
        if enabled:
            gc.enable()


def _settled(settled: Settled, config: Config) -> tuple[Graph, Budget]:
    """As :func:`_prepared` gives it, remembered."""
    key = rewriting(config)
    if key not in settled.rewritten:
        if len(settled.rewritten) >= _MOST_REWRITTEN:
            settled.rewritten.clear()
        settled.rewritten[key] = _prepared(settled.graph, config)
    graph, budget = settled.rewritten[key]
    return graph, copy(budget)


_MOST_REWRITTEN = 8
"""Of one graph: then it is rewritten anew."""


def _prepared(graph: Graph, config: Config) -> tuple[Graph, Budget]:
    """The graph as it is compiled, and what is left of the budget."""
    budget = Budget.of(config)
    prepared = separate_outputs(prepare(graph, config, budget))
    budget.grant(operators=len(prepared.ops))
    prepared.cache_rows = graph.cache_rows
    return prepared, budget


def _compiled(
    given: Graph | Settled, config: Config, key: str, tried: list[tuple[int, _Order]] | None
) -> tuple[Program, _Order]:
    graph = given.graph if isinstance(given, Settled) else given
    # Taken before the rewriting, which may put other tensors in their place: a client binds by the model's names.
    names = tuple(tensor.name for tensor in graph.outputs)
    prepared, budget = _settled(given, config) if isinstance(given, Settled) else _prepared(graph, config)
    best = _best(prepared, config, budget, tried)
    if config.sram.resident_weights:
        best = _with_residents(prepared, config, budget, best)
    commands, sizes = _marked(best), best.sizes
    limits = Limits(
        sizes, config.sram.bytes, acc_bytes(config), config.cores, config.dma.channels, config.units,
        config.interconnect.multicast, config.dma.decoder_weights_per_cycle > 0, config.exchange is not None,
        config.l2.bytes if config.l2 else 0,
    )  # fmt: skip
    # Nothing is verified here: whoever executes a stream does that first, whoever has made it.
    emitted = emit(commands, limits)
    count = len(prepared.inputs)
    bindings = [
        Binding(name, FIRST_IO + index, tensor.shape, tensor.dtype)
        for index, (name, tensor) in enumerate(
            zip((*(t.name for t in prepared.inputs), *names), (*prepared.inputs, *prepared.outputs), strict=True)
        )
    ]
    for cache in growths(prepared):
        for number in (cache.source, count + cache.target):
            bindings[number] = replace(
                bindings[number], region=FIRST_IO + cache.source, axis=cache.axis, capacity=cache.capacity
            )
    program = Program(
        graph.name, config.name, config.fingerprint(), key, emitted.code,
        ConstantData(sizes[0], best.constants.pieces), sizes,
        tuple(bindings[:count]), tuple(bindings[count:]),
        tuple(best.entries()), len(commands), _macs(commands), graph.bound, best.resident_bytes,
        places=best.record.places(), emitted=emitted,
    )  # fmt: skip
    return program, best


@dataclass(slots=True)
class _Order:
    """A command stream, and what it works on: bytes of regions, constants, the groups that commands name, and what is
    where meanwhile. ``prologue``: how many commands, the first, load what stays in SRAM."""

    commands: list[Command]
    sizes: tuple[int, ...]
    constants: ConstantPool
    groups: list[Group]
    layout: Layout
    record: Record
    flows: bool
    prologue: int = 0
    spread: Spread | None = None
    """The parts of cores; None: tiles are shared out."""
    whole: bool = False
    """Of one core: values are whole where there might have been stripes."""
    near: bool = False
    """Planned as if all values were in L2."""

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
        near = ", for values in L2" if self.near else ""
        if self.parts:
            return f"{self.parts} cores, parts of their own{near}"
        cores = self.record.context.config.cores
        striped = any(stretch.segment for stretch in self.layout.stretches)
        return (f"{cores} cores" if cores > 1 else "one core, stripes" if striped else "one core, whole values") + near


def _best(graph: Graph, config: Config, budget: Budget, tried: list[tuple[int, _Order]] | None = None) -> _Order:
    """The order that is done first, by forecast. Few cores may be faster than many: they share one DRAM, and have as
    many pieces of work to wait for; one alone may go by stripes, and there whole values may be faster than stripes."""
    short = shortened(graph) if config.cores > 1 else None
    if short is not None:
        like = _again(_best(short, config, copy(budget)), graph, budget)
        if like is not None:
            return like
    best, near = _ordered(graph, config, copy(budget)), by_l2(config)
    if config.cores == 1 and not best.layout.is_close and near is None:
        return best
    orders = [(forecast(best.commands, config), best)]
    alone: _Order | None = best
    if config.cores > 1:
        orders += _on_fewer(graph, config, budget, orders[0][0])
        alone = _other(graph, replace(config, cores=1), budget)
    if alone is not None and alone is not best:
        orders.append((forecast(alone.commands, config), alone))
    # Of one core the last is the first, too: either way it is the forecast of the order on one core.
    if alone is not None and alone.layout.is_close and _may_be_whole(alone.layout, orders[-1][0]):
        whole = _other(graph, replace(config, cores=1), budget, known=alone.layout.known, flows=alone.flows)
        if whole is not None:
            whole.whole = True
            orders.append((forecast(whole.commands, config), whole))
    if near is not None:
        for order in (_other(graph, near, budget), _spread(graph, near, budget) if config.cores > 1 else None):
            if order is not None:
                order.near = True
                orders.append((forecast(order.commands, config), order))
    if tried is not None:
        tried.extend(orders)
    return _first(orders, config)


def _may_be_whole(layout: Layout, striped_ps: int) -> bool:
    """Whether whole values may take no longer than stripes, which are forecast to take so long."""
    return layout.whole_ps * 100 <= striped_ps * (100 + _WHOLE_PERCENT)


_WHOLE_PERCENT = 20
"""Estimates of whole values may be so much above their forecast: sums of layers, which do not see that neighbours
overlap. Variants of ``edge``: ResNet-50 and MobileNetV2 have 6 to 17 %. YOLO has 30 %, of stripes as well: see
``memory``, which leaves orders of near estimates to their forecasts."""


def _again(chosen: _Order, graph: Graph, budget: Budget) -> _Order | None:
    """The order of a graph that is like the one chosen for a shorter one; None if it takes more than there is."""
    like = chosen.record.context.config
    if chosen.parts:
        return _spread(graph, replace(like, cores=chosen.parts), budget)
    order = _other(graph, like, budget)
    if order is not None and chosen.whole and order.layout.is_close:
        return _other(graph, like, budget, known=order.layout.known, flows=order.flows)
    return order


def _first(orders: Sequence[tuple[int, _Order]], config: Config) -> _Order:
    """The order of least time; of those on as many cores that are near, the one of least traffic.

    What is best on some cores is so whatever others there are, and the best of these is taken by time alone: so a
    device with more cores has no slower order than one with fewer.
    """
    best: dict[int, tuple[int, _Order]] = {}
    for cores in dict.fromkeys(order.cores for _, order in orders):
        alike = [(ps, order) for ps, order in orders if order.cores == cores]
        # Forecasts as near as this say nothing about time; traffic they know to the byte.
        limit = min(ps for ps, _ in alike) * (1000 + _SLACK) // 1000
        near = [(_traffic(order.commands[order.prologue :], config), ps, order) for ps, order in alike if ps <= limit]
        best[cores] = min(near, key=itemgetter(0, 1))[1:]
    return min(best.values(), key=itemgetter(0))[1]


def _with_residents(graph: Graph, config: Config, budget: Budget, plain: _Order) -> _Order:
    """The order whose inferences after the first are done first, by forecast; ``plain``: without residents."""
    seen = plain.spread.whole.config if plain.spread else plain.record.context.config
    axes = plain.spread.axes if plain.spread else None
    config = replace(config, cores=seen.cores)
    best, least, most = plain, forecast(plain.commands, config), Pinned()

    def made(pinned: Pinned) -> _Order | None:
        if plain.spread:
            return _spread(graph, seen, budget, axes, pinned)
        return _other(graph, seen, budget, flows=plain.flows, pinned=pinned)

    def try_(pinned: Pinned) -> bool:
        """Whether this is better than the best so far, or near to it and moves less."""
        nonlocal best, least, most
        order = made(pinned)
        if order is None:
            return False
        later = forecast(body(order.commands, order.prologue), config)
        if _first([(later, order), (least, best)], config) is not order:
            return False
        best, least, most = order, later, pinned
        return True

    context = Context(seen, ConstantPool(), facts=facts_of(graph))
    for number, pinned in enumerate(choices(candidates(_may_stay(graph, plain, config, context)), context)):
        # Where more of them are slower than fewer, still more will be; the fewest may be slower than none.
        if not try_(pinned) and number:
            break
    if most.starts:
        try_(replace(most, large_tiles=True))
    return best


def _may_stay(graph: Graph, plain: _Order, config: Config, context: Context) -> list[tuple[Group, Context]]:
    """The groups whose weights may stay, as the first core has them."""
    if plain.spread is None:
        # All values in DRAM: homes are chosen anew beside what stays.
        placement = place(graph, _formed(graph, config, flows=plain.flows), context)
        return [(group, context) for group in placement.groups]
    return plain.spread.firsts(plain.groups)


def _marked(order: _Order) -> list[Command]:
    """The commands, with a mark in front if some of them load residents."""
    if not order.prologue:
        return order.commands
    size = sum(command.size for command in order.commands[: order.prologue])
    mark = Residents(size, order.resident_bytes)
    return [Command(0, Unit.CONTROL, order.commands[0].op, (), mark), *order.commands]


_SLACK = 4
"""In thousandths."""


def _traffic(commands: Sequence[Command], config: Config) -> int:
    """Bytes past the pins of the DRAM."""
    model = cost_model(config)
    works = [(command.instruction.asked(), times) for command, times in tally(commands)]
    return sum(times * model.dram_bytes(work) for work, times in works if isinstance(work, DmaWork))


def _on_fewer(graph: Graph, config: Config, budget: Budget, shared: int) -> Iterator[tuple[int, _Order]]:
    """Orders with their forecasts: parts for all cores or for fewer of them, tiles shared out among fewer.

    ``shared``: the forecast where the tiles are shared out among all.
    """
    risen = 0
    for count in sorted({config.cores, *filter(lambda count: count < config.cores, _COUNTS)}, reverse=True):
        fewer = replace(config, cores=count)
        # What is exchanged takes room and time: it may be less than what goes by DRAM, or more.
        for each in (fewer, replace(fewer, exchange=None)) if config.exchange else (fewer,):
            parts = _spread(graph, each, budget)
            if parts is not None:
                yield forecast(parts.commands, config), parts
        # Where fewer cores are slower than more, still fewer are, but for numbers that divide a layer badly. Of parts
        # that is not true: they may fit into the SRAM of so many cores only.
        if (
            risen < _MOST_RISEN
            and count < config.cores
            and count in _SHARED
            and (order := _other(graph, fewer, budget)) is not None
        ):
            predicted = forecast(order.commands, config)
            yield predicted, order
            risen, shared = (0, predicted) if predicted < shared else (risen + 1, shared)


_MOST_RISEN = 2
"""So many numbers of cores in turn that are slower than more are the last on which tiles are shared out."""
_SHARED = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
_COUNTS = (*range(2, 9), *_SHARED[5:])
"""Numbers of cores that one with more looks at, too: so that it is not slower for having them."""


def _other(
    graph: Graph,
    config: Config,
    budget: Budget,
    *,
    known: Known | None = None,
    flows: bool = True,
    pinned: Pinned | None = None,
) -> _Order | None:
    """Another order; None if it takes more than there is."""
    try:
        return _ordered(graph, config, copy(budget), known=known, flows=flows, pinned=pinned)
    except CompileError:
        return None


def _ordered(
    graph: Graph,
    config: Config,
    budget: Budget,
    *,
    known: Known | None = None,
    flows: bool = True,
    pinned: Pinned | None = None,
) -> _Order:
    """With what is ``known`` from an order with stripes: one without them. ``flows``: with those that fit."""
    groups = _formed(graph, config, flows=False)
    # Every flow begins and ends with a product of matrices.
    flows = flows and sum(op.kind == "matmul" for op in graph.ops) > 1
    flowing = _formed(graph, config, flows=True) if flows else groups
    if len(flowing) < len(groups):
        try:
            return _planned(graph, flowing, config, copy(budget), known, pinned, flows=True)
        except CompileError:
            # They were thought to fit, and do not. What is known or pinned is of other groups then.
            if known is not None or pinned is not None:
                raise
    return _planned(graph, groups, config, budget, known, pinned, flows=False)


def _formed(graph: Graph, config: Config, *, flows: bool) -> list[Group]:
    groups = form_groups(graph.ops, graph.outputs)
    if flows:
        groups = form_flows(groups, graph.outputs, config)
    # Each of several cores would find the range of its own tiles alone.
    return join_ranges(groups) if config.cores == 1 else groups


def _planned(
    graph: Graph, groups: Sequence[Group], config: Config, budget: Budget, known: Known | None, pinned: Pinned | None,
    *, flows: bool,
) -> _Order:  # fmt: skip
    context = Context(config, ConstantPool(), pinned=pinned or Pinned(), facts=facts_of(graph))
    placement = place(graph, groups, context)
    layout = plan(placement, context, known)
    values = _region_bytes(graph, context, layout.scratch_bytes)
    _check_capacity(graph, (0, *values), config)  # before tiles are made of what fits nowhere
    record = Record(placement.groups, context, layout.planner, placement.buffers, layout.stretches)
    commands, prologue = _schedule(placement, layout, context, budget, record)
    sizes = (align(context.constants.size), *values)
    _check_capacity(graph, sizes, config)
    return _Order(commands, sizes, context.constants, placement.groups, layout, record, flows, prologue)


def _region_bytes(graph: Graph, context: Context, scratch_bytes: int) -> tuple[int, ...]:
    """The sizes of the regions behind that of constants."""
    tensors = (*graph.inputs, *graph.outputs)
    # An output that lies where an input does takes no region of its own.
    io = {buffer.region: buffer for buffer in (context.view(tensor).buffer for tensor in tensors)}
    regions = range(FIRST_IO, FIRST_IO + len(tensors))
    return scratch_bytes, *(io[region].nbytes if region in io else 0 for region in regions)


def _spread(
    graph: Graph,
    config: Config,
    budget: Budget,
    axes: Sequence[int | None] | None = None,
    pinned: Pinned | None = None,
) -> _Order | None:
    """The order in which every core has parts of its own; None if there is none, or if it takes more than there is.
    ``axes``: of an order that is there; of its parts some weights may be ``pinned``."""
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
        record = Record(placement.groups, first, None, placement.buffers, parts.layout.stretches)
        commands, prologue = _schedule_spread(placement, parts, copy(budget), record)
        sizes = (align(context.constants.size), *values)
        _check_capacity(graph, sizes, config)
    except CompileError:
        return None
    return _Order(
        commands, sizes, context.constants, placement.groups, parts.layout, record, flows=False, prologue=prologue,
        spread=parts,
    )  # fmt: skip


def _schedule_spread(placement: Placement, parts: Spread, budget: Budget, record: Record) -> tuple[list[Command], int]:
    """The commands, and how many of them, the first, load what stays in SRAM."""
    scheduler = Scheduler(parts.whole.config, budget)
    born: dict[int, list[Buffer]] = {}
    for buffer in placement.buffers:
        born.setdefault(buffer.born, []).append(buffer)
    fits, prologue = _parts_of(parts), 0
    if parts.whole.pinned.starts:  # all lowerings are made first: what stays is loaded before anything else
        made = list(fits)
        fits = iter(made)
        prologue = scheduler.prologue(len(placement.groups), list(_residents_of(made, parts)))
    for stretch, fitted, lowerings in fits:
        (group,) = stretch.groups
        for buffer in born.get(group.index, ()):
            scheduler.born(buffer)
        if fitted is None:
            continue
        record.add(stretch, fitted)
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


def _parts_of(parts: Spread) -> Iterator[tuple[Stretch, Fitted | None, list[Lowering]]]:
    """The cores' lowerings of each stretch in turn, of one that is not cut one for all; None where there is nothing
    to do."""
    ends = Ends(parts.layout.stretches)
    for number, stretch in enumerate(parts.layout.stretches):
        if stretch.is_empty:
            yield stretch, None, []
            continue
        fitted = ends.fit(number, partial(parts.fit, stretch))
        yield stretch, fitted, parts.lowerings(stretch, fitted)


def _residents_of(
    fits: Iterable[tuple[Stretch, Fitted | None, list[Lowering]]], parts: Spread
) -> Iterator[tuple[int, Iterable[Item]]]:
    """As :func:`_residents`, of the cores' own parts."""
    cores = parts.whole.config.cores
    for _, _, lowerings in fits:
        for core, lowering in enumerate(lowerings):
            if isinstance(lowering, MatrixLowering) and lowering.group.index in parts.whole.pinned.starts:
                if parts.parts[lowering.group.index] is None:
                    for each in range(cores):
                        yield each, lowering.residents(each, each, cores)
                else:
                    yield core, lowering.residents(core, 0, 1)


def _macs(commands: Sequence[Command]) -> tuple[tuple[DType, int], ...]:
    totals: dict[DType, int] = {}
    for command, times in tally(commands):
        work = command.instruction.asked()
        if isinstance(work, MatrixWork):
            totals[work.dtype] = totals.get(work.dtype, 0) + times * work.macs
    return tuple(sorted(totals.items()))


def prepare(graph: Graph, config: Config, budget: Budget | None = None) -> Graph:
    """The graph as it is tiled: legal for the device, fused; its reference is the truth for integer results.

    Raises UnsupportedError naming every operator that the device cannot execute, and why; CompileError for one whose
    result is larger than the device, or that wants more than the budget.
    """
    budget = budget or Budget.of(config)
    _check_sizes(graph, config, budget)
    prepared = _rewritten(graph, config, budget)
    reasons = [(op.name, op.kind, reason) for op, reason in unsupported(prepared, config)]
    if reasons:
        raise UnsupportedError(reasons)
    return prepared


def _check_sizes(graph: Graph, config: Config, budget: Budget) -> None:
    """Refuse what rules and lowerings would write out only to find that it fits nowhere."""
    readers = {tensor: f"{op.name} ({op.kind})" for op in graph.ops for tensor in op.inputs if tensor is not None}
    for tensor in graph.constants():
        # A few bytes that a view repeats become as many as they seem when they are packed as a constant.
        copied = tensor.nbytes - real_bytes(tensor)
        budget.take_bytes(copied // COPIES, readers.get(tensor, tensor.name))
    for op in graph.ops:
        values = () if op.kind in VIEWS else (*op.inputs, *op.outputs)
        for value in values:
            if value is not None and value.data is None and value.size > config.dram.bytes:
                raise CompileError(
                    f"{op.name} ({op.kind}): {value.name!r} {list(value.shape)} has {value.size} elements, "
                    f"{config.name} has {config.dram.bytes} bytes of DRAM"
                )


def find_unsupported(graph: Graph, config: Config) -> list[tuple[Op, str]]:
    """The operators for which ``prepare`` would refuse a graph, as it rewrites them, and why. Raises CompileError."""
    return unsupported(_rewritten(graph, config, Budget.of(config)), config)


def _rewritten(graph: Graph, config: Config, budget: Budget) -> Graph:
    # The order matters. Quantised patterns are looked for as the model has them, before legalising moves a computed
    # bias; narrowing comes last, when transposed convolutions are convolutions and weights have their final values.
    integers = integerize(dynamic_quantization(graph), config)
    return narrow_weights(fold_affine(legalize(integers, budget)), config)


def _schedule(
    placement: Placement, layout: Layout, context: Context, budget: Budget, record: Record
) -> tuple[list[Command], int]:
    """The commands, and how many of them, the first, load what stays in SRAM."""
    config = context.config
    scheduler = Scheduler(config, budget)
    born: dict[int, list[int]] = {}
    for number, buffer in enumerate(placement.buffers):
        born.setdefault(buffer.born, []).append(number)
    fits = _fits(layout, context)
    prologue = 0
    if context.pinned.starts:  # all lowerings are made first: what stays is loaded before anything else
        made = list(fits)
        fits = iter(made)
        prologue = scheduler.prologue(len(placement.groups), list(_residents(made, context)))
    for stretch, fitted in fits:
        for group in stretch.groups:
            for number in born.get(group.index, ()):
                scheduler.born(placement.buffers[number])
        if fitted is None:
            continue
        record.add(stretch, fitted)
        # Every core has the same slots at the same addresses in its own SRAM; only the tiles differ.
        tables = [
            [SlotTable(core, specs, starts) for core in range(config.cores)]
            for specs, starts in zip(fitted.specs, fitted.starts, strict=True)
        ]
        for group, streams in _turns(stretch, fitted, tables):
            try:
                scheduler.add(group.index, group.name, streams)
            except TooManyError as error:
                raise CompileError(f"{group.name} ({group.kind}): {error}") from None
    return scheduler.finish(), prologue


def _fits(layout: Layout, context: Context) -> Iterator[tuple[Stretch, Fitted | None]]:
    """The lowerings of each stretch in turn; None where there is nothing to do."""
    ends = Ends(layout.stretches)
    for number, stretch in enumerate(layout.stretches):
        if stretch.is_empty:
            yield stretch, None
            continue
        yield stretch, ends.fit(number, partial(fit, stretch, context))


def _residents(fits: Iterable[tuple[Stretch, Fitted | None]], context: Context) -> Iterator[tuple[int, Iterable[Item]]]:
    """(core, loads) of what stays in SRAM, in the order in which it is wanted."""
    for _, fitted in fits:
        for lowering in fitted.lowerings if fitted else ():
            if isinstance(lowering, MatrixLowering) and lowering.group.index in context.pinned.starts:
                for core in range(context.config.cores):
                    yield core, lowering.residents(core, core, context.config.cores)


def _turns(
    stretch: Stretch, fitted: Fitted, tables: Sequence[Sequence[SlotTable]]
) -> Iterator[tuple[Group, list[Iterable[Tile]]]]:
    """What the groups of a stretch do, in order: a stream of steps for each core."""
    if stretch.segment is None:
        yield stretch.groups[0], _streams(fitted.lowerings[0], tables[0])
        return
    for image, (stripe, rows) in product(range(stretch.segment.images), enumerate(stretch.segment.stripes)):
        moved = stretch.segment.moved(stripe)
        for window in stretch.segment.loaded:
            reader = stretch.groups[window.inner.readers[0].reader]
            yield reader, [load_stripe(stretch.segment, window, image, stripe)]
        for number, (first, end) in enumerate(rows[: len(stretch.groups)]):
            # Also where nothing is made: padding below the image may be wanted then.
            yield stretch.groups[number], [before_stripe(stretch.segment, number, image, stripe)]
            if first < end:
                lowering = fitted.lowerings[number].stripe(image, (first, end), moved)
                yield stretch.groups[number], _streams(lowering, tables[number])


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
