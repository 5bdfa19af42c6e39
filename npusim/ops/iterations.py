"""Loops in a graph: a few iterations, and a ``repeat`` operator for the others (:mod:`npusim.ops.unrolling`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from npusim.graph import Op, Tensor
from npusim.ops.emit import Emitter

LEAST = 16
"""Fewest iterations of a loop that is not written out."""
HEAD = 6
"""Iterations that are written out: the first ones find other neighbours, and two pairs of equal ones show how commands
and addresses advance. One more if the others are an odd number: commands may repeat every second iteration."""


class Scanned(NamedTuple):
    """A tensor of which each step gets ``size`` elements along an axis, the last ones first if ``backwards``."""

    tensor: Tensor
    axis: int = 0
    size: int = 1
    backwards: bool = False


Body = Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[Sequence[Tensor], Sequence[Tensor]]]
"""Adds an iteration: (the states after it, its rows), from the states before it and its parts of the scanned tensors.
Rows have 1 as their first dimension."""


def iterate(
    emitter: Emitter,
    steps: int,
    states: Sequence[Tensor],
    scanned: Sequence[Scanned],
    body: Body,
    *,
    axes: Sequence[int] = (),
    backwards: Sequence[bool] = (),
) -> tuple[list[Tensor], list[Tensor]]:
    """Add a loop over ``steps`` steps. Returns the states after it, and for each row the rows of all steps, stacked
    along a dimension of ``axes`` (0), the last step first if ``backwards`` (no).

    Loops of few steps are written out, those over constants, whose parts may be folded, and those whose iterations are
    not alike or in which the host decides about values.
    """
    builder, name = emitter.builder, f"{emitter.name}/steps"
    looped = steps >= LEAST and not any(each.tensor.is_constant for each in scanned) and len(set(backwards)) < 2
    head = HEAD + (steps - HEAD) % 2
    now, rows, rest = list(states), list[list[Tensor]](), list[Tensor]()
    start, decided, marks = builder.op_count, builder.decided, list[Op]()
    for step in range(steps):
        parts = [
            emitter.slice(x, axis, (steps - 1 - step if back else step) * size, size) for x, axis, size, back in scanned
        ]
        after, own = body(now, parts)
        now, row = list(after), list(own)
        rows.append(row)
        if not looped or step >= head:
            continue
        last = step == head - 1
        attrs = {"states": len(now), "times": steps - head if last else 0, "backwards": any(backwards)}
        made = builder.add_all("repeat", (*now, *row), attrs, name)
        marks += builder.ops_since(builder.op_count - 1)
        now, rows[-1], rest = made[: len(now)], made[len(now) : len(now) + len(row)], made[len(now) + len(row) :]
        if last and decided == builder.decided and _are_alike(builder.ops_since(start), marks):
            break
        if last:
            instead, rest = builder.bypass(marks), []
            now, rows = [instead[each] for each in now], [[instead[each] for each in row] for row in rows]
    results = []
    for index, column in enumerate(list(each) for each in zip(*rows, strict=True)):
        column += rest[index : index + 1]
        axis = axes[index] % len(column[0].shape) if axes else 0
        if backwards and backwards[index]:
            column.reverse()
        order = [*range(1, axis + 1), 0, *range(axis + 1, len(column[0].shape))]
        if axis and not rest:
            column = [emitter.reshape(each, [each.shape[place] for place in order]) for each in column]
        joined = builder.add("concat", tuple(column), {"axis": axis if not rest else 0}, name)
        results.append(emitter.transpose(joined, order) if axis and rest else joined)
    return now, results


def _are_alike(ops: Sequence[Op], marks: Sequence[Op]) -> bool:
    """Whether the last three iterations, each of which a mark ends, differ only in slices that advance evenly."""
    iterations: list[list[Op]] = [[]]
    for op in ops:
        iterations[-1].append(op)
        if op in marks:
            iterations.append([])
        elif op.kind == "repeat":
            return False
    # Between two iterations, and from the results of their marks.
    pairs = zip(pairwise(iterations[-4:-1]), pairwise(marks[-4:-1]), strict=True)
    moves = [_moves(*both, dict(zip(*(mark.outputs for mark in ends), strict=True))) for both, ends in pairs]
    return None not in moves and moves[0] == moves[1]


def _moves(one: Sequence[Op], other: Sequence[Op], same: dict[Tensor, Tensor]) -> list[tuple[int, ...]] | None:
    """How far each slice advances from an iteration to the next; None if they differ in anything else. ``same``: the
    states of both, to which their values are added."""
    if len(one) != len(other):
        return None
    found = []
    for before, after in zip(one, other, strict=True):
        attrs, others = dict(before.attrs), dict(after.attrs)
        if before.kind == after.kind == "slice":
            starts = zip(attrs.pop("starts"), others.pop("starts"), strict=True)
            found.append(tuple(new - old for old, new in starts))
        elif before.kind == after.kind == "repeat":
            others["times"] = attrs["times"]
        pairs = list(zip(before.inputs, after.inputs, strict=False))
        if before.kind != after.kind or attrs != others or len(before.inputs) != len(after.inputs):
            return None
        if not all(new is old or (old and same.get(old) is new) or _are_equal(old, new) for old, new in pairs):
            return None
        if [each.shape for each in before.outputs] != [each.shape for each in after.outputs][: len(before.outputs)]:
            return None
        same.update(zip(before.outputs, after.outputs, strict=False))
    return found


def _are_equal(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two tensors are equal constants, such as a number that each iteration makes."""
    if one is None or other is None or one.data is None or other.data is None:
        return False
    return one.dtype is other.dtype and one.shape == other.shape and one.data.tobytes() == other.data.tobytes()
