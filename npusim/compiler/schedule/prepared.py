"""Graphs that are compiled for many designs."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npusim.graph import Graph
    from npusim.ops.budget import Budget


class PreparedGraph:
    """A graph that does not change any more, nor do its constants, so that the results of rewriting it are kept.

    ``rewritten``: the graph as it is compiled and the rest of the budget, by the part of the config that rewriting
    depends on.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.rewritten: dict[Hashable, tuple[Graph, Budget]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Only the graph is sent to another process."""
        return PreparedGraph, (self.graph,)
