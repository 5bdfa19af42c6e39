"""Element types and constants of TFLite models."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import tflite

from npusim.dtypes import DType
from npusim.errors import ModelError
from npusim.frontends.tflite.reader import Quantization, Sparsity, TensorRecord
from npusim.ops.base import Array
from npusim.ops.build import MAX_ELEMENTS

TYPES = tflite.TensorType
TYPE_NAMES: Mapping[int, str] = {code: name for name, code in vars(TYPES).items() if isinstance(code, int)}
ELEMENT_TYPES: Mapping[int, DType] = {
    **{code: DType[name] for code, name in TYPE_NAMES.items() if name in DType.__members__},
    TYPES.INT4: DType.INT8,
}
"""The types of stored elements. 4-bit integers, which only constants have, are widened."""
MOST_SPARSE = 1 << 24
"""Largest number of elements of a sparse constant."""


def type_name(code: int) -> str:
    """The name of an element type."""
    return TYPE_NAMES.get(code, f"type {code}")


def constant(tensor: TensorRecord, raw: memoryview) -> Array:
    """The elements of a constant of a known type, in storage form. Raises ModelError for a buffer of another size."""
    storage = ELEMENT_TYPES[tensor.type].storage.newbyteorder("<")
    if tensor.sparsity is not None:
        if len(raw) % storage.itemsize:
            raise ModelError(f"tensor {tensor.name!r}: {len(raw)} bytes are no whole elements")
        return _densified(tensor, tensor.sparsity, np.frombuffer(raw, storage))
    count = math.prod(tensor.shape)
    size = (count + 1) // 2 if tensor.type == TYPES.INT4 else count * storage.itemsize
    if len(raw) != size or count > MAX_ELEMENTS:
        raise ModelError(f"tensor {tensor.name!r}: a constant of shape {list(tensor.shape)} has {len(raw)} bytes")
    if tensor.type == TYPES.INT4:
        packed = np.frombuffer(raw, np.int8)
        # The lower half first; shifts extend the sign.
        pairs = np.stack([(packed << 4).view(np.int8) >> 4, packed >> 4], axis=-1)
        return pairs.reshape(-1)[:count].reshape(tensor.shape)
    data = np.frombuffer(raw, storage).reshape(tensor.shape)
    if tensor.type == TYPES.BOOL:
        data = np.frombuffer(raw, np.uint8).reshape(tensor.shape) != 0
    return np.require(data, data.dtype.newbyteorder("="), ["ALIGNED"])


def _densified(tensor: TensorRecord, sparsity: Sparsity, raw: Array) -> Array:
    """The elements of a sparse constant: a tree over its dimensions in traversal order, blocks innermost."""
    shape, rank = tensor.shape, len(tensor.shape)
    if math.prod(shape) > MOST_SPARSE:
        raise ModelError(f"tensor {tensor.name!r}: a sparse constant of {math.prod(shape)} elements")
    block = [1] * rank
    for level, dim in zip(sparsity.levels[rank:], sparsity.blocks, strict=True):
        block[dim] *= max(level.size, 1)
    # The position of each path from the root in each dimension, level by level.
    node = np.zeros(1, np.int64)
    places = np.zeros((rank, 1), np.int64)
    for number, level in zip(sparsity.order, sparsity.levels, strict=True):
        if level.segments is None or level.indices is None:
            if level.size < 1 or len(node) * level.size > MOST_SPARSE:
                raise ModelError(f"tensor {tensor.name!r}: a sparse level of {level.size} entries")
            parent = np.repeat(np.arange(len(node)), level.size)
            index = np.tile(np.arange(level.size), len(node))
            child = node[parent] * level.size + index
        else:
            begin, end = level.segments[node], level.segments[node + 1]
            count = end - begin
            if (count < 0).any() or count.sum() > MOST_SPARSE:
                raise ModelError(f"tensor {tensor.name!r}: segments of a sparse level do not ascend")
            parent = np.repeat(np.arange(len(node)), count)
            child = np.arange(len(parent)) + (begin - np.cumsum(count) + count)[parent]
            index = level.indices[child]
        places = places[:, parent]
        if number < rank:
            places[number] += index * block[number]
        else:
            places[sparsity.blocks[number - rank]] += index
        node = child
    if len(node) != len(raw):
        raise ModelError(f"tensor {tensor.name!r}: {len(raw)} elements for {len(node)} places of a sparse constant")
    for place, size in zip(places, shape, strict=True):
        if len(place) and not 0 <= place.min() <= place.max() < size:
            raise ModelError(f"tensor {tensor.name!r}: an index of a sparse constant is outside {list(shape)}")
    dense = np.zeros(shape, raw.dtype.newbyteorder("="))
    dense[tuple(places)] = raw
    return dense


def broadcast_parameters(quantization: Quantization, rank: int) -> tuple[Array, Array]:
    """Scales and zero points in a shape that broadcasts along the quantised dimension; scalars if there is one."""
    if len(quantization.scale) == 1:
        return quantization.scale.reshape(()), quantization.zero[:1].reshape(()).astype(np.int32)
    dims = [1] * rank
    dims[quantization.axis] = -1
    zero = np.broadcast_to(quantization.zero, quantization.scale.shape)
    return quantization.scale.reshape(dims), zero.reshape(dims).astype(np.int32)
