"""Operators that the host executes, because the sizes of their results depend on data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, helper

Array = npt.NDArray[Any]

_SIZE = "the size of its result depends on data"

HOST_STEPS: Mapping[str, str] = {
    "NonZero": _SIZE,
    "Compress": _SIZE,
    "Unique": _SIZE,
    "NonMaxSuppression": _SIZE,
}
"""The reason why the host executes an operator of the standard domain."""


def compute(node: NodeProto, version: int, inputs: Sequence[Array | None]) -> list[Array]:
    """The results of one of these operators, by the reference evaluator of the onnx package.

    ``version``: of the operator set. Raises whatever the evaluator raises for values that the operator does not allow.
    """
    if node.op_type == "NonZero":  # the one that is common and may be large
        assert inputs[0] is not None
        return [np.asarray(np.nonzero(np.atleast_1d(inputs[0])), np.int64)]
    from onnx.reference import ReferenceEvaluator

    names = [name for name, value in zip(node.input, inputs, strict=True) if value is not None]
    given = {name: value for name, value in zip(node.input, inputs, strict=True) if value is not None}
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(given[name].dtype), given[name].shape)
        for name in dict.fromkeys(names)
    ]
    outputs = [name for name in node.output if name]
    graph = helper.make_graph([node], "host", values, [onnx.ValueInfoProto(name=name) for name in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    found = dict(zip(outputs, ReferenceEvaluator(model).run(None, given), strict=True))
    return [np.asarray(found[name]) if name else np.empty(0) for name in node.output]
