"""Decide the layout of every tensor: memory order, views instead of copies, concatenation in place, lifetimes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType

from npusim.compiler.buffers import Buffer, View, dense_strides, memory_order, ordered_strides
from npusim.compiler.grouping.groups import VIEWS, Group
from npusim.compiler.lower import TILES
from npusim.compiler.lower.base import Context, fact
from npusim.compiler.lower.movement import VIEW_RULES
from npusim.compiler.schedule.kv_cache import growths
from npusim.graph import Graph, Op, Tensor
from npusim.polling import poll
from npusim.program import FIRST_IO, SCRATCH

DENSE_KINDS = frozenset(kind for kind, lowering in TILES.items() if lowering.dense)

_ELSEWHERE = DENSE_KINDS | VIEWS
"""Kinds whose results cannot be computed into a part of another tensor."""

_CHANNELS_LAST = (0, 2, 3, 1)


def place(graph: Graph, groups: Sequence[Group], context: Context) -> tuple[list[Group], list[Buffer]]:
    """Fill ``context.views`` for every tensor that is kept in memory.

    Returns the groups that remain to be executed, in order, and the buffers in the order of their first use.
    """
    # Two passes, because of a circular dependency: the preferred order of a tensor depends on the layout of its source,
    # which depends on whether that is computed into a concatenation, whose order in turn depends on its sources.
    for index, tensor in enumerate((*graph.inputs, *graph.outputs)):
        strides = dense_strides(tensor.shape, tensor.dtype.itemsize)
        buffer = Buffer(tensor.name, FIRST_IO + index, tensor.nbytes)
        context.views[tensor] = View(buffer, 0, tensor.shape, strides, tensor.dtype)
    for source, target, axis, capacity in growths(graph):
        _share(graph.inputs[source], graph.outputs[target], FIRST_IO + source, axis, capacity, context)
    inputs = [context.views[tensor].buffer for tensor in graph.inputs]
    trial = Context(context.config, context.constants, dict(context.views))
    orders = _orders(groups, trial)
    _place_behind_views(groups, orders, {*graph.outputs}, context)
    apart = not context.config.compiler.parts_in_place
    hosts = {} if apart else _concat_hosts(groups, trial, {*graph.outputs, *graph.inputs})
    kept: list[Group] = []
    for group in groups:
        poll()
        copies, group = _copies_for_dense(group, context)
        kept.extend(copies)
        _carry(group, context)
        if not _alias(group, context):
            kept.append(group)
            for tensor in group.outputs:
                _settle(tensor, orders, hosts, context)
    groups = [_numbered(index, group, context) for index, group in enumerate(kept)]
    return groups, _lifetimes(groups, context, inputs)


def _place_behind_views(
    groups: Sequence[Group], orders: Mapping[Tensor, tuple[int, ...]], outputs: set[Tensor], context: Context
) -> None:
    """Compute a result directly in the output that only shows it in another shape, to avoid a copy.

    If the operator prefers another memory order than that of the output, the copy remains: it transposes within SRAM.
    """
    readers = Counter(tensor for group in groups for op in group.ops for tensor in {*op.inputs} if tensor is not None)
    makers = {tensor: group.ops[0].kind for group in groups for tensor in group.outputs}
    for state in _carried(groups):
        del makers[state]
    for group in reversed(groups):
        op = group.ops[0]
        if op.kind not in ("reshape", "transpose") or op.output not in context.views:
            continue
        shown, view = op.input(0), context.views[op.output]
        if shown in context.views or shown not in makers or readers[shown] > 1 or shown in outputs:
            continue
        if op.kind == "reshape" and view.is_dense():
            strides = dense_strides(shown.shape, shown.dtype.itemsize)
        elif op.kind == "transpose" and makers[shown] not in _ELSEWHERE:
            strides = tuple(stride for _, stride in sorted(zip(op.attrs["perm"], view.strides, strict=True)))
        else:
            continue
        if strides == ordered_strides(shown.shape, orders[shown], shown.dtype.itemsize):
            context.views[shown] = View(view.buffer, view.offset, shown.shape, strides, shown.dtype)


def _numbered(index: int, group: Group, context: Context) -> Group:
    """The group with this number. An equal group of an earlier plan is reused, with everything cached for it."""
    key = (index, group.anchor, group.chain, group.parts, group.sides)
    return fact(context, key, lambda: Group(*key))


def _share(source: Tensor, target: Tensor, region: int, axis: int, capacity: int, context: Context) -> None:
    """Place the input and output tensor of a KV cache in one buffer, with space for ``capacity`` rows."""
    held = [capacity if at == axis else size for at, size in enumerate(target.shape)]
    strides = dense_strides(held, target.dtype.itemsize)
    buffer = Buffer(target.name, region, prod(held) * target.dtype.itemsize)
    for tensor in (source, target):
        context.views[tensor] = View(buffer, 0, tensor.shape, strides, tensor.dtype)


def _orders(groups: Sequence[Group], trial: Context) -> dict[Tensor, tuple[int, ...]]:
    """The preferred memory order of each result, found by a trial placement in which every result has its own buffer.

    A view of the trial may become a copy later, if its source is a part of a concatenation.
    """
    orders: dict[Tensor, tuple[int, ...]] = {}
    turned = _turned_inputs(groups, trial) if trial.config.cores > 1 else set()
    for group in groups:
        poll()
        _alias(group, trial)
        _carry(group, trial)
        for tensor in group.outputs:
            order = orders[tensor] = _CHANNELS_LAST if tensor in turned else _preferred(group, tensor, trial)
            if tensor not in trial.views:
                trial.views[tensor] = _fresh(tensor, order)
    return orders


def _turned_inputs(groups: Sequence[Group], trial: Context) -> set[Tensor]:
    """Elementwise results of graph inputs that only convolutions and poolings of planes read.

    The loads of an input, which wait for the DRAM, transpose it. Otherwise the copies of each core's windows would, and
    cores could not start on a part of the input.
    """
    readers: dict[Tensor, list[Group]] = {}
    for group in groups:
        for tensor in dict.fromkeys(t for op in group.ops for t in op.inputs if t is not None):
            readers.setdefault(tensor, []).append(group)

    def is_window(group: Group, tensor: Tensor) -> bool:
        op = group.anchor
        windowed = op is not None and op.kind in ("conv", "pool") and op.attrs["layout"] == "NCHW"
        return windowed and all(tensor not in each.inputs[op is each :] for each in group.ops)

    return {
        group.outputs[0]
        for group in groups
        if group.anchor is None
        and len(group.outputs) == 1
        and len(group.outputs[0].shape) == 4
        and any(t in trial.views and not trial.views[t].buffer.is_scratch for t in group.loads())
        and readers.get(group.outputs[0])
        and all(is_window(each, group.outputs[0]) for each in readers[group.outputs[0]])
    }


def _preferred(group: Group, tensor: Tensor, trial: Context) -> tuple[int, ...]:
    """The preferred memory order of a group's result, outermost dimension first."""
    rank = tuple(range(len(tensor.shape)))
    op = group.ops[0]
    kind = group.anchor.kind if group.anchor else "elementwise"
    if tensor is not group.outputs[0] and group.sides:
        return rank  # one element
    if kind in ("conv", "pool"):
        # A tile takes all channels of a few pixels. If channels are contiguous, transfers have long runs.
        assert group.anchor is not None
        return _CHANNELS_LAST if group.anchor.attrs["layout"] == "NCHW" else rank
    # Where a slice is a copy, it keeps the order of its source: its readers take the same runs.
    if kind in DENSE_KINDS or (kind in VIEWS and kind != "slice") or kind in ("matmul", "normalize", "routine"):
        return rank
    # Other kinds compute in any order. The order of a source gives loads and stores the same long runs.
    sources = group.loads() if group.anchor is None else [t for t in op.inputs if t is not None]
    for source in sources:
        alike = source.shape == tensor.shape or (kind != "elementwise" and len(source.shape) == len(rank))
        if alike and not source.is_constant:
            view = trial.view(source)
            return memory_order(view.shape, view.strides)
    return rank


