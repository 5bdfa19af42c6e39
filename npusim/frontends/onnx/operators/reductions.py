"""Reductions over axes, ArgMax and ArgMin, TopK, CumSum and CumProd."""

from __future__ import annotations

import math

from npusim.dtypes import DType
from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.registry import handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Reduce, Unary

PLAIN = {
    "ReduceL1": Reduce.L1,
    "ReduceL2": Reduce.L2,
    "ReduceMax": Reduce.MAX,
    "ReduceMean": Reduce.MEAN,
    "ReduceMin": Reduce.MIN,
    "ReduceProd": Reduce.PROD,
    "ReduceSum": Reduce.SUM,
    "ReduceSumSquare": Reduce.SUM_SQUARE,
    "ReduceLogSum": Reduce.SUM,
    "ReduceLogSumExp": Reduce.SUM,
}


@handles(*PLAIN)
def reduction(node: Node) -> Tensor:
    """Import the Reduce operators; axes are attributes or a constant input."""
    x = node.input(0)
    given = node.ints_attr("axes")
    if given is None and node.optional(1) is not None:
        given = node.int_values(1)
    # Without axes it reduces all of them or, with noop_with_empty_axes, none (None).
    empty = None if node.int_attr("noop_with_empty_axes", 0) else list(range(len(x.shape)))
    axes = node.normal_axes(given, len(x.shape)) if given else empty
    keep = bool(node.int_attr("keepdims", 1))
    if node.op_type == "ReduceLogSumExp":
        return _log_sum_exp(node, x, axes, keep)
    fn = PLAIN[node.op_type]
    if fn is Reduce.L2 and x.dtype.is_integer:
        total = node.reduce(Reduce.SUM_SQUARE, x, axes or [], keep)
        return node.cast(node.unary(Unary.SQRT, node.cast(total, DType.FLOAT32)), x.dtype)
    if axes is None and fn not in (Reduce.L1, Reduce.L2, Reduce.SUM_SQUARE) and node.op_type != "ReduceLogSum":
        return x
    y = node.reduce(fn, x, axes or [], keep)
    return node.unary(Unary.LOG, y) if node.op_type == "ReduceLogSum" else y


def _log_sum_exp(node: Node, x: Tensor, axes: list[int] | None, keep: bool) -> Tensor:
    """log(sum(exp(x - max))) + max, which does not overflow."""
    if axes is None:
        return x
    if math.prod([x.shape[axis] for axis in axes]) == 0:
        return node.unary(Unary.LOG, node.reduce(Reduce.SUM, node.unary(Unary.EXP, x), axes, keep))
    most = node.reduce(Reduce.MAX, x, axes)
    if x.dtype.is_float:
        # A row whose maximum is infinite must not give inf - inf.
        info = {DType.FLOAT16: 65504.0}.get(x.dtype, 3.3895313892515355e38)
        most = node.unary(Unary.CLIP, most, -info, info)
    total = node.reduce(Reduce.SUM, node.unary(Unary.EXP, node.binary(Binary.SUB, x, most)), axes)
    y = node.binary(Binary.ADD, node.unary(Unary.LOG, total), most)
    return y if keep else node.reshape(y, [d for axis, d in enumerate(x.shape) if axis not in axes])


@handles("ArgMax", "ArgMin")
def arg_reduce(node: Node) -> Tensor:
    """Import ArgMax and ArgMin."""
    x = node.input(0)
    return node.add(
        "arg_reduce",
        x,
        fn="max" if node.op_type == "ArgMax" else "min",
        axis=node.axis(len(x.shape), default=0),
        keepdims=bool(node.int_attr("keepdims", 1)),
        select_last=bool(node.int_attr("select_last_index", 0)),
    )


@handles("TopK", limits=["k is a constant"])
def top_k(node: Node) -> list[Tensor]:
    """Import TopK with constant k."""
    x = node.input(0)
    k = node.int_attr("k") if node.opset < 10 else node.int_values(1)[0]
    node.ignore("sorted")
    attrs = {"axis": node.axis(len(x.shape), default=-1), "k": k, "largest": bool(node.int_attr("largest", 1))}
    return node.builder.add_all("topk", [x], attrs, node.name)


@handles("CumSum", limits=["the axis is a constant"])
@handles("CumProd", since=26, limits=["the axis is a constant"])
def scan(node: Node) -> Tensor:
    """Import CumSum and CumProd along a constant axis."""
    x = node.input(0)
    axis = node.normal_axis(int(node.scalar_value(1)), len(x.shape))
    exclusive, reverse = (bool(node.int_attr(name, 0)) for name in ("exclusive", "reverse"))
    return node.add(node.op_type.lower(), x, axis=axis, exclusive=exclusive, reverse=reverse)
