"""Give constant weights the narrowest type that the matrix unit supports, without changing a result (ADR 0024).

- A zero point is subtracted here if the difference fits int8; otherwise the unit subtracts it.
- Weights minus a zero point per channel are int16 with 9 significant bits. On a unit without int16 each becomes the
  sum of two int8: the product then has twice as many input channels, and every pixel occurs twice in it.
- Weights that fit into fewer bits are packed if the unit can unpack them.
- Weights that are dequantised before a float product stay integers if the unit can apply their scales.
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
from npusim.isa.matrix_types import PACKED_BITS

_LOW, _HIGH = -128, 127
_BYTES = frozenset({DType.INT8, DType.UINT8})


def narrow_weights(graph: Graph, config: Config) -> Graph:
    """Narrow the weights of all products, as far as the matrix unit of ``config`` allows."""
    matrix = config.matrix
    least = _WHOLE if matrix is None else matrix.weight_bits
    # Most rules find nothing in most graphs, and looking first is cheaper than rewriting a graph. Zero points are
    # subtracted even if the unit could do it, because the host's int8 kernel without one is the fastest (ADR 0017).
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
"""Minimum number of weights that share a scale: smaller blocks need more bytes for scales than they save."""


def _scaled(rewriter: Rewriter, op: Op) -> bool:
    """Replace x * dequantize(w) with constant w by x * w with the scales of w."""
    if op.kind not in ANCHORS or not op.output.dtype.is_float or op.attrs["block"]:
        return False
    turned = rewriter.made_by(op.inputs[1], "transpose")
    found = _dequantized(rewriter, op, op.inputs[1] if turned is None else turned.inputs[0])
    if found is None:
        return False
    w, arrays = found
    rank, conv = arrays[0].ndim, op.kind == "conv"
    arrays = [array.reshape((1,) * (rank - array.ndim) + array.shape) for array in arrays]
    if turned is not None:
        arrays = [array.transpose(turned.attrs["perm"]) for array in arrays]
    weights, *full = arrays
    depth, channel = (1, 0) if conv else (rank - 2, rank - 1)
    block = _shared_scales(op, weights.shape, full, depth, channel)
    if block is None or not _fits(full[1], w.dtype):
        return False
    if turned is not None or w.data is None:
        w = rewriter.const(f"{op.name}.weights", np.ascontiguousarray(weights), w.dtype)
    rows = [data.take(range(0, w.shape[depth], block), depth) if block else data for data in _level(full, depth, block)]
    return _by_scales(rewriter, op, w, rows, block)


def _dequantized(rewriter: Rewriter, op: Op, tensor: Tensor | None) -> tuple[Tensor, list[npt.NDArray[Any]]] | None:
    """The quantised bytes of a dequantised constant tensor, and arrays of these, of the scales and of the zero points.

    None for any other tensor.
    """
    source = rewriter.made_by(tensor, "dequantize")
    if source is None or source.output.dtype is not op.input(0).dtype or source.input(0).dtype not in _BYTES:
        return None
    known = [rewriter.value_of(source.input(index)) for index in range(3)]
    arrays = [array for array in known if array is not None]
    return (source.input(0), arrays) if len(arrays) == len(known) else None


def _shared_scales(
    op: Op, shape: tuple[int, ...], full: list[npt.NDArray[Any]], depth: int, channel: int
) -> int | None:
    """The number of weights along the input channels (``depth``) that share a scale and zero point, 0 for all.

    None if the unit cannot apply them. ``full``: scales and zero points, with the rank of the weights.
    """
    conv = op.kind == "conv"
    # The weights of one item serve the whole batch, and scales vary only along input and output channels.
    if not conv and any(dim > 1 for dim in shape[:depth]):
        return None
    if any(dim > 1 for data in full for axis, dim in enumerate(data.shape) if axis not in (depth, channel)):
        return None
    block = gcd(*(_block(data, depth) for data in full))
    # The taps of a window are between the input channels: blocks are contiguous only if there is a single tap.
    if block and (block < _LEAST_BLOCK or (conv and (shape[2:] != (1, 1) or op.attrs["groups"] > 1))):
        return None
    return block


def _fits(zeros: npt.NDArray[Any], dtype: DType) -> bool:
    info = np.iinfo(dtype.storage)
    return bool(zeros.min(initial=0) >= info.min and zeros.max(initial=0) <= info.max)


def _in_blocks(rewriter: Rewriter, op: Op) -> bool:
    """:func:`_scaled` for weights [blocks, block, channels] that are dequantised per block and then reshaped."""
    if op.kind != "matmul" or not op.output.dtype.is_float or op.attrs["block"]:
        return False
    merged = rewriter.made_by(op.inputs[1], "reshape")
    found = None if merged is None else _dequantized(rewriter, op, merged.inputs[0])
    if found is None or found[1][0].ndim != 3:
        return False
    source, (weights, *scales) = found
    blocks, block, channels = weights.shape
    if op.input(1).shape != (blocks * block, channels) or block < _LEAST_BLOCK:
        return False
    full = [array.reshape((1,) * (3 - array.ndim) + array.shape) for array in scales]
    if any(array.shape[1] > 1 for array in full) or not _fits(full[1], source.dtype):
        return False
    w = rewriter.const(f"{op.name}.weights", weights.reshape(blocks * block, channels), source.dtype)
    rows = [np.broadcast_to(array, (blocks, 1, array.shape[2]))[:, 0] for array in full]
    return _by_scales(rewriter, op, w, rows, block)


def _by_scales(rewriter: Rewriter, op: Op, w: Tensor, rows: list[npt.NDArray[Any]], block: int) -> bool:
    """Replace the product by one with integer weights and rows of scales and zero points."""
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
    """The length of runs of equal elements along an axis; 0 if all are equal."""
    if data.shape[axis] == 1:
        return 0
    lines = np.moveaxis(data, axis, 0).reshape(data.shape[axis], -1)
    return gcd(*map(int, np.flatnonzero((lines[1:] != lines[:-1]).any(axis=1)) + 1))


def _level(arrays: list[npt.NDArray[Any]], axis: int, block: int) -> list[npt.NDArray[Any]]:
    """The arrays with the same length along an axis: the full length if there are blocks, otherwise one element."""
    length = max(array.shape[axis] for array in arrays) if block else 1
    level = []
    for array in arrays:
        shape = (*array.shape[:axis], length, *array.shape[axis + 1 :])
        level.append(np.broadcast_to(array, shape) if array.shape[axis] == 1 else array.take(range(length), axis))
    return level


def _packed(rewriter: Rewriter, op: Op, least: int) -> bool:
    """Set ``w_bits`` of constant weights to the fewest bits that represent all of them."""
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
    """The fewest bits, at least ``least``, that represent all of these bytes."""
    if not data.size:
        return _WHOLE
    # Look at broadcast elements once. The first few usually show that all bits are needed.
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
    # In int16, because the difference of two bytes does not fit into a byte. initial=0, because empty weights have no
    # minimum.
    centred = w.data.astype(np.int16) - np.int16(op.attrs["w_zero"])
    if centred.min(initial=0) < _LOW or centred.max(initial=0) > _HIGH:
        return False
    # Weights of 0 to 15 fit into 4 bits, but not minus a zero point of 7: then packing gains more.
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
    # The weights clipped to 8 bits, followed by the differences, along the input channels. Two int8 add up to any
    # number from -256 to 254, so the differences fit into int8.
    near = np.clip(w.data, _LOW, _HIGH)
    both = np.concatenate([near, w.data - near], axis=1 if op.kind == "conv" else len(w.shape) - 2)
    weights = rewriter.const(f"{w.name}.split", both.astype(np.int8))
    inputs = (_twice(rewriter, op, x), weights, *op.inputs[2:])
    rewriter.substitute(op.output, rewriter.add(op.name, op.kind, inputs, op.attrs))
    return True


def _twice(rewriter: Rewriter, op: Op, x: Tensor) -> Tensor:
    """The pixels with the channels of each group repeated."""
    axis = 1 if op.attrs.get("layout") == "NCHW" else len(x.shape) - 1
    groups = op.attrs.get("groups", 1)
    # Within each group, [g0 g0 g1 g1], because the filters of a group only read its own channels.
    apart = (*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])
    joined = (*x.shape[:axis], 2 * x.shape[axis], *x.shape[axis + 1 :])
    split = rewriter.add(f"{op.name}.groups", "reshape", (x,), {"shape": apart})
    pair = rewriter.add(f"{op.name}.twice", "concat", (split, split), {"axis": axis + 1})
    return rewriter.add(f"{op.name}.channels", "reshape", (pair,), {"shape": joined})
