"""Cascades as the compiler cuts them."""

from __future__ import annotations

from npusim.compiler.grouping.groups import form_groups
from npusim.compiler.lower.base import ConstantPool, Context
from npusim.compiler.pipeline import prepare
from npusim.compiler.schedule.cascade import Cascade, outline, values_between
from npusim.compiler.schedule.layout import place
from npusim.graph import Graph
from npusim.hw.config import Config


def cascade_of(graph: Graph, height: int, config: Config) -> Cascade:
    """Return the whole graph as one cascade with stripes of ``height`` output rows."""
    prepared = prepare(graph, config)
    context = Context(config, ConstantPool())
    groups, _ = place(prepared, form_groups(prepared.ops, prepared.outputs), context)
    striped = values_between(groups, context)
    assert striped is not None
    shape = outline(groups, striped, context)
    assert shape is not None
    return shape.cut(height)
