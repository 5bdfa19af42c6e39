"""Decisions of the host between the segments of a plan: branches, loops, and results whose sizes depend on data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from npusim.dtypes import DType, dtype_of, to_storage
from npusim.errors import InputError, ModelError, UnsupportedError
from npusim.frontends.onnx import suppression
from npusim.frontends.onnx.held_sequences import HELD
from npusim.frontends.onnx.host_decision import GraphPlan, HostDecision
from npusim.frontends.onnx.host_steps import compute
from npusim.frontends.onnx.scope import domain_of
from npusim.frontends.onnx.signature import declared_dims
from npusim.frontends.onnx.tensors import ELEMENT_TYPES, TEXT
from npusim.ops.base import Array
from npusim.plan import Iterations, Strings, Target, Value, Values, on_host


def _truth(array: Array) -> bool:
    if array.size != 1:
        raise InputError(f"a condition must have one element, has shape {list(array.shape)}")
    return bool(array.reshape(-1)[0])


def branch(d: HostDecision) -> Sequence[Value]:
    """If."""
    taken = _truth(d.host(0))
    d.charge()
    body = d.plan.body(d.step, "then_branch" if taken else "else_branch")
    if len(body.outputs) != len(d.node.output):
        raise ModelError(f"{d.name} (If): a branch returns {len(body.outputs)} values, not {len(d.node.output)}")
    targets = [d.values.target(d.plan.number(name), d.step + 1) for name in d.node.output]
    results = d.run(body, [], targets, d.values.backend)
    for index, name in enumerate(body.outputs):
        d.give(index, body.types[body.number(name)])
    return results


def loop(d: HostDecision) -> Sequence[Value]:
    """Loop: the host counts and reads the condition after each iteration; carried values stay on the device."""
    body = d.plan.body(d.step, "body")
    count = int(d.scalar(0)) if d.has(0) else None
    going = _truth(d.host(1)) if d.has(1) else True
    states = [(d.value(index), d.type_of(index)) for index in range(2, len(d.node.input))]
    d.charge()
    shape = [1] * len(declared_dims(body.graph.input[0]) or ()) if body.inputs else []

    def counters(step: int) -> list[tuple[Value, DType]]:
        return [(np.full(shape, step, np.int64), DType.INT64), (np.asarray(True), DType.BOOL)]

    return _iterate(d, body, counters, states, count, going, conditional=True)


def scan(d: HostDecision) -> Sequence[Value]:
    """Scan: a loop over slices, which the host takes from the inputs."""
    body = d.plan.body(d.step, "body")
    scanned = int(d.attribute("num_scan_inputs", 0))
    held = len(d.node.input) - scanned
    returned = len(d.node.output) - held
    axes = list(d.attribute("scan_input_axes", [0] * scanned))
    backwards = list(d.attribute("scan_input_directions", [0] * scanned))
    if not 0 < scanned <= len(d.node.input) or not len(axes) == len(backwards) == scanned or returned < 0:
        raise ModelError(f"{d.name} (Scan): the attributes do not fit the inputs")
    states = [(d.value(index), d.type_of(index)) for index in range(held)]
    arrays = [d.host(index) for index in range(held, len(d.node.input))]
    kinds = [d.type_of(index) for index in range(held, len(d.node.input))]
    if any(not -array.ndim <= axis < array.ndim for array, axis in zip(arrays, axes, strict=True)):
        raise InputError("a scanned axis does not exist")
    counts = {array.shape[axis] for array, axis in zip(arrays, axes, strict=True)}
    if len(counts) != 1:
        raise InputError(f"the scanned dimensions differ: {sorted(counts)}")
    count = counts.pop()
    d.charge(sum(array.size for array in arrays))

    def slices(step: int) -> list[tuple[Value, DType]]:
        places = [count - 1 - step if back else step for back in backwards]
        parts = [np.take(x, at, axis) for x, at, axis in zip(arrays, places, axes, strict=True)]
        return list(zip(parts, kinds, strict=True))

    out_axes = list(d.attribute("scan_output_axes", [0] * returned))
    out_backwards = list(d.attribute("scan_output_directions", [0] * returned))
    if not len(out_axes) == len(out_backwards) == returned:
        raise ModelError(f"{d.name} (Scan): the attributes do not fit the outputs")
    results = list(_iterate(d, body, slices, states, count, True, conditional=False))
    for index, (axis, back) in enumerate(zip(out_axes, out_backwards, strict=True)):
        stacked = results[held + index]
        assert isinstance(stacked, np.ndarray)
        if not -stacked.ndim <= axis < stacked.ndim:
            raise InputError(f"there is no axis {axis} in an output of {stacked.ndim} dimensions")
        results[held + index] = np.ascontiguousarray(np.moveaxis(stacked[::-1] if back else stacked, 0, axis))
    return results


def _iterate(
    d: HostDecision,
    body: GraphPlan,
    extra: Callable[[int], list[tuple[Value, DType]]],
    states: list[tuple[Value, DType]],
    count: int | None,
    going: bool,
    *,
    conditional: bool,
) -> Sequence[Value]:
    """Run the iterations of a loop.

    ``extra``: values for the inputs of the body by iteration; before the states if ``conditional``, whose first output
    is then the condition, else after them. Returns the states, and the other outputs stacked along a new axis 0.
    """
    first = int(conditional)
    held, returned = len(states), len(body.outputs) - len(states) - first
    if returned < 0 or held + returned != len(d.node.output):
        raise ModelError(f"{d.name} ({d.node.op_type}): the body returns {len(body.outputs)} values")
    rows: list[list[Array]] = [[] for _ in range(returned)]
    step = 0
    with Iterations(d.values.backend) as memory:
        while going and (count is None or step < count):
            given = [*extra(step), *states] if conditional else [*states, *extra(step)]
            targets: list[Target] = [on_host] * first + [memory.target] * held + [on_host] * returned
            results = d.run(body, given, targets, memory)
            kinds = [body.types[body.number(name)] for name in body.outputs]
            if conditional:
                going = _truth(d.values.host(results[0]))
            states = list(zip(results[first : first + held], kinds[first:], strict=False))
            for row, value in zip(rows, results[first + held :], strict=True):
                row.append(d.values.host(value))
            memory.next()
            d.charge()
            step += 1
        d.values.adopt(memory.take())
    stacked = [_stacked(d, body, first + held + index, row) for index, row in enumerate(rows)]
    for index, (_, dtype) in enumerate([*states, *stacked]):
        d.give(index, dtype)
    return [value for value, _ in (*states, *stacked)]


def _stacked(d: HostDecision, body: GraphPlan, output: int, row: list[Array]) -> tuple[Array, DType]:
    """The values of an output in all iterations along a new axis 0."""
    if row:
        if len({array.shape for array in row}) > 1:
            shapes = [list(array.shape) for array in row[:4]]
            raise InputError(f"output {output} of the body has different shapes in different iterations: {shapes}")
        d.charge(sum(array.size for array in row))
        return np.stack(row), body.types[body.number(body.outputs[output])]
    declared = body.graph.output[output]
    dims = declared_dims(declared)
    dtype = ELEMENT_TYPES.get(declared.type.tensor_type.elem_type)
    if dims is None or dtype is None or not all(isinstance(dim, int) for dim in dims):
        raise InputError(f"a loop without iterations has an output of unknown shape ({declared.name!r})")
    return np.empty((0, *(int(dim or 0) for dim in dims)), dtype.storage), dtype


def host_step(d: HostDecision) -> Sequence[Value]:
    """An operator whose results have sizes that depend on data, or that the device does not have."""
    arrays = [d.operand(index) for index in range(len(d.node.input))]
    try:
        found = compute(d.node, d.plan.version(domain_of(d.node)), arrays)
    except (UnsupportedError, InputError):
        raise
    except Exception as error:  # libraries of image formats raise any
        raise InputError(f"cannot be computed: {error}") from error
    d.charge(sum(array.size for array in (*arrays, *found) if array is not None))
    results: list[Value] = []
    for index, array in enumerate(found):
        text = array.dtype.kind in "OU"
        results.append(Strings(array.astype(object)) if text else to_storage(array))
        if d.node.output[index]:
            d.give(index, TEXT if text else dtype_of(array))
    return results


def suppress(d: HostDecision) -> Sequence[Value]:
    """NonMaxSuppression: the device compares those boxes whose score is high enough, the host selects among them."""
    most = int(d.scalar(2)) if d.has(2) else 0
    limit = float(d.scalar(3)) if d.has(3) else 0.0
    threshold = float(d.scalar(4)) if d.has(4) else None
    centers = bool(d.attribute("center_point_box", 0))
    boxes, scores = d.value(0), d.host(1)
    if len(boxes.shape) != 3 or boxes.shape[2] != 4 or scores.ndim != 3:
        raise InputError(f"boxes must be [batches, n, 4] and scores [batches, classes, n], got {list(boxes.shape)}")
    batches, count, _ = boxes.shape
    if (scores.shape[0], scores.shape[2]) != (batches, count):
        raise InputError(f"scores are {list(scores.shape)}, do not fit boxes {list(boxes.shape)}")
    d.give(0, DType.INT64)
    candidates = suppression.candidates_of(scores, threshold)
    longest = max(map(len, candidates), default=0)
    d.charge(scores.size)
    if most <= 0 or not longest:
        return [np.empty((0, 3), np.int64)]
    width = suppression.padded(longest)
    overlaps: list[Any]
    compared = 0
    if width <= suppression.MOST_CANDIDATES:
        places = np.zeros((batches, width), np.int64)
        for batch, found in enumerate(candidates):
            places[batch, : len(found)] = found
            places[batch] += batch * count
        plan = d.plan.extra(d.step, f"overlaps{width}", partial(suppression.overlap_graph, batches, width, centers))
        given: list[tuple[Value, DType]] = [(boxes, d.type_of(0)), (places.reshape(-1), DType.INT64)]
        given.append((np.asarray(limit, np.float32), DType.FLOAT32))
        [result] = d.run(plan, given, [on_host], d.values.backend)
        overlaps = list(d.values.host(result))
    else:
        rows_of = d.host(0)
        overlaps = [suppression.HostOverlaps(rows_of[b][found], limit, centers) for b, found in enumerate(candidates)]
    rows = []
    for batch, found in enumerate(candidates):
        selected, work = suppression.selection(scores[batch], found, overlaps[batch], threshold, most)
        rows += [(batch, *each) for each in selected]
        compared += work + getattr(overlaps[batch], "operations", 0)
    d.charge(compared)
    return [np.array(rows, np.int64).reshape(-1, 3)]


DECISIONS: Mapping[str, Callable[[HostDecision], Sequence[Value]]] = {
    "If": branch,
    "Loop": loop,
    "Scan": scan,
    "NonMaxSuppression": suppress,
    **HELD,
}


def decide(plan: GraphPlan, values: Values, step: int, loop_timeout_ps: int) -> Sequence[Value]:
    """Execute a node on the host. Returns its outputs; raises ModelError, InputError, UnsupportedError."""
    decision = HostDecision(plan, values, step, loop_timeout_ps)
    run = host_step if domain_of(decision.node) else DECISIONS.get(decision.node.op_type, host_step)
    return run(decision)
