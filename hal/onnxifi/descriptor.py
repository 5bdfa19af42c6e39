"""Tensor descriptors and memory fences, as clients see them and as the engine gets them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.dtypes import dtype_of
from npusim.frontends.onnx.tensors import TO_ONNX

from .constants import TAG_MEMORY_FENCE_V1, TAG_TENSOR_DESCRIPTOR_V1, MemoryType, Synchronization


class Descriptor(NamedTuple):
    """A tensor descriptor of either layout, read from the client's memory, with a valid tag.

    ``name``: None for a NULL pointer, bytes if it is not UTF-8. ``shape``: None for a NULL pointer if the number of
    dimensions is not 0. ``buffer``: an address. ``scales``, ``biases``: None for NULL or if ``quantization_params`` is
    0.
    """

    name: str | bytes | None
    data_type: int
    memory_type: int
    shape: tuple[int, ...] | None
    buffer: int
    quantization_axis: int = 0
    scales: tuple[float, ...] | None = None
    biases: tuple[int, ...] | None = None
    quantization_params: int = 0
    is_offline: bool = False


@dataclass
class TensorDescriptorV1:
    """onnxTensorDescriptorV1 for Python. ``buffer`` is an address; the caller keeps the memory alive."""

    name: str | bytes | None
    dataType: int
    shape: Sequence[int] | None = ()
    buffer: int = 0
    memoryType: int = MemoryType.CPU
    quantizationAxis: int = 0
    scales: Sequence[float] | None = None
    biases: Sequence[int] | None = None
    quantizationParams: int = 0
    isOffline: bool = False
    tag: int = TAG_TENSOR_DESCRIPTOR_V1
    dimensions: int = -1
    """Number of dimensions; -1 stands for the length of ``shape``."""
    owner: Any = field(default=None, repr=False)

    @staticmethod
    def of(name: str, array: npt.NDArray[Any]) -> TensorDescriptorV1:
        """Return a descriptor of a C-contiguous array and keep the array alive. Raises ValueError for any other
        array."""
        if not array.flags.c_contiguous:
            raise ValueError(f"tensor {name!r}: the array must be C-contiguous")
        code = TO_ONNX[dtype_of(array)]
        return TensorDescriptorV1(name, code, array.shape, array.ctypes.data, owner=array)


@dataclass
class MemoryFenceV1:
    """onnxMemoryFenceV1: ``event`` is a handle; onnxRunGraph stores that of the output fence."""

    event: int = 0
    type: int = Synchronization.EVENT
    tag: int = TAG_MEMORY_FENCE_V1


def array_at(address: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return a writable view of a client's memory, of any alignment."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    # numpy accepts any address for views of bytes, and clients do not guarantee an alignment.
    raw = (ctypes.c_ubyte * nbytes).from_address(address)
    flat: npt.NDArray[Any] = np.frombuffer(memoryview(raw), np.uint8).view(dtype)
    return flat.reshape(shape)
