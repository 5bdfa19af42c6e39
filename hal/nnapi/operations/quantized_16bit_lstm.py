"""QUANTIZED_16BIT_LSTM: an LSTM on 8-bit inputs with 16-bit integers inside.

Sums of products are exact on the matrix unit; everything after them is fixed-point arithmetic as TFLite defines it.
"""

from __future__ import annotations

from npusim.dtypes import DType
from npusim.graph import Tensor

from ..types import Operand, OperationType
from .definition import define
from .dimensions import Dimensions
from .fixed_point import FixedPoint
from .lowering import Lowering
from .recurrent import columns, joined, parts
from .signature import forms
from .view import OpView

_SLACK = 1e-6
"""Scales are rounded to FLOAT32, and so are their products."""
_INPUT_WEIGHTS, _RECURRENT_WEIGHTS, _BIASES, _CELL, _OUTPUT = 1, 5, 9, 13, 14
_GATES = (0, 1, 3, 2)
"""Input, forget, output and cell gate by their inputs: the three with the same function come first."""
_SHAPES = Dimensions(
    {
        0: "batches inputs",
        **dict.fromkeys(range(_INPUT_WEIGHTS, _RECURRENT_WEIGHTS), "units inputs"),
        **dict.fromkeys(range(_RECURRENT_WEIGHTS, _BIASES), "units units"),
        **dict.fromkeys(range(_BIASES, _CELL), "units"),
        _CELL: "batches units",
        _OUTPUT: "batches units",
    }
)


def _is(operand: Operand, scale: float, zero: int) -> bool:
    return abs(operand.scale - scale) <= _SLACK * scale and operand.zeroPoint == zero


def activation_quantisation(view: OpView) -> bool:
    """input 0, input 14 and output 1 must have scale 1/128 and zero point 128"""
    return all(_is(operand, 1 / 128, 128) for operand in (view.inputs[0], view.inputs[_OUTPUT], view.outputs[1]))


def weight_quantisation(view: OpView) -> bool:
    """inputs 1 to 8 must have one scale and one zero point"""
    first = view.inputs[_INPUT_WEIGHTS]
    return all(_is(operand, first.scale, first.zeroPoint) for operand in view.inputs[_INPUT_WEIGHTS:_BIASES])


def bias_quantisation(view: OpView) -> bool:
    """inputs 9 to 12 must have zero point 0 and the scale of the weights / 128"""
    scale = view.inputs[_INPUT_WEIGHTS].scale / 128
    return all(_is(operand, scale, 0) for operand in view.inputs[_BIASES:_CELL])


def cell_quantisation(view: OpView) -> bool:
    """input 13 and output 0 must have scale 1/2048 and zero point 0"""
    return all(_is(operand, 1 / 2048, 0) for operand in (view.inputs[_CELL], view.outputs[0]))


def _gate_sums(op: Lowering) -> Tensor:
    """Return the arguments of the gates' functions: INT32 [batches, gates * units], Q3.

    The operation is one fully connected layer on the input followed by the previous output. The rows of its weights are
    the recurrent weights followed by the input weights. So the position in a row, not the name, determines the factor
    of a weight, as the conformance suite expects.
    """
    fixed = FixedPoint(op)
    bias = joined(op, [op.tensor(_BIASES + gate) for gate in _GATES])
    entries = joined(op, [op.tensor(0), op.tensor(_OUTPUT)], 1)
    kinds = [joined(op, [op.tensor(first + gate) for gate in _GATES]) for first in (_RECURRENT_WEIGHTS, _INPUT_WEIGHTS)]
    zeros = {"x_zero": 128, "w_zero": op.view.inputs[_INPUT_WEIGHTS].zeroPoint}
    sums = op.add("matmul", [entries, columns(op, joined(op, kinds, 1)), bias], zeros)
    return fixed.saturate(fixed.rescale(sums, [op.view.inputs[_BIASES].scale * (1 << 12)]))


def _lower(op: Lowering) -> None:
    _SHAPES.sizes(op)
    fixed = FixedPoint(op)
    *sums, cell_sum = parts(op, _gate_sums(op), 1, 4)
    let_in, forget, let_out = parts(op, fixed.logistic(joined(op, sums, 1)), 1, 3)
    fresh = fixed.high(let_in, fixed.tanh(cell_sum, 3))
    kept = fixed.high(forget, op.cast(op.tensor(_CELL), DType.INT32))
    cell = fixed.saturate(fixed.add(fixed.rounded_right(fresh, 4), kept))  # Q4
    # The function takes Q3: one more fraction bit, saturated, because Q4 has a larger range.
    hidden = fixed.high(let_out, fixed.tanh(fixed.saturate(fixed.left(cell, 1)), 3))
    output = fixed.add(fixed.clip(fixed.rounded_right(hidden, 8), -128, 127), 128)
    op.give(op.cast(cell, DType.INT16), 0)
    op.give(op.cast(output, DType.UINT8), 1)


define(
    OperationType.QUANTIZED_16BIT_LSTM,
    forms("Q8*9 I32*4 Q16S Q8", "Q16S Q8"),
    _lower,
    _SHAPES.agree,
    activation_quantisation,
    weight_quantisation,
    bias_quantisation,
    cell_quantisation,
)
