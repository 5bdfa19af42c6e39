"""What every driver checks before its device sees a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.errors import InputError
from npusim.program import Binding

Array = npt.NDArray[Any]


def check_inputs(bindings: Sequence[Binding], inputs: Mapping[str, Array]) -> list[tuple[Binding, Array]]:
    """Each of ``bindings`` with its array, C-contiguous.

    Raises InputError for a name, dtype or shape that is wrong.
    """
    if len(inputs) != len(bindings) or not all(map(inputs.__contains__, [binding.name for binding in bindings])):
        names = [binding.name for binding in bindings]
        missing = [f"{name!r} is missing" for name in names if name not in inputs]
        unknown = [f"{name!r} is unknown" for name in inputs if name not in names]
        takes = ", ".join(map(repr, names)) or "none"
        raise InputError(f"inputs: {', '.join(missing + unknown)}; the program takes {takes}")
    return [(binding, _checked(binding, inputs[binding.name])) for binding in bindings]


def _checked(binding: Binding, array: Array) -> Array:
    if array.dtype != binding.dtype.storage:
        raise InputError(f"input {binding.name!r}: dtype must be {binding.dtype.storage}, got {array.dtype}")
    if array.shape != binding.shape:
        raise InputError(f"input {binding.name!r}: shape must be {binding.shape}, got {array.shape}")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)
