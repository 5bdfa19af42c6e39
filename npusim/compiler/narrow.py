"""Constant weights as the 8-bit integers that the matrix unit takes.

Weights less their zero point that still fit int8 are made so here, once; else the unit subtracts it. With a zero point
for each channel they are int16 of 9 bits. Where the unit has none: (x - x_zero) * (w + v) is a sum over twice as many
channels, of x beside itself, by w beside v. Of integers the sums are the same to the last bit.
"""

from __future__ import annotations

import numpy as np

from npusim.compiler.groups import ANCHORS
from npusim.compiler.rewrite import Rewriter
from npusim.dtypes import DType
from npusim.graph import Graph, Op, Tensor
from npusim.hw.config import Config

_LOW, _HIGH = -128, 127
_BYTES = frozenset({DType.INT8, DType.UINT8})


def narrow_weights(graph: Graph, config: Config) -> Graph:
    """Subtract zero points where int8 holds the result; split int16 weights of 9 bits into two of int8 where the matrix
    unit multiplies int8, and not int16."""
    # Where the unit could subtract the zero point itself, this is for the host: its kernel for int8 without one is the
    # fastest (ADR 0017).
    graph = Rewriter(graph).run(_centre)
    if config.matrix is None or config.matrix.rate("int16") or not config.matrix.rate("int8"):
        return graph
    return Rewriter(graph).run(_split)


def _centre(rewriter: Rewriter, op: Op) -> bool:
    if op.kind not in ANCHORS or not op.attrs["w_zero"]:
        return False
    w = op.input(1)
    if w.data is None:
        return False
    # In int16, because the difference of two bytes does not fit a byte; initial=0, because weights without elements
    # have no minimum.
    centred = w.data.astype(np.int16) - np.int16(op.attrs["w_zero"])
    if centred.min(initial=0) < _LOW or centred.max(initial=0) > _HIGH:
        return False
    weights = rewriter.const(f"{w.name}.centred", centred.astype(np.int8))
    inputs = (op.input(0), weights, *op.inputs[2:])
    rewriter.substitute(op.output, rewriter.add(op.name, op.kind, inputs, {**op.attrs, "w_zero": 0}))
    return True


def _split(rewriter: Rewriter, op: Op) -> bool:
    if op.kind not in ANCHORS:
        return False
    x, w = op.input(0), op.input(1)
    if w.dtype is not DType.INT16 or x.dtype not in _BYTES or w.data is None:
        return False
    if w.data.min(initial=0) < 2 * _LOW or w.data.max(initial=0) > 2 * _HIGH:
        return False
    # The weights within 8 bits, and what is beyond, one behind the other along the input channels.
    # Two int8 add up to anything from -256 to 254, so the rest fits int8 whenever the weights are within those bounds.
    near = np.clip(w.data, _LOW, _HIGH)
    both = np.concatenate([near, w.data - near], axis=1 if op.kind == "conv" else len(w.shape) - 2)
    weights = rewriter.const(f"{w.name}.split", both.astype(np.int8))
    inputs = (_twice(rewriter, op, x), weights, *op.inputs[2:])
    rewriter.substitute(op.output, rewriter.add(op.name, op.kind, inputs, op.attrs))
    return True


def _twice(rewriter: Rewriter, op: Op, x: Tensor) -> Tensor:
    """The channels of each group beside themselves."""
    axis = 1 if op.attrs.get("layout") == "NCHW" else len(x.shape) - 1
    groups = op.attrs.get("groups", 1)
    # Doubled within each group and not as a whole: filters of a group see its own channels only, [g0 g0 g1 g1].
    apart = (*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])
    joined = (*x.shape[:axis], 2 * x.shape[axis], *x.shape[axis + 1 :])
    split = rewriter.add(f"{op.name}.groups", "reshape", (x,), {"shape": apart})
    pair = rewriter.add(f"{op.name}.twice", "concat", (split, split), {"axis": axis + 1})
    return rewriter.add(f"{op.name}.channels", "reshape", (pair,), {"shape": joined})
