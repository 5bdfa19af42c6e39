"""ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM, POW, PRELU: two tensors that broadcast to each other."""

from __future__ import annotations

from collections.abc import Callable

from npusim.dtypes import DType
from npusim.isa.functions import Binary

from ..types import FusedActivationFunc, OperandType, OperationType
from .definition import Rule, define
from .lowering import Lowering
from .rules import activation, input_types, rank_at_most
from .signature import F16, F32, FLOATS, I32, QUANT8, forms, rows
from .versions import V1_2, V1_3
from .view import QUANTISED, OpView


def _plain(function: Binary) -> Callable[[Lowering], None]:
    """a (function) b."""

    def lower(op: Lowering) -> None:
        op.give_real(op.binary(function, op.numbers(0), op.numbers(1)))

    return lower


def _fused(function: Binary) -> Callable[[Lowering], None]:
    """a (function) b, then the activation that input 2 names."""

    def lower(op: Lowering) -> None:
        op.give_real(op.activate(op.binary(function, op.numbers(0), op.numbers(1)), 2))

    return lower


def _extreme(function: Binary) -> Callable[[Lowering], None]:
    """The larger or the smaller: on stored integers if these compare like the numbers, else on the numbers."""

    def lower(op: Lowering) -> None:
        if op.alike(0, 1):
            op.give(op.binary(function, op.tensor(0), op.tensor(1)))
        else:
            _plain(function)(op)

    return lower


def _divide(op: Lowering) -> None:
    """DIV; integers round down, while the graph's division truncates."""
    if op.out_type() != OperandType.TENSOR_INT32:
        _fused(Binary.DIV)(op)
        return
    a, b = op.tensor(0), op.tensor(1)
    # The remainders differ if the signs do and there is one: there the truncated quotient is one too high.
    high = op.binary(Binary.NE, op.binary(Binary.MOD, a, b), op.binary(Binary.FMOD, a, b))
    quotient = op.binary(Binary.SUB, op.binary(Binary.DIV, a, b), op.cast(high, DType.INT32))
    op.give(op.activate(quotient, 2))


def _no_activation_of_integers(view: OpView) -> bool:
    """the fused activation of TENSOR_INT32 must be NONE"""
    return view.type(0) != I32 or view.scalar(2) in (None, FusedActivationFunc.NONE)


def _product_scale(view: OpView) -> bool:
    """a quantised output's scale must be greater than the product of the inputs' scales"""
    a, b, result = view.inputs[0], view.inputs[1], view.outputs[0]
    return result.type not in QUANTISED or result.scale > a.scale * b.scale


_RANKS: tuple[Rule, ...] = (rank_at_most(0, 4), rank_at_most(1, 4))
_FUSED: tuple[Rule, ...] = (*_RANKS, activation(2), _no_activation_of_integers)
_ARITHMETIC = forms("T T i", "T", rows("T", (F32, F16, *QUANT8, I32)))
_INTEGERS = input_types(0, V1_3, I32)
define(OperationType.ADD, _ARITHMETIC, _fused(Binary.ADD), *_FUSED, later=[_INTEGERS])
define(OperationType.SUB, _ARITHMETIC, _fused(Binary.SUB), *_FUSED, later=[_INTEGERS, input_types(0, V1_2, *QUANT8)])
define(OperationType.MUL, _ARITHMETIC, _fused(Binary.MUL), *_FUSED, _product_scale, later=[_INTEGERS])
define(OperationType.DIV, forms("T T i", "T", rows("T", (F32, F16, I32))), _divide, *_FUSED, later=[_INTEGERS])

_ORDERED = forms("T T", "T", rows("T", (F32, F16, I32, *QUANT8)))
define(OperationType.MAXIMUM, _ORDERED, _extreme(Binary.MAX))
define(OperationType.MINIMUM, _ORDERED, _extreme(Binary.MIN))
define(OperationType.POW, forms("T T", "T", rows("T", FLOATS)), _plain(Binary.POW))
define(OperationType.PRELU, forms("T T", "T", rows("T", (*FLOATS, *QUANT8))), _plain(Binary.PRELU))
