"""The cell of LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM and BIDIRECTIONAL_SEQUENCE_LSTM.

The weights of all gates form one matrix. The inputs of all time steps are multiplied by it in one product; each time
step needs another one with the previous output. Gates are in the order input, forget, cell, output; coupled input and
forget gates (CIFG) have no input gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from npusim.graph import Tensor
from npusim.isa.functions import Binary, Unary

from .definition import Rule
from .lowering import InvalidOperationError, Lowering
from .presence import Condition, all_or_none, if_given, needs
from .recurrent import add, columns, joined, multiply, product
from .rules import not_negative, one_of

NORM_EPSILON = 1e-8
"""Added to the variance by layer normalisation."""
_ACTIVATIONS: dict[int, tuple[Unary, float, float] | None] = {
    0: None,
    1: (Unary.RELU, 0.0, 0.0),
    3: (Unary.CLIP, 0.0, 6.0),
    4: (Unary.TANH, 0.0, 0.0),
    6: (Unary.SIGMOID, 0.0, 0.0),
}
"""Activations by their numbers: none, RELU, RELU6, TANH, SIGMOID."""
PEEPHOLES = {0: 8, 1: 9, 3: 10}
"""Peephole weights by gate, counted from a cell's first input; the cell gate has none."""


class Cell(NamedTuple):
    """The inputs of one LSTM cell.

    ``first``: the first of four input weights [units, inputs], four recurrent weights [units, outputs], three peephole
    weights [units], four biases [units], projection weights [outputs, units] and projection bias [outputs]. ``state``:
    the output state, then the cell state. ``scalars``: activation, clip of the cell, clip of the projection. ``norm``:
    the first of four weights of layer normalisation [units]; ``auxiliary``: of four weights of the auxiliary input.
    """

    first: int
    state: int
    scalars: int
    norm: int
    auxiliary: int = -4

    def conditions(self) -> tuple[Condition, ...]:
        """The conditions on optional inputs that must be given together."""
        first, norm, auxiliary = self.first, self.norm, self.auxiliary
        found = [
            all_or_none("input gate", first, first + 4, first + 11),
            all_or_none("peephole", first + 9, first + 10),
            needs("peephole", first + 8, first + 9),
            if_given(first, needs("peephole of the input gate", first + 9, first + 8)),
            needs("projection", first + 16, first + 15),
            all_or_none("layer normalisation", norm + 1, norm + 2, norm + 3),
            needs("layer normalisation of the input gate", norm, norm + 3, first),
            if_given(first, needs("layer normalisation of the input gate", norm + 3, norm)),
        ]
        if auxiliary >= 0:
            found += [
                all_or_none("auxiliary weights", auxiliary + 1, auxiliary + 2, auxiliary + 3),
                needs("auxiliary weights of the input gate", auxiliary, auxiliary + 3, first),
                if_given(first, needs("auxiliary weights of the input gate", auxiliary + 3, auxiliary)),
            ]
        return tuple(found)

    def optional(self) -> tuple[int, ...]:
        """The inputs that may be omitted."""
        inner = (0, 4, 8, 9, 10, 11, 15, 16)
        behind = (*range(self.norm, self.norm + 4), *range(self.auxiliary, self.auxiliary + 4))
        return (*(self.first + index for index in inner), *(index for index in behind if index >= 0))

    def shapes(self, inputs: str, units: str, outputs: str, auxiliary: str = "") -> dict[int, str]:
        """Shapes as words of Dimensions."""
        words = [f"{units} {inputs}"] * 4 + [f"{units} {outputs}"] * 4 + [units] * 7 + [f"{outputs} {units}", outputs]
        found = {self.first + index: word for index, word in enumerate(words)}
        found |= {self.state: f"batches {outputs}", self.state + 1: f"batches {units}"}
        found |= {self.norm + index: units for index in range(4)}
        if self.auxiliary >= 0:
            found |= {self.auxiliary + index: f"{units} {auxiliary}" for index in range(4)}
        return found

    def rules(self) -> tuple[Rule, ...]:
        """The rules of scalar values."""
        return one_of(self.scalars, "an activation", *_ACTIVATIONS), not_negative(self.scalars + 1, self.scalars + 2)


