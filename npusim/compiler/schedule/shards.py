"""Shards: a group cut along an axis of its result, one slice per core.

A shard is itself a group, on tensors that are slices of the whole ones, so lowerings need no special case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any

from npusim.compiler.grouping.groups import ELEMENTWISE, Group
from npusim.graph import Op, Tensor
from npusim.ops.base import REGISTRY, RowForm
from npusim.ops.matrix import Blocks, Phases
from npusim.units import ceil_div

Axes = Mapping[Tensor, int | None]
"""The dimension along which each operand is cut; None: each shard needs the whole operand."""


@dataclass(slots=True)
class Shard:
    """One core's slice of a group."""

    group: Group
    slices: dict[Tensor, tuple[Tensor, tuple[int, ...]]] = field(default_factory=dict)
    """For each tensor of the shard that is cut: the whole tensor, and the position of the slice in it."""


def axes_of(group: Group, *, passes: bool = False) -> list[int]:
    """The dimensions of a group's result along which it can be cut.

    ``passes``: cores pass values to each other. Only then can a shard read what other cores computed: image rows beside
    its own band, and channels of a grouped convolution, which are interleaved with those of other shards.
    """
    shape = group.outputs[0].shape
    return [
        axis
        for axis in range(len(shape))
        if shape[axis] > 1
        and operand_axes(group, axis) is not None
        and (passes or not (is_row(group, axis) or is_in_groups(group, axis)))
    ]


def is_in_groups(group: Group, axis: int) -> bool:
    """Whether ``axis`` is the channel dimension of a grouped convolution."""
    op = group.anchor
    return op is not None and op.kind == "conv" and op.attrs["groups"] > 1 and axis == _channel_axis(op)


def is_row(group: Group, axis: int) -> bool:
    """Whether ``axis`` is the row dimension of the images of a convolution or pooling."""
    anchor = group.anchor
    return anchor is not None and anchor.kind in ("conv", "pool") and axis == _row_axis(anchor)


def _row_axis(op: Op) -> int:
    return 2 if op.attrs["layout"] == "NCHW" else 1


def _channel_axis(op: Op) -> int:
    return 1 if op.attrs["layout"] == "NCHW" else 3


def groups_of(op: Op, first: int, end: int) -> tuple[int, int]:
    """(first, end) of the groups of a convolution that compute output channels [first, end)."""
    each = op.input(1).shape[0] // op.attrs["groups"]
    return first // each, ceil_div(end, each)


def operand_axes(group: Group, axis: int) -> Axes | None:
    """The dimension along which each tensor is cut if the result is cut along ``axis``; None if it cannot be cut."""
    if group.parts:
        return _attention_axes(group, axis)
    if len(group.outputs) > 1 or (is_row(group, axis) and not _has_bands(group)):
        return None
    found: dict[Tensor, int | None] = {group.outputs[0]: axis}
    anchor, shape = group.anchor, group.outputs[0].shape
    for op in group.chain:
        if op.kind not in ELEMENTWISE or op.output.shape != shape:
            return None
        for tensor in (*op.inputs, op.output):
            if tensor is not None and not _agree(found, tensor, _aligned(tensor, len(shape), axis)):
                return None
    if anchor is None:
        return found
    rule = _rule(anchor)
    cut = None if rule is None or anchor.output.shape != shape else rule(anchor, axis)
    if cut is None:
        return None
    for tensor, at in ((anchor.output, axis), *cut):
        if not _agree(found, tensor, at):
            return None
    return found


def _attention_axes(group: Group, axis: int) -> Axes | None:
    """:func:`operand_axes` for fused attention, whose parts must agree on every tensor."""
    found: dict[Tensor, int | None] = {}
    if axis == len(group.outputs[0].shape) - 1:
        return None
    for part in group.parts:
        axes = operand_axes(part, axis)
        if axes is None or not all(_agree(found, tensor, at) for tensor, at in axes.items()):
            return None
    return found


def _has_bands(group: Group) -> bool:
    """Whether the group can be cut into bands of rows."""
    op = group.anchor
    assert op is not None
    (low, high), (above, _) = window_rows(op, 0, 1)
    (last, end), _ = window_rows(op, op.output.shape[_row_axis(op)] - 1, op.output.shape[_row_axis(op)])
    # All cores use the slots of the first shard, so it needs a slot for padding if any other shard does.
    alike = above > 0 or any(op.attrs["pads"][1::2]) or not op.attrs["pads"][2]
    return low < high and last < end and alike


