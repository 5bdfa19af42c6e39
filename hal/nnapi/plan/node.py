"""The nodes of a plan."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any, NamedTuple

import numpy as np

from npusim.program import Binding, Program
from npusim.runtime import Recent

from ..operations.view import Shape
from ..types import Subgraph
from .segment import Segment


class Port(NamedTuple):
    """An input or output of a node's program: its name in the program, and its operand.

    ``counted``: an output's shape is only the maximum. ``wanted``: operations after the segment read it.
    """

    name: str
    operand: int
    shape: Shape
    dtype: np.dtype[Any]
    nbytes: int
    counted: bool
    wanted: bool


class Node:
    """A compiled segment and its successors: ``children`` by the bytes of the decision that leads to each.

    ``inputs``, ``outputs`` and ``counts``: operands and counts of the segment in the order of the program, cached for
    executions. ``silent``: nothing has to run, because all outputs are empty.
    """

    __slots__ = ("children", "counts", "inputs", "outputs", "program", "segment", "silent")

    def __init__(
        self, subgraph: Subgraph, segment: Segment, program: Program | None, children: Recent[bytes, Node]
    ) -> None:
        self.segment = segment
        self.program = program
        self.children = children
        self.inputs: tuple[Port, ...] = ()
        self.outputs: tuple[Port, ...] = ()
        self.counts: tuple[Port, ...] = ()
        if program is not None:
            split = len(segment.outputs)
            later = {number for operation in subgraph.operations[segment.stop :] for number in operation.inputs}
            self.inputs = _ports(program.inputs, segment.inputs, segment, later)
            self.outputs = _ports(program.outputs[:split], segment.outputs, segment, later)
            self.counts = _ports(program.outputs[split:], segment.counts, segment, later)
        self.silent = not any(port.nbytes for port in (*self.outputs, *self.counts))


def _ports(
    bindings: Iterable[Binding], operands: Iterable[int], segment: Segment, later: Container[int]
) -> tuple[Port, ...]:
    """Inputs and outputs of a program are in the order of the graph. Raises ValueError unless there are as many as
    operands."""
    return tuple(
        Port(
            binding.name,
            operand,
            binding.shape,
            binding.dtype.storage,
            binding.nbytes,
            operand in segment.counts,
            operand in later,
        )
        for binding, operand in zip(bindings, operands, strict=True)
    )
