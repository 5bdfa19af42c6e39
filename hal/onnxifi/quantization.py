"""Tensors that hold integers where the graph declares floats: value = (integer - bias) * scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.dtypes import DType
from npusim.frontends.onnx.tensors import ELEMENT_TYPES

from .constants import DataType
from .descriptor import Descriptor
from .status import OnnxifiError, Status

INTEGERS = frozenset({DataType.INT8, DataType.UINT8, DataType.INT16, DataType.UINT16, DataType.INT32})
"""Element types that may have quantisation parameters."""
OUTPUTS = INTEGERS - {DataType.INT32}
"""Element types to which the device converts floats."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """Parameters of one tensor: one pair for the whole tensor, or one for each of equal groups along ``axis``."""

    dtype: DType
    axis: int
    scales: tuple[float, ...]
    biases: tuple[int, ...]

    def arrays(self, shape: tuple[int, ...]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return (scales, biases) that broadcast to a tensor of this shape."""
        if len(self.scales) == 1:
            return np.asarray(self.scales, np.float32).reshape(()), np.asarray(self.biases, np.int32).reshape(())
        group = shape[self.axis] // len(self.scales)
        form = [1] * len(shape)
        form[self.axis] = shape[self.axis]
        return (
            np.repeat(np.asarray(self.scales, np.float32), group).reshape(form),
            np.repeat(np.asarray(self.biases, np.int32), group).reshape(form),
        )


def quantization_of(descriptor: Descriptor) -> Quantization | None:
    """Return the quantisation of a descriptor with valid shape and type, or None if it has none.

    Raises OnnxifiError: INVALID_DATATYPE, INVALID_SHAPE, INVALID_MEMORY_LOCATION, MISMATCHING_DATATYPE.
    """
    count = descriptor.quantization_params
    if not count:
        return None
    name, shape = descriptor.name, descriptor.shape or ()
    if descriptor.data_type not in INTEGERS:
        raise OnnxifiError(Status.INVALID_DATATYPE, f"{name!r}: type {descriptor.data_type} is not quantised")
    if descriptor.scales is None or descriptor.biases is None:
        raise OnnxifiError(Status.INVALID_MEMORY_LOCATION, f"{name!r}: scales and biases must not be NULL")
    axis = descriptor.quantization_axis
    if count > 1 and (axis >= len(shape) or count > shape[axis] or shape[axis] % count):
        raise OnnxifiError(
            Status.INVALID_SHAPE, f"{name!r}: {count} parameters for equal groups along axis {axis} of {list(shape)}"
        )
    if not all(math.isfinite(scale) and scale > 0 for scale in descriptor.scales):
        raise OnnxifiError(Status.INVALID_DATATYPE, f"{name!r}: scales must be positive and finite")
    dtype = ELEMENT_TYPES[descriptor.data_type]
    info = np.iinfo(dtype.storage)
    if not all(info.min <= bias <= info.max for bias in descriptor.biases):
        raise OnnxifiError(Status.INVALID_DATATYPE, f"{name!r}: biases must be values of {dtype.label}")
    return Quantization(dtype, axis if count > 1 else 0, descriptor.scales, descriptor.biases)
