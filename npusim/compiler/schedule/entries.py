"""The entries of a schedule: resolve their names in one graph, and check that a plan complies with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from npusim.compiler.buffers import Buffer
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context
from npusim.compiler.schedule.memory_choices import CascadeRun
from npusim.compiler.schedule.names import LayerNames, suggestion
from npusim.compiler.schedule.schedule import L2, ROLLING, LayerCascade, Schedule, TensorMemory, unique_names
from npusim.errors import ScheduleError, named
from npusim.graph import Tensor


def tensor_names(buffers: Iterable[Buffer]) -> dict[Buffer, str]:
    """The names of the tensors between operators, by their buffers."""
    found = [buffer for buffer in buffers if buffer.is_scratch and buffer.nbytes]
    return dict(zip(found, unique_names(buffer.name for buffer in found), strict=True))


def find_areas(
    schedule: Schedule, names: Mapping[Buffer, str], groups: Sequence[Group], context: Context
) -> dict[Buffer, TensorMemory]:
    """The memory entries by buffer. Raises ScheduleError for a tensor that has no memory area."""
    buffers = {name: buffer for buffer, name in names.items()}
    areas: dict[Buffer, TensorMemory] = {}
    for entry in schedule.memory:
        buffer = buffers.get(entry.tensor)
        buffer = buffer or _buffer_of(entry.tensor, names, groups, context)
        if entry.area == L2 and context.config.l2 is None:
            raise ScheduleError(f"memory: {named(entry.tensor)}: {context.config.name} has no L2")
        if areas.setdefault(buffer, entry) != entry:
            other = areas[buffer].tensor
            raise ScheduleError(
                f"memory: {named(entry.tensor)}: shares its bytes with {named(other)}, so both must be in the same area"
            )
    return areas


def _buffer_of(name: str, names: Mapping[Buffer, str], groups: Sequence[Group], context: Context) -> Buffer:
    """The buffer of a tensor that shares it with other tensors."""
    where, tensors = f"memory: {named(name)}:", [tensor for tensor in _tensors(groups) if tensor.name == name]
    for tensor in tensors:
        view = context.views.get(tensor)
        if view is not None and view.buffer in names:
            return view.buffer
    if not tensors:
        raise ScheduleError(f"{where} no such tensor; {suggestion(name, list(names.values()))}")
    tensor = tensors[0]
    if tensor.data is not None:
        raise ScheduleError(f"{where} is a constant; must be a tensor between layers")
    if tensor in context.views:
        raise ScheduleError(f"{where} shares a DRAM buffer with an input or output of the graph")
    raise ScheduleError(f"{where} only exists on the tiles of one layer, so it has no memory area")


def _tensors(groups: Sequence[Group]) -> Iterable[Tensor]:
    return (each for group in groups for op in group.ops for each in (*op.outputs, *op.inputs) if each is not None)


def find_runs(schedule: Schedule, layers: LayerNames, areas: Mapping[Buffer, TensorMemory]) -> tuple[CascadeRun, ...]:
    """The cascades that a schedule gives, and those that its rolling buffers require, as numbers of groups.

    Raises ScheduleError for layers that are not neighbours or are in two cascades.
    """
    runs = [_run(entry, layers) for entry in schedule.cascades]
    for buffer, entry in areas.items():
        covered = any(run.first <= buffer.born and buffer.dies <= run.last and run.first < run.last for run in runs)
        if entry.area == ROLLING and not covered:
            runs.append(_run(LayerCascade(tuple(layers.names[buffer.born : buffer.dies + 1])), layers))
            if runs[-1].first == runs[-1].last:
                raise ScheduleError(
                    f"memory: {named(entry.tensor)}: must be read by another layer to be in a rolling buffer"
                )
    runs.sort(key=lambda run: run.first)
    for one, other in pairwise(runs):
        if other.first <= one.last:
            raise ScheduleError(f"cascades: {named(layers.names[other.first])} is in two cascades; must be in one")
    return tuple(runs)


def _run(entry: LayerCascade, layers: LayerNames) -> CascadeRun:
    numbers = sorted({layers.number(name, "cascades") for name in entry.layers})
    first, last = numbers[0], numbers[-1]
    if len(numbers) < last - first + 1:
        missing = next(number for number in range(first, last) if number not in numbers)
        raise ScheduleError(
            f"cascades: {named(layers.names[first])} to {named(layers.names[last])} must be neighbours; "
            f"{named(layers.names[missing])} lies between them"
        )
    return CascadeRun(first, last, entry)


def check_entries(schedule: Schedule, built: Schedule, layers: LayerNames) -> None:
    """Raise ScheduleError if a plan does not comply with the entries. ``built``: the complete schedule of the plan."""
    cut = {each.layer: each for each in built.shards}
    for shard in schedule.shards:
        name = layers.names[layers.number(shard.layer, "shards")]
        found = cut.get(name)
        if (shard.axis, shard.cores, shard.halo) != (
            (found.axis, found.cores, found.halo) if found else (None, 0, False)
        ):
            cores = f"on {built.cores} cores" if built.cores != 1 else "on one core"
            raise ScheduleError(f"shards: {named(name)}: cannot be along axis {shard.axis} {cores}")
    _check_cascades(schedule, built, layers)
    areas = {each.tensor: each for each in built.memory}
    for entry in schedule.memory:
        actual = areas.get(entry.tensor)
        if actual is not None and (entry.area != actual.area or entry.offset not in (None, actual.offset)):
            raise ScheduleError(
                f"memory: {named(entry.tensor)}: cannot be in the area {entry.area!r} with the rest of this schedule; "
                f"it would be in {actual.area!r}"
            )
    pinned = {each.layer for each in built.pinned}
    for each in schedule.pinned:
        if layers.names[layers.number(each.layer, "pinned")] not in pinned:
            raise ScheduleError(f"pinned: {named(each.layer)}: its weights cannot be pinned")
    if missing := set(schedule.fused_attention) - set(built.fused_attention):
        raise ScheduleError(
            f"fused_attention: {named(min(missing))}: its blocks do not fit with the rest of this schedule"
        )


def _check_cascades(schedule: Schedule, built: Schedule, layers: LayerNames) -> None:
    runs = {_run(each, layers).first: each for each in built.cascades}
    inside = {layers.number(name, "cascades") for each in built.cascades for name in each.layers}
    for entry in schedule.cascades:
        run = _run(entry, layers)
        if run.first == run.last:
            fits = run.first not in inside
        else:
            actual = runs.get(run.first)
            fits = actual is not None and _run(actual, layers).last == run.last
            fits = fits and (not entry.rows or (actual is not None and actual.rows == entry.rows))
        if not fits:
            why = "with this scratchpad" if built.cores == 1 else "on several cores unless these are cut along rows"
            raise ScheduleError(
                f"cascades: {named(entry.layers[0])} to {named(entry.layers[-1])}: cannot be built {why}"
            )
