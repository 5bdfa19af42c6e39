"""Run one operator on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.dtypes import dtype_of, to_storage
from npusim.ops import reference
from npusim.ops.build import GraphBuilder

Array = npt.NDArray[Any]


def run(kind: str, *operands: Any, **attrs: Any) -> Array:
    """Return the first output of one operator. Tables that must be constants are constants."""
    return run_all(kind, *operands, **attrs)[0]


def run_all(kind: str, *operands: Any, **attrs: Any) -> list[Array]:
    """Return every output of one operator. Operands are graph inputs, except index tables of resample."""
    build = GraphBuilder(kind)
    feeds: dict[str, Array] = {}
    tensors = []
    for index, operand in enumerate(operands):
        array = np.asarray(operand) if operand is not None else None
        if array is None:
            tensors.append(None)
        elif kind == "resample" and index:
            tensors.append(build.const(to_storage(array)))
        else:
            tensors.append(build.input(f"in{index}", array.shape, dtype_of(array)))
            feeds[f"in{index}"] = array
    outputs = build.add_all(kind, tensors, attrs, "out")
    results = reference.run(build.finish(outputs), feeds)
    return [results[tensor.name] for tensor in outputs]
