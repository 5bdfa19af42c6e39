"""Programs with given schedules."""

from __future__ import annotations

from collections.abc import Sequence

from npusim.compiler.pipeline import compile_graph, prepare
from npusim.compiler.schedule.build import Build, build, make_plan
from npusim.compiler.schedule.names import LayerNames
from npusim.compiler.schedule.schedule import FREE, LayerCascade, LayerShard, Schedule
from npusim.errors import CompileError
from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.ops.budget import Budget
from npusim.program import Program


def cut_along(prepared: Graph, config: Config, axes: Sequence[int | None]) -> Schedule:
    """Return a schedule that cuts every layer for all cores along its axis; None: its tiles are shared out."""
    shared = make_plan(prepared, config, FREE.with_("shards", "fused_attention", cores=config.cores))
    names = LayerNames(shared.groups).names
    shards = tuple(LayerShard(name, axis) for name, axis in zip(names, axes, strict=True) if axis is not None)
    return FREE.with_("shards", "fused_attention", cores=config.cores, shards=shards)


def sharded_build(prepared: Graph, config: Config, axes: Sequence[int | None] | None = None) -> Build | None:
    """Return the build with layers cut for all cores, even if another one is faster. None if no layer can be cut.

    The layers are cut along ``axes``, or along the axes that the search finds.
    """
    schedule = FREE.with_("fused_attention", "cascades", cores=config.cores)
    if axes is not None:
        schedule = cut_along(prepared, config, axes)
    try:
        found = build(prepared, config, schedule, Budget.of(config))
    except CompileError:
        return None
    return found if found.plan.shards.are_cut else None


def sharded(graph: Graph, config: Config, axes: Sequence[int | None] | None = None) -> Program | None:
    """Return the program of :func:`sharded_build`, with pinned weights if the device has them."""
    try:
        prepared = prepare(graph, config)
        found = sharded_build(prepared, config, axes)
        if found is None:
            return None
        shards = found.plan.layer_shards
        schedule = FREE.with_("fused_attention", "cascades", "shards", cores=config.cores, shards=shards)
        return compile_graph(graph, config, schedule=schedule)
    except CompileError:
        return None


def cascades_on_cores(prepared: Graph, config: Config, runs: Sequence[LayerCascade] = ()) -> Build | None:
    """Return the build with layers cut for all cores and with cascades, even if another one is faster. None if there
    are none. ``runs``: cascades that it must have."""
    try:
        schedule = FREE.with_("fused_attention", cores=config.cores, exchange=True, cascades=tuple(runs))
        found = build(prepared, config, schedule, Budget.of(config))
    except CompileError:
        return None
    return found if any(step.cascade for step in found.layout.steps) else None
