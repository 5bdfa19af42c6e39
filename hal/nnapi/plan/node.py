"""Nodes: what a plan's tree is made of."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from npusim.program import Binding, Program

from ..operations.view import Shape
from .segment import Segment


class Port(NamedTuple):
    """An input or output of a node's program: its name there, and which operand goes through it."""

    name: str
    operand: int
    shape: Shape
    dtype: np.dtype[Any]
    nbytes: int


class Node:
    """A compiled segment, and what may follow it: ``children`` by the bytes that tell one way to go on from another.

    ``inputs``, ``outputs`` and ``counts``: the operands and the counts of the segment, where the program has them.
    """

    __slots__ = ("children", "counts", "inputs", "outputs", "program", "segment")

    def __init__(self, segment: Segment, program: Program | None) -> None:
        self.segment = segment
        self.program = program
        self.children: OrderedDict[bytes, Node] = OrderedDict()
        self.inputs: tuple[Port, ...] = ()
        self.outputs: tuple[Port, ...] = ()
        self.counts: tuple[Port, ...] = ()
        if program is not None:
            split = len(segment.outputs)
            self.inputs = _ports(program.inputs, segment.inputs)
            self.outputs = _ports(program.outputs[:split], segment.outputs)
            self.counts = _ports(program.outputs[split:], segment.counts)


def _ports(bindings: Iterable[Binding], operands: Iterable[int]) -> tuple[Port, ...]:
    """Programs have inputs and outputs in the order of the graph; ValueError if there are not as many as operands."""
    return tuple(
        Port(binding.name, operand, binding.shape, binding.dtype.storage, binding.nbytes)
        for binding, operand in zip(bindings, operands, strict=True)
    )
