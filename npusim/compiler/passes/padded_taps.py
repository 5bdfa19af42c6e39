"""Leave out the taps of convolutions that read padding alone.

With a large dilation, or on a small image, the first or the last rows or columns of a kernel lie in the padding for
every output. Their products are zero and change no sum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from npusim.compiler.passes.rewrite import Rewriter
from npusim.graph import Graph, Op
from npusim.ops.base import widen


def leave_out_padded_taps(graph: Graph) -> Graph:
    """Remove kernel rows and columns of convolutions with constant weights that read nothing but padding."""
    if not any(op.kind == "conv" and any(op.attrs["pads"]) for op in graph.ops):
        return graph
    return Rewriter(graph).run(_leave_out)


class _Axis(NamedTuple):
    """The taps along a spatial axis that read the image.

    ``first``, ``taps``: the first tap and their number. ``start``, ``size``: the part of the image that they read.
    ``before``, ``after``: padding of that part.
    """

    first: int
    taps: int
    start: int
    size: int
    before: int
    after: int


def _spatial(op: Op) -> tuple[int, int]:
    """The dimensions of rows and columns."""
    return (2, 3) if op.attrs["layout"] == "NCHW" else (1, 2)


def _used(op: Op, number: int) -> _Axis | None:
    """The used part of an axis; None if no tap reads the image."""
    at, taps = _spatial(op)[number], op.input(1).shape[2 + number]
    size, out = op.input(0).shape[at], op.output.shape[at]
    stride, dilation, pad = (op.attrs[name][number] for name in ("stride", "dilation", "pads"))
    # The position that each tap reads for the first output.
    starts = [tap * dilation - pad for tap in range(taps)]
    used = [tap for tap, start in enumerate(starts) if _reads(start, stride, out, size)]
    if not used:
        return None
    low, high = starts[used[0]], starts[used[-1]] + (out - 1) * stride + 1
    start, end = max(0, low), min(size, high)
    # Taps between those two may read nothing: with a stride, they may step over a small image.
    return _Axis(used[0], used[-1] - used[0] + 1, start, end - start, max(0, -low), max(0, high - size))


def _reads(start: int, stride: int, out: int, size: int) -> bool:
    """Whether one of the positions start, start + stride, ... of ``out`` outputs lies in the image."""
    first = max(0, -(start // stride))  # the first output whose position is not before the image
    return first < out and start + first * stride < size


def _leave_out(rewriter: Rewriter, op: Op) -> bool:
    if op.kind != "conv" or op.input(1).data is None or op.attrs["phases"] or not op.output.size:
        return False
    x, w, spatial = op.input(0), op.input(1), _spatial(op)
    rows, cols = _used(op, 0), _used(op, 1)
    if rows is None or cols is None or (rows.taps, cols.taps) == w.shape[2:]:
        return False
    assert w.data is not None
    # The product of zero and a weight that is not finite would not be zero.
    if w.dtype.is_float and not np.isfinite(widen(w.data, w.dtype)).all():
        return False
    starts, sizes = [0] * 4, list(x.shape)
    for at, axis in zip(spatial, (rows, cols), strict=True):
        starts[at], sizes[at] = axis.start, axis.size
    if tuple(sizes) != x.shape:
        attrs = {"starts": tuple(starts), "steps": (1,) * 4, "sizes": tuple(sizes)}
        x = rewriter.add(f"{op.name}.read", "slice", (x,), attrs)
    data = w.data[:, :, rows.first : rows.first + rows.taps, cols.first : cols.first + cols.taps]
    weights = rewriter.const(f"{w.name}.read", np.ascontiguousarray(data), w.dtype)
    pads = rows.before, cols.before, rows.after, cols.after
    inputs = x, weights, *op.inputs[2:]
    rewriter.substitute(op.output, rewriter.add(op.name, op.kind, inputs, {**op.attrs, "pads": pads}))
    return True
