"""What every driver checks before its device sees a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.errors import InputError
from npusim.program import Binding

Array = npt.NDArray[Any]


def check_inputs(bindings: Sequence[Binding], inputs: Mapping[str, Array]) -> list[Array]:
    """The arrays of ``bindings`` in their order, C-contiguous.

    Raises InputError for a name, dtype or shape that is wrong.
    """
    names = [binding.name for binding in bindings]
    missing = [name for name in names if name not in inputs]
    unknown = [name for name in inputs if name not in names]
    if missing or unknown:
        wrong = [*(f"{name!r} is missing" for name in missing), *(f"{name!r} is unknown" for name in unknown)]
        raise InputError(f"inputs: {', '.join(wrong)}; the program takes {', '.join(map(repr, names)) or 'none'}")
    return [_checked(binding, inputs[binding.name]) for binding in bindings]


def _checked(binding: Binding, array: Array) -> Array:
    if array.dtype != binding.dtype.storage:
        raise InputError(f"input {binding.name!r}: dtype must be {binding.dtype.storage}, got {array.dtype}")
    if array.shape != binding.shape:
        raise InputError(f"input {binding.name!r}: shape must be {binding.shape}, got {array.shape}")
    return np.ascontiguousarray(array).reshape(binding.shape)
