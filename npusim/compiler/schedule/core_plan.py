"""The plan for several cores: how each layer is cut, which layers form cascades, and the memory of all cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from npusim.compiler.buffers import Buffer
from npusim.compiler.grouping.groups import Group, on_matrix
from npusim.compiler.lower.base import ConstantPool, Context
from npusim.compiler.schedule.axis_search import AxisSearch, with_all_halos
from npusim.compiler.schedule.dram import lay_out
from npusim.compiler.schedule.exchange import SharedTensor
from npusim.compiler.schedule.halo import LayerCut, Readers
from npusim.compiler.schedule.memory_choices import CascadeRun, MemoryChoices
from npusim.compiler.schedule.memory_plan import MemoryPlan, plan_memory
from npusim.compiler.schedule.names import LayerNames
from npusim.compiler.schedule.schedule import AFTER_TRIALS, BY_USE, LayerCascade, LayerShard, Schedule
from npusim.compiler.schedule.sharding import Shards, buffer_rows, make_shards, move_to_cores, place_on_cores
from npusim.compiler.schedule.shards import axes_of
from npusim.errors import ScheduleError, named
from npusim.hw.config import Config


def choose_cuts(
    groups: Sequence[Group], context: Context, schedule: Schedule, runs: Sequence[CascadeRun], *, cut: bool
) -> tuple[Sequence[LayerCut], str]:
    """How each group is divided among the cores, and the order of the constants if layers are ``cut``."""
    cores, layers, passes = context.config.cores, LayerNames(groups), schedule.exchange is not False
    fixed: dict[int, LayerCut] = {}
    for each in schedule.shards:
        number = layers.number(each.layer, "shards")
        _check_shard(each, groups[number], context.config, passes=passes)
        fixed[number] = LayerCut(each.axis, each.cores or cores, each.halo)
    if cores > 1 and context.config.compiler.shares == "products":
        for group in groups:
            if not on_matrix(group):
                fixed.setdefault(group.index, LayerCut(None, 1))
    in_bands = context.config.compiler.may_cascade and schedule.searches("cascades")
    searched = cut and schedule.searches("shards")
    order = schedule.constants or (AFTER_TRIALS if searched and not fixed else BY_USE)
    cuts: Sequence[LayerCut] = [fixed.get(number, LayerCut(None, cores)) for number in range(len(groups))]
    if cut and order == AFTER_TRIALS:
        # The search places constants for shards that it only tries. Nothing reads them, but they shift the addresses of
        # all others, so they are part of this order.
        tried = AxisSearch(groups, context, runs=runs, in_bands=in_bands, passes=passes).run()
        cuts = tried if searched and not fixed else cuts
    if searched and (fixed or order != AFTER_TRIALS):
        apart = replace(context, constants=ConstantPool(), views=dict(context.views), memo={})
        cuts = AxisSearch(groups, apart, fixed, runs=runs, in_bands=in_bands, passes=passes).run()
    if searched and all(cut.axis is None for cut in cuts):
        raise ScheduleError(f"shards: no layer gains from being cut for {cores} cores")
    _check_halos(groups, cuts, context, layers)
    return cuts, order


def _check_shard(shard: LayerShard, group: Group, device: Config, *, passes: bool) -> None:
    """Raise ScheduleError if a layer cannot be divided as requested."""
    where = f"shards: {named(shard.layer)}:"
    if shard.cores > device.cores:
        raise ScheduleError(f"{where} cores must be at most {device.cores}, those of the program, got {shard.cores}")
    axes = axes_of(group, passes=passes)
    if shard.axis is not None and shard.axis not in axes:
        shape = list(group.outputs[0].shape)
        allowed = f"one of {axes}" if axes else "null, because no dimension can be cut"
        raise ScheduleError(f"{where} axis of its result {shape} must be {allowed}, got {shard.axis}")


def _check_halos(groups: Sequence[Group], cuts: Sequence[LayerCut], context: Context, layers: LayerNames) -> None:
    """Raise ScheduleError for a halo whose rows some core cannot compute."""
    asked = [group for group in groups if cuts[group.index].halo]
    readers = Readers(groups, context, buffer_rows(groups, context)) if asked else None
    for group in asked:
        if readers is None or not readers.of(group, cuts):
            raise ScheduleError(
                f"shards: {named(layers.names[group.index])}: halo must be false unless all layers that read its "
                f"result are cut along the same rows, for as many cores"
            )


def choose_cascades(
    groups: Sequence[Group],
    buffers: Sequence[Buffer],
    context: Context,
    cuts: Sequence[LayerCut],
    choices: MemoryChoices,
    schedule: Schedule,
) -> tuple[Sequence[LayerCut], MemoryChoices]:
    """The cascades of cut layers, and the cuts with the halos that they need.

    Within a cascade no value exists as a whole that cores could exchange, so each core computes all rows that it needs.
    The cascades are chosen in a trial plan in which all layers have halos; the others lose them again.
    """
    apart = replace(context, constants=ConstantPool(), views=dict(context.views), memo={})
    given = {LayerNames(groups).number(each.layer, "shards") for each in schedule.shards}
    wide = with_all_halos(groups, apart, cuts, given)
    shards = make_shards(groups, apart, wide, passes=schedule.exchange is not False)
    layout, _, _ = _plan_first_core(groups, buffers, shards, choices, dict.fromkeys(buffers, ""))
    names, found = LayerNames(groups).names, list(cuts)
    runs = {run.first: run for run in choices.runs}
    for cascade in (step.cascade for step in layout.steps if step.cascade is not None):
        for number in range(cascade.first, cascade.last):
            found[number] = wide[number]
        entry = LayerCascade(tuple(names[cascade.first : cascade.last + 1]), cascade.height, cascade.apart)
        runs.setdefault(cascade.first, CascadeRun(cascade.first, cascade.last, entry))
    return found, replace(choices, search_cascades=False, runs=tuple(runs[first] for first in sorted(runs)))


def plan_shards(
    groups: Sequence[Group],
    buffers: Sequence[Buffer],
    shards: Shards,
    choices: MemoryChoices,
    names: dict[Buffer, str],
) -> MemoryPlan:
    """Plan the memory of the first core's shards; all cores use the same plan."""
    layout, own, shared = _plan_first_core(groups, buffers, shards, choices, names)
    rolling = {layout.whole_buffer(each.value.tensor) for step in layout.steps for each in step.rolling_between}
    own = [copies for copies in own if copies[0] not in rolling]
    # The groups of a cascade alternate: values that they share with other cores exist during all of it, too.
    for step in layout.steps:
        first, last = step.groups[0].index, step.groups[-1].index
        for buffer in buffers if step.cascade is not None else ():
            buffer.born = first if first < buffer.born <= last else buffer.born
            buffer.dies = last if first <= buffer.dies < last else buffer.dies
    layout.buffers, relays = place_on_cores(groups, buffers, shards, own, shared)
    for cascade in (step.cascade for step in layout.steps if step.cascade is not None):
        for context, one in zip(shards.contexts, (cascade, *cascade.others), strict=False):
            for each in one.loaded:  # a tensor that cores could have shared may have stayed in DRAM
                each.source = context.view(each.value.tensor)
    layout.scratch_bytes = lay_out(layout.buffers, shards.whole.config, choices, relays)
    return layout


def _plan_first_core(
    groups: Sequence[Group],
    buffers: Sequence[Buffer],
    shards: Shards,
    choices: MemoryChoices,
    names: dict[Buffer, str],
) -> tuple[MemoryPlan, list[list[Buffer]], list[SharedTensor]]:
    """The plan of the first core, the buffers that all cores have at the same addresses, and the tensors that cores
    share."""
    moved, shared = move_to_cores(groups, buffers, shards)
    for buffer, copies in moved.items():
        names.update(dict.fromkeys(copies, names[buffer]))
    # A value that the cores do not keep in their scratchpads remains in its own buffer.
    areas = {each: entry for buffer, entry in choices.areas.items() for each in (buffer, *moved.get(buffer, ()))}
    choices, own = replace(choices, areas=areas), list(moved.values())
    first = [group for group, _ in shards.on_first_core(groups)]
    layout = plan_memory(first, [copies[0] for copies in own], shards.contexts[0], choices, shards.other_cores())
    return layout, own, shared