def _fresh(tensor: Tensor, order: Sequence[int]) -> View:
    buffer = Buffer(tensor.name, SCRATCH, tensor.nbytes)
    return View(buffer, 0, tensor.shape, ordered_strides(tensor.shape, order, tensor.dtype.itemsize), tensor.dtype)


def _concat_hosts(groups: Sequence[Group], trial: Context, io: set[Tensor]) -> dict[Tensor, tuple[Op, int]]:
    """Tensors that can be computed directly into a concatenation: (the concat, offset along its axis)."""
    makers = {tensor: group for group in groups for tensor in group.outputs}
    for state in _carried(groups):
        del makers[state]
    hosts: dict[Tensor, tuple[Op, int]] = {}
    for group in groups:
        op = group.ops[0]
        if op.kind != "concat":
            continue
        at, times = 0, Counter(op.inputs)
        for tensor in op.inputs:
            assert tensor is not None
            maker = makers.get(tensor)
            # A view, a result that must be dense, or one that is used twice here cannot move: it has a single address.
            ours = tensor not in io and tensor not in hosts and not tensor.is_constant and times[tensor] == 1
            if ours and maker is not None and maker.ops[0].kind not in _ELSEWHERE:
                hosts[tensor] = (op, at)
            at += tensor.shape[op.attrs["axis"]]
    return hosts


