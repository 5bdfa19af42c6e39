"""Weights of few bits in blocks with a common scale, as written by exporters of language models.

They become integers minus their zero point and a dequantisation. The compiler turns these into packed weights if the
device supports them (ADR 0024).
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.dtypes import DType, bfloat16_to_float32
from npusim.frontends.onnx.narrow_formats import INTEGERS
from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.operators.matrix import multiply
from npusim.frontends.onnx.registry import MICROSOFT, handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary
from npusim.ops.base import Array
from npusim.units import ceil_div

_LEAST_BLOCK = 16


def unpacked(data: npt.NDArray[Any], bits: int, count: int) -> npt.NDArray[np.uint8]:
    """The first ``count`` numbers of ``bits`` bits in each row of bytes, low bits first."""
    if bits == 8:
        return data[..., :count]
    if 8 % bits == 0:
        places = np.arange(0, 8, bits, dtype=np.uint8)
        numbers = (data[..., None] >> places) & np.uint8((1 << bits) - 1)
        return numbers.reshape(*data.shape[:-1], -1)[..., :count]
    single = np.unpackbits(data, axis=-1, count=count * bits, bitorder="little").reshape(*data.shape[:-1], count, bits)
    found: npt.NDArray[np.uint8] = (single << np.arange(bits, dtype=np.uint8)).sum(axis=-1, dtype=np.uint8)
    return found


def _block_size(node: Node, default: int | None = None) -> int:
    block = node.int_attr("block_size", default)
    if block < _LEAST_BLOCK or block & (block - 1):
        node.damaged(f"attribute block_size must be a power of 2 from {_LEAST_BLOCK} on, is {block}")
    return block


def _bits(node: Node, least: int) -> int:
    bits = node.int_attr("bits", 4)
    if not least <= bits <= 8:
        node.damaged(f"attribute bits must be from {least} to 8, is {bits}")
    return bits


def _shaped(node: Node, index: int, dims: tuple[int, ...], array: Array) -> Array:
    """An input with these dimensions. Older exporters write it as one row."""
    if array.size != prod(dims):
        node.damaged(f"input {index} must have shape {list(dims)}, has {list(array.shape)}")
    return array.reshape(dims)


_LIMITS = [
    "B, scales and zero points are constants",
    "g_idx, weights laid out for a GPU and omitted weights are refused",
]


@handles("MatMulNBits", domain=MICROSOFT, limits=_LIMITS)
def matmul_nbits(node: Node) -> Tensor:
    """Import MatMulNBits: a product with 4- or 8-bit weights that are quantised in blocks."""
    x, k, n, bits, block = node.input(0), node.int_attr("K"), node.int_attr("N"), _bits(node, 2), _block_size(node)
    node.ignore("accuracy_level")  # the minimum accuracy; here A is not rounded
    if node.int_attr("weight_prepacked", 0) or node.optional(4) is not None:
        node.refuse("g_idx and weights that are packed for a GPU are not supported")
    packed = node.value(1)
    if k < 1 or n < 1 or not packed.size:
        node.refuse(f"K {k}, N {n} and weights {list(packed.shape)}: weights that are left out are not supported")
    if not x.shape or x.shape[-1] != k or not x.dtype.is_float:
        node.damaged(f"input 0 must be floats of {k} columns, is {x.dtype.label}{list(x.shape)}")
    if node.input(1).dtype is not DType.UINT8:
        node.damaged(f"input 1 must be uint8, is {node.input(1).dtype.label}")
    groups = ceil_div(k, block)
    rows = _shaped(node, 1, (n, groups, block * bits // 8), packed)
    scale = _shaped(node, 2, (n, groups), _floats(node, 2))
    zero, middle = _zero_points(node, n, groups, bits), 1 << (bits - 1)
    node.budget.take_bytes(n * groups * block * (1 if k % block == 0 else 9), f"{node.name} ({node.op_type})")
    # In the layout of packed weights: input channels by output channels, in blocks along the first dimension.
    numbers = np.ascontiguousarray(unpacked(rows, bits, block).transpose(1, 2, 0))
    dtype, less = DType.UINT8, np.zeros((), np.float32)
    if zero is None or (zero == middle).all():
        # Relative to the middle they are signed and need no zero point.
        numbers, dtype = (numbers - np.uint8(middle)).view(np.int8), DType.INT8
    else:
        less = zero.T[:, None, :]
    every = scale.T[:, None, :]
    if k % block:  # the last block is shorter: one scale per weight
        numbers = numbers.reshape(groups * block, n)[:k]
        every, less = (np.repeat(each[:, 0], block, axis=0)[:k] if each.shape else each for each in (every, less))
    w = _numbers(node, node.const(np.ascontiguousarray(numbers), dtype), np.ascontiguousarray(every), less, x.dtype)
    y = multiply(node, x, node.reshape(w, (k, n)))
    bias = node.optional(5)
    return y if bias is None else node.binary(Binary.ADD, y, bias)


def _numbers(node: Node, w: Tensor, scale: Array, zero: Array, to: DType) -> Tensor:
    """(w - zero) * scale, as an operator."""
    if (zero == np.rint(zero)).all() and zero.min() >= 0 and zero.max() <= 255:
        less = node.const(np.ascontiguousarray(zero, np.int32))
        return node.add("dequantize", w, node.const(scale), less, to=to)
    floats = node.binary(Binary.SUB, node.cast(w, DType.FLOAT32), node.const(np.ascontiguousarray(zero, np.float32)))
    return node.cast(node.binary(Binary.MUL, floats, node.const(scale)), to)


def _zero_points(node: Node, n: int, groups: int, bits: int) -> npt.NDArray[Any] | None:
    """[n][groups]: bytes packed like the weights, or numbers of the type of A."""
    zero = node.optional(3)
    if zero is None:
        return None
    array = node.value(3)
    if zero.dtype is DType.UINT8:
        return unpacked(_shaped(node, 3, (n, ceil_div(groups * bits, 8)), array), bits, groups)
    if not zero.dtype.is_float:
        node.damaged(f"input 3 must be uint8 or floats, is {zero.dtype.label}")
    return _shaped(node, 3, (n, groups), _floats(node, 3))


def _floats(node: Node, index: int) -> npt.NDArray[np.float32]:
    """A constant input of floats, as float32."""
    array = node.value(index)
    return bfloat16_to_float32(array) if node.input(index).dtype is DType.BFLOAT16 else array.astype(np.float32)


@handles(
    "GatherBlockQuantized",
    domain=MICROSOFT,
    limits=["gather_axis differs from quantize_axis", "data is not float"],
)
def gather_block_quantized(node: Node) -> Tensor:
    """Import GatherBlockQuantized: rows of a table that is quantised in blocks."""
    data, indices, scales = node.input(0), node.input(1), node.input(2)
    array, bits, block = node.value(0), _bits(node, 2), _block_size(node, 128)
    # Types of few bits have been unpacked and contain the values; bytes contain values relative to their middle.
    typed = node.packed.get(data) in INTEGERS
    if data.dtype is not DType.UINT8 and not typed:
        node.refuse(f"data of type {data.dtype.label} is not supported")
    bits = 8 if typed else bits
    node.budget.take_bytes(array.size * (8 // bits), f"{node.name} ({node.op_type})")
    array = unpacked(array, bits, array.shape[-1] * 8 // bits)
    rank = array.ndim
    axis, along = node.axis(rank, "gather_axis", 0), node.axis(rank, "quantize_axis", 1)
    if axis == along:
        node.refuse("gather_axis and quantize_axis are the same")
    groups = ceil_div(array.shape[along], block)
    dims = (*array.shape[:along], groups, *array.shape[along + 1 :])
    # Whole blocks, with one scale each.
    beside = (*dims[: along + 1], 1, *dims[along + 1 :])
    filled = np.pad(array, [(0, groups * block - array.shape[at] if at == along else 0) for at in range(rank)])
    blocks = node.const(filled.reshape(*dims[: along + 1], block, *dims[along + 1 :]), data.dtype)
    if scales.shape != dims:
        node.damaged(f"input 2 must have shape {list(dims)}, has {list(scales.shape)}")
    parts = [blocks, node.reshape(node.cast(scales, DType.FLOAT32), beside)]
    zero = node.const(np.int32(0 if typed else 1 << (bits - 1)))
    if node.optional(3) is not None:
        value = node.value(3)
        given = unpacked(value, bits, dims[-1]) if value.ndim else value
        zero = node.const(_shaped(node, 3, dims, given).reshape(beside).astype(np.int32))
    at = axis + (axis > along)
    parts = [node.add("gather", part, indices, axis=at) for part in parts]
    less = zero if not zero.shape else node.add("gather", zero, indices, axis=at)
    y = node.add("dequantize", *parts, less, to=scales.dtype)
    # The dimensions of the indices replace the gathered dimension.
    where = along + (len(indices.shape) - 1 if axis < along else 0)
    shape = (*dims[:axis], *indices.shape, *dims[axis + 1 :])
    whole = (*shape[:where], groups * block, *shape[where + 1 :])
    sizes = (*shape[:where], array.shape[along], *shape[where + 1 :])
    y = node.reshape(y, whole)
    none, each = (0,) * len(whole), (1,) * len(whole)
    return y if sizes == whole else node.add("slice", y, starts=none, sizes=sizes, steps=each)
