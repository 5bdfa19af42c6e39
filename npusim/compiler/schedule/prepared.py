"""A graph that is compiled for many designs."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npusim.graph import Graph
    from npusim.ops.budget import Budget


class PreparedGraph:
    """A graph that never changes, nor do its constants, so that the results of rewriting it can be cached.

    ``rewritten``: the rewritten graph and the remaining budget, by the part of the config that rewriting depends on.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.rewritten: dict[Hashable, tuple[Graph, Budget]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Send only the graph to another process."""
        return PreparedGraph, (self.graph,)
