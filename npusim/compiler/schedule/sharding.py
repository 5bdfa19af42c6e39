"""Divide layers among cores, and keep the tensors between them in the scratchpads of the cores.

A layer is either cut along one dimension of its result, with one shard per core, or the cores share its tiles. If every
layer that uses a tensor is cut such that no core needs bytes of another core, each core has a buffer for its own slice.
All other tensors are in DRAM; or, if cores can send data to each other's scratchpads, each core holds the bytes that it
needs and receives them from the core that computes them (``exchange``). Memory is planned for the shards of the first
core, which are the largest. Every core uses the same memory areas and addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from npusim.compiler.buffers import Buffer, View
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context, Lowering
from npusim.compiler.lower.conv_forms import conv_like
from npusim.compiler.lower.kinds import lower
from npusim.compiler.schedule.cascade import CoreGroups
from npusim.compiler.schedule.exchange import CoreTransfer, SharedTensor, transfers_of
from npusim.compiler.schedule.halo import Band, LayerCut, Readers, halo_bands
from npusim.compiler.schedule.regions import Region, are_disjoint, is_region, join, place_view, region_of, row_bytes
from npusim.compiler.schedule.scratchpad import Avoided, Fitted, ScheduleStep, fit, rolling_views
from npusim.compiler.schedule.shards import Shard, interval, is_in_groups, operand_axes, shard_of
from npusim.graph import Op, Tensor


@dataclass(slots=True)
class Shards:
    """The shards of all groups of a program.

    ``whole``: the context of groups that are not cut. ``contexts``: one per core, for its shards. ``shards``: for each
    group, one shard per core that has work; None if the cores share its tiles.
    """

    whole: Context
    cuts: Sequence[LayerCut]
    contexts: list[Context] = field(default_factory=list)
    shards: list[list[Shard] | None] = field(default_factory=list)
    passes: bool = False
    """Whether cores pass values to each other."""
    transfers: dict[int, list[CoreTransfer]] = field(default_factory=dict)
    """Transfers between cores after each group."""
    rows: Mapping[Buffer, int] = field(default_factory=dict)
    """Bytes per row, by buffer of a whole tensor. Regions consist of such rows."""
    narrow: dict[int, Context] = field(default_factory=dict)
    """Contexts of groups whose tiles are shared by fewer cores, by the number of cores."""

    @property
    def cores(self) -> int:
        """The number of cores of the program."""
        return self.whole.config.cores

    @property
    def are_cut(self) -> bool:
        """Whether any group is cut."""
        return bool(self.contexts)

    def cores_of(self, group: Group) -> range:
        """The cores that work on a group."""
        return range(self.cuts[group.index].cores)

    def context_of(self, group: Group) -> Context:
        """The context in which the first core's share of a group is lowered."""
        if self.shards[group.index] is not None:
            return self.contexts[0]
        return self.narrow.get(self.cuts[group.index].cores, self.whole)

    def fit(self, step: ScheduleStep, low_end: bool, avoid: Avoided) -> Fitted:
        """Lower the first core's share of a step; all cores use its slots. Raises CompileError if nothing fits."""
        return fit(step, self.context_of(step.groups[0]), low_end, avoid)

    def on_first_core(self, groups: Sequence[Group]) -> list[tuple[Group, Context]]:
        """The first core's share of each group, and the context in which it is lowered."""
        return [
            (group if shards is None else shards[0].group, self.context_of(group))
            for group, shards in zip(groups, self.shards, strict=True)
        ]

    def other_cores(self) -> list[CoreGroups]:
        """The shards of all cores but the first."""
        found = []
        for core, context in enumerate(self.contexts[1:], 1):
            mine = [each[core].group for each in self.shards if each is not None and core < len(each)]
            found.append(CoreGroups(context, {group.index: group for group in mine}))
        return found

    def lowerings(self, step: ScheduleStep, fitted: Fitted) -> list[list[Lowering]]:
        """The lowerings of a step's groups: of each core if the step is cut, else those that the cores share."""
        shards = [self.shards[group.index] for group in step.groups]
        found = [fitted.lowerings]
        cascades = step.cascade.others if step.cascade is not None else []
        for core in range(1, len(shards[0] or ())):
            context = self.contexts[core]
            with rolling_views(context, cascades[core - 1].loaded if cascades else ()):
                found.append(
                    [
                        self._like(first, context, each[core].group, step.cascade.rows[number] if step.cascade else 0)
                        for number, (first, each) in enumerate(zip(fitted.lowerings, shards, strict=True))
                        if each is not None
                    ]
                )
        return found

    def _like(self, first: Lowering, context: Context, group: Group, rows: int) -> Lowering:
        """The lowering of a core's shard with the tiles of the first core's lowering."""
        context.room, context.rows = self.contexts[0].room, rows
        # All cores use the same form of a convolution as the first.
        lowering = conv_like(first, context, group) or lower(context, group)
        lowering.follow(first)
        return lowering


