"""Graphs that are compiled for one design after the other."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npusim.graph import Graph
    from npusim.ops.budget import Budget


class PreparedGraph:
    """A graph that nobody changes any more, nor the values of its constants: what it is rewritten to is remembered.

    ``rewritten``: by what of a device rewriting depends on, the graph as it is compiled and what is left of the
    budget.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.rewritten: dict[Hashable, tuple[Graph, Budget]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process goes the graph alone."""
        return PreparedGraph, (self.graph,)
