"""The figures of a graph on a device as a user gets them: compiled, then run for timing."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from npusim.errors import CompileError
from npusim.explore.evaluate import simulate
from npusim.graph import Graph
from npusim.hw.config import Config


@dataclass(frozen=True)
class Figures:
    """``time_ps``: of one inference. ``traffic``: DRAM bytes read and written. ``macs``: computed products.
    ``refusal``: the error if it was refused."""

    time_ps: float
    traffic: float
    refusal: str = ""
    macs: int = 0


def measure(graph: Graph, config: Config) -> Figures:
    """Return the figures of a graph; a refused one takes infinitely long. Errors of the graph itself are raised."""
    try:
        result = simulate(graph, config)
    except CompileError as error:
        return Figures(inf, inf, str(error))
    return Figures(result.time_ps, result.dram_read_bytes + result.dram_write_bytes, macs=result.macs)
