"""Sequences and optional values in a plan: the host holds them, the tensors in them may be on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto, helper

from npusim.dtypes import DType
from npusim.errors import InputError
from npusim.frontends.onnx.host_decision import HostDecision
from npusim.frontends.onnx.tensors import ELEMENT_TYPES
from npusim.plan import Array, DeviceValue, Held, Items, Strings, Value, on_host

Tensors = tuple[Array | DeviceValue, ...]


def _items(d: HostDecision, index: int) -> Tensors:
    value = d.value(index)
    if not isinstance(value, Items) or value.values is None:
        raise InputError(f"input {index} must be a sequence")
    return value.values


def _tensor(d: HostDecision, index: int) -> Array | DeviceValue:
    value = d.value(index)
    if isinstance(value, Items):
        raise InputError(f"input {index} must be a tensor")
    if isinstance(value, Strings):
        raise InputError("sequences of strings are not supported")
    return value


def _position(d: HostDecision, index: int, length: int, default: int, end: int) -> int:
    """A position in a sequence of a length, made non-negative, below ``end``."""
    place = int(d.scalar(index)) if d.has(index) else default
    place += length * (place < 0)
    if not 0 <= place < end:
        raise InputError(f"position {place} is outside a sequence of {end} places")
    return place


def _construct(d: HostDecision) -> Value:
    values = tuple(_tensor(d, index) for index in range(len(d.node.input)))
    d.give(0, d.type_of(0))
    return Items(values)


def _empty(d: HostDecision) -> Value:
    dtype = ELEMENT_TYPES.get(int(d.attribute("dtype", TensorProto.FLOAT)))
    d.give(0, dtype or DType.FLOAT32)
    return Items(())


def _insert(d: HostDecision) -> Value:
    items, value = _items(d, 0), _tensor(d, 1)
    place = _position(d, 2, len(items), len(items), len(items) + 1)
    d.give(0, d.type_of(1))
    return Items((*items[:place], value, *items[place:]))


def _erase(d: HostDecision) -> Value:
    items = _items(d, 0)
    place = _position(d, 1, len(items), len(items) - 1, len(items))
    d.give(0, d.type_of(0))
    return Items((*items[:place], *items[place + 1 :]))


def _at(d: HostDecision) -> Value:
    items = _items(d, 0)
    place = _position(d, 1, len(items), -1, len(items))
    d.give(0, d.type_of(0))
    return items[place]


def _length(d: HostDecision) -> Value:
    d.give(0, DType.INT64)
    return np.asarray(len(_items(d, 0)), np.int64)


def _joined(count: int, shape: Sequence[int], axis: int, new: bool) -> GraphProto:
    """Concatenation of ``count`` tensors; with ``new``, of this shape each along a new axis."""
    names = [f"x{index}" for index in range(count)]
    nodes, parts, constants = [], names, []
    if new:
        constants = [helper.make_tensor("shape", TensorProto.INT64, [len(shape)], list(shape))]
        parts = [f"r{index}" for index in range(count)]
        nodes = [helper.make_node("Reshape", [x, "shape"], [r]) for x, r in zip(names, parts, strict=True)]
    nodes.append(helper.make_node("Concat", parts, ["y"], axis=axis))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    return helper.make_graph(nodes, "joined", values, outputs, constants)


def _concat(d: HostDecision) -> Value:
    items = _items(d, 0)
    if not items:
        raise InputError("an empty sequence cannot be concatenated")
    new, axis = bool(d.attribute("new_axis", 0)), int(d.attribute("axis", 0))
    first = items[0].shape
    rank = len(first) + new
    if not -rank <= axis < rank or any(len(item.shape) != len(first) for item in items):
        raise InputError(f"tensors of shapes {[list(item.shape) for item in items[:4]]} have no axis {axis} in common")
    axis %= rank
    shape = (*first[:axis], 1, *first[axis:])
    plan = d.plan.extra(
        d.step, f"joined{len(items)}{list(shape) if new else ''}", partial(_joined, len(items), shape, axis, new)
    )
    given: list[tuple[Value, DType]] = [(item, d.type_of(0)) for item in items]
    targets = [d.values.target(d.plan.number(d.node.output[0]), d.step + 1)]
    [result] = d.run(plan, given, targets, d.values.backend)
    d.give(0, d.type_of(0))
    return result


def _split(d: HostDecision) -> Value:
    x = d.host(0)
    axis, keep = int(d.attribute("axis", 0)), bool(d.attribute("keepdims", 1))
    if not -x.ndim <= axis < x.ndim:
        raise InputError(f"there is no axis {axis} in a tensor of {x.ndim} dimensions")
    size, sizes = x.shape[axis], [1] * x.shape[axis]
    if d.has(1):
        given = d.host(1)
        sizes = [int(each) for each in given.reshape(-1)]
        if not given.ndim and sizes[0] > 0:
            sizes = [min(sizes[0], size - start) for start in range(0, size, sizes[0])]
    if min(sizes, default=0) < 0 or sum(sizes) != size:
        raise InputError(f"sizes {sizes[:8]} do not fit {size}")
    parts = np.split(x, np.cumsum(sizes)[:-1].tolist(), axis) if sizes else []
    if not d.has(1) and not keep:
        parts = [np.squeeze(part, axis) for part in parts]
    d.charge(x.size)
    d.give(0, d.type_of(0))
    return Items(tuple(np.ascontiguousarray(part) for part in parts))


def _same(d: HostDecision) -> Value:
    if not d.has(0):
        d.give(0, DType.FLOAT32)
        return Items(None)
    value = d.value(0)
    d.give(0, d.type_of(0))
    return value


def _has_element(d: HostDecision) -> Value:
    d.give(0, DType.BOOL)
    value = d.value(0) if d.has(0) else Items(None)
    return np.asarray(not (isinstance(value, Items) and value.values is None))


def _get_element(d: HostDecision) -> Value:
    value = _same(d)
    if isinstance(value, Items) and value.values is None:
        raise InputError("the optional value is absent")
    return value


def sequence_map(d: HostDecision) -> Sequence[Value]:
    """SequenceMap: the body for each tensor of the sequences."""
    body = d.plan.body(d.step, "body")
    values = [d.value(index) for index in range(len(d.node.input))]
    lengths = {len(value.values) for value in values if isinstance(value, Items) and value.values is not None}
    if len(lengths) != 1 or not isinstance(values[0], Items):
        raise InputError(f"the sequences have lengths {sorted(lengths)}")
    columns: list[list[Array | DeviceValue]] = [[] for _ in d.node.output]
    for place in range(lengths.pop()):
        given: list[tuple[Value, DType]] = [
            (value.values[place] if isinstance(value, Items) and value.values is not None else value, d.type_of(index))
            for index, value in enumerate(values)
        ]
        results = d.run(body, given, [on_host] * len(columns), d.values.backend)
        for column, result in zip(columns, results, strict=True):
            assert not isinstance(result, Held)
            column.append(result)
        d.charge()
    for index, name in enumerate(body.outputs):
        d.give(index, body.types.get(body.number(name), DType.FLOAT32))
    return [Items(tuple(column)) for column in columns]


def _one(run: Callable[[HostDecision], Value]) -> Callable[[HostDecision], Sequence[Value]]:
    def decide(d: HostDecision) -> Sequence[Value]:
        value = run(d)
        d.charge()
        return [value]

    return decide


HELD: Mapping[str, Callable[[Any], Sequence[Value]]] = {
    "SequenceConstruct": _one(_construct),
    "SequenceEmpty": _one(_empty),
    "SequenceInsert": _one(_insert),
    "SequenceErase": _one(_erase),
    "SequenceAt": _one(_at),
    "SequenceLength": _one(_length),
    "ConcatFromSequence": _one(_concat),
    "SplitToSequence": _one(_split),
    "Optional": _one(_same),
    "OptionalHasElement": _one(_has_element),
    "OptionalGetElement": _one(_get_element),
    "Identity": _one(_same),
    "SequenceMap": sequence_map,
}
"""Operators of the standard domain on values that the host holds."""