def _settle(
    tensor: Tensor, orders: dict[Tensor, tuple[int, ...]], hosts: dict[Tensor, tuple[Op, int]], context: Context
) -> None:
    """Give a tensor without a view a buffer of its own, or its part of the concatenation that it belongs to."""
    # A loop, not recursion: concatenations nest as deeply as the graph.
    waiting = [tensor]
    while waiting[-1] not in context.views and waiting[-1] in hosts:
        waiting.append(hosts[waiting[-1]][0].output)
    for part in reversed(waiting):
        if part in context.views:
            continue
        if part in hosts:
            op, at = hosts[part]
            starts = [at if axis == op.attrs["axis"] else 0 for axis in range(len(part.shape))]
            context.views[part] = context.views[op.output].slice(starts, part.shape)
        else:
            context.views[part] = _fresh(part, orders[part])


def _alias(group: Group, context: Context) -> bool:
    """Make the result of a view operator a view of its input. Returns False if it must be copied."""
    op = group.ops[0]
    if op.kind not in VIEWS or (op.kind == "slice" and not context.config.compiler.parts_in_place):
        return False
    view = VIEW_RULES[op.kind](op, context.view(op.input(0)))
    if view is None or op.output in context.views:
        return view is not None and _is_same(view, context.views[op.output])
    context.views[op.output] = view
    return True


def _carry(group: Group, context: Context) -> None:
    """At the end of an iteration, let the states of the next one be those of this one, at the same place."""
    op = group.ops[0]
    if op.kind == "repeat":
        for before, after in zip(op.inputs[: op.attrs["states"]], op.outputs, strict=False):
            assert before is not None
            context.views[after] = context.view(before)


def _carried(groups: Sequence[Group]) -> set[Tensor]:
    """The states after each iteration, which no operator computes."""
    ends = (group.ops[0] for group in groups if group.ops[0].kind == "repeat")
    return {state for op in ends for state in op.outputs[: op.attrs["states"]]}


def _is_same(one: View, other: View) -> bool:
    """Whether two views of the same shape have every element at the same address."""
    strides = zip(one.shape, one.strides, other.strides, strict=True)
    return (
        one.buffer is other.buffer
        and one.offset == other.offset
        and all(first == second for dim, first, second in strides if dim > 1)
    )


def _copies_for_dense(group: Group, context: Context) -> tuple[list[Group], Group]:
    """Copies that make the operands of a row operator dense, and the group that reads those instead."""
    op = group.anchor
    if op is None or op.kind not in DENSE_KINDS:
        return [], group
    inputs, copies = list(op.inputs), []
    for index, tensor in enumerate(inputs):
        if tensor is None or context.view(tensor).is_dense():
            continue
        dense = Tensor(f"{tensor.name}~dense~{op.name}", tensor.shape, tensor.dtype)
        context.views[dense] = _fresh(dense, range(len(dense.shape)))
        copy = Op(dense.name, "reshape", (tensor,), (dense,), MappingProxyType({"shape": tensor.shape}))
        inputs[index] = dense
        copies.append(Group(0, copy, ()))
    return copies, Group(group.index, Op(op.name, op.kind, tuple(inputs), op.outputs, op.attrs), ())


def _lifetimes(groups: Sequence[Group], context: Context, inputs: Sequence[Buffer]) -> list[Buffer]:
    """Set ``born`` and ``dies`` of each buffer to the first and last group that uses it. Returns the buffers."""
    order: dict[Buffer, None] = dict.fromkeys(inputs)
    for group in groups:
        for tensor in group.stored():
            if tensor.is_constant and tensor not in context.views:
                continue  # the lowering packs it in the form that it needs
            buffer = context.view(tensor).buffer
            if buffer not in order:
                order[buffer] = None
                buffer.born = group.index
            buffer.dies = group.index
    _keep_for_iterations(groups, context)
    return list(order)


def _keep_for_iterations(groups: Sequence[Group], context: Context) -> None:
    """Let the values that every iteration of a loop reads live until its end: it is repeated after the last one."""
    users: list[set[Buffer]] = [set()]  # of each iteration
    for group in groups:
        users[-1].update(context.views[tensor].buffer for tensor in group.stored() if tensor in context.views)
        if group.ops[0].kind == "repeat":
            if group.ops[0].attrs["times"]:
                # States belong to two consecutive iterations.
                for buffer in users[-1] & users[-3]:
                    buffer.dies = max(buffer.dies, group.index)
                users = []
            users.append(set())
