"""Functions of one tensor, element by element: ABS to TANH."""

from __future__ import annotations

from collections.abc import Callable

from npusim.isa.functions import Binary, Unary

from ..types import FusedActivationFunc, OperationType
from .definition import define
from .lowering import Lowering, activation_bounds
from .rules import input_types, output_quantisation, rank_at_most, same_quantisation
from .signature import F16, F32, FLOATS, I32, QUANT8, SCALAR_OF, forms, rows
from .versions import AIDL_3, V1_2, V1_3


def _function(function: Unary) -> Callable[[Lowering], None]:
    def lower(op: Lowering) -> None:
        op.give_real(op.unary(function, op.numbers(0)))

    return lower


def _rectify(activation: FusedActivationFunc) -> Callable[[Lowering], None]:
    """RELU, RELU1, RELU6: values are clamped to two bounds."""
    bounds = activation_bounds(activation)
    assert bounds is not None

    def lower(op: Lowering) -> None:
        op.give_real(op.unary(Unary.CLIP, op.numbers(0), *bounds))

    return lower


def _elu(op: Lowering) -> None:
    """max(0, x) + min(0, alpha * (exp(x) - 1))."""
    alpha = op.scalar(1)
    if alpha >= 0:
        op.give_real(op.unary(Unary.ELU, op.tensor(0), alpha))
        return
    # With a negative alpha the second term applies to x > 0.
    x = op.real(0)
    growth = op.binary(Binary.SUB, op.unary(Unary.EXP, x), op.f32(1.0))
    bend = op.binary(Binary.MIN, op.f32(0.0), op.binary(Binary.MUL, growth, op.f32(alpha)))
    op.give_real(op.binary(Binary.ADD, op.unary(Unary.RELU, x), bend))


_RANK = rank_at_most(0, 4)
_FLOAT = forms("T", "T", rows("T", FLOATS))
_NUMBER = forms("T", "T", rows("T", (F32, F16, I32)))
_QUANT = forms("T", "T", rows("T", (*FLOATS, *QUANT8)))

define(OperationType.ABS, _NUMBER, _function(Unary.ABS), later=[input_types(0, V1_3, I32)])
define(OperationType.NEG, _NUMBER, _function(Unary.NEG))
define(OperationType.EXP, _FLOAT, _function(Unary.EXP))
define(OperationType.FLOOR, _FLOAT, _function(Unary.FLOOR), _RANK)
define(OperationType.LOG, _FLOAT, _function(Unary.LOG))
define(OperationType.SIN, _FLOAT, _function(Unary.SIN))
define(OperationType.SQRT, _FLOAT, _function(Unary.SQRT))

define(OperationType.RELU, _QUANT, _rectify(FusedActivationFunc.RELU), _RANK, same_quantisation(0))
define(OperationType.RELU1, _QUANT, _rectify(FusedActivationFunc.RELU1), _RANK, same_quantisation(0))
define(OperationType.RELU6, _QUANT, _rectify(FusedActivationFunc.RELU6), _RANK, same_quantisation(0))
define(OperationType.LOGISTIC, _QUANT, _function(Unary.SIGMOID), _RANK, output_quantisation(1 / 256, 0))
define(
    OperationType.TANH,
    _QUANT,
    _function(Unary.TANH),
    _RANK,
    output_quantisation(1 / 128, 128),
    later=[input_types(0, V1_2, *QUANT8)],
)
define(OperationType.HARD_SWISH, _QUANT, _function(Unary.HARD_SWISH))
define(OperationType.RSQRT, _QUANT, _function(Unary.RSQRT), later=[input_types(0, AIDL_3, *QUANT8)])
define(OperationType.ELU, forms("T S", "T", [{"T": each, "S": SCALAR_OF[each]} for each in FLOATS]), _elu)
