"""Constant weights as the 8-bit integers that the matrix unit takes.

Weights less their zero point that still fit int8 are made so here, once; else the unit subtracts it. With a zero point
for each channel they are int16 of 9 bits. Where the unit has none: (x - x_zero) * (w + v) is a sum over twice as many
channels, of x beside itself, by w beside v. Of integers the sums are the same to the last bit.

Weights that fit fewer bits stay packed if the unit unpacks them, and those that are numbers by their scales stay
integers: the unit makes the numbers, which are the same to the last bit (ADR 0024).
"""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.compiler.grouping.groups import ANCHORS
from npusim.compiler.passes.rewrite import Rewriter
from npusim.dtypes import DType
from npusim.graph import Graph, Op, Tensor
from npusim.hw.config import Config
from npusim.isa.matrix import PACKED_BITS

_LOW, _HIGH = -128, 127
_BYTES = frozenset({DType.INT8, DType.UINT8})


def narrow_weights(graph: Graph, config: Config) -> Graph:
    """Subtract zero points where int8 holds the result; split int16 weights of 9 bits into two of int8 where the matrix
    unit multiplies int8, and not int16."""
    matrix = config.matrix
    least = _WHOLE if matrix is None else matrix.weight_bits
    # Most graphs have nothing for most of the rules: to look for it first is cheaper than to write the graph anew.
    # Where the unit could subtract the zero point itself, this is for the host: its kernel for int8 without one is the
    # fastest (ADR 0017).
    if [op for op in _products(graph) if op.attrs["w_zero"]]:
        graph = Rewriter(graph).run(lambda rewriter, op: _centre(rewriter, op, least))
    if matrix is None:
        return graph
    if not matrix.rate("int16") and matrix.rate("int8") and DType.INT16 in _weight_types(graph):
        graph = Rewriter(graph).run(_split)
    if matrix.weight_scales and [op for op in graph.ops if op.kind == "dequantize"]:
        graph = Rewriter(graph).run(lambda rewriter, op: _scaled(rewriter, op) or _in_blocks(rewriter, op))
    if matrix.weight_bits < _WHOLE and not _BYTES.isdisjoint(_weight_types(graph)):
        graph = Rewriter(graph).run(lambda rewriter, op: _packed(rewriter, op, matrix.weight_bits))
    return graph


def _products(graph: Graph) -> list[Op]:
    return [op for op in graph.ops if op.kind in ANCHORS]


def _weight_types(graph: Graph) -> set[DType]:
    return {op.input(1).dtype for op in _products(graph)}


_WHOLE = 8
"""Bits of a weight that is not packed."""

_LEAST_BLOCK = 8
"""Weights that share a scale: of fewer, scales would take more room than the weights."""


def _scaled(rewriter: Rewriter, op: Op) -> bool:
    """x * dequantize(w), of constants, is x * w by the scales of w."""
    if op.kind not in ANCHORS or not op.output.dtype.is_float or op.attrs["block"]:
        return False
    turned = rewriter.made_by(op.inputs[1], "transpose")
    source = rewriter.made_by(op.inputs[1] if turned is None else turned.inputs[0], "dequantize")
    if source is None or source.output.dtype is not op.input(0).dtype or source.input(0).dtype not in _BYTES:
        return False
    known = [rewriter.value_of(source.input(index)) for index in range(3)]
    arrays = [array for array in known if array is not None]
    if len(arrays) < len(known):
        return False
    rank, conv = arrays[0].ndim, op.kind == "conv"
    arrays = [array.reshape((1,) * (rank - array.ndim) + array.shape) for array in arrays]
    if turned is not None:
        arrays = [array.transpose(turned.attrs["perm"]) for array in arrays]
    w = source.input(0)
    if turned is not None or w.data is None:
        w = rewriter.const(f"{op.name}.weights", np.ascontiguousarray(arrays[0]), w.dtype)
    depth, channel = (1, 0) if conv else (rank - 2, rank - 1)
    full = arrays[1:]
    # The weights of one item serve the whole batch, and those of a channel differ along its input channels only.
    if any(dim > 1 for axis, dim in enumerate(w.shape) if not conv and axis < depth):
        return False
    if any(dim > 1 for data in full for axis, dim in enumerate(data.shape) if axis not in (depth, channel)):
        return False
    block = gcd(*(_block(data, depth) for data in full))
    # Taps of a window lie between blocks of input channels: only one tap has its blocks one after the other.
    if block and (block < _LEAST_BLOCK or (conv and (w.shape[2:] != (1, 1) or op.attrs["groups"] > 1))):
        return False
    info = np.iinfo(w.dtype.storage)
    if full[1].min(initial=0) < info.min or full[1].max(initial=0) > info.max:
        return False
    rows = [data.take(range(0, w.shape[depth], block), depth) if block else data for data in _level(full, depth, block)]
    return _by_scales(rewriter, op, w, rows, block)


