"""Recurrent layers: one product for the inputs of all steps, and a loop with another one for the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from npusim.dtypes import DType
from npusim.frontends.tflite.operation import Operation
from npusim.frontends.tflite.registry import handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.ops.iterations import Scanned, iterate

MOST_STEPS = 4096
"""Limit of the steps of a layer."""
_PEEPHOLES = {0: 9, 1: 10, 3: 11}
"""Inputs of peephole weights by gate; the cell gate has none."""


def _columns(op: Operation, index: int) -> Tensor:
    """Weights [units, size] as float32 columns [size, units]."""
    weights = op.numbers(index)
    if len(weights.shape) != 2:
        op.damaged(f"input {index} must be a matrix, is {list(weights.shape)}")
    return op.transpose(weights, (1, 0))


def _steps(op: Operation, kind: str) -> tuple[Tensor, bool]:
    """The input as [steps, batches, size], and whether it is in this order in the file."""
    x = op.numbers(0)
    if len(x.shape) != 3 or min(x.shape) < 1:
        op.damaged(f"the input must have 3 dimensions >= 1, has {list(x.shape)}")
    major = op.flag(kind, "TimeMajor")
    x = x if major else op.transpose(x, (1, 0, 2))
    if x.shape[0] > MOST_STEPS:
        op.refuse(f"at most {MOST_STEPS} steps are supported, got {x.shape[0]}")
    return x, major


def _bounded(op: Operation, x: Tensor, limit: float) -> Tensor:
    """Clamped to [-limit, limit]; 0 is no limit."""
    return op.unary(Unary.CLIP, x, -limit, limit) if limit > 0 else x


def _refuse_layer_norm(op: Operation) -> None:
    if any(op.optional(index) is not None for index in range(20, 24)):
        op.refuse("layer normalisation is not supported")


class _Cell:
    """An LSTM cell with its weights. Gates are in the order input, forget, cell, output; without weights of the input
    gate it is the complement of the forget gate."""

    def __init__(self, op: Operation, kind: str) -> None:
        _refuse_layer_norm(op)
        if op.quantised(op.type_of(0)):
            op.refuse("quantised inputs are not supported")
        self._op = op
        self._gates = [0, 1, 2, 3] if op.optional(1) is not None else [1, 2, 3]
        self._activation = int(op.option(kind, "FusedActivationFunction"))
        self._clips = float(op.option(kind, "CellClip")), float(op.option(kind, "ProjClip"))
        self._inputs = self._joined([_columns(op, 1 + gate) for gate in self._gates], 1)
        self._recurrent = self._joined([_columns(op, 5 + gate) for gate in self._gates], 1)
        self._bias = self._joined([op.numbers(12 + gate) for gate in self._gates], 0)
        self._units = self._recurrent.shape[1] // len(self._gates)
        self.output, self.state = op.numbers(18), op.numbers(19)

    def _joined(self, parts: list[Tensor], axis: int) -> Tensor:
        return self._op.add("concat", *parts, axis=axis)

    def of_inputs(self, x: Tensor) -> Tensor:
        """The part of the gates that the inputs [rows, size] make."""
        return self._op.add("matmul", x, self._inputs, self._bias)

    def step(self, x: Tensor) -> Tensor:
        """One step with the part of the inputs [batches, gates]; returns the new output."""
        op, units = self._op, self._units
        sums = op.binary(Binary.ADD, x, op.add("matmul", self.output, self._recurrent))
        gate = {name: op.slice(sums, 1, place * units, units) for place, name in enumerate(self._gates)}

        def opened(name: int, state: Tensor) -> Tensor:
            peephole = op.optional(_PEEPHOLES[name])
            total = gate[name]
            if peephole is not None:
                total = op.binary(Binary.ADD, total, op.binary(Binary.MUL, state, op.numbers(_PEEPHOLES[name])))
            return op.unary(Unary.SIGMOID, total)

        forget = opened(1, self.state)
        come = opened(0, self.state) if 0 in gate else op.binary(Binary.SUB, op.f32(1), forget)
        new = op.binary(Binary.MUL, come, op.activated(gate[2], self._activation))
        kept = op.binary(Binary.MUL, forget, self.state)
        self.state = _bounded(op, op.binary(Binary.ADD, kept, new), self._clips[0])
        output = op.binary(Binary.MUL, opened(3, self.state), op.activated(self.state, self._activation))
        if op.optional(16) is not None:
            bias = op.optional(17)
            output = op.add("matmul", output, _columns(op, 16), bias)
            output = _bounded(op, output, self._clips[1])
        self.output = output
        return output

    def finish(self) -> None:
        """Keep the states for the next run."""
        self._op.updates |= {18: self.output, 19: self.state}


class _IntegerCell(_Cell):
    """An LSTM cell on int8 with a state of int16, which rounds where LiteRT's kernel does: gates to steps of 2^-12
    before and 2^-15 behind their functions, products to steps of the state, outputs to those of the intermediate tensor
    4."""

    def __init__(self, op: Operation, kind: str) -> None:
        wanted = {0: DType.INT8, 18: DType.INT8, 19: DType.INT16} | dict.fromkeys(range(2, 9), DType.INT8)
        for index, dtype in wanted.items():
            if op.optional(index) is not None and op.input(index).dtype is not dtype:
                op.refuse(f"input {index} is {op.input(index).dtype.label}, must be {dtype.label} beside int8 inputs")
        hidden = op.intermediates[4] if len(op.intermediates) > 4 else None
        if hidden is None or hidden.quantization is None:
            op.damaged("intermediate tensor 4 with the scale of the output gate is required")
        self._op = op
        self._gates = [0, 1, 2, 3] if op.optional(1) is not None else [1, 2, 3]
        self._clips = float(op.option(kind, "CellClip")), float(op.option(kind, "ProjClip"))
        self._hidden, self._cell = op.parameters(hidden), op.parameters(op.type_of(19))
        self._units = op.input(19).shape[-1]
        self.output, self.state = op.real(18), op.real(19)
        self._weights = {gate: _columns(op, 5 + gate) for gate in self._gates}
        self._holes = {gate: op.real(index) for gate, index in _PEEPHOLES.items() if op.optional(index) is not None}
        self._projection = None
        if op.optional(16) is not None:
            self._projection = _columns(op, 16), self._biases(17, 16, self._hidden[0])

    def _rounded(self, x: Tensor, scale: float, zero: int = 0, dtype: DType = DType.INT16) -> Tensor:
        """Numbers rounded to those of a quantised type."""
        op = self._op
        scales = op.const(np.float32(scale)), op.const(np.int32(zero))
        return op.add("dequantize", op.add("quantize", x, *scales, to=dtype), *scales, to=DType.FLOAT32)

    def _biases(self, index: int, weights: int, scale: float) -> Tensor | None:
        """A bias, whose steps are those of the sums of an input with ``scale`` and weights."""
        if self._op.optional(index) is None:
            return None
        step = scale * self._op.parameters(self._op.type_of(weights))[0]
        return self._op.const(np.asarray(self._op.value(index) * step, np.float32))

    def of_inputs(self, x: Tensor) -> Tensor:
        """See _Cell."""
        op, scale = self._op, self._op.parameters(self._op.type_of(0))[0]
        weights = [_columns(op, 1 + gate) for gate in self._gates]
        biases = [self._biases(12 + gate, 1 + gate, scale) for gate in self._gates]
        parts = [op.add("matmul", x, *each) for each in zip(weights, biases, strict=True)]
        return self._joined([self._rounded(part, GATE) for part in parts], 1)

    def step(self, x: Tensor) -> Tensor:
        """See _Cell."""
        op, units = self._op, self._units

        def gate(name: int, state: Tensor, function: Unary) -> Tensor:
            total = op.slice(x, 1, self._gates.index(name) * units, units)
            added = [op.add("matmul", self.output, self._weights[name])]
            if name in self._holes:
                added.append(op.binary(Binary.MUL, state, self._holes[name]))
            for each in added:
                total = self._rounded(op.binary(Binary.ADD, total, self._rounded(each, GATE)), GATE)
            return self._rounded(op.unary(function, total), FRACTION)

        forget = gate(1, self.state, Unary.SIGMOID)
        # The complement is that of the largest number.
        come = (
            gate(0, self.state, Unary.SIGMOID)
            if 0 in self._gates
            else op.binary(Binary.SUB, op.f32(1 - FRACTION), forget)
        )
        new = op.binary(Binary.MUL, come, gate(2, self.state, Unary.TANH))
        kept = op.binary(Binary.MUL, forget, self.state)
        state = op.binary(Binary.ADD, *(self._rounded(part, self._cell[0]) for part in (kept, new)))
        self.state = self._rounded(_bounded(op, state, self._clips[0]), self._cell[0])
        output = op.binary(
            Binary.MUL, gate(3, self.state, Unary.SIGMOID), self._rounded(op.unary(Unary.TANH, self.state), FRACTION)
        )
        output = self._rounded(output, *self._hidden, DType.INT8)
        if self._projection is not None:
            output = op.add("matmul", output, *self._projection)
            output = self._rounded(output, *op.parameters(op.type_of(18)), DType.INT8)
            output = _bounded(op, output, self._clips[1])
        self.output = output
        return output


GATE, FRACTION = 2.0**-12, 2.0**-15
"""Steps of the gates of an integer LSTM before and behind their functions."""


@handles(
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
    limits=["floats, floats with integer weights, or int8 with a state of int16", "no layer normalisation"],
)
def sequence_lstm(op: Operation) -> Tensor:
    """Import UNIDIRECTIONAL_SEQUENCE_LSTM."""
    kind = "UnidirectionalSequenceLSTMOptions"
    x, major = _steps(op, kind)
    _refuse_layer_norm(op)
    cell = (_IntegerCell if op.quantised(op.type_of(0)) else _Cell)(op, kind)
    steps, batches, size = x.shape
    parts = cell.of_inputs(op.reshape(x, (steps * batches, size)))

    def step(part: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
        cell.output, cell.state = states
        cell.step(part)
        return [cell.output, cell.state]

    outputs, (cell.output, cell.state) = _looped(op, steps, parts, [cell.output, cell.state], step, major)
    cell.finish()
    return op.give(outputs)


@handles("LSTM", limits=["floats, or floats with integer weights", "no layer normalisation", "the full kernel"])
def lstm(op: Operation) -> Tensor:
    """Import LSTM: one step."""
    if int(op.option("LSTMOptions", "KernelType")) != 0:
        op.refuse("the basic kernel is not supported")
    cell = _Cell(op, "LSTMOptions")
    output = cell.step(cell.of_inputs(op.numbers(0)))
    cell.finish()
    return op.give(output)


def _looped(
    op: Operation,
    steps: int,
    parts: Tensor,
    states: Sequence[Tensor],
    step: Callable[[Tensor, Sequence[Tensor]], list[Tensor]],
    major: bool,
) -> tuple[Tensor, list[Tensor]]:
    """The outputs of all steps in the order of the file, and the last states. ``step``: the next states, the output
    first, from the part of the inputs and the states."""

    def body(now: Sequence[Tensor], given: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        after = step(given[0], now)
        return after, [op.reshape(after[0], (1, *after[0].shape))]

    scanned = [Scanned(parts, size=parts.shape[0] // steps)]
    last, (outputs,) = iterate(op, steps, states, scanned, body, axes=[0 if major else 1])
    return outputs, last


@handles("UNIDIRECTIONAL_SEQUENCE_RNN", "RNN", limits=["floats, or floats with integer weights"])
def rnn(op: Operation) -> Tensor:
    """Import a simple recurrent layer, of all steps or of one."""
    if op.quantised(op.type_of(0)):
        op.refuse("quantised inputs are not supported")
    whole = op.op_type != "RNN"
    kind = "SequenceRNNOptions" if whole else "RNNOptions"
    x, major = _steps(op, kind) if whole else (op.numbers(0), True)
    activation = int(op.option(kind, "FusedActivationFunction"))
    rows = op.reshape(x, (x.shape[0] * x.shape[1], x.shape[2])) if whole else x
    parts = op.add("matmul", rows, _columns(op, 1), op.numbers(3))
    recurrent, state = _columns(op, 2), op.numbers(4)

    def step(part: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
        return [op.activated(op.binary(Binary.ADD, part, op.add("matmul", states[0], recurrent)), activation)]

    outputs = None
    if whole:
        outputs, (state,) = _looped(op, x.shape[0], parts, [state], step, major)
    else:
        (state,) = step(parts, [state])
    op.updates[4] = state
    return op.give(state if outputs is None else outputs)


@handles("SVDF", limits=["floats, or floats with integer weights"])
def svdf(op: Operation) -> Tensor:
    """Import SVDF: a filter over features, then one over time, in which the state keeps the last features."""
    if op.quantised(op.type_of(0)):
        op.refuse("quantised inputs are not supported")
    x, time, state = op.numbers(0), op.numbers(2), op.numbers(4)
    rank = op.positive("SVDFOptions", "Rank")
    features = op.add("matmul", x, _columns(op, 1))
    batches, filters = features.shape
    if len(time.shape) != 2 or time.shape[0] != filters or filters % rank or state.size != batches * time.size:
        op.damaged(f"time weights {list(time.shape)} and state {list(state.shape)} do not fit {filters} filters")
    memory = time.shape[1]
    old = op.slice(op.reshape(state, (batches, filters, memory)), 2, 1, memory - 1)
    new = op.reshape(features, (batches, filters, 1))
    kept = op.add("concat", old, new, axis=2) if memory > 1 else new
    op.updates[4] = op.reshape(kept, state.shape)
    sums = op.reduce(Reduce.SUM, op.binary(Binary.MUL, kept, time), [2], keepdims=False)
    units = op.reduce(Reduce.SUM, op.reshape(sums, (batches, filters // rank, rank)), [2], keepdims=False)
    if op.optional(3) is not None:
        units = op.binary(Binary.ADD, units, op.numbers(3))
    return op.give(op.activated(units, int(op.option("SVDFOptions", "FusedActivationFunction"))))
