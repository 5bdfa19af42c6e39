"""Transposed convolutions as convolutions: each position within a stride, a *phase*, has its own taps.

Output row o gets tap k of input row i if o + pad = stride * i + dilation * k. Rows with the same (o + pad) modulo the
stride are therefore a convolution with the taps of that phase. All phases together are one convolution with stride *
stride times as many output channels, whose pixels are then interleaved. So no zeros are inserted and multiplied.

Phases may have different numbers of taps. Shorter kernels are padded with zeros, which the matrix unit skips: a zero
could meet an infinity. ``legalize`` rewrites the remaining cases: computed weights, and floats with dilation whose
missing taps are not at the ends.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.compiler.passes.rewrite import Rewriter
from npusim.graph import Graph, Op, Tensor
from npusim.ops.matrix import Phases
from npusim.units import ceil_div

Array = npt.NDArray[Any]


def separate_phases(graph: Graph) -> Graph:
    """Replace transposed convolutions with constant weights, quantised or not, by convolutions."""
    if not any(op.kind == "conv_transpose" for op in graph.ops):
        return graph
    return Rewriter(graph).run(_separate)


class _Axis(NamedTuple):
    """The phases along a spatial axis.

    ``taps``: per phase. ``apart``: rows between taps. ``before``, ``behind``: rows of padding, negative if rows are
    cropped. ``skipped``: rows of the phases before the first row of the output. ``places``: (phase, tap) of each row of
    the kernel. ``low``, ``full``: phases in [low, full) have all taps; those before lack the last tap, those after the
    first one. ``is_known``: no other taps are missing.
    """

    taps: int
    apart: int
    before: int
    behind: int
    skipped: int
    places: list[tuple[int, int]]
    low: int
    full: int
    is_known: bool


def _axis(op: Op, number: int) -> _Axis:
    size = op.input(0).shape[number + (2 if op.attrs["layout"] == "NCHW" else 1)]
    stride, dilation, pad = (op.attrs[name][number] for name in ("stride", "dilation", "pads"))
    kernel, out = op.input(1).shape[2 + number], op.attrs["output_hw"][number]
    # With a stride of 1 the dilation is kept. Otherwise it is a distance among the taps of all phases.
    step, apart = (dilation, 1) if stride > 1 else (1, dilation)
    taps = (kernel - 1) * step // stride + 1
    first, skipped = divmod(pad, stride)
    last = (pad + out - 1) // stride
    # The kernel is mirrored: later taps read earlier rows.
    places = [(row, taps - 1 - at) for at, row in (divmod(tap * step, stride) for tap in range(kernel))]
    low, full = 0, (kernel - 1) % stride + 1
    is_known = step == 1 or len(set(places)) == stride * taps
    if step > 1:
        full = stride
    elif skipped >= full:
        # The first row of the output is in a phase with one tap less. Phases are counted from that phase on. Those
        # before it come last, one row later, where they read the same input rows, so none of their rows is cut off.
        low = stride - skipped
        places = [((row - skipped) % stride, tap - (row >= skipped)) for row, tap in places]
        first, last, full, skipped = first + 1, first + ceil_div(out, stride), low + full, 0
    return _Axis(taps, apart, (taps - 1) * apart - first, last - size + 1, skipped, places, low, full, is_known)


def _uneven(op: Op) -> Phases | None:
    """The phases that lack a tap; None if all are equal, or if taps are missing elsewhere than at the ends."""
    rows, cols = (_axis(op, number) for number in (0, 1))
    (high, wide), full, low = op.attrs["stride"], (rows.full, cols.full), (rows.low, cols.low)
    if (full == (high, wide) and low == (0, 0)) or max(high, wide) > _MOST_PHASES:
        return None
    return Phases(op.input(1).shape[1], high, wide, *full, *low) if rows.is_known and cols.is_known else None


_MOST_PHASES = 255
"""Maximum along an axis, from the fields of the instruction."""


def _separate(rewriter: Rewriter, op: Op) -> bool:
    if op.kind != "conv_transpose":
        return False
    weights, bias = _weights(rewriter, op), _bias(rewriter, op)
    if weights is None or (bias is None and op.optional(2) is not None):
        return False
    x, spatial = op.input(0), (2, 3) if op.attrs["layout"] == "NCHW" else (1, 2)
    axes = [_axis(op, number) for number in (0, 1)]
    low, high = [axis.before for axis in axes], [axis.behind for axis in axes]
    for at, before, behind in zip(spatial, low, high, strict=True):
        x = _cut(rewriter, f"{op.name}.crop{at}", x, at, max(0, -before), max(0, -behind))
    attrs = {
        **{name: op.attrs[name] for name in ("layout", "groups", "x_zero", "w_zero")},
        "stride": (1, 1),
        "dilation": tuple(axis.apart for axis in axes),
        "pads": tuple(max(0, rows) for rows in (*low, *high)),
        "phases": _uneven(op) or (),
    }
    value = rewriter.add(op.name, "conv", (x, weights, bias)[: 2 if bias is None else 3], attrs)
    value = _side_by_side(rewriter, op, value)
    for at, axis, size in zip(spatial, axes, op.attrs["output_hw"], strict=True):
        value = _cut(rewriter, f"{op.name}.cut{at}", value, at, axis.skipped, value.shape[at] - axis.skipped - size)
    rewriter.substitute(op.output, value)
    return True


def _cut(rewriter: Rewriter, name: str, x: Tensor, axis: int, low: int, high: int) -> Tensor:
    if not low and not high:
        return x
    sizes = tuple(dim - low - high if index == axis else dim for index, dim in enumerate(x.shape))
    starts = tuple(low if index == axis else 0 for index in range(len(x.shape)))
    return rewriter.add(name, "slice", (x,), {"starts": starts, "steps": (1,) * len(x.shape), "sizes": sizes})


def _side_by_side(rewriter: Rewriter, op: Op, value: Tensor) -> Tensor:
    """Interleave the phases, which are channels (group, row, column, channel), as rows and columns."""
    (high, wide), groups, depth = op.attrs["stride"], op.attrs["groups"], op.input(1).shape[1]
    if high == wide == 1:
        return value
    # Always with channels last, as convolutions write them: then elements that move together are contiguous.
    nchw = op.attrs["layout"] == "NCHW"
    if nchw:
        value = rewriter.add(f"{op.name}.last", "transpose", (value,), {"perm": (0, 2, 3, 1)})
    batch, rows, cols, _ = value.shape
    shape, perm = (batch, rows, cols, groups, high, wide, depth), (0, 1, 4, 2, 5, 3, 6)
    joined = (batch, rows * high, cols * wide, groups * depth)
    value = rewriter.add(f"{op.name}.phases", "reshape", (value,), {"shape": shape})
    value = rewriter.add(f"{op.name}.turned", "transpose", (value,), {"perm": perm})
    value = rewriter.add(f"{op.name}.joined", "reshape", (value,), {"shape": joined})
    return rewriter.add(f"{op.name}.first", "transpose", (value,), {"perm": (0, 3, 1, 2)}) if nchw else value


def _weights(rewriter: Rewriter, op: Op) -> Tensor | None:
    """The weights of all phases, [group * row * column * O, I, taps, taps]; None if ``legalize`` has to rewrite
    them."""
    w, source = op.input(1), rewriter.made_by(op.input(1), "dequantize")
    axes = [_axis(op, number) for number in (0, 1)]
    alike = all(len(set(axis.places)) == axis.taps * op.attrs["stride"][n] for n, axis in enumerate(axes))
    if w.data is not None and (alike or _uneven(op) or w.dtype.is_integer):
        return rewriter.const(f"{op.name}.phases", _phases(op, w.data, np.asarray(op.attrs["w_zero"])), w.dtype)
    constants = _constants(source)
    # One scale for all, or one per output channel.
    if constants is None or any(
        array.size > 1 and (1,) * (4 - array.ndim) + array.shape != (1, w.shape[1], 1, 1) for array in constants[1:]
    ):
        return None
    assert source is not None
    value, *parameters = constants
    tensors = [rewriter.const(f"{op.name}.phases", _phases(op, value, parameters[1]), source.input(0).dtype)]
    for tensor, array in zip(source.inputs[1:], parameters, strict=True):
        assert tensor is not None
        each = np.tile(array.reshape(-1), op.attrs["groups"])
        row = _of_phases(op, each).reshape(-1, 1, 1, 1) if array.size > 1 else array.reshape(())
        tensors.append(rewriter.const(f"{tensor.name}.phases", row, tensor.dtype))
    return rewriter.add(f"{op.name}.weights", "dequantize", tensors, source.attrs)


def _constants(source: Op | None) -> list[Array] | None:
    """The operands of an operator if all are constant, else None."""
    if source is None or any(tensor is None or tensor.data is None for tensor in source.inputs):
        return None
    return [np.asarray(tensor.data) for tensor in source.inputs if tensor is not None]


def _phases(op: Op, w: Array, nothing: Array) -> Array:
    """The kernels of all phases. ``nothing``: the value of missing taps, one for all or one per output channel."""
    (rows, cols, *kernel), groups, strides = w.shape, op.attrs["groups"], op.attrs["stride"]
    down, right = (_axis(op, number) for number in (0, 1))
    high, wide = down.taps, right.taps
    full = np.empty((rows, cols, strides[0], high, strides[1], wide), w.dtype)
    full[...] = nothing.reshape(1, -1, 1, 1, 1, 1)
    for y, x in np.ndindex(*kernel):
        (row, above), (col, left) = down.places[y], right.places[x]
        full[:, :, row, above, col, left] = w[:, :, y, x]
    split = full.reshape(groups, rows // groups, *full.shape[1:]).transpose(0, 3, 5, 2, 1, 4, 6)
    return np.ascontiguousarray(split).reshape(-1, rows // groups, high, wide)


def _of_phases(op: Op, row: Array) -> Array:
    """Repeat a value per output channel for the channels of all phases."""
    groups, phases = op.attrs["groups"], prod(op.attrs["stride"])
    split = row.reshape(groups, 1, -1)
    return np.ascontiguousarray(np.broadcast_to(split, (groups, phases, split.shape[2]))).reshape(-1)


def _bias(rewriter: Rewriter, op: Op) -> Tensor | None:
    """The bias of all phases; None if there is none or it is computed."""
    bias = op.optional(2)
    if bias is None:
        return None
    if bias.data is not None:
        return rewriter.const(f"{op.name}.phases", _of_phases(op, bias.data), bias.dtype)
    source = rewriter.made_by(bias, "dequantize")
    constants = _constants(source)
    if source is None or constants is None:
        return None
    tensors = [
        rewriter.const(
            f"{tensor.name}.phases", array if index and array.size == 1 else _of_phases(op, array), tensor.dtype
        )
        for index, (tensor, array) in enumerate(zip(source.inputs, constants, strict=True))
        if tensor is not None
    ]
    return rewriter.add(f"{op.name}.bias", "dequantize", tensors, source.attrs)
