"""The nodes of a plan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from npusim.plan.backend import Shape
from npusim.plan.recent import Recent
from npusim.plan.segment import PlanSteps, Segment
from npusim.program import Binding, Program


class PlanPort(NamedTuple):
    """An input or output of a node's program: its name in the program, and the number of its value.

    ``counted``: an output's shape is only the maximum. ``wanted``: steps after the segment read it.
    """

    name: str
    number: int
    shape: Shape
    dtype: np.dtype[Any]
    nbytes: int
    counted: bool
    wanted: bool


class PlanNode:
    """A compiled segment and its successors: ``children`` by the bytes of the decision that leads to each.

    ``inputs``, ``outputs`` and ``counts``: values and counts of the segment in the order of the program, cached for
    executions. ``silent``: nothing has to run, because all outputs are empty.
    """

    __slots__ = ("children", "counts", "inputs", "outputs", "program", "segment", "silent")

    def __init__(
        self, steps: PlanSteps, segment: Segment, program: Program | None, children: Recent[bytes, PlanNode]
    ) -> None:
        self.segment = segment
        self.program = program
        self.children = children
        self.inputs: tuple[PlanPort, ...] = ()
        self.outputs: tuple[PlanPort, ...] = ()
        self.counts: tuple[PlanPort, ...] = ()
        if program is not None:
            split = len(segment.outputs)
            self.inputs = _ports(program.inputs, segment.inputs, segment, steps)
            self.outputs = _ports(program.outputs[:split], segment.outputs, segment, steps)
            self.counts = _ports(program.outputs[split:], segment.counts, segment, steps)
        self.silent = not any(port.nbytes for port in (*self.outputs, *self.counts))


def _ports(
    bindings: Iterable[Binding], numbers: Iterable[int], segment: Segment, steps: PlanSteps
) -> tuple[PlanPort, ...]:
    """Inputs and outputs of a program are in the order of the graph. Raises ValueError unless there are as many as
    numbers."""
    return tuple(
        PlanPort(
            binding.name,
            number,
            binding.shape,
            binding.dtype.storage,
            binding.nbytes,
            number in segment.counts,
            steps.read_after(number, segment.stop),
        )
        for binding, number in zip(bindings, numbers, strict=True)
    )
