"""Which of several orders is done first: on how many cores, in parts or not, by stripes or not, with which weights
kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import takewhile
from operator import itemgetter

from npusim.compiler.lower.base import ConstantPool, Context, Pinned, facts_of
from npusim.compiler.schedule.build import Draft, Order, another, formed, in_parts, ordered, until
from npusim.compiler.schedule.dram import by_l2
from npusim.compiler.schedule.layout import place
from npusim.compiler.schedule.memory_plan import MemoryPlan
from npusim.compiler.schedule.pinned_weights import body, candidates, choices
from npusim.compiler.schedule.repeats import shortened
from npusim.compiler.schedule.scratchpad import ScheduleStep
from npusim.errors import CompileError
from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.isa._stream import tally
from npusim.isa.base import Command
from npusim.ops.budget import Budget
from npusim.timing.forecast import forecast
from npusim.work import DmaWork


def best_order(graph: Graph, config: Config, budget: Budget, tried: list[tuple[int, Order]] | None = None) -> Order:
    """The order that is done first, by forecast. Few cores may be faster than many: they share one DRAM, and have as
    many pieces of work to wait for; one alone may go by stripes, and there whole values may be faster than stripes."""
    short = shortened(graph) if config.cores > 1 else None
    if short is not None:
        chosen = best_order(short, config, copy(budget))
        like = _again(chosen, graph, budget, chosen.record.context.config)
        if like is not None:
            return like
    best = _of_all_channels(graph, config, budget, tried)
    few = _FEW if config.interconnect.arbitration == "need" else 2
    # Where weights have a channel of their own, fewer would be another device.
    if config.dma.channels <= few or config.dma.separate_weight_port:
        return best
    return _of_fewer(best, few, graph, config, budget, tried)


_FEW = 4
"""Channels up to which nothing has been seen to be slower for one more, where what is wanted first has the DRAM first:
orders for fewer would cost as much as the first one, and be of no use."""


def _of_fewer(
    best: Order, few: int, graph: Graph, config: Config, budget: Budget, tried: list[tuple[int, Order]] | None
) -> Order:
    """The order, or one like it that leaves channels idle, but for a ``few``: what is loaded further ahead takes room,
    and where transfers share the DRAM fairly the time of what is wanted first. So a device with more channels is not
    slower for them."""
    least, risen = forecast(best.commands, config), 0
    seen = best.record.context.config
    for channels in (few, *range(config.dma.channels - 1, few, -1)):
        order = _again(best, graph, budget, replace(seen, dma=replace(seen.dma, channels=channels)))
        if order is not None:
            order.channels, order.near = channels, best.near
            ps = forecast(order.commands, config)
            if tried is not None:
                tried.append((ps, order))
            if ps < least:
                best, least, risen = order, ps, 0
                continue
        risen += channels > few
        if risen == _MOST_WORSE:
            break
    return best


_MOST_WORSE = 2
"""So many numbers of channels in turn that are no better than more are the last that are tried."""


def _of_all_channels(graph: Graph, config: Config, budget: Budget, tried: list[tuple[int, Order]] | None) -> Order:
    best, near = ordered(graph, config, copy(budget)), by_l2(config)
    if config.cores == 1 and not best.layout.needs_forecast and near is None:
        return best
    orders = [(forecast(best.commands, config), best)]
    alone: Order | None = best
    if config.cores > 1:
        orders += _on_fewer(graph, config, budget, orders[0][0])
        alone = another(graph, replace(config, cores=1), budget)
    if alone is not None and alone is not best:
        orders.append((forecast(alone.commands, config), alone))
    # Of one core the last is the first, too: either way it is the forecast of the order on one core.
    if alone is not None and alone.layout.needs_forecast and _may_be_whole(alone.layout, orders[-1][0]):
        # Beside orders for values in L2 it is not these two alone that are compared.
        orders += _whole(graph, config, budget, orders[-1], near is None, tried)
    if near is not None:
        for order in (another(graph, near, budget), in_parts(graph, near, budget) if config.cores > 1 else None):
            if order is not None:
                order.near = True
                orders.append((forecast(order.commands, config), order))
    if tried is not None:
        tried.extend(orders)
    return _first(orders, config)


def _may_be_whole(layout: MemoryPlan, striped_ps: int) -> bool:
    """Whether whole values may take no longer than stripes, which are forecast to take so long."""
    return layout.no_cascade_ps * 100 <= striped_ps * (100 + _WHOLE_PERCENT)


_WHOLE_PERCENT = 20
"""Estimates of whole values may be so much above their forecast: sums of layers, which do not see that neighbours
overlap. Variants of ``edge``: ResNet-50 and MobileNetV2 have 6 to 17 %. YOLO has 30 %, of stripes as well: see
``memory``, which leaves orders of near estimates to their forecasts."""


def _whole(
    graph: Graph, config: Config, budget: Budget, striped: tuple[int, Order], may_drop: bool,
    tried: list[tuple[int, Order]] | None,
) -> list[tuple[int, Order]]:  # fmt: skip
    """The order on one core that has values whole where another one has stripes, with its forecast; none if it takes
    more than there is, or (``may_drop``) if the one with stripes is better: then it is among those ``tried``, if
    somebody wants to know, and else never made to its end."""
    order = striped[1]
    # An equal one would do as well, and be compared wherever something is known of it.
    alone = config if config.cores == 1 else replace(config, cores=1)
    try:
        draft = Draft(
            graph, formed(graph, alone, flows=order.flows), alone, copy(budget), order.layout.known, flows=order.flows
        )
        may_win = not may_drop or _may_win(draft, striped, config)
        if not may_win and tried is None:
            return []
        whole = draft.finish()
    except CompileError:
        return []
    whole.whole = True
    found = [(forecast(whole.commands, config), whole)]
    if not may_win and tried is not None:
        tried += found
    return found if may_win else []


def _may_win(whole: Draft, striped: tuple[int, Order], config: Config) -> bool:
    """Whether an order in the making may be better than the one with stripes, which is forecast to take so long. Raises
    CompileError if it takes more than there is.

    Stripes are for the large images in front: behind the last of them both orders do the same. So they are made and
    compared up to there, and a step further, so that what loads ahead is seen.
    """
    ps, order = striped
    group = _meeting(order.layout.steps, whole.layout.steps)
    if group is None:
        return True
    ours, theirs = whole.until(group), until(order.commands, group)
    longer = forecast(ours, config) - forecast(theirs, config)
    at_best = ps + longer - ps * _APART // 1000
    more = _traffic(ours, config) - _traffic(theirs, config)
    traffic = _traffic(order.commands, config)
    return _first_of([(at_best, traffic + more), (ps, traffic)]) == 0


def _meeting(one: Sequence[ScheduleStep], other: Sequence[ScheduleStep]) -> int | None:
    """The last group of the first step from which on two orders have the same steps, with the same values beside
    them; None if there is nothing behind it."""
    same = sum(1 for _ in takewhile(lambda pair: _alike(*pair), zip(reversed(one), reversed(other), strict=False)))
    return one[-same].groups[-1].index if same > 1 else None


def _alike(one: ScheduleStep, other: ScheduleStep) -> bool:
    """Whether two orders do the same in a step: they differ in where slots lie, no more."""
    return (
        not one.cascade and not other.cascade and one.groups[0].index == other.groups[0].index
        and [(buffer.name, buffer.offset) for buffer in one.resident]
        == [(buffer.name, buffer.offset) for buffer in other.resident]
    )  # fmt: skip


_APART = 3
"""In thousandths, what the ends of two orders that do the same may differ in: their slots are at other ends of SRAM. Of
variants of ``edge`` up to 1.6."""


def _again(chosen: Order, graph: Graph, budget: Budget, like: Config) -> Order | None:
    """The order of a graph, on a device that is ``like`` one, of the kind of an order that was chosen; None if it takes
    more than there is."""
    if chosen.parts:
        return in_parts(graph, replace(like, cores=chosen.parts), budget)
    order = another(graph, like, budget)
    if order is not None and chosen.whole and order.layout.needs_forecast:
        return another(graph, like, budget, known=order.layout.known, flows=order.flows)
    return order


def _first(orders: Sequence[tuple[int, Order]], config: Config) -> Order:
    """The order of least time; of those on as many cores that are near, the one of least traffic.

    What is best on some cores is so whatever others there are, and the best of these is taken by time alone: so a
    device with more cores has no slower order than one with fewer.
    """
    best: dict[int, tuple[int, Order]] = {}
    for cores in dict.fromkeys(order.cores for _, order in orders):
        alike = [(ps, order) for ps, order in orders if order.cores == cores]
        best[cores] = alike[0]
        if len(alike) > 1:
            figures = [(ps, _traffic(order.commands[order.prologue :], config)) for ps, order in alike]
            best[cores] = alike[_first_of(figures)]
    return min(best.values(), key=itemgetter(0))[1]


def _first_of(figures: Sequence[tuple[int, int]]) -> int:
    """Of (picoseconds, bytes of traffic), on as many cores, the number of the best."""
    # Forecasts as near as this say nothing about time; traffic they know to the byte.
    limit = min(ps for ps, _ in figures) * (1000 + _SLACK) // 1000
    near = [(traffic, ps, number) for number, (ps, traffic) in enumerate(figures) if ps <= limit]
    return min(near)[2]


_SLACK = 4
"""In thousandths."""


def _traffic(commands: Sequence[Command], config: Config) -> int:
    """Bytes past the pins of the DRAM."""
    model = cost_model(config)
    works = [(command.instruction.asked(), times) for command, times in tally(commands)]
    return sum(times * model.dram_bytes(work) for work, times in works if isinstance(work, DmaWork))


def _on_fewer(graph: Graph, config: Config, budget: Budget, shared: int) -> Iterator[tuple[int, Order]]:
    """Orders with their forecasts: parts for all cores or for fewer of them, tiles shared out among fewer.

    ``shared``: the forecast where the tiles are shared out among all.
    """
    risen = 0
    for count in sorted({config.cores, *filter(lambda count: count < config.cores, _COUNTS)}, reverse=True):
        fewer = replace(config, cores=count)
        # What is exchanged takes room and time: it may be less than what goes by DRAM, or more.
        for each in (fewer, replace(fewer, exchange=None)) if config.exchange else (fewer,):
            parts = in_parts(graph, each, budget)
            if parts is not None:
                yield forecast(parts.commands, config), parts
        # Where fewer cores are slower than more, still fewer are, but for numbers that divide a layer badly. Of parts
        # that is not true: they may fit into the SRAM of so many cores only.
        if risen < _MOST_RISEN and count < config.cores and (order := another(graph, fewer, budget)) is not None:
            predicted = forecast(order.commands, config)
            yield predicted, order
            risen, shared = (0, predicted) if predicted < shared else (risen + 1, shared)


_MOST_RISEN = 4
"""So many numbers of cores in turn that are slower than more are the last on which tiles are shared out."""


_COUNTS = (*range(2, 9), 12, 16, 24, 32, 48)
"""Numbers of cores that one with more looks at, too: so that it is not slower for having them."""


def with_residents(graph: Graph, config: Config, budget: Budget, plain: Order) -> Order:
    """The order whose inferences after the first are done first, by forecast; ``plain``: without residents."""
    parts = plain.spread
    seen = parts.whole.config if parts else plain.record.context.config
    config = replace(config, cores=seen.cores)
    context = Context(seen, ConstantPool(), facts=facts_of(graph))
    if parts:
        # Cut as they are: what stays is as large as it is thought to be.
        groups = parts.firsts(plain.groups)
    else:
        groups = [(group, context) for group in place(graph, formed(graph, config, flows=plain.flows), context).groups]
    best, least, most = plain, forecast(plain.commands, config), Pinned()

    def try_(pinned: Pinned) -> bool:
        """Whether this is better than the best so far, or near to it and moves less."""
        nonlocal best, least, most
        order = (
            in_parts(graph, seen, budget, axes=parts.axes, pinned=pinned)
            if parts
            else another(graph, seen, budget, flows=plain.flows, pinned=pinned)
        )
        if order is None:
            return False
        later = forecast(body(order.commands, order.prologue), config)
        if _first([(later, order), (least, best)], config) is not order:
            return False
        best, least, most = order, later, pinned
        return True

    for number, pinned in enumerate(choices(candidates(groups), context)):
        # Where more of them are slower than fewer, still more will be; the fewest may be slower than none.
        if not try_(pinned) and number:
            break
    if most.starts:
        try_(replace(most, large_tiles=True))
    return best