def make_shards(groups: Sequence[Group], whole: Context, cuts: Sequence[LayerCut], *, passes: bool) -> Shards:
    """Divide groups by ``cuts``. ``passes``: cores pass values to each other."""
    result = Shards(whole, cuts, shards=[None] * len(cuts), passes=passes)
    cores = whole.config.cores
    for count in {cut.cores for cut in cuts if cut.axis is None and cut.cores < cores}:
        # Cached results of lowerings depend on the number of cores.
        config = replace(whole.config, cores=count)
        result.narrow[count] = Context(config, whole.constants, whole.views, pinned=whole.pinned, facts=whole.facts)
    if any(cut.axis is not None for cut in cuts):
        result.rows = buffer_rows(groups, whole)
        result.contexts = [core_context(whole, whole.views) for _ in range(cores)]
        bands = find_bands(groups, cuts, whole, result.rows)
        for group, cut in zip(groups, cuts, strict=True):
            if cut.axis is not None:
                result.shards[group.index] = cut_group(group, cut.axis, whole, result.contexts, bands[group.index])
    return result


def find_bands(
    groups: Sequence[Group], cuts: Sequence[LayerCut], whole: Context, rows: Mapping[Buffer, int]
) -> dict[int, list[Band]]:
    """The positions of its result that each core computes, by group. Groups that are not cut have no entry."""
    readers = Readers(groups, whole, rows) if any(cut.halo for cut in cuts) else None
    found: dict[int, list[Band]] = {}
    for group in reversed(groups):
        cut = cuts[group.index]
        if cut.axis is None:
            continue
        behind = readers.of(group, cuts) if readers is not None and cut.halo else ()
        found[group.index] = (
            halo_bands(group, behind, cuts, found) if behind else even_bands(group, cut.axis, whole, cut.cores)
        )
    return found


def even_bands(group: Group, axis: int, whole: Context, cores: int) -> list[Band]:
    """Equal shares of the positions of a group's result; fewer than ``cores`` if there are too few positions."""
    size, unit = group.outputs[0].shape[axis], _unit(group, axis, whole, cores)
    bands = [interval(size, core, cores, unit) for core in range(cores)]
    return [(first, end) for first, end in bands if first < end]


def buffer_rows(groups: Sequence[Group], whole: Context) -> dict[Buffer, int]:
    """Bytes per row of each buffer that groups write."""
    views = [whole.view(tensor) for group in groups for tensor in group.outputs]
    found: dict[Buffer, int] = {}
    for view in views:
        row = row_bytes(view)
        # Views of one buffer may disagree about its rows. Then the whole buffer is one row.
        found[view.buffer] = row if found.get(view.buffer, row) == row else max(1, view.buffer.nbytes)
    for op in filter(None, (group.anchor for group in groups)):
        if op.kind not in ("conv", "pool") or op.attrs["layout"] != "NCHW":
            continue
        # For bands of NCHW images, whose channels are planes, a plane counts as a row.
        view = whole.view(op.input(0))
        plane = view.strides[1]
        if view.buffer in found and plane > view.strides[2] > view.strides[3] and not view.buffer.nbytes % plane:
            found[view.buffer] = plane
    return found


def core_context(whole: Context, views: Mapping[Tensor, View]) -> Context:
    """A context for the shards of one core. ``views``: those of the whole tensors that it uses."""
    config = replace(whole.config, cores=1)
    return Context(
        config, whole.constants, dict(views), beside=whole.config.cores, whole=whole, pinned=whole.pinned
    )  # fmt: skip


