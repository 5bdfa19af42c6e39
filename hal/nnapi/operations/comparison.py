"""EQUAL to NOT_EQUAL, LOGICAL_AND, LOGICAL_OR, LOGICAL_NOT, SELECT: operations on booleans."""

from __future__ import annotations

from collections.abc import Callable

from npusim.isa.functions import Binary, Unary

from ..types import OperationType
from .definition import define
from .lowering import InvalidOperationError, Lowering
from .signature import BOOL8, F16, F32, I32, QUANT8, forms, rows
from .view import OpView


def _compare(function: Binary) -> Callable[[Lowering], None]:
    """a (function) b: on stored integers if these compare like the numbers, else on the numbers."""

    def lower(op: Lowering) -> None:
        read = op.tensor if op.view.quantisation(0) == op.view.quantisation(1) else op.numbers
        op.give(op.binary(function, read(0), read(1)))

    return lower


def _logical(function: Binary) -> Callable[[Lowering], None]:
    def lower(op: Lowering) -> None:
        op.give(op.binary(function, op.tensor(0), op.tensor(1)))

    return lower


def _select(op: Lowering) -> None:
    """Input 1 where input 0 is true, else input 2."""
    shapes = [op.shape(index) for index in range(3)]
    if len(set(shapes)) != 1:
        raise InvalidOperationError(f"the inputs must have one shape, got {', '.join(map(str, map(list, shapes)))}")
    if op.alike(1, 2):
        op.give(op.add("select", [op.tensor(0), op.tensor(1), op.tensor(2)]))
    else:
        op.give_real(op.add("select", [op.tensor(0), op.real(1), op.real(2)]))


def _one_rank(view: OpView) -> bool:
    """the inputs must have one rank"""
    return len({len(dims) for index in range(3) if (dims := view.dims(index)) is not None}) < 2


_COMPARISON = forms("T T", "BOOL8", rows("T", (BOOL8, F32, F16, I32, *QUANT8)))
define(OperationType.EQUAL, _COMPARISON, _compare(Binary.EQ))
define(OperationType.NOT_EQUAL, _COMPARISON, _compare(Binary.NE))
define(OperationType.LESS, _COMPARISON, _compare(Binary.LT))
define(OperationType.LESS_EQUAL, _COMPARISON, _compare(Binary.LE))
define(OperationType.GREATER, _COMPARISON, _compare(Binary.GT))
define(OperationType.GREATER_EQUAL, _COMPARISON, _compare(Binary.GE))

define(OperationType.LOGICAL_AND, forms("BOOL8 BOOL8", "BOOL8"), _logical(Binary.AND))
define(OperationType.LOGICAL_OR, forms("BOOL8 BOOL8", "BOOL8"), _logical(Binary.OR))
define(OperationType.LOGICAL_NOT, forms("BOOL8", "BOOL8"), lambda op: op.give(op.unary(Unary.NOT, op.tensor(0))))
define(OperationType.SELECT, forms("BOOL8 T T", "T", rows("T", (F32, F16, I32, *QUANT8))), _select, _one_rank)
