"""Shared parts of recurrent operations: products with weights, steps of a sequence, both directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from npusim.graph import Tensor
from npusim.isa.functions import Binary
from npusim.ops.iterations import Scanned, iterate

from .definition import Rule, stated
from .lowering import InvalidOperationError, Lowering
from .view import OpView


def add(op: Lowering, a: Tensor, b: Tensor) -> Tensor:
    """a + b."""
    return op.binary(Binary.ADD, a, b)


def multiply(op: Lowering, a: Tensor, b: Tensor) -> Tensor:
    """a * b, element by element."""
    return op.binary(Binary.MUL, a, b)


def columns(op: Lowering, weights: Tensor) -> Tensor:
    """Weights [out, in] as the right operand of a product, [in, out]."""
    return op.transpose(weights, (1, 0))


def product(op: Lowering, x: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., in] times [in, out], plus a bias [out]."""
    return op.add("matmul", [x, right, bias])


def joined(op: Lowering, tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Concatenation of the tensors."""
    return tensors[0] if len(tensors) == 1 else op.add("concat", list(tensors), {"axis": axis})


def parts(op: Lowering, tensor: Tensor, axis: int, count: int) -> list[Tensor]:
    """A dimension cut into ``count`` equal parts."""
    size = tensor.shape[axis] // count
    return [op.slice(tensor, axis, index * size, size) for index in range(count)]


Step = Callable[[Tensor, Sequence[Tensor]], Sequence[Tensor]]
"""One time step: the contribution of the input [batches, features], states -> the next states, the output first."""


class Sequence3(NamedTuple):
    """The layout of sequences in 3-D tensors."""

    time: int
    """The dimension of time steps: 0 (time-major) or 1 (batch-major)."""
    steps: int
    batches: int

    def run(
        self, op: Lowering, inputs: Tensor, states: Sequence[Tensor], step: Step, backward: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """The outputs of all time steps as a sequence, and the states after the last one. ``inputs``: the contribution
        of the input to each step."""
        if not self.steps:
            shape = [self.batches, self.batches, states[0].shape[1]]
            shape[self.time] = 0
            return op.f32(np.zeros(shape)), list(states)

        def body(now: Sequence[Tensor], parts: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
            after = step(op.reshape(parts[0], (self.batches, inputs.shape[2])), now)
            return after, [op.reshape(after[0], (1, *after[0].shape))]

        scanned = [Scanned(inputs, self.time, 1, backward)]
        after, (outputs,) = iterate(op, self.steps, states, scanned, body, axes=[self.time], backwards=[backward])
        return outputs, after


def sequence_of(op: Lowering, time_major: bool) -> Sequence3:
    """The layout of the sequence of input 0, whose rank must be 3."""
    shape = op.shape(0)
    time = 0 if time_major else 1
    return Sequence3(time, shape[time], shape[1 - time])


def give_directions(op: Lowering, sequences: Sequence[Tensor], states: Sequence[Tensor], merge: bool) -> None:
    """Set the outputs of a bidirectional operation: both sequences, or one concatenated sequence, then the states if
    the model has outputs for them."""
    results = [joined(op, sequences, 2)] if merge else list(sequences)
    if op.output_count not in (len(results), len(results) + len(states)):
        raise InvalidOperationError(_outputs_text(len(sequences), len(states)))
    for index, tensor in enumerate((results + list(states))[: op.output_count]):
        op.give_real(tensor, index)


def merged_outputs(merge: int, sequences: int, states: int) -> Rule:
    """The rule for the number of outputs of a bidirectional operation, which BOOL input ``merge`` determines."""

    def rule(view: OpView) -> bool:
        merging = view.scalar(merge)
        if merging is None:
            return True
        count = 1 if merging else sequences
        return len(view.outputs) in (count, count + states)

    return stated(_outputs_text(sequences, states), rule)


def _outputs_text(sequences: int, states: int) -> str:
    return (
        f"there must be {sequences} outputs, or 1 if they are merged, and the {states} states behind them or none of "
        "the states"
    )
