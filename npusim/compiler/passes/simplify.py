"""Remove operators that change nothing, and replace patterns by one simpler operator.

Results are bit-identical except in four cases: adding zero to a negative zero keeps it negative; an average pool over a
whole image sums like a reduction; a NaN keeps its bits; and a masked softmax is 0 if infinite scores, not the mask,
make its row -inf.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npusim.compiler.passes.rewrite import Rewriter
from npusim.graph import Graph, Op, Tensor
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.ops.base import widen
from npusim.weights import is_mapped

INFINITE = math.inf
_NEUTRAL = {Binary.ADD: 0.0, Binary.SUB: 0.0, Binary.MUL: 1.0, Binary.DIV: 1.0, Binary.POW: 1.0}
_COMMUTE = (Binary.ADD, Binary.MUL)


def simplify(graph: Graph) -> Graph:
    """The graph with all such patterns replaced."""
    return Rewriter(graph).run(_simplify) if any(op.kind in _RULES for op in graph.ops) else graph


def _simplify(rewriter: Rewriter, op: Op) -> bool:
    return op.kind in _RULES and _RULES[op.kind](rewriter, op)


def scalar_of(tensor: Tensor) -> float | None:
    """The value of a constant with one element; None for other tensors."""
    if tensor.data is None or tensor.size != 1:
        return None
    return float(widen(np.asarray(tensor.data), tensor.dtype).reshape(()))


def _unary(rewriter: Rewriter, op: Op) -> bool:
    return op.attrs["fn"] in (Unary.RELU, Unary.CLIP) and _clip_again(rewriter, op, *_bounds(op))


def _binary(rewriter: Rewriter, op: Op) -> bool:
    return _neutral(rewriter, op) or _with_scalar(rewriter, op)


def _neutral(rewriter: Rewriter, op: Op) -> bool:
    """Sums with zeros and products with ones."""
    function, (a, b) = op.attrs["fn"], map(op.input, (0, 1))
    neutral = _NEUTRAL.get(function)
    for x, constant in ((a, b), (b, a)) if function in _COMMUTE else ((a, b),):
        if neutral is not None and x.shape == op.output.shape and _is_all(constant, neutral):
            rewriter.substitute(op.output, x)
            return True
    return False


def _is_all(tensor: Tensor, value: float) -> bool:
    """Whether all elements of a constant have this value. False for large weights, which are not read for timing."""
    if tensor.data is None or not tensor.size or is_mapped(tensor.data):
        return False
    first = widen(np.asarray(tensor.data[(slice(1),) * tensor.data.ndim]), tensor.dtype)
    return bool((first == value).all()) and bool((widen(np.asarray(tensor.data), tensor.dtype) == value).all())


def _select(rewriter: Rewriter, op: Op) -> bool:
    condition, chosen, other = map(op.input, range(3))
    data = condition.data
    if data is None:
        return _masked_softmax(rewriter, op, condition, chosen, other)
    if not data.size or data.min() != data.max():
        return False
    if not data.reshape(-1)[0]:
        chosen = other
    if chosen.shape != op.output.shape:
        return False
    rewriter.substitute(op.output, chosen)
    return True


def _masked_softmax(rewriter: Rewriter, op: Op, condition: Tensor, zero: Tensor, shares: Tensor) -> bool:
    """A softmax with zeros for rows whose mask is -inf everywhere, as attention defines it, is a form of softmax."""
    softmax, equal = rewriter.made_by(shares, "softmax"), rewriter.made_by(condition, "binary")
    if softmax is None or equal is None or scalar_of(zero) != 0.0 or rewriter.uses.get(shares) != 1:
        return False
    added, largest = rewriter.made_by(softmax.input(0), "binary"), rewriter.made_by(equal.input(0), "reduce")
    if added is None or largest is None or equal.attrs["fn"] != Binary.EQ or added.attrs["fn"] != Binary.ADD:
        return False
    mask, axis = largest.input(0), softmax.attrs["axis"]
    along = tuple(each - len(mask.shape) + len(shares.shape) for each in largest.attrs["axes"])
    if (
        scalar_of(equal.input(1)) != -INFINITE
        or mask not in added.inputs
        or largest.attrs["fn"] != Reduce.MAX
        or not largest.attrs["keepdims"]
        or along != (axis,)
        or mask.shape[largest.attrs["axes"][0]] != shares.shape[axis]
        or shares.shape != op.output.shape
        or softmax.attrs["log"]
    ):
        return False
    attrs = {**softmax.attrs, "masked": True}
    rewriter.substitute(op.output, rewriter.add(op.name, "softmax", softmax.inputs, attrs))
    return True


def _pad(rewriter: Rewriter, op: Op) -> bool:
    """Padding around padding with the same constant."""
    inner = rewriter.made_by(op.input(0), "pad")
    if inner is None or rewriter.uses.get(inner.output) != 1:
        return False
    if any(each.attrs["mode"] != "constant" for each in (inner, op)) or inner.attrs["value"] != op.attrs["value"]:
        return False
    sizes = {side: tuple(map(sum, zip(inner.attrs[side], op.attrs[side], strict=True))) for side in ("before", "after")}
    if min(*inner.attrs["before"], *inner.attrs["after"], *op.attrs["before"], *op.attrs["after"]) < 0:
        return False
    rewriter.keep(Op(op.name, "pad", (inner.inputs[0], *op.inputs[1:]), op.outputs, {**op.attrs, **sizes}))
    return True


def _pool(rewriter: Rewriter, op: Op) -> bool:
    """The mean of a whole image. A maximum stays a pool, which computes in the order in which rows arrive."""
    attrs = op.attrs
    axes = (2, 3) if attrs["layout"] == "NCHW" else (1, 2)
    image = tuple(op.input(0).shape[axis] for axis in axes)
    if attrs["fn"] != "average" or not op.output.dtype.is_float or len(op.outputs) != 1:
        return False
    if image != attrs["kernel"] or attrs["output_hw"] != (1, 1) or any((*attrs["pads"], image == (1, 1))):
        return False
    reduced = {"fn": Reduce.MEAN, "axes": axes, "keepdims": True}
    rewriter.substitute(op.output, rewriter.add(op.name, "reduce", (op.input(0),), reduced))
    return True


def _with_scalar(rewriter: Rewriter, op: Op) -> bool:
    """Binary functions with a constant that equal a unary function, bit for bit."""
    # Nothing is gained for one element, and the dynamic quantisation pass expects the range as importers write it.
    if not op.output.dtype.is_float or op.output.size == 1:
        return False
    function, a, b = op.attrs["fn"], op.input(0), op.input(1)
    if function == Binary.PRELU and (slope := scalar_of(b)) is not None and a.shape == op.output.shape:
        attrs = {"fn": Unary.LEAKY_RELU, "p0": slope}
        rewriter.substitute(op.output, rewriter.add(op.name, "unary", (a,), attrs))
        return True
    if function not in (Binary.MIN, Binary.MAX):
        return False
    for x, constant in ((a, b), (b, a)):
        bound = scalar_of(constant)
        if bound is not None and x.shape == op.output.shape and not math.isnan(bound):
            low, high = (-INFINITE, bound) if function == Binary.MIN else (bound, INFINITE)
            if not _clip_again(rewriter, op, low, high, x):
                rewriter.substitute(op.output, _clipped(rewriter, op, x, low, high))
            return True
    return False


def _bounds(op: Op) -> tuple[float, float]:
    return (0.0, INFINITE) if op.attrs["fn"] == Unary.RELU else (op.attrs["p0"], op.attrs["p1"])


def _clip_again(rewriter: Rewriter, op: Op, low: float, high: float, x: Tensor | None = None) -> bool:
    """Merge two clips, if nothing else reads the first one's result. Returns False if there are not two."""
    first = rewriter.made_by(x or op.input(0), "unary")
    if first is None or first.attrs["fn"] not in (Unary.RELU, Unary.CLIP) or rewriter.uses.get(first.output) != 1:
        return False
    bounds = [min(max(bound, low), high) for bound in _bounds(first)]
    rewriter.substitute(op.output, _clipped(rewriter, op, first.input(0), *bounds))
    return True


def _clipped(rewriter: Rewriter, op: Op, x: Tensor, low: float, high: float) -> Tensor:
    attrs = {"fn": Unary.RELU} if (low, high) == (0.0, INFINITE) else {"fn": Unary.CLIP, "p0": low, "p1": high}
    return rewriter.add(op.name, "unary", (x,), attrs)


_RULES: dict[str, Any] = {"unary": _unary, "binary": _binary, "select": _select, "pad": _pad, "pool": _pool}