def _agree(found: dict[Tensor, int | None], tensor: Tensor, axis: int | None) -> bool:
    return found.setdefault(tensor, axis) == axis


def _aligned(tensor: Tensor, rank: int, axis: int) -> int | None:
    """The dimension of an operand that broadcasting aligns with ``axis`` of the result; None if there is none."""
    at = axis - (rank - len(tensor.shape))
    return at if at >= 0 and tensor.shape[at] > 1 else None


_Cut = list[tuple[Tensor, int | None]]
_Rule = Callable[[Op, int], _Cut | None]


def _rule(anchor: Op) -> _Rule | None:
    form = REGISTRY[anchor.kind].form
    if isinstance(form, RowForm):
        return _rows
    return _RULES.get(anchor.kind)


def _rows(op: Op, axis: int) -> _Cut | None:
    form, row = REGISTRY[op.kind].form, op.attrs["axis"]
    assert isinstance(form, RowForm)
    if form.single and not op.attrs["keepdims"]:
        axis += axis >= row
    inside = axis >= row if form.trailing else axis == row
    return None if inside or any(op.inputs[1:]) else [(op.input(0), axis)]


def _matmul(op: Op, axis: int) -> _Cut | None:
    a, b, bias, rank = op.input(0), op.input(1), op.optional(2), len(op.output.shape)
    cut: _Cut
    if axis == rank - 1:
        cut = [(a, None), (b, len(b.shape) - 1)]
    elif axis == rank - 2:
        cut = [(a, len(a.shape) - 2), (b, None)]
    else:
        cut = [(a, _aligned(a, rank, axis)), (b, _aligned(b, rank, axis))]
    if bias is not None:
        cut.append((bias, _aligned(bias, rank, axis)))
    return cut


def _is_one_row(op: Op) -> bool:
    """Whether a convolution computes each pixel of single rows from the same pixel."""
    window = (*op.input(1).shape[2:], *op.attrs["stride"], op.output.shape[_row_axis(op)])
    return window == (1,) * 5 and not any(op.attrs["pads"])


def _conv(op: Op, axis: int) -> _Cut | None:
    x, w, bias = op.input(0), op.input(1), op.optional(2)
    channels = _channel_axis(op)
    cut: _Cut
    if axis in (0, _row_axis(op)) or (axis == _row_axis(op) + 1 and _is_one_row(op)):
        cut = [(x, axis), (w, None)]
    elif axis == channels:
        cut = [(x, None if op.attrs["groups"] == 1 else channels), (w, 0)]
    else:
        return None
    if bias is not None:
        cut.append((bias, 0 if axis == channels else None))
    return cut


def _pool(op: Op, axis: int) -> _Cut | None:
    return [(op.input(0), axis)] if axis in (0, _channel_axis(op), _row_axis(op)) else None


