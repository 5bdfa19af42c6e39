"""Segments as the compiler cuts them."""

from __future__ import annotations

from npusim.compiler.groups import form_groups
from npusim.compiler.lower.base import ConstantPool, Context
from npusim.compiler.pipeline import prepare
from npusim.compiler.place import place
from npusim.compiler.stripes import Segment, cut, inners
from npusim.graph import Graph
from npusim.hw.config import Config


def segment_of(graph: Graph, height: int, config: Config) -> Segment:
    """All of a graph, in stripes of so many rows of what it gives."""
    prepared = prepare(graph, config)
    context = Context(config, ConstantPool())
    groups = place(prepared, form_groups(prepared.ops, prepared.outputs), context).groups
    inner = inners(groups, context)
    assert inner is not None
    segment = cut(groups, inner, height, context)
    assert segment is not None
    return segment
