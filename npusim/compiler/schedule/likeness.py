"""Keys for everything that the time of a group depends on. Groups with equal keys take the same time.

Networks repeat blocks, and consecutive designs share most of their groups. So a lowering or search for one group serves
all groups with an equal key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from npusim.compiler.grouping.groups import ANCHORS, Group
from npusim.compiler.lower.base import Context, fact
from npusim.compiler.lower.epilogue import absorb
from npusim.compiler.lower.streams import weights_per_kilo
from npusim.graph import Op, Tensor
from npusim.isa.matrix_types import packed_bytes


def seen(context: Context, group: Group) -> tuple[Any, ...]:
    """Everything that a lowering depends on, except addresses, available bytes, and rows per stripe."""
    number, scanned, tensors = fact(
        context, ("looks", group), lambda: (alike(context, group), _with_weights(group), boundary(context, group))
    )
    key: list[Any] = [number, group.index in context.pinned.starts]
    if scanned is not None:
        # Timing depends on no other property of the values of constants.
        key.append(weights_per_kilo(context, scanned))
    views, whole = context.views, context.whole
    for tensor in tensors:
        view = views.get(tensor)
        if view is not None:
            served = 1 if whole is None else context.served(tensor)
            key.append((view.shape, view.strides, view.buffer.on_chip, view.buffer.is_rolling, served))
    return tuple(key)


def _with_weights(group: Group) -> Op | None:
    return group.anchor if group.anchor is not None and group.anchor.kind in ANCHORS else None


def alike(context: Context, group: Group) -> int:
    """A number that is equal for groups of equal operators, whatever their names and the values of their constants."""
    # Numbers, because the descriptions themselves are long and compared often.
    numbers: dict[Any, int] = context.facts.setdefault("numbers", {})
    return fact(context, ("alike", group), lambda: numbers.setdefault(_description(group), len(numbers)))


def _description(group: Group) -> Any:
    """What the time depends on in the operators of a group. The group itself if that is not hashable."""
    if group.parts:
        return group
    numbers: dict[Tensor, int] = {}
    operators = []
    for op in group.ops:
        tensors = tuple(
            t and (numbers.setdefault(t, len(numbers)), t.shape, t.dtype, t.data is None)
            for t in (*op.inputs, *op.outputs)
        )
        operators.append((op.kind, tuple(sorted(op.attrs.items())), len(op.inputs), tensors))
    # How many operators the epilogue absorbs depends on the values of their constants.
    epilogue = absorb(group) if _with_weights(group) else None
    taken = epilogue and (len(epilogue.rest), *(type(row) for row in (epilogue.bias, epilogue.scale, epilogue.shift)))
    result = (tuple(operators), len(group.sides), taken)
    try:
        hash(result)
    except TypeError:
        return group
    return result


def boundary(context: Context, group: Group) -> Sequence[Tensor]:
    """The tensors of a group that are not constants, in the order of its operators."""
    return fact(context, ("boundary", group), lambda: _boundary(group))


def _boundary(group: Group) -> tuple[Tensor, ...]:
    tensors = (t for op in group.ops for t in (*op.inputs, *op.outputs) if t is not None and t.data is None)
    return tuple(dict.fromkeys(tensors))


def weight_bytes(context: Context, group: Group) -> int:
    """Bytes of a convolution's weights, which all stay in the scratchpad while it is in a cascade."""
    return fact(context, ("weights", group), lambda: _weight_bytes(group))


def _weight_bytes(group: Group) -> int:
    anchor = group.anchor
    if anchor is None or anchor.kind != "conv":
        return 0
    return packed_bytes(anchor.input(1).size, anchor.input(1).dtype, anchor.attrs["w_bits"])


def held_bytes(context: Context, group: Group) -> int:
    """The bytes that a cascade needs for a group's weights, unless they are pinned anyway."""
    return 0 if group.index in context.pinned.starts else weight_bytes(context, group)
