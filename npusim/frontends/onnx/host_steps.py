"""Operators that the host executes, because the sizes of their results depend on data or the device cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, helper

from npusim.errors import UnsupportedError

Array = npt.NDArray[Any]

DATA_DEPENDENT_SIZE = "the size of its result depends on data"
_TRAINING = "it trains"
_TABLES = "it is not arithmetic of tensors"

HOST_STEPS: Mapping[tuple[str, str], str] = {
    ("", "NonZero"): DATA_DEPENDENT_SIZE,
    ("", "Compress"): DATA_DEPENDENT_SIZE,
    ("", "Unique"): DATA_DEPENDENT_SIZE,
    ("", "NonMaxSuppression"): DATA_DEPENDENT_SIZE,
    ("", "ImageDecoder"): "it reads an encoded image",
    ("", "TfIdfVectorizer"): _TABLES,
    **{("ai.onnx.preview.training", name): _TRAINING for name in ("Adagrad", "Adam", "Momentum")},
    **{
        ("ai.onnx.ml", name): _TABLES
        for name in (
            "ArrayFeatureExtractor", "Binarizer", "FeatureVectorizer", "Imputer", "LabelEncoder", "LinearClassifier",
            "LinearRegressor", "Normalizer", "OneHotEncoder", "SVMClassifier", "SVMRegressor", "Scaler",
            "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor",
        )
    },
}  # fmt: skip
"""The reason why the host executes an operator, by domain and name."""


def compute(node: NodeProto, version: int, inputs: Sequence[Array | None]) -> list[Array]:
    """The results of an operator, by the reference evaluator of the onnx package.

    ``version``: of the operator set of its domain. Raises UnsupportedError for an operator that the evaluator does not
    have, and whatever it raises for values that the operator does not allow.
    """
    if node.op_type == "NonZero" and not node.domain:  # the one that is common and may be large
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
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
    try:
        found = dict(zip(outputs, ReferenceEvaluator(model).run(None, given), strict=True))
    except (ImportError, NotImplementedError, TypeError) as error:
        raise UnsupportedError([(node.name, node.op_type, f"the host cannot compute it: {error}")]) from error
    return [np.asarray(found[name]) if name else np.empty(0) for name in node.output]
