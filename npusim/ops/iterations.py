"""Loops in a graph: a few iterations, and a ``repeat`` operator for the others (:mod:`npusim.ops.unrolling`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from npusim.graph import Tensor
from npusim.ops.build import GraphBuilder

LEAST = 16
"""Fewest iterations of a loop that is not written out."""
HEAD = 6
"""Iterations that are written out: the first ones find other neighbours, and two pairs of equal ones show how commands
and addresses advance. One more if the others are an odd number: commands may repeat every second iteration."""

Body = Callable[[int, Sequence[Tensor]], tuple[Sequence[Tensor], Sequence[Tensor]]]
"""Adds an iteration: (the states after it, its rows), from the number of the step and the states before it. All
iterations are alike but for slices, which advance evenly. Rows have 1 as their first dimension."""


def iterate(
    builder: GraphBuilder, name: str, steps: int, states: Sequence[Tensor], body: Body, *, backwards: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """Add a loop over ``steps`` steps, the last one first if ``backwards``. Returns the states after it, and for each
    row the rows of all steps in order of time: [steps, ...]."""
    order = range(steps - 1, -1, -1) if backwards else range(steps)
    looped = steps >= LEAST
    head = HEAD + (steps - HEAD) % 2 if looped else steps
    now, rows = list(states), []
    rest: list[Tensor] = []
    for number, step in enumerate(order[:head]):
        after, own = body(step, now)
        now, row = list(after), list(own)
        if looped:
            times = steps - head if number == head - 1 else 0
            attrs = {"states": len(now), "times": times, "backwards": backwards}
            made = builder.add_all("repeat", (*now, *row), attrs, name)
            now, row, rest = made[: len(now)], made[len(now) : len(now) + len(row)], made[len(now) + len(row) :]
        rows.append(row)
    columns = [list(column) for column in zip(*rows, strict=True)]
    for index, column in enumerate(columns):
        column += rest[index : index + 1]
        if backwards:
            column.reverse()
    return now, [builder.add("concat", tuple(column), {"axis": 0}, name) for column in columns]
