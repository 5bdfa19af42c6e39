"""QUANTIZED_LSTM: an LSTM on signed 8-bit inputs, with gates and cell state of 16 bits.

Sums of products are exact on the matrix unit; everything after them is fixed-point arithmetic as TFLite defines it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from npusim.dtypes import DType
from npusim.graph import Tensor

from ..types import OperationType
from .definition import define
from .dimensions import Dimensions
from .fixed_norm import layer_norm
from .fixed_point import ONE, FixedPoint
from .lowering import InvalidOperationError, Lowering
from .lstm_cell import PEEPHOLES, Cell
from .presence import check_presence, presence_rules
from .recurrent import columns, joined, parts
from .rules import not_negative, positive, scalars
from .signature import forms
from .view import OpView

_INPUT, _RECURRENT, _BIASES, _PROJECTION, _OUTPUT, _STATE, _NORMS = 1, 5, 12, 16, 18, 19, 20
_CELL_CLIP, _PROJECTION_CLIP, _SUM_SCALES, _HIDDEN_ZERO, _HIDDEN_SCALE = 24, 25, 26, 30, 31
_IN, _FORGET, _CELL, _OUT = range(4)
"""Gates, in the order of their inputs."""
_PLACES = Cell(first=1, state=_OUTPUT, scalars=-1, norm=_NORMS)
_CONDITIONS = _PLACES.conditions()
_OPTIONAL = (*_PLACES.optional(), _CELL_CLIP, _PROJECTION_CLIP)
_SHAPES = Dimensions({0: "batches inputs", **_PLACES.shapes("inputs", "units", "outputs")}, _OPTIONAL)


def cell_scale(view: OpView) -> bool:
    """the scale of input 19 must be a power of two, from 2**-15 to 2**-9"""
    return _cell_exponent(view) is not None


_ZERO_TEXT = "input 30, the zero point of the hidden state, must be in [-128, 127]"
hidden_zero = scalars(_ZERO_TEXT, lambda zero: -128 <= zero <= 127, _HIDDEN_ZERO)


def _cell_exponent(view: OpView) -> int | None:
    """The logarithm of the scale of the cell state; None if it is invalid."""
    scale = view.inputs[_STATE].scale
    if not scale > 0:
        return None
    logarithm = math.log2(scale)
    exponent = round(logarithm)
    return exponent if abs(logarithm - exponent) < 1e-3 and -15 <= exponent <= -9 else None


class _Network:
    """The operation during lowering. Gates are INT32 [batches, units] with 16-bit values."""

    def __init__(self, op: Lowering) -> None:
        self._op = op
        self._fixed = FixedPoint(op)
        self._batches, self._units = op.shape(_STATE)
        if not self._units:
            raise InvalidOperationError(f"input {_STATE} must have at least one unit, got {list(op.shape(_STATE))}")
        self._coupled = op.omitted(_INPUT)
        self._normal = not op.omitted(_NORMS + _OUT)
        exponent = _cell_exponent(op.view)
        if exponent is None:
            raise InvalidOperationError((cell_scale.__doc__ or "").strip())
        self._exponent = exponent
        self._hidden_zero = int(op.scalar(_HIDDEN_ZERO))
        if not -128 <= self._hidden_zero <= 127:
            raise InvalidOperationError(f"{_ZERO_TEXT}, got {self._hidden_zero}")
        self._gates = [gate for gate in (_IN, _FORGET, _OUT, _CELL) if gate != _IN or not self._coupled]

    def lower(self) -> None:
        """Add the operators and return the outputs."""
        op = self._op
        before = op.cast(op.tensor(_STATE), DType.INT32)
        sums = self._sums()
        looks = not op.omitted(_PLACES.first + PEEPHOLES[_OUT])
        # All gates at once, unless the output gate reads the new cell state, which depends on the others.
        early = [gate for gate in self._gates if gate != _OUT or not looks]
        gates = self._functions(early, [self._look(gate, sums[gate], before) for gate in early])
        cell = self._cell_state(gates, before)
        if looks:
            gates |= self._functions([_OUT], [self._look(_OUT, sums[_OUT], cell)])
        output = self._project(self._hidden(gates[_OUT], cell))
        op.give(output, 0)
        op.give(op.cast(cell, DType.INT16), 1)
        op.give(output, 2)

    def _scale(self, gate: int) -> np.float32:
        """The scale of the sums at the input of a gate."""
        scale = np.float32(self._op.scalar(_SUM_SCALES + gate))
        if not scale > 0:
            raise InvalidOperationError(f"input {_SUM_SCALES + gate} must be > 0, got {scale}")
        return scale

    def _sums(self) -> dict[int, Tensor]:
        """The contributions of inputs and previous output to each gate, in the scale of its sums."""
        fixed, shape = self._fixed, (self._batches, len(self._gates), self._units)
        bias = None
        if not self._normal:  # without a normalisation it has the scale of the products
            bias = joined(self._op, [self._op.tensor(_BIASES + gate) for gate in self._gates])
        of_input = self._products(0, _INPUT, bias)
        of_output = self._products(_OUTPUT, _RECURRENT, None)
        # Saturated after each addition, because TFLite adds 16-bit numbers: another order differs at the limits.
        total = fixed.saturate(fixed.add(fixed.saturate(of_input), of_output))
        each = [self._op.reshape(tensor, (shape[0], shape[2])) for tensor in parts(self._op, total, 1, shape[1])]
        return dict(zip(self._gates, each, strict=True))

    def _products(self, x: int, first: int, bias: Tensor | None) -> Tensor:
        """Input ``x`` times weights: INT32 [batches, gates, units] in the scales of the gates' sums."""
        op, source = self._op, self._op.view.inputs[x]
        weights = columns(op, joined(op, [op.tensor(first + gate) for gate in self._gates]))
        sums = op.add("matmul", [op.tensor(x), weights, bias], {"x_zero": source.zeroPoint})
        factors = [
            float(np.float32(op.view.inputs[first + gate].scale) * np.float32(source.scale) / self._scale(gate))
            for gate in self._gates
        ]
        return self._fixed.rescale(op.reshape(sums, (self._batches, len(self._gates), self._units)), factors)

    def _look(self, gate: int, total: Tensor, cell: Tensor) -> Tensor:
        """The sum of a gate with its peephole connection."""
        index = _PLACES.first + PEEPHOLES.get(gate, PEEPHOLES[_OUT])
        if gate == _CELL or self._op.omitted(index):
            return total
        fixed = self._fixed
        weights = self._op.cast(self._op.tensor(index), DType.INT32)
        factor = np.float32(2.0**self._exponent * self._op.view.inputs[index].scale / float(self._scale(gate)))
        return fixed.saturate(fixed.add(total, fixed.rescale(fixed.multiply(cell, weights), [float(factor)])))

    def _functions(self, gates: Sequence[int], sums: Sequence[Tensor]) -> dict[int, Tensor]:
        """The activation of each gate, after its normalisation, if any: Q0. The cell gate is last."""
        op = self._op
        shape = (self._batches, 1, self._units)
        stack = joined(op, [op.reshape(tensor, shape) for tensor in sums], 1)
        if self._normal:
            weights, bias = (self._rows(first, gates) for first in (_NORMS, _BIASES))
            scales = [op.view.inputs[_NORMS + gate].scale for gate in gates]
            stack = layer_norm(self._fixed, stack, weights, bias, scales)
        sigmoids = len(gates) - (gates[-1] == _CELL)
        results = parts(op, self._fixed.logistic(op.slice(stack, 1, 0, sigmoids)), 1, sigmoids)
        if sigmoids < len(gates):
            results.append(self._fixed.tanh(op.slice(stack, 1, sigmoids, 1), 3))
        flat = [op.reshape(tensor, (self._batches, self._units)) for tensor in results]
        return dict(zip(gates, flat, strict=True))

    def _rows(self, first: int, gates: Sequence[int]) -> Tensor:
        """Vectors of several gates: [gates, units]."""
        op = self._op
        return joined(op, [op.reshape(op.tensor(first + gate), (1, self._units)) for gate in gates])

    def _cell_state(self, gates: dict[int, Tensor], before: Tensor) -> Tensor:
        fixed = self._fixed
        let_in = fixed.minus(ONE, gates[_FORGET]) if self._coupled else gates[_IN]
        kept = fixed.rounded_right(fixed.multiply(gates[_FORGET], before), 15)
        # Q0 by Q0 has 30 fraction bits, the cell state has -exponent of them.
        fresh = fixed.rounded_right(fixed.multiply(let_in, gates[_CELL]), 30 + self._exponent)
        cell = fixed.saturate(fixed.add(kept, fresh))
        clip = np.float32(self._op.scalar(_CELL_CLIP, 0.0)) / np.float32(self._op.view.inputs[_STATE].scale)
        most = int(min(clip, np.float32(32767)))
        return fixed.clip(cell, -most, most) if most > 0 else cell

    def _hidden(self, let_out: Tensor, cell: Tensor) -> Tensor:
        """The output of the units: INT8, quantised as inputs 30 and 31 say."""
        fixed, scale = self._fixed, np.float32(self._op.scalar(_HIDDEN_SCALE))
        if not scale > 0:
            raise InvalidOperationError(f"input {_HIDDEN_SCALE} must be > 0, got {scale}")
        number = fixed.multiply(let_out, fixed.tanh(cell, 15 + self._exponent))
        level = fixed.rescale(number, [float(np.float32(2.0**-30 / float(scale)))])
        return self._op.cast(fixed.clip(fixed.add(level, self._hidden_zero), -128, 127), DType.INT8)

    def _project(self, hidden: Tensor) -> Tensor:
        """The output: the projection, or the unit outputs without one."""
        op, fixed = self._op, self._fixed
        if op.omitted(_PROJECTION):
            if self._units != op.shape(_OUTPUT)[1]:
                raise InvalidOperationError(
                    f"without a projection there must be as many outputs as units, {self._units}, got "
                    f"{op.shape(_OUTPUT)[1]}"
                )
            return hidden
        target, weights = op.view.inputs[_OUTPUT], op.view.inputs[_PROJECTION]
        bias = None if op.omitted(_PROJECTION + 1) else op.tensor(_PROJECTION + 1)
        right = columns(op, op.tensor(_PROJECTION))
        sums = op.add("matmul", [hidden, right, bias], {"x_zero": self._hidden_zero})
        scale = np.float32(op.scalar(_HIDDEN_SCALE))
        factor = np.float32(weights.scale) * scale / np.float32(target.scale)
        level = fixed.add(fixed.rescale(sums, [float(factor)]), target.zeroPoint)
        clip = float(np.float32(op.scalar(_PROJECTION_CLIP, 0.0)) / np.float32(target.scale))
        least, most = -128, 127
        if clip > 0:
            reach = int(min(clip, 255.0))
            least, most = max(least, target.zeroPoint - reach), min(most, target.zeroPoint + reach)
        return op.cast(fixed.clip(level, least, most), DType.INT8)


def _lower(op: Lowering) -> None:
    check_presence(op, _CONDITIONS)
    _SHAPES.sizes(op)
    _Network(op).lower()


define(
    OperationType.QUANTIZED_LSTM,
    forms("Q8S Q8SYMM*8 Q16S*3 I32*4 Q8SYMM I32 Q8S Q16S Q16S*4 f*6 i f", "Q8S Q16S Q8S"),
    _lower,
    *presence_rules(_CONDITIONS),
    _SHAPES.agree,
    cell_scale,
    hidden_zero,
    not_negative(_CELL_CLIP, _PROJECTION_CLIP),
    positive(_SUM_SCALES + _FORGET, _SUM_SCALES + _CELL, _SUM_SCALES + _OUT, _HIDDEN_SCALE),
    optional=_OPTIONAL,
)