def _in_blocks(rewriter: Rewriter, op: Op) -> bool:
    """The same of constants that are dequantised in blocks along a dimension of their own, which then goes."""
    if op.kind != "matmul" or not op.output.dtype.is_float or op.attrs["block"]:
        return False
    merged = rewriter.made_by(op.inputs[1], "reshape")
    source = None if merged is None else rewriter.made_by(merged.inputs[0], "dequantize")
    if source is None or source.output.dtype is not op.input(0).dtype or source.input(0).dtype not in _BYTES:
        return False
    known = [rewriter.value_of(source.input(index)) for index in range(3)]
    arrays = [array for array in known if array is not None]
    if len(arrays) < len(known) or arrays[0].ndim != 3:
        return False
    groups, block, channels = arrays[0].shape
    if op.input(1).shape != (groups * block, channels) or block < _LEAST_BLOCK:
        return False
    full = [array.reshape((1,) * (3 - array.ndim) + array.shape) for array in arrays[1:]]
    info = np.iinfo(source.input(0).dtype.storage)
    if (
        any(array.shape[1] > 1 for array in full)
        or full[1].min(initial=0) < info.min
        or full[1].max(initial=0) > info.max
    ):
        return False
    w = rewriter.const(f"{op.name}.weights", arrays[0].reshape(groups * block, channels), source.input(0).dtype)
    rows = [np.broadcast_to(array, (groups, 1, array.shape[2]))[:, 0] for array in full]
    return _by_scales(rewriter, op, w, rows, block)


def _by_scales(rewriter: Rewriter, op: Op, w: Tensor, rows: list[npt.NDArray[Any]], block: int) -> bool:
    """Multiply by integer weights with rows of scales and zero points instead."""
    scales: list[Tensor | None] = [rewriter.const(f"{op.name}.scales", np.ascontiguousarray(rows[0], np.float32))]
    if rows[1].any():
        zeros = np.broadcast_to(rows[1], np.broadcast_shapes(rows[0].shape, rows[1].shape))
        scales = [
            rewriter.const(f"{op.name}.scales", np.ascontiguousarray(np.broadcast_to(rows[0], zeros.shape))),
            rewriter.const(f"{op.name}.zeros", np.ascontiguousarray(zeros, np.int32)),
        ]
    inputs = (op.input(0), w, op.optional(2), *scales)
    rewriter.substitute(op.output, rewriter.add(op.name, op.kind, inputs, {**op.attrs, "block": block}))
    return True


def _block(data: npt.NDArray[Any], axis: int) -> int:
    """How many neighbours along an axis are alike, counted from the first; 0: all are."""
    if data.shape[axis] == 1:
        return 0
    lines = np.moveaxis(data, axis, 0).reshape(data.shape[axis], -1)
    return gcd(*map(int, np.flatnonzero((lines[1:] != lines[:-1]).any(axis=1)) + 1))


def _level(arrays: list[npt.NDArray[Any]], axis: int, block: int) -> list[npt.NDArray[Any]]:
    """Arrays of one length along an axis: where one has blocks, all have the axis in full; else none has more than
    one element."""
    length = max(array.shape[axis] for array in arrays) if block else 1
    level = []
    for array in arrays:
        shape = (*array.shape[:axis], length, *array.shape[axis + 1 :])
        level.append(np.broadcast_to(array, shape) if array.shape[axis] == 1 else array.take(range(length), axis))
    return level


def _packed(rewriter: Rewriter, op: Op, least: int) -> bool:
    """Say of constant weights how few bits each of them fits."""
    if op.kind not in ANCHORS or op.attrs["w_bits"] or op.input(1).dtype not in _BYTES:
        return False
    data = op.input(1).data
    bits = _WHOLE if data is None else _bits(data, least)
    if bits == _WHOLE:
        return False
    attrs = {**op.attrs, "w_bits": bits}
    rewriter.substitute(op.output, rewriter.add(op.name, op.kind, op.inputs, attrs))
    return True


def _bits(data: npt.NDArray[Any], least: int) -> int:
    """The fewest bits, and no fewer than ``least``, that hold each of these bytes."""
    if not data.size:
        return _WHOLE
    # Each that there is once; and a few of them first, which mostly show that all bits are wanted.
    there = data[tuple(slice(None) if stride else slice(1) for stride in data.strides)]
    return _WHOLE if _bits_of(there[:1], least) == _WHOLE else _bits_of(there, least)


def _bits_of(data: npt.NDArray[Any], least: int) -> int:
    low, high = int(data.min()), int(data.max())
    for bits in PACKED_BITS:
        sign = 1 << (bits - 1) if data.dtype == np.int8 else 0
        if bits >= least and low >= -sign and high < (1 << bits) - sign:
            return bits
    return _WHOLE


def _centre(rewriter: Rewriter, op: Op, least: int) -> bool:
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
    # What can be packed as it is may not fit any more without its zero point: all of 0 to 15, less 7.
    if _bits(centred.astype(np.int8), least) > _bits(w.data, least):
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
