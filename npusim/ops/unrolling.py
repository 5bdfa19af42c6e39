"""Loops written out: the iterations of ``repeat`` operators as operators of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from npusim.errors import ModelError
from npusim.graph import Graph, Op, Tensor
from npusim.ops.base import REGISTRY
from npusim.ops.names import Names
from npusim.polling import poll


def has_loops(graph: Graph) -> bool:
    """Whether iterations of the graph are not written out."""
    return any(op.kind == "repeat" and op.attrs["times"] for op in graph.ops)


def written_size(graph: Graph) -> int:
    """The number of operators with all iterations written out."""
    size, ends = 0, [-1]
    for position, op in enumerate(graph.ops):
        if op.kind == "repeat":
            size += op.attrs["times"] * (position - ends[-1] - 1)
            ends.append(position)
    return len(graph.ops) - (len(ends) - 1) + size


def without_unused_rows(graph: Graph) -> Graph:
    """The graph without the rows of loops that nothing reads."""
    read = {tensor for op in graph.ops for tensor in op.inputs} | set(graph.outputs)
    ops, chain = list(graph.ops), []
    for position, op in enumerate(graph.ops):
        if op.kind != "repeat":
            continue
        chain.append(position)
        if not op.attrs["times"]:
            continue
        states, count = op.attrs["states"], len(op.inputs)
        ends = [graph.ops[at] for at in chain]
        kept = [
            index
            for index in range(states, count)
            if op.outputs[index + count - states] in read or any(end.outputs[index] in read for end in ends)
        ]
        if len(kept) < count - states:
            for at, end in zip(chain, ends, strict=True):
                stacked = [index + count - states for index in kept if end.attrs["times"]]
                inputs = (*end.inputs[:states], *(end.inputs[index] for index in kept))
                outputs = (*end.outputs[:states], *(end.outputs[index] for index in (*kept, *stacked)))
                ops[at] = Op(end.name, end.kind, inputs, outputs, end.attrs, end.origin)
        chain = []
    return replace(graph, ops=tuple(ops))


def unrolled(graph: Graph, most: int | None = None) -> Graph:
    """The graph with all iterations of its loops written out, or ``most`` more of each.

    Its operators must be in the order in which the frontend made them.
    """
    if not has_loops(graph) or most == 0:
        return graph
    names = Names("~")
    for tensor in (*graph.inputs, *(output for op in graph.ops for output in op.outputs), *graph.constants()):
        names.unique(tensor.name)
    ops: list[Op] = []
    instead: dict[Tensor, Tensor] = {}
    ends: list[int] = []  # positions of the ends of iterations in the given operators
    for position, op in enumerate(graph.ops):
        poll()
        if op.kind == "repeat" and op.attrs["times"]:
            first, before = ends[-1] + 1, ends[-2] + 1
            given = graph.ops[first:position], graph.ops[before : ends[-1]]
            ops += _iterations(op, graph.ops[ends[-1]], *given, instead, names, most)
        elif op.kind == "repeat" and most is None:
            instead.update((out, _found(each, instead)) for each, out in zip(op.inputs, op.outputs, strict=True))
        else:
            made = _rewired(op, instead)
            own = made if made is op else replace(made, outputs=tuple(_like(each, names) for each in op.outputs))
            if own is not op and _folded(own):
                instead.update(zip(op.outputs, own.outputs, strict=True))
            else:
                ops.append(made)
        if op.kind == "repeat":
            ends.append(position)
    outputs = tuple(_found(tensor, instead) for tensor in graph.outputs)
    return replace(graph, ops=tuple(ops), outputs=outputs)


def _found(tensor: Tensor | None, instead: Mapping[Tensor, Tensor]) -> Any:
    return tensor if tensor is None else instead.get(tensor, tensor)


def _rewired(op: Op, instead: Mapping[Tensor, Tensor]) -> Op:
    inputs = tuple(_found(tensor, instead) for tensor in op.inputs)
    return op if inputs == op.inputs else Op(op.name, op.kind, inputs, op.outputs, op.attrs, op.origin)


def _iterations(
    last: Op,
    previous: Op,
    body: Sequence[Op],
    before: Sequence[Op],
    instead: dict[Tensor, Tensor],
    names: Names,
    most: int | None,
) -> Iterable[Op]:
    """The iterations of ``last``, after the one that ``body`` computes. ``before``: the one before that, which ended in
    ``previous``. Their results are found in ``instead``."""
    states, times = last.attrs["states"], last.attrs["times"]
    count = len(last.inputs)
    steps = [_steps(one, other) for one, other in zip(before, body, strict=True)]
    now: list[Tensor] = [_found(tensor, instead) for tensor in last.inputs]
    rows = [now[states:]]
    end = times if most is None else min(times, most)
    # The last iteration makes the results of the loop themselves, which may be outputs of the graph.
    made_by_body = {tensor for op in body for tensor in op.outputs}
    results = dict(zip(reversed(last.inputs[:states]), reversed(last.outputs[:states]), strict=True))
    for iteration in range(1, end + 1):
        poll()
        if most is not None:
            # The end of the iteration before, whose own results are the rows so far.
            whole = iteration == 1
            outs = list(last.outputs[states:count]) if whole else [_like(t, names) for t in now[states:]]
            after = [*(_like(tensor, names) for tensor in now[:states]), *outs]
            attrs = MappingProxyType({**last.attrs, "times": 0})
            yield Op(names.unique(last.name), "repeat", tuple(now), tuple(after), attrs, last.origin)
            rows[-1] = after[states:]
            now = after
        own = dict(zip(previous.outputs[:states], now[:states], strict=True))
        for op, moved in zip(body, steps, strict=True):
            inputs = tuple(own.get(t, _found(t, instead)) if t is not None else None for t in op.inputs)
            final = iteration == end and most is None
            outputs = tuple(results[t] if final and t in results else _like(t, names) for t in op.outputs)
            own.update(zip(op.outputs, outputs, strict=True))
            own_attrs = op.attrs
            if moved is not None:
                starts = tuple(start + iteration * step for start, step in zip(own_attrs["starts"], moved, strict=True))
                own_attrs = MappingProxyType({**own_attrs, "starts": starts})
            made = Op(names.unique(op.name), op.kind, inputs, outputs, own_attrs, op.origin)
            if not _folded(made):
                yield made
        now = [_found(tensor, {**instead, **own}) for tensor in last.inputs]
        rows.append(now[states:])
    if most is None:
        for state, result, value in zip(last.inputs, last.outputs[:states], now, strict=False):
            if state not in made_by_body or results[state] is not result:  # a state that two others are, or none
                shape = MappingProxyType({"shape": result.shape})
                yield Op(names.unique(last.name), "reshape", (value,), (result,), shape, last.origin)
    yield from _results(last, now, rows, instead, names, times - end if most is not None else None)


def _results(
    last: Op,
    now: Sequence[Tensor],
    rows: list[list[Tensor]],
    instead: dict[Tensor, Tensor],
    names: Names,
    left: int | None,
) -> Iterable[Op]:
    """Define the results of a loop. ``left``: iterations that are still not written out; None: none are to be."""
    states, count = last.attrs["states"], len(last.inputs)
    stacked = last.outputs[count:]
    if left is None:
        instead.update(zip(last.outputs[states:count], rows[0], strict=True))
        extra: list[list[Tensor]] = [[] for _ in stacked]
    else:
        ends = [_like(tensor, names) for tensor in now[states:]]
        more = [Tensor(names.unique(t.name), (left, *t.shape[1:]), t.dtype) for t in stacked] if left else []
        outputs = (*last.outputs[:states], *ends, *more)
        attrs = MappingProxyType({**last.attrs, "times": left})
        yield Op(names.unique(last.name), "repeat", tuple(now), outputs, attrs, last.origin)
        rows[-1] = ends
        extra = [[tensor] for tensor in more] or [[] for _ in stacked]
    for index, result in enumerate(stacked):
        parts = [*(row[index] for row in rows[1:]), *extra[index]]
        if last.attrs["backwards"]:
            parts.reverse()
        yield Op(names.unique(f"{last.name}.rows"), "concat", tuple(parts), (result,), MappingProxyType({"axis": 0}))


def _folded(op: Op) -> bool:
    """Whether an operator computes constants, such as the number of its step, which are then set."""
    arrays = [None if tensor is None else tensor.data for tensor in op.inputs]
    if any(array is None and tensor is not None for array, tensor in zip(arrays, op.inputs, strict=True)):
        return False
    for output, array in zip(op.outputs, REGISTRY[op.kind].reference(op, arrays), strict=True):
        output.data = array
    return True


def _like(tensor: Tensor, names: Names) -> Tensor:
    return Tensor(names.unique(tensor.name), tensor.shape, tensor.dtype, bound=tensor.bound)


def _steps(one: Op, other: Op) -> tuple[int, ...] | None:
    """How far a slice advances from one iteration to the next; None for another operator, which is the same in both."""
    if one.kind != other.kind or len(one.outputs) != len(other.outputs):
        raise ModelError(f"{other.name}: iterations of a loop differ, {one.kind} and {other.kind}")
    if one.kind == "slice" and one.attrs["starts"] != other.attrs["starts"]:
        return tuple(b - a for a, b in zip(one.attrs["starts"], other.attrs["starts"], strict=True))
    if dict(one.attrs) != dict(other.attrs):
        raise ModelError(f"{other.name}: iterations of a loop differ")
    return None
