"""The number of groups that the compiler joins in grouped convolutions, for many designs, by the compiler's own
rule."""

from __future__ import annotations

import functools
from itertools import chain, islice

import numpy as np

from npusim.compiler.passes.fill_groups import (
    Alternatives,
    Asked,
    alternatives,
    best_forms,
    bounds,
    homes_of,
    limit,
    score,
)  # fmt: skip
from npusim.explore.estimates.designs import Array, Designs, Index
from npusim.explore.estimates.network import PreparedNetwork
from npusim.explore.estimates.tiles import Case, ChainWorks, Question, TileSearch, pieces_of
from npusim.timing.tile_costs import MatrixPrices
from npusim.timing.tile_problem import MatrixProblem


def joined_groups(network: PreparedNetwork, designs: Designs, cores: int) -> list[Index]:
    """For each layer the index in its ``counts``, by design; 0 if nothing is joined."""
    search = TileSearch(designs, cores)
    capacity = np.broadcast_to(designs["sram.bytes"], (designs.count,))
    everyone = np.arange(designs.count)
    sizes, size_of = np.unique(capacity, return_inverse=True)

    def times(asked: Asked) -> list[Array]:
        questions = []
        for problem, rows in asked:
            case = Case(problem, ChainWorks(), problem.oh)
            pieces = np.broadcast_to(pieces_of(designs, case), (designs.count,))
            questions.append(Question(case, rows, capacity[rows], pieces[rows], told=True))
        search.ask(questions)
        return [
            np.where(
                np.isinf(each.latency),
                np.inf,
                score(each.latency, each.figures["computing"], both(problem)[1][rows], cores),
            )
            for each, (problem, rows) in zip(questions, asked, strict=True)
        ]

    @functools.cache
    def both(problem: MatrixProblem) -> tuple[Array, Array]:
        unit, dram = designs.evaluate(lambda config: bounds(problem, config, MatrixPrices))
        return np.broadcast_to(unit, (designs.count,)), np.broadcast_to(dram, (designs.count,))

    def bound(problem: MatrixProblem) -> Array:
        found: Array = limit(*both(problem), cores)
        return found

    forms = []
    for layer in network.layers:
        op, of_sizes = layer.group.anchor, []
        if op is not None and len(layer.counts) > 1:
            # The expected memory of a value depends on the size of the SRAM.
            of_sizes = [alternatives(op, homes_of(op, network.ends, int(size)), designs.config) for size in sizes]
        forms.append(of_sizes)
    best: dict[Alternatives, Index] = {}
    searches = {
        each: best_forms(each, np.array([bound(problem) for problem in each.problems[1:]]))
        for each in dict.fromkeys(chain.from_iterable(forms))
    }
    asked = {each: next(search) for each, search in searches.items()}
    while asked:
        # All at once, because they need the same prices.
        answers = iter(times(list(chain.from_iterable(asked.values()))))
        following = {}
        for each, questions in asked.items():
            try:
                following[each] = searches[each].send(list(islice(answers, len(questions))))
            except StopIteration as end:
                best[each] = end.value
        asked = following
    nothing = np.zeros(designs.count, np.intp)
    return [
        np.array([best[each] for each in of_sizes])[size_of, everyone] if of_sizes else nothing for of_sizes in forms
    ]
