"""Tensors of PyTorch as numpy arrays, and back. bfloat16 has no numpy type of its own; ml_dtypes defines one."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]


def to_array(tensor: torch.Tensor) -> Array:
    """A contiguous array with the values of a tensor on the CPU. It may share their memory."""
    plain = tensor.detach().contiguous()
    if plain.dtype == torch.bfloat16:
        return np.asarray(plain.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(plain.numpy())


def to_tensor(array: Array) -> torch.Tensor:
    """A tensor with a copy of the values."""
    copied = np.array(array)
    if copied.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(copied.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(copied)
