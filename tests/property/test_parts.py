"""How groups are cut into parts for cores decides nothing but time: any number of cores computes the same bits."""

from __future__ import annotations

from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.compiler import pipeline
from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.isa.base import decode
from npusim.ops.budget import Budget
from npusim.program import Program
from tests.support.graphs.comparison import same_bytes
from tests.support.graphs.execution import compiled, interpreted
from tests.support.graphs.random_graphs import QUIET, graphs
from tests.support.graphs.random_values import RandomGraph
from tests.support.programs.race_detector import find_races, limits_of
from tests.support.random_devices import Device, devices


def in_parts(graph: Graph, config: Config) -> Program | None:
    """The program in which every core has parts of its own, whether or not another one is done first."""
    orders = []

    def only(graph: Graph, config: Config, budget: Budget, tried: object = None) -> object:
        orders.append(pipeline._spread(graph, config, budget))
        return orders[0] or whole(graph, config, budget)

    whole = pipeline._best
    with mock.patch.object(pipeline, "_best", only):
        program = compiled(graph, config)
    return program if orders and orders[0] else None


@settings(max_examples=60, suppress_health_check=QUIET)
@given(graphs(), devices(), st.integers(2, 5))
def test_parts_compute_the_same_bits_without_races(case: RandomGraph, device: Device, cores: int) -> None:
    config = device.config.with_(cores=cores)
    program = in_parts(case.graph, config)
    if program is None:
        return
    races = find_races(list(decode(program.code)), limits_of(program, config))
    assert not races, f"{len(races)} races, the first: {races[0]}"
    alone = compiled(case.graph, config.with_(cores=1))
    if alone is None:
        return
    ours, theirs = interpreted(program, config, case.inputs), interpreted(alone, config, case.inputs)
    same_bytes(ours, theirs, f"{cores} cores against one")