def cut_group(
    group: Group, axis: int, whole: Context, contexts: Sequence[Context], bands: Sequence[Band] | None = None
) -> list[Shard]:
    """The shards of a group for cores with these ``contexts``. ``bands``: the positions of each; None: equal shares."""
    axes = operand_axes(group, axis)
    assert axes is not None
    shards = []
    for context, (first, end) in zip(
        contexts, even_bands(group, axis, whole, len(contexts)) if bands is None else bands, strict=False
    ):
        shards.append(shard_of(group, axes, first, end))
        _add_views(shards[-1], context)
    return shards


def _unit(group: Group, axis: int, whole: Context, cores: int) -> int:
    """The number of consecutive positions that stay together: for output channels, the columns of the array."""
    matrix, anchor = whole.config.matrix, group.anchor
    if matrix is None or anchor is None or anchor.kind not in ("matmul", "conv"):
        return 1
    if is_in_groups(group, axis):
        return _grouped_unit(anchor, cores, matrix.cols)
    axes = operand_axes(group, axis)
    return matrix.cols if axes is not None and axes[anchor.input(0)] is None else 1


def _grouped_unit(op: Op, cores: int, cols: int) -> int:
    """The unit for a grouped convolution: as many whole groups as fill the columns of the array, or equal parts of each
    group if several cores share one."""
    groups: int = op.attrs["groups"]
    each = op.input(1).shape[0] // groups
    share, rest = divmod(cores, groups)
    if share > 1 and not rest and not each % share:
        return each // share
    return max(1, cols // each) * each


def _add_views(shard: Shard, context: Context) -> None:
    for tensor, (source, starts) in shard.slices.items():
        context.own[tensor] = source, starts
        if tensor.data is None and source in context.views:
            context.views[tensor] = context.views[source].slice(starts, tensor.shape)


# tensors


_CoreBuffers = tuple[list[Buffer], list[Region | None]]
"""The buffers that replace the buffer of a whole tensor, and the bytes of it that each core holds."""


def move_to_cores(
    groups: Sequence[Group], buffers: Sequence[Buffer], result: Shards
) -> tuple[dict[Buffer, list[Buffer]], list[SharedTensor]]:
    """Give each core its own buffers for its bytes of tensors, and update its views. Returns the new buffers by whole
    buffer.

    A tensor is moved if no core needs bytes of another core, or if cores can exchange it.
    """
    passes = result.passes
    shared: list[SharedTensor] = []
    own: dict[Buffer, _CoreBuffers] = {}
    for buffer, tensor in _touched_by_all(groups, buffers, result, passes=passes).items():
        spans = tensor.all
        if not (buffer.is_scratch and buffer.nbytes and spans is not None):
            continue
        if not (are_disjoint(spans) or tensor.is_private):
            if not (passes and tensor.is_possible):
                continue
            shared.append(tensor)
            spans = tensor.spans(result.shards, result.contexts)
        size = max(span.nbytes for span in filter(None, spans))
        own[buffer] = [like(buffer, size, buffer.core) for span in spans if span is not None], spans
    for tensor in shared:
        tensor.begin(*own[tensor.whole])
    _move_views(result, own, {tensor.whole: tensor for tensor in shared}, passes=passes)
    return {buffer: own[buffer][0] for buffer in buffers if buffer in own}, shared


def _move_views(
    result: Shards, own: Mapping[Buffer, _CoreBuffers], shared: Mapping[Buffer, SharedTensor], *, passes: bool
) -> None:
    """Point the views of each core to its own buffers."""
    for core, context in enumerate(result.contexts):
        for tensor, view in list(context.views.items()):
            if view.buffer not in own:
                continue
            buffers, spans = own[view.buffer]
            span = spans[core]
            # A core either uses all of a tensor that is not cut, or nothing of it.
            if span is None or (tensor not in context.own and not passes):
                continue
            if not span.holds(region_of(view, span.row)):
                continue  # a view of the whole tensor that this core does not use
            context.views[tensor] = place_view(view, span, buffers[core])
            if view.buffer in shared:
                shared[view.buffer].moved[core, tensor] = view


def place_on_cores(
    groups: Sequence[Group],
    buffers: Sequence[Buffer],
    result: Shards,
    own: list[list[Buffer]],
    shared: Iterable[SharedTensor],
) -> tuple[list[Buffer], list[Buffer]]:
    """Give the buffers of all cores the addresses of the first core's buffers.

    Returns all buffers in use, and those among them that relay values between cores through DRAM.
    """
    for copies in own:
        first = copies[0]
        for core, buffer in enumerate(copies):
            buffer.born, buffer.dies, buffer.offset = first.born, first.dies, first.offset
            buffer.core = None if first.core is None else core
    relays: list[Buffer] = []
    config = result.whole.config
    multicast, by_dram = config.interconnect.multicast, config.exchange is None
    for tensor in shared:
        if tensor.buffers[0].on_chip:
            for number, transfers in transfers_of(tensor, result.shards, multicast=multicast, by_dram=by_dram):
                result.transfers.setdefault(number, []).extend(transfers)
            if by_dram:
                relays.append(tensor.whole)
        else:
            own.remove(tensor.buffers)
            tensor.keep_in_dram(result.contexts)
    return [*_used(groups, buffers, result), *(buffer for copies in own for buffer in copies), *relays], relays


def _touched_by_all(
    groups: Sequence[Group], buffers: Sequence[Buffer], result: Shards, *, passes: bool
) -> dict[Buffer, SharedTensor]:
    """The bytes of each buffer that the cores use, in the order of the buffers."""
    cores, rows = len(result.contexts), result.rows
    found = {each: SharedTensor(each, rows.get(each) or max(1, each.nbytes), cores) for each in buffers}
    for group in groups:
        shards = result.shards[group.index]
        made = _buffers(group.outputs, result.whole)
        read = _buffers([tensor for op in group.ops for tensor in op.inputs if tensor is not None], result.whole)
        for buffer, touched in touched_by(
            group, shards, result.whole, result.contexts, result.rows, passes=passes
        ).items():
            if buffer in found:
                found[buffer].add(group, touched, makes=buffer in made, reads=buffer in read)
                axis = result.cuts[group.index].axis
                if buffer in made and axis is not None:
                    found[buffer].is_exact &= is_region(result.whole.views[group.outputs[0]], axis, found[buffer].row)
    return found


def _buffers(tensors: Iterable[Tensor], context: Context) -> set[Buffer]:
    return {context.views[tensor].buffer for tensor in tensors if tensor in context.views}


def touched_by(
    group: Group,
    shards: Sequence[Shard] | None,
    whole: Context,
    contexts: Sequence[Context],
    rows: Mapping[Buffer, int],
    *,
    passes: bool = False,
) -> dict[Buffer, list[Region | None] | None]:
    """The bytes of each buffer that each core uses for a group; None: any core may use any byte.

    ``rows``: see :func:`buffer_rows`. ``passes``: cores can receive a whole tensor.
    """
    if shards is None:
        return dict.fromkeys((view.buffer for _, view in _views(group, whole)), None)
    found: dict[Buffer, list[Region | None] | None] = {}
    for core, (shard, context) in enumerate(zip(shards, contexts, strict=False)):
        for tensor, view in _views(shard.group, context):
            if tensor not in shard.slices and not passes:
                found[view.buffer] = None
            elif (spans := found.setdefault(view.buffer, [None] * len(contexts))) is not None:
                row = rows.get(view.buffer) or max(1, view.buffer.nbytes)
                spans[core] = join(spans[core], region_of(view, row))
    return found


def _views(group: Group, context: Context) -> list[tuple[Tensor, View]]:
    return [(tensor, context.views[tensor]) for tensor in dict.fromkeys(group.stored()) if tensor in context.views]


def _used(groups: Sequence[Group], buffers: Sequence[Buffer], result: Shards) -> list[Buffer]:
    """The buffers of whole tensors that some core still uses."""
    used: set[Buffer] = set()
    for group in groups:
        used.update(touched_by(group, result.shards[group.index], result.whole, result.contexts, result.rows))
    return [buffer for buffer in buffers if buffer in used or not buffer.is_scratch]


def like(buffer: Buffer, nbytes: int, core: int | None) -> Buffer:
    """A copy of a buffer with another size and core."""
    return Buffer(buffer.name, buffer.region, nbytes, buffer.offset, buffer.born, buffer.dies, core, buffer.is_rolling)
