"""Runs a graph with the references of its operators, which define its results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npusim.dtypes import DType, dtype_of, from_storage, to_storage
from npusim.errors import InputError
from npusim.graph import Graph, Tensor
from npusim.ops.base import REGISTRY, Array
from npusim.ops.unrolling import unrolled


def check_input(tensor: Tensor, value: Any) -> Array:
    """The value in storage form. Raises InputError unless it has the shape and type of the tensor."""
    array = np.asarray(value)
    try:
        dtype = dtype_of(array)
    except TypeError as error:
        raise InputError(f"input {tensor.name!r}: {error}") from None
    bits = tensor.dtype is DType.BFLOAT16 and dtype is DType.UINT16
    if array.shape != tensor.shape or not (dtype is tensor.dtype or bits):
        wanted, got = f"{tensor.dtype.label}{list(tensor.shape)}", f"{dtype.label}{list(array.shape)}"
        raise InputError(f"input {tensor.name!r} must be {wanted}, got {got}")
    return to_storage(array)


def run(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Array]:
    """Compute all outputs by name. ``inputs``: by name, exactly those of the graph. Raises InputError otherwise."""
    graph = unrolled(graph)
    names = [tensor.name for tensor in graph.inputs]
    if set(inputs) != set(names):
        raise InputError(f"the graph's inputs are {', '.join(names) or 'none'}; got {', '.join(inputs) or 'none'}")
    values: dict[Tensor, Array] = {tensor: check_input(tensor, inputs[tensor.name]) for tensor in graph.inputs}
    last_use = {tensor: index for index, op in enumerate(graph.ops) for tensor in op.inputs if tensor is not None}
    kept = set(graph.outputs)
    for index, op in enumerate(graph.ops):
        arrays = [None if t is None else values[t] if t.data is None else t.data for t in op.inputs]
        values.update(zip(op.outputs, REGISTRY[op.kind].reference(op, arrays), strict=True))
        # Values are freed after their last use, because all intermediate values of a large model may exceed the memory
        # of the host.
        for tensor in {*op.inputs, *op.outputs}:
            if tensor is not None and tensor not in kept and last_use.get(tensor, index) == index:
                values.pop(tensor, None)
    return {t.name: from_storage(values[t] if t.data is None else t.data, t.dtype) for t in graph.outputs}
