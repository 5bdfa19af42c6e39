"""Sequences and optional values whose lengths and positions are known during import: lists of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import AttributeProto

from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.scope import Absent, Listed, Value
from npusim.graph import Tensor

MOST_ITEMS = 1 << 12
"""Maximum length of a sequence during import."""


def _listed(node: Node, index: int) -> Listed:
    value = node.values[index] if index < len(node.values) else None
    if not isinstance(value, Listed):
        node.damaged(f"input {index} must be a sequence")
    return value


def _position(node: Node, index: int, length: int, default: int) -> int:
    """A position in a sequence of a length, made non-negative."""
    if node.optional(index) is None:
        return default
    place = int(node.scalar_value(index))
    return place + length if place < 0 else place


def _checked(node: Node, place: int, end: int) -> int:
    if not 0 <= place < end:
        node.damaged(f"position {place} is outside a sequence of {end} places")
    return place


def _construct(node: Node) -> Value:
    return Listed(tuple(node.input(index) for index in range(len(node.inputs))))


def _empty(node: Node) -> Value:
    node.int_attr("dtype", 1)
    return Listed(())


def _insert(node: Node) -> Value:
    items = _listed(node, 0).items
    if len(items) >= MOST_ITEMS:
        node.refuse(f"sequences of more than {MOST_ITEMS} tensors are not supported")
    place = _checked(node, _position(node, 2, len(items), len(items)), len(items) + 1)
    return Listed((*items[:place], node.input(1), *items[place:]))


def _erase(node: Node) -> Value:
    items = _listed(node, 0).items
    place = _checked(node, _position(node, 1, len(items), len(items) - 1), len(items))
    return Listed((*items[:place], *items[place + 1 :]))


def _at(node: Node) -> Value:
    items = _listed(node, 0).items
    return items[_checked(node, _position(node, 1, len(items), -1), len(items))]


def _length(node: Node) -> Value:
    return node.const(np.int64(len(_listed(node, 0).items)))


def _concat(node: Node) -> Value:
    items = list(_listed(node, 0).items)
    if not items:
        node.damaged("an empty sequence cannot be concatenated")
    new = node.int_attr("new_axis", 0)
    axis = node.axis(len(items[0].shape) + new)
    if new:
        items = [node.reshape(item, (*item.shape[:axis], 1, *item.shape[axis:])) for item in items]
    return node.add("concat", *items, axis=axis) if len(items) > 1 else items[0]


def _split(node: Node) -> Value:
    x, keep = node.input(0), node.int_attr("keepdims", 1)
    axis = node.axis(len(x.shape), default=0)
    size = x.shape[axis]
    sizes, single = [1] * size, node.optional(1) is None
    if not single:
        given = node.int_values(1)
        if node.input(1).shape:
            sizes = given
        elif given[0] > 0:
            sizes = [min(given[0], size - start) for start in range(0, size, given[0])]
        else:
            node.damaged(f"split must be above 0, is {given[0]}")
    if min(sizes, default=0) < 0 or sum(sizes) != size:
        node.damaged(f"sizes {sizes} do not fit {size}")
    if len(sizes) > MOST_ITEMS:
        node.refuse(f"sequences of more than {MOST_ITEMS} tensors are not supported")
    parts, start = [], 0
    for each in sizes:
        part = node.slice(x, axis, start, each)
        start += each
        parts.append(node.reshape(part, (*x.shape[:axis], *x.shape[axis + 1 :])) if single and not keep else part)
    return Listed(tuple(parts))


def _optional(node: Node) -> Value:
    node.attribute("type", AttributeProto.TYPE_PROTO)
    return node.values[0] if node.values and node.values[0] is not None else Absent()


def _has_element(node: Node) -> Value:
    value = node.values[0] if node.values else None
    return node.const(np.bool_(value is not None and not isinstance(value, Absent)))


def _get_element(node: Node) -> Value:
    value = node.values[0] if node.values else None
    if value is None or isinstance(value, Absent):
        node.damaged("the optional value is absent")
    return value


SEQUENCES: Mapping[str, Callable[[Node], Value]] = {
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceAt": _at,
    "SequenceLength": _length,
    "ConcatFromSequence": _concat,
    "SplitToSequence": _split,
    "Optional": _optional,
    "OptionalHasElement": _has_element,
    "OptionalGetElement": _get_element,
}
"""Operators of the standard domain on sequences and optional values."""


def is_held(values: Sequence[Value]) -> bool:
    """Whether any value is a sequence, or an optional value that is absent."""
    return any(isinstance(value, Listed | Absent) for value in values)


def tensors_of(values: Sequence[Value]) -> list[Tensor | None]:
    """The values that are tensors; None for others."""
    return [value if isinstance(value, Tensor) else None for value in values]
