"""REDUCE_ALL to REDUCE_SUM, MEAN, ARGMAX, ARGMIN: many elements to one."""

from __future__ import annotations

from collections.abc import Callable

from npusim.dtypes import DType
from npusim.graph import Tensor
from npusim.isa.functions import Reduce

from ..types import OperationType
from .definition import define
from .lowering import Lowering, normal_axis
from .rules import axis_of, rank_at_most, same_quantisation
from .signature import F16, F32, FLOATS, I32, QUANT8, forms, rows
from .view import OpView


def _reduced(op: Lowering, x: Tensor, function: Reduce) -> Tensor:
    """The reduction over the axes of input 1, none if that is empty. The result has at least one dimension."""
    rank, keep = len(x.shape), op.scalar(2) > 0
    # A set, because clients may list a dimension twice, counted from either end.
    axes = sorted({normal_axis(axis, rank) for axis in op.ints(1)})
    if not axes:
        return x
    y = op.reduce(function, x, axes, keep)
    return op.reshape(y, y.shape or (1,))


def _stored(function: Reduce) -> Callable[[Lowering], None]:
    """A reduction of the stored values: input and output have the same quantisation."""

    def lower(op: Lowering) -> None:
        op.give(_reduced(op, op.tensor(0), function))

    return lower


def _arg(function: str) -> Callable[[Lowering], None]:
    """The index of the extreme along the axis of input 1; the first of equals. The result has at least one
    dimension."""

    def lower(op: Lowering) -> None:
        x = op.tensor(0)
        attrs = {"fn": function, "axis": op.axis(1, len(x.shape)), "keepdims": False}
        index = op.cast(op.add("arg_reduce", [x], attrs), DType.INT32)
        op.give(op.reshape(index, index.shape or (1,)))

    return lower


def _axes(view: OpView) -> bool:
    """input 1 must be 1-D, its entries in [-n, n), n being the rank of input 0"""
    axes, dims = view.constant(1), view.dims(0)
    if axes is None or dims is None:
        return view.has_rank(1, 1)
    return axes.ndim == 1 and all(-len(dims) <= axis < len(dims) for axis in axes.tolist())


_RULES = (rank_at_most(0, 4), _axes)
_BOOLS = forms("BOOL8 I32 b", "BOOL8")
define(OperationType.REDUCE_ALL, _BOOLS, _stored(Reduce.ALL), *_RULES)
define(OperationType.REDUCE_ANY, _BOOLS, _stored(Reduce.ANY), *_RULES)

_EXTREMES = forms("T I32 b", "T", rows("T", (*FLOATS, *QUANT8)))
define(OperationType.REDUCE_MAX, _EXTREMES, _stored(Reduce.MAX), *_RULES, same_quantisation(0))
define(OperationType.REDUCE_MIN, _EXTREMES, _stored(Reduce.MIN), *_RULES, same_quantisation(0))

_SUMS = forms("T I32 b", "T", rows("T", FLOATS))
define(OperationType.REDUCE_PROD, _SUMS, _stored(Reduce.PROD), *_RULES)
define(OperationType.REDUCE_SUM, _SUMS, _stored(Reduce.SUM), *_RULES)

define(
    OperationType.MEAN,
    forms("T I32 i", "T", rows("T", (*FLOATS, *QUANT8))),
    lambda op: op.give_real(_reduced(op, op.numbers(0), Reduce.MEAN)),
    *_RULES,
    same_quantisation(0),
)

_ARGS = forms("T i", "I32", rows("T", (F32, F16, I32, *QUANT8)))
define(OperationType.ARGMAX, _ARGS, _arg("max"), axis_of(1))
define(OperationType.ARGMIN, _ARGS, _arg("min"), axis_of(1))
