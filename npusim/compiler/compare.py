"""Which of several orders is done first: on how many cores, in parts or not, by stripes or not, with which weights
kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from operator import itemgetter

from npusim._stream import tally
from npusim.compiler.forecast import forecast
from npusim.compiler.lower.base import ConstantPool, Context, Pinned, facts_of
from npusim.compiler.memory import Layout
from npusim.compiler.order import Order, another, formed, in_parts, ordered
from npusim.compiler.outside import by_l2
from npusim.compiler.place import place
from npusim.compiler.resident import body, candidates, choices
from npusim.compiler.shorten import shortened
from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.isa.base import Command
from npusim.ops.budget import Budget
from npusim.work import DmaWork


def best_order(graph: Graph, config: Config, budget: Budget, tried: list[tuple[int, Order]] | None = None) -> Order:
    """The order that is done first, by forecast. Few cores may be faster than many: they share one DRAM, and have as
    many pieces of work to wait for; one alone may go by stripes, and there whole values may be faster than stripes."""
    short = shortened(graph) if config.cores > 1 else None
    if short is not None:
        like = _again(best_order(short, config, copy(budget)), graph, budget)
        if like is not None:
            return like
    best, near = ordered(graph, config, copy(budget)), by_l2(config)
    if config.cores == 1 and not best.layout.is_close and near is None:
        return best
    orders = [(forecast(best.commands, config), best)]
    alone: Order | None = best
    if config.cores > 1:
        orders += _on_fewer(graph, config, budget, orders[0][0])
        alone = another(graph, replace(config, cores=1), budget)
    if alone is not None and alone is not best:
        orders.append((forecast(alone.commands, config), alone))
    # Of one core the last is the first, too: either way it is the forecast of the order on one core.
    if alone is not None and alone.layout.is_close and _may_be_whole(alone.layout, orders[-1][0]):
        whole = another(graph, replace(config, cores=1), budget, known=alone.layout.known, flows=alone.flows)
        if whole is not None:
            whole.whole = True
            orders.append((forecast(whole.commands, config), whole))
    if near is not None:
        for order in (another(graph, near, budget), in_parts(graph, near, budget) if config.cores > 1 else None):
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


def _again(chosen: Order, graph: Graph, budget: Budget) -> Order | None:
    """The order of a graph that is like the one chosen for a shorter one; None if it takes more than there is."""
    like = chosen.record.context.config
    if chosen.parts:
        return in_parts(graph, replace(like, cores=chosen.parts), budget)
    order = another(graph, like, budget)
    if order is not None and chosen.whole and order.layout.is_close:
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
        # Forecasts as near as this say nothing about time; traffic they know to the byte.
        limit = min(ps for ps, _ in alike) * (1000 + _SLACK) // 1000
        near = [(_traffic(order.commands[order.prologue :], config), ps, order) for ps, order in alike if ps <= limit]
        best[cores] = min(near, key=itemgetter(0, 1))[1:]
    return min(best.values(), key=itemgetter(0))[1]


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
        if (
            risen < _MOST_RISEN
            and count < config.cores
            and count in _SHARED
            and (order := another(graph, fewer, budget)) is not None
        ):
            predicted = forecast(order.commands, config)
            yield predicted, order
            risen, shared = (0, predicted) if predicted < shared else (risen + 1, shared)


_MOST_RISEN = 2
"""So many numbers of cores in turn that are slower than more are the last on which tiles are shared out."""


_SHARED = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)


_COUNTS = (*range(2, 9), *_SHARED[5:])
"""Numbers of cores that one with more looks at, too: so that it is not slower for having them."""


def with_residents(graph: Graph, config: Config, budget: Budget, plain: Order) -> Order:
    """The order whose inferences after the first are done first, by forecast; ``plain``: without residents."""
    seen = plain.record.context.config
    config = replace(config, cores=seen.cores)
    context = Context(seen, ConstantPool(), facts=facts_of(graph))
    found = candidates(place(graph, formed(graph, config, flows=plain.flows), context).groups, context)
    best, least, most = plain, forecast(plain.commands, config), Pinned()

    def try_(pinned: Pinned) -> bool:
        """Whether this is better than the best so far, or near to it and moves less."""
        nonlocal best, least, most
        order = another(graph, seen, budget, flows=plain.flows, pinned=pinned)
        if order is None:
            return False
        later = forecast(body(order.commands, order.prologue), config)
        if _first([(later, order), (least, best)], config) is not order:
            return False
        best, least, most = order, later, pinned
        return True

    for number, pinned in enumerate(choices(found, context)):
        # Where more of them are slower than fewer, still more will be; the fewest may be slower than none.
        if not try_(pinned) and number:
            break
    if most.starts:
        try_(replace(most, large_tiles=True))
    return best
