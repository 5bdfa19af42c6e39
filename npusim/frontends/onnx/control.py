"""If, Scan and Loop: the branch that is taken, and loops with known iterations. All are decided during import."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto

from npusim.errors import UndecidedError, UnsupportedError
from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.scope import Listed, Scope, Value, domain_of, nested_graphs
from npusim.frontends.operation import POISON
from npusim.graph import Tensor
from npusim.ops.iterations import HEAD, LEAST, Scanned, iterate

Body = Callable[[GraphProto, str, Mapping[str, Value], Scope], list[Value]]
"""Imports a graph inside a node under a label, with the values of its inputs, and returns its outputs."""

MAX_DEPTH = 64
"""Maximum nesting of functions, branches and loops."""
MAX_ITERATIONS = 4096
"""Maximum number of iterations of an unrolled loop."""


def _body(node: Node, name: str) -> GraphProto:
    graph: GraphProto | None = node.attribute(name, AttributeProto.GRAPH)
    if graph is None:
        node.damaged(f"attribute {name} is required")
    return graph


def _refuse(node: Node, reason: str, at_run_time: bool) -> NoReturn:
    """Refuse a loop. ``at_run_time``: the host can count its iterations."""
    error = UndecidedError if at_run_time else UnsupportedError
    raise error([(node.name, node.op_type, reason)])


def _check_depth(node: Node, scope: Scope) -> None:
    if scope.depth + 1 >= MAX_DEPTH:
        node.damaged("branches and loops are nested too deeply")


def branch(run: Body, node: Node, scope: Scope) -> Sequence[Value]:
    """Import the branch of an If that is taken. Its condition must be known."""
    _check_depth(node, scope)
    taken = bool(node.scalar_value(0))
    return run(_body(node, "then_branch" if taken else "else_branch"), node.name, {}, scope)


def _stacked(node: Node, parts: list[Tensor], axis: int) -> Tensor:
    """Stack one value per iteration along a new dimension."""
    axis = node.normal_axis(axis, len(parts[0].shape) + 1)
    shape = (*parts[0].shape[:axis], 1, *parts[0].shape[axis:])
    return node.add("concat", *(node.reshape(part, shape) for part in parts), axis=axis)


def _tensor(node: Node, value: Value, what: str) -> Tensor:
    if not isinstance(value, Tensor):
        node.damaged(f"{what} must be a tensor")
    return value


def scan(run: Body, node: Node, scope: Scope) -> Sequence[Value]:
    """Import a Scan as a loop over the scanned dimension."""
    _check_depth(node, scope)
    if node.opset < 9:
        node.refuse("Scan is supported from operator set 9 on")
    body, count = _body(node, "body"), node.int_attr("num_scan_inputs")
    inputs = [node.input(index) for index in range(len(node.inputs))]
    held = len(inputs) - count
    outputs = len(body.output) - held
    if not 0 < count <= len(inputs) or len(body.input) != len(inputs) or outputs < 0:
        node.damaged("the body must take the node's inputs and return its states")
    axes = [
        node.normal_axis(a, len(x.shape))
        for a, x in zip(node.ints_attr("scan_input_axes", [0] * count) or [], inputs[held:], strict=True)
    ]
    backwards = node.ints_attr("scan_input_directions", [0] * count) or []
    out_axes = node.ints_attr("scan_output_axes", [0] * outputs) or []
    out_backwards = node.ints_attr("scan_output_directions", [0] * outputs) or []
    steps = {x.shape[axis] for x, axis in zip(inputs[held:], axes, strict=True)}
    if len(steps) != 1 or len(backwards) != count or not len(out_axes) == len(out_backwards) == outputs:
        node.damaged("the scanned dimensions differ, or the attributes do not fit them")
    total = steps.pop()
    if not 0 < total <= MAX_ITERATIONS:
        _refuse(node, f"{total} steps; 1 to {MAX_ITERATIONS} are supported in one program", total > MAX_ITERATIONS)
    names = [value.name for value in body.input]

    def enter(step: int, states: Sequence[Tensor], parts: Sequence[Tensor]) -> list[Value]:
        return run(body, f"{node.name}/{step}", dict(zip(names, [*states, *parts], strict=True)), scope)

    scanned = [Scanned(x, axis, 1, bool(back)) for x, axis, back in zip(inputs[held:], axes, backwards, strict=True)]
    return _steps(node, total, inputs[:held], scanned, enter, out_axes, list(map(bool, out_backwards)))


Enter = Callable[[int, Sequence[Tensor], Sequence[Tensor]], list[Value]]
"""Imports the body of a loop for a step, with its states and its slices of the scanned tensors. Returns the next states
and the rows."""


class _PoisonedError(Exception):
    """Something in the body of a loop is not supported, which has been recorded."""


def _steps(
    node: Node,
    total: int,
    states: Sequence[Tensor],
    scanned: Sequence[Scanned],
    enter: Enter,
    axes: Sequence[int],
    backwards: Sequence[bool],
) -> Sequence[Value]:
    """Import a loop with a known number of steps. Returns the last states and the rows, stacked along ``axes``."""
    count, left = 0, node.budget.steps

    def body(now: Sequence[Tensor], parts: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        nonlocal count
        if count in (1, HEAD + 2):  # estimate the steps to come, to fail early; a loop has the first ones only
            more = min(total, HEAD + 2) if count == 1 else total
            node.budget.expect_steps((more - count) * ((left - node.budget.steps) // count), node.name)
        slices = [
            node.reshape(part, (*x.shape[:axis], *x.shape[axis + 1 :]))
            for part, (x, axis, *_) in zip(parts, scanned, strict=True)
        ]
        results = enter(count, now, slices)
        if any(value is POISON for value in results):
            raise _PoisonedError
        count += 1
        after = [_tensor(node, value, "a result of the body") for value in results]
        rows = after[len(states) :]
        for axis, row in zip(axes, rows, strict=True):
            node.normal_axis(axis, len(row.shape) + 1)
        return after[: len(states)], [node.reshape(row, (1, *row.shape)) for row in rows]

    try:
        last, stacked = iterate(node, total, states, scanned, body, axes=axes, backwards=backwards)
    except _PoisonedError:
        # Import continues, so that the user sees all reasons at once.
        return [POISON] * (len(states) + len(axes))
    return [*last, *stacked]


def _counted(run: Body, node: Node, scope: Scope, body: GraphProto, total: int) -> Sequence[Value] | None:
    """Import a Loop whose trip count alone ends it, and whose body uses the number of the iteration at most to take
    slices of values from outside; None for any other loop."""
    number, going, *names = [value.name for value in body.input]
    states = list(node.values[2:])
    same, made, left, taken = {going}, set(names), list[NodeProto](), list[NodeProto]()
    for each in body.node:
        kind = each.op_type if domain_of(each) == "" and len(each.output) == 1 else ""
        is_slice = kind == "Gather" and list(each.input[1:]) == [number] and not made & set(each.input)
        (taken if is_slice else left).append(each)
        made |= set(each.output)
        if kind == "Identity" and set(each.input) <= same:
            same.add(each.output[0])
    whole = GraphProto()
    whole.CopyFrom(body)
    del whole.node[:]
    whole.node.extend(left)
    made |= {each.name for each in body.initializer}
    if body.output[0].name not in same or _names_in(whole) & {number} or any(each.input[0] in made for each in taken):
        return None
    scanned = []
    for each in taken:
        try:
            value = scope.find(each.input[0])
        except KeyError:
            return None
        axis = next((attribute.i for attribute in each.attribute if attribute.name == "axis"), 0)
        if not isinstance(value, Tensor) or not -len(value.shape) <= axis < len(value.shape):
            return None
        scanned.append(Scanned(value, axis % len(value.shape)))
    if any(x.shape[axis] < total for x, axis, *_ in scanned) or any(not isinstance(each, Tensor) for each in states):
        return None
    true = node.builder.const(np.bool_(True), f"{node.name}.const")

    def enter(step: int, now: Sequence[Tensor], parts: Sequence[Tensor]) -> list[Value]:
        bound = {going: true, **dict(zip(names, now, strict=True))}
        bound |= {each.output[0]: part for each, part in zip(taken, parts, strict=True)}
        return run(whole, f"{node.name}/{step}", bound, scope)[1:]

    rows = len(body.output) - 1 - len(states)
    return _steps(node, total, [each for each in states if isinstance(each, Tensor)], scanned, enter, [0] * rows, [])


def _names_in(graph: GraphProto) -> set[str]:
    """The names that the nodes of a graph, or of graphs in them, read, and those of its outputs."""
    found = {each.name for each in graph.output}
    for each in graph.node:
        found.update(each.input)
        for inner in nested_graphs(each):
            found |= _names_in(inner)
    return found


def loop(run: Body, node: Node, scope: Scope) -> Sequence[Value]:
    """Import a Loop with known trip count and conditions: one copy of its body per iteration, unless all are alike."""
    _check_depth(node, scope)
    body = _body(node, "body")
    states: list[Value] = list(node.values[2:])
    if any(state is None for state in states):
        node.damaged("its carried values must have initial values")
    held = len(states)
    if len(body.input) != held + 2 or len(body.output) < held + 1:
        node.damaged("the body must take and return the loop's values")
    # Without a trip count, the limit is one more than allowed, so that an endless loop is refused below.
    limit = int(node.scalar_value(0)) if node.optional(0) is not None else MAX_ITERATIONS + 1
    going = node.optional(1) is None or bool(node.scalar_value(1))
    if going and LEAST <= limit <= MAX_ITERATIONS:
        found = _counted(run, node, scope, body, limit)
        if found is not None:
            return found
    names, rows, step, left = [value.name for value in body.input], [], 0, node.budget.steps
    counted = False
    while going and step < limit:
        if step == MAX_ITERATIONS or (counted and limit > MAX_ITERATIONS):
            _refuse(node, f"more than {MAX_ITERATIONS} iterations are not supported in one program", True)
        if step == 1 and counted:  # estimate all iterations from the first one, to fail early
            node.budget.expect_steps((limit - 1) * (left - node.budget.steps), node.name)
        # The condition enters as true, because no iteration would run otherwise. Only its result counts.
        counters = [node.builder.const(value, f"{node.name}.const") for value in (np.int64(step), np.bool_(True))]
        bound = dict(zip(names, [*counters, *states], strict=True))
        results = run(body, f"{node.name}/{step}", bound, scope)
        if any(value is POISON for value in results):
            return [POISON] * (len(body.output) - 1)
        # The number of iterations must be known, because a program is a fixed list of instructions.
        reason = "the condition must be known for every iteration"
        going = bool(
            node.decided(_tensor(node, results[0], "the condition"), f"condition after iteration {step}", reason).all()
        )
        counted = results[0] is counters[1]  # the condition is unchanged, so the trip count ends the loop
        states = list(results[1 : held + 1])
        rows.append([_tensor(node, value, "a scan output") for value in results[held + 1 :]])
        step += 1
    if not rows and len(body.output) > held + 1:
        node.refuse("a loop that is never entered has outputs of unknown shape")
    return [*states, *(_stacked(node, list(column), 0) for column in zip(*rows, strict=True))]


def sequence_map(run: Body, node: Node, scope: Scope) -> Sequence[Value]:
    """Import a SequenceMap as one copy of its body per tensor of its sequences."""
    _check_depth(node, scope)
    body = _body(node, "body")
    lengths = {len(value.items) for value in node.values if isinstance(value, Listed)}
    if len(lengths) != 1 or not isinstance(node.values[0], Listed) or len(body.input) != len(node.values):
        node.damaged("the body must take a tensor of each sequence, which must be of one length")
    names, rows = [value.name for value in body.input], []
    for place in range(lengths.pop()):
        given = [value.items[place] if isinstance(value, Listed) else value for value in node.values]
        results = run(body, f"{node.name}/{place}", dict(zip(names, given, strict=True)), scope)
        if any(value is POISON for value in results):
            return [POISON] * len(body.output)
        rows.append([_tensor(node, value, "a result of the body") for value in results])
    return [Listed(tuple(row[index] for row in rows)) for index in range(len(body.output))]


CONTROL: dict[str, Callable[[Body, Node, Scope], Sequence[Value]]] = {
    "If": branch,
    "Loop": loop,
    "Scan": scan,
    "SequenceMap": sequence_map,
}