def window_rows(op: Op, first: int, end: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The rows of the operand that rows [first, end) of the result need, and the rows of padding above and below
    them."""
    (stride, _), (dilation, _), (top, _, bottom, _) = op.attrs["stride"], op.attrs["dilation"], op.attrs["pads"]
    kernel = op.input(1).shape[2] if op.kind == "conv" else op.attrs["kernel"][0]
    height = op.input(0).shape[_row_axis(op)]
    low, high = first * stride - top, (end - 1) * stride - top + (kernel - 1) * dilation + 1
    return (max(low, 0), min(high, height)), (max(-low, 0), min(max(high - height, 0), bottom))


def _reshape(op: Op, axis: int) -> _Cut | None:
    source, target = op.input(0).shape, op.output.shape
    before = prod(target[:axis])
    for at, dim in enumerate(source):
        if dim == target[axis] and prod(source[:at]) == before:
            return [(op.input(0), at)]
    return None


def _transpose(op: Op, axis: int) -> _Cut | None:
    return [(op.input(0), op.attrs["perm"][axis])]


def _reduce(op: Op, axis: int) -> _Cut | None:
    kept = [at for at in range(len(op.input(0).shape)) if at not in op.attrs["axes"]]
    if op.attrs["keepdims"]:
        return [(op.input(0), axis)] if axis in kept else None
    return [(op.input(0), kept[axis])]


def _gather(op: Op, axis: int) -> _Cut | None:
    """Only along the outermost dimension of the indices, so that each shard has contiguous runs of the result."""
    indices = op.input(1)
    outermost = next((at for at, size in enumerate(indices.shape) if size > 1), None)
    return [(op.input(0), None), (indices, axis)] if op.attrs["axis"] == 0 and axis == outermost else None


_RULES: dict[str, _Rule] = {
    "matmul": _matmul,
    "conv": _conv,
    "pool": _pool,
    "gather": _gather,
    "reduce": _reduce,
    "reshape": _reshape,
    "transpose": _transpose,
}


def interval(size: int, shard: int, shards: int, unit: int = 1) -> tuple[int, int]:
    """(first, end) of one shard of a dimension. The first shards are the largest; all but the last consist of whole
    units."""
    units, rest = divmod(-(-size // unit), shards)
    first = shard * units + min(shard, rest)
    return min(size, first * unit), min(size, (first + units + (shard < rest)) * unit)


def shard_of(group: Group, axes: Axes, first: int, end: int) -> Shard:
    """The shard of a group with positions [first, end) along the dimensions that are cut."""
    shard = Shard(group)
    made: dict[tuple[Tensor, bool], Tensor] = {}
    changed: dict[Op, dict[str, Any]] = {}
    seen: dict[Tensor, tuple[int, int]] = {}
    anchor, along = group.anchor, axes[group.outputs[0]]
    if anchor is not None and along is not None:
        if is_row(group, along):
            rows, pads = window_rows(anchor, first, end)
            seen[anchor.input(0)], changed[anchor] = rows, _window_attrs(anchor, end - first, pads)
        elif is_in_groups(group, along):
            low, high = groups_of(anchor, first, end)
            depth = anchor.input(1).shape[1]
            seen[anchor.input(0)], changed[anchor] = (low * depth, high * depth), {"groups": high - low}
        elif anchor.kind == "conv" and along == _channel_axis(anchor):
            if anchor.attrs["blocks"]:
                blocks = Blocks(*anchor.attrs["blocks"])
                changed[anchor] = {"blocks": blocks._replace(first=blocks.first + first)}
            elif anchor.attrs["phases"]:
                phases = Phases(*anchor.attrs["phases"])
                changed[anchor] = {"phases": phases._replace(first=phases.first + first)}

    def own(tensor: Tensor, op: Op) -> Tensor:
        axis = axes.get(tensor)
        if axis is None:
            return tensor
        # The windows of a convolution and the chain after it may read different slices of one tensor.
        key = tensor, op is anchor and tensor in seen
        if key not in made:
            low, high = seen[tensor] if key[1] else (first, end)
            shape = tuple(high - low if at == axis else dim for at, dim in enumerate(tensor.shape))
            where = tuple(slice(low, high) if at == axis else slice(None) for at in range(len(shape)))
            data = None if tensor.data is None else tensor.data[where]
            made[key] = Tensor(tensor.name, shape, tensor.dtype, data)
            starts = tuple(low if at == axis else 0 for at in range(len(shape)))
            shard.slices[made[key]] = tensor, starts
        return made[key]

    def cut(op: Op) -> Op:
        inputs = tuple(None if tensor is None else own(tensor, op) for tensor in op.inputs)
        outputs = tuple(own(tensor, op) for tensor in op.outputs)
        return Op(op.name, op.kind, inputs, outputs, _attrs(op, outputs, changed.get(op)), op.origin)

    parts = tuple(
        Group(part.index, part.anchor and cut(part.anchor), tuple(map(cut, part.chain))) for part in group.parts
    )
    if parts:
        ops = [op for part in parts for op in part.ops]
        shard.group = Group(group.index, ops[0], tuple(ops[1:]), parts)
    else:
        shard.group = Group(group.index, group.anchor and cut(group.anchor), tuple(map(cut, group.chain)))
    return shard


def _attrs(op: Op, outputs: Sequence[Tensor], changed: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if op.kind == "reshape":
        changed = {"shape": outputs[0].shape}
    return MappingProxyType({**op.attrs, **changed}) if changed else op.attrs


def _window_attrs(op: Op, rows: int, pads: tuple[int, int]) -> dict[str, Any]:
    """The attributes that change for a band of ``rows`` rows with ``pads`` rows of padding (above, below)."""
    (_, left, _, right), (above, below) = op.attrs["pads"], pads
    changed: dict[str, Any] = {"pads": (above, left, below, right)}
    if op.kind == "pool":
        changed["output_hw"] = (rows, op.attrs["output_hw"][1])
    return changed
