"""Fold operators before and after products and convolutions into them, where the matrix unit applies them for free.

A scalar factor of an operand becomes one of the result, which the epilogue applies to the sums. Zeros that a pad puts
around an image become the padding of the convolution that reads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.compiler.passes.rewrite import Rewriter
from npusim.compiler.passes.simplify import scalar_of
from npusim.dtypes import DType
from npusim.graph import Graph, Op, Tensor
from npusim.isa.functions import Binary
from npusim.ops.base import narrow, widen

_VIEWS = frozenset({"transpose", "reshape", "expand"})
"""Views that commute with a scalar factor."""
MOST_VIEWS = 8
"""Maximum number of views between a factor and a product. Exporters write at most three."""


def scale_results(graph: Graph) -> Graph:
    """Turn scalar factors of the operands of products into factors of their results.

    Results differ by the rounding of the scaled operands, which is omitted.
    """
    return Rewriter(graph).run(_scale_result) if any(op.kind == "matmul" for op in graph.ops) else graph


def pad_in_convolutions(graph: Graph) -> Graph:
    """Merge constant padding of rows and columns into the convolution, if that is the only reader."""
    return Rewriter(graph).run(_pad_in_convolution) if any(op.kind == "pad" for op in graph.ops) else graph


def _scale_result(rewriter: Rewriter, op: Op) -> bool:
    if not op.output.dtype.is_float:
        return False
    if op.kind == "binary" and op.attrs["fn"] == Binary.DIV:
        return _multiply(rewriter, op)
    if op.kind != "matmul" or op.optional(2) is not None:
        return False
    factor, operands = 1.0, list(op.inputs)
    for index in (0, 1):
        found = _without_factor(rewriter, op.input(index))
        if found is not None:
            factor, operands[index] = factor * found[0], found[1]
    if operands == list(op.inputs):
        return False
    constant = _constant(rewriter, f"{op.name}.factor", factor, op.output.dtype)
    if constant is None:
        return False
    product = rewriter.add(f"{op.name}.unscaled", "matmul", operands, op.attrs)
    rewriter.substitute(op.output, rewriter.add(op.name, "binary", (product, constant), {"fn": Binary.MUL}))
    return True


def _multiply(rewriter: Rewriter, op: Op) -> bool:
    """Replace a product divided by a scalar by one multiplied with its reciprocal, which the epilogue computes."""
    divisor = scalar_of(op.input(1))
    if not divisor or rewriter.made_by(op.input(0), "matmul") is None:
        return False
    inverse = _constant(rewriter, f"{op.name}.reciprocal", 1 / divisor, op.output.dtype)
    if inverse is None:
        return False
    rewriter.substitute(op.output, rewriter.add(op.name, "binary", (op.input(0), inverse), {"fn": Binary.MUL}))
    return True


def _constant(rewriter: Rewriter, name: str, value: float, dtype: DType) -> Tensor | None:
    """A scalar; None if the type cannot represent it."""
    stored = narrow(np.array(value, np.float64), dtype)
    return rewriter.const(name, stored, dtype) if np.isfinite(widen(stored, dtype)) else None


def _without_factor(rewriter: Rewriter, tensor: Tensor) -> tuple[float, Tensor] | None:
    """(factor, tensor without it) of an operand that only one product reads; None if it has no scalar factor."""
    views: list[Op] = []
    while len(views) < MOST_VIEWS:
        maker = rewriter.producer.get(tensor)
        if maker is None or rewriter.uses.get(tensor, 0) != 1:
            return None
        if maker.kind in _VIEWS:
            views.append(maker)
            tensor = maker.input(0)
            continue
        found = _factor(maker)
        if found is None:
            return None
        factor, tensor = found
        for view in reversed(views):
            tensor = rewriter.add(f"{view.name}.unscaled", view.kind, (tensor,), view.attrs)
        return factor, tensor
    return None


def _factor(op: Op) -> tuple[float, Tensor] | None:
    """(factor, other operand) of a product with a scalar or a division by one; else None."""
    if op.kind != "binary" or op.attrs["fn"] not in (Binary.MUL, Binary.DIV) or not op.output.dtype.is_float:
        return None
    for constant, other in ((op.input(1), op.input(0)), (op.input(0), op.input(1))):
        value = scalar_of(constant)
        if value is None or other.shape != op.output.shape or not np.isfinite(value):
            continue
        if op.attrs["fn"] == Binary.MUL:
            return value, other
        return (1 / value, other) if constant is op.input(1) and value else None
    return None


def _pad_in_convolution(rewriter: Rewriter, op: Op) -> bool:
    if op.kind != "conv":
        return False
    pad = rewriter.made_by(op.input(0), "pad")
    if pad is None or pad.attrs["mode"] != "constant" or rewriter.uses.get(pad.output, 0) != 1:
        return False
    zero: Any = op.attrs["x_zero"] if op.input(0).dtype.is_integer else 0.0
    rows, cols = (2, 3) if op.attrs["layout"] == "NCHW" else (1, 2)
    before, after = pad.attrs["before"], pad.attrs["after"]
    beside = [before[axis] or after[axis] for axis in range(4) if axis not in (rows, cols)]
    if pad.attrs["value"] != zero or any(beside) or min(*before, *after) < 0:
        return False
    top, left, bottom, right = op.attrs["pads"]
    pads = (top + before[rows], left + before[cols], bottom + after[rows], right + after[cols])
    rewriter.keep(Op(op.name, "conv", (pad.inputs[0], *op.inputs[1:]), op.outputs, {**op.attrs, "pads": pads}))
    return True