class Network:
    """One cell during lowering: its weights and its time step."""

    def __init__(self, op: Lowering, cell: Cell) -> None:
        self._op = op
        self._cell = cell
        self.coupled = op.omitted(cell.first)
        self._gates = range(1 if self.coupled else 0, 4)
        self._normal = not op.omitted(cell.norm + 3)
        self._peephole = not op.omitted(cell.first + 10)
        self._reals: dict[int, Tensor] = {}
        self._recurrent = columns(op, self._weights(cell.first + 4))
        self._projection = None if op.omitted(cell.first + 15) else columns(op, op.real(cell.first + 15))
        self.units, self.outputs = op.shape(cell.first + 7)
        self.output, self.state = op.real(cell.state), op.real(cell.state + 1)
        self._clips = float(op.scalar(cell.scalars + 1)), float(op.scalar(cell.scalars + 2))
        if self._projection is None and self.units != self.outputs:
            raise InvalidOperationError(
                f"without a projection there must be as many outputs as units, {self.units}, got {self.outputs}"
            )
        if min(self._clips) < 0:
            raise InvalidOperationError(f"clips must be >= 0, got {list(self._clips)}")

    def _weights(self, first: int) -> Tensor:
        """One kind of weights of all gates, concatenated by rows."""
        return joined(self._op, [self._op.real(first + gate) for gate in self._gates])

    def inputs(self, x: Tensor, auxiliary: Tensor | None) -> Tensor:
        """The contribution of the inputs to every time step, and the biases unless a normalisation precedes them."""
        bias = None if self._normal else self._weights(self._cell.first + 11)
        total = product(self._op, x, columns(self._op, self._weights(self._cell.first)), bias)
        if auxiliary is None:
            return total
        return add(
            self._op, total, product(self._op, auxiliary, columns(self._op, self._weights(self._cell.auxiliary)))
        )

    def step(self, inputs: Tensor, states: Sequence[Tensor]) -> Sequence[Tensor]:
        """One time step, from an output and a cell state to the next ones."""
        self.output, self.state = states
        self.advance(self.sums(inputs))
        return self.output, self.state

    def advance(self, sums: Tensor) -> Tensor:
        """The part of a time step that follows the products. Returns the output, and keeps it and the cell state."""
        op = self._op
        forget = self._gate(sums, 1, self.state)
        fresh = self._activate(self._gate_sum(sums, 2, None))
        if self.coupled:
            let_in = op.binary(Binary.SUB, op.f32(1.0), forget)
        else:
            let_in = self._gate(sums, 0, self.state)
        state = add(op, multiply(op, forget, self.state), multiply(op, let_in, fresh))
        self.state = self._clipped(state, self._clips[0])
        let_out = self._gate(sums, 3, self.state)
        self.output = self._project(multiply(op, let_out, self._activate(self.state)))
        return self.output

    def sums(self, inputs: Tensor) -> Tensor:
        """[batches, gates * units]: the contributions of inputs and last output to the gates."""
        return add(self._op, inputs, product(self._op, self.output, self._recurrent))

    def _gate(self, sums: Tensor, gate: int, state: Tensor) -> Tensor:
        return self._op.unary(Unary.SIGMOID, self._gate_sum(sums, gate, state))

    def _gate_sum(self, sums: Tensor, gate: int, state: Tensor | None) -> Tensor:
        """The argument of a gate's function; the peephole reads ``state``."""
        op, cell = self._op, self._cell
        total = op.slice(sums, 1, (gate - self._gates.start) * self.units, self.units)
        if self._peephole and state is not None:
            total = add(op, total, multiply(op, state, self._real(cell.first + PEEPHOLES[gate])))
        if not self._normal:
            return total
        normal = op.add("normalize", [total], {"axis": 1, "mode": "layer", "epsilon": NORM_EPSILON})
        return add(op, multiply(op, normal, self._real(cell.norm + gate)), self._real(cell.first + 11 + gate))

    def _activate(self, tensor: Tensor) -> Tensor:
        number = int(self._op.scalar(self._cell.scalars))
        if number not in _ACTIVATIONS:
            raise InvalidOperationError(f"the activation must be {', '.join(map(str, _ACTIVATIONS))}, got {number}")
        function = _ACTIVATIONS[number]
        return tensor if function is None else self._op.unary(function[0], tensor, *function[1:])

    def _clipped(self, tensor: Tensor, clip: float) -> Tensor:
        # In this interface a bound of 0 means none.
        return self._op.unary(Unary.CLIP, tensor, -clip, clip) if clip else tensor

    def _project(self, hidden: Tensor) -> Tensor:
        if self._projection is None:
            return hidden
        bias = self._cell.first + 16
        total = product(self._op, hidden, self._projection, None if self._op.omitted(bias) else self._real(bias))
        return self._clipped(total, self._clips[1])

    def _real(self, index: int) -> Tensor:
        """An input as FLOAT32, converted once for all time steps."""
        if index not in self._reals:
            self._reals[index] = self._op.real(index)
        return self._reals[index]
