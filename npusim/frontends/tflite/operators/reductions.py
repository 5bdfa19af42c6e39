"""Reductions, sorted and running values, normalisations."""

from __future__ import annotations

import numpy as np

from npusim.frontends.tflite.operation import Operation
from npusim.frontends.tflite.registry import handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Reduce, Unary

_ON_NUMBERS = {"MEAN": Reduce.MEAN, "SUM": Reduce.SUM, "REDUCE_PROD": Reduce.PROD}
_STORED = {
    "REDUCE_MAX": Reduce.MAX,
    "REDUCE_MIN": Reduce.MIN,
    "REDUCE_ANY": Reduce.ANY,
    "REDUCE_ALL": Reduce.ALL,
}
NORM_EPSILON = 1e-6
"""Least length by which L2_NORMALIZATION divides."""


@handles(*_ON_NUMBERS, *_STORED, limits=["the axes are constants"])
def reduce(op: Operation) -> Tensor:
    """Import a reduction over constant axes."""
    stored = op.op_type in _STORED and op.alike(0)
    x = op.input(0) if stored else op.numbers(0)
    rank, keep = len(x.shape), op.flag("ReducerOptions", "KeepDims")
    # A set, because axes may be listed twice, counted from either end.
    axes = sorted({op.normal_axis(axis, rank) for axis in op.ints(1)})
    function = (_STORED | _ON_NUMBERS)[op.op_type]
    result = op.reduce(function, x, axes, keep) if axes else x
    return result if stored else op.give(result)


@handles("ARG_MAX", "ARG_MIN", limits=["the axis is a constant"])
def arg(op: Operation) -> Tensor:
    """Import the position of an extreme; the first of equals."""
    x = op.input(0)
    axis = op.normal_axis(int(op.scalar(1)), len(x.shape))
    index = op.add("arg_reduce", x, fn="max" if op.op_type == "ARG_MAX" else "min", axis=axis, keepdims=False)
    return op.cast(index, op.dtype_of(op.results[0]))


@handles("TOPK_V2", limits=["k is a constant"])
def topk(op: Operation) -> list[Tensor]:
    """Import TOPK_V2: the largest elements of each row, and their positions."""
    x, k = op.input(0), int(op.scalar(1))
    if not x.shape or not 0 <= k <= x.shape[-1]:
        op.damaged(f"k must be in [0, {x.shape[-1] if x.shape else 0}], is {k}")
    attrs = {"axis": len(x.shape) - 1, "k": k, "largest": True}
    values, positions = op.builder.add_all("topk", [x], attrs, op.name_of("topk"))
    return [values, op.cast(positions, op.dtype_of(op.results[1]))]


@handles("CUMSUM", limits=["the axis is a constant"])
def cumsum(op: Operation) -> Tensor:
    """Import CUMSUM."""
    x = op.numbers(0)
    axis = op.normal_axis(int(op.scalar(1)), len(x.shape))
    exclusive, reverse = (op.flag("CumsumOptions", name) for name in ("Exclusive", "Reverse"))
    return op.give(op.add("cumsum", x, axis=axis, exclusive=exclusive, reverse=reverse))


@handles("SOFTMAX", "LOG_SOFTMAX")
def softmax(op: Operation) -> Tensor:
    """Import SOFTMAX or LOG_SOFTMAX along the last dimension."""
    x, log = op.numbers(0), op.op_type == "LOG_SOFTMAX"
    if not x.shape:
        op.damaged("the input must have at least one dimension")
    if not log:
        beta = float(op.option("SoftmaxOptions", "Beta"))
        x = x if beta == 1 else op.binary(Binary.MUL, x, op.like(beta, x))
    return op.give(op.add("softmax", x, axis=len(x.shape) - 1, log=log))


@handles("L2_NORMALIZATION")
def l2_normalization(op: Operation) -> Tensor:
    """Import L2_NORMALIZATION along the last dimension."""
    x = op.numbers(0)
    if not x.shape:
        op.damaged("the input must have at least one dimension")
    length = op.unary(Unary.SQRT, op.reduce(Reduce.SUM_SQUARE, x, [len(x.shape) - 1]))
    return op.give(op.binary(Binary.DIV, x, op.binary(Binary.MAX, length, op.like(NORM_EPSILON, x))))


@handles("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(op: Operation) -> Tensor:
    """Import LOCAL_RESPONSE_NORMALIZATION over neighbouring channels."""
    kind = "LocalResponseNormalizationOptions"
    x, radius = op.numbers(0), int(op.option(kind, "Radius"))
    if not x.shape or radius < 0:
        op.damaged(f"radius {radius} must be >= 0, and the input {list(x.shape)} must have dimensions")
    # Neighbours beyond the tensor do not count, so a wider window gives the same sums.
    size = 2 * min(radius, x.shape[-1]) + 1
    bias, alpha, beta = (float(op.option(kind, name)) for name in ("Bias", "Alpha", "Beta"))
    attrs = {"axis": len(x.shape) - 1, "size": size, "alpha": float(np.float32(alpha * size))}
    return op.give(op.add("lrn", x, beta=beta, bias=bias, **attrs))
