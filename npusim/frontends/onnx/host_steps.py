"""Operators that the host executes, because the sizes of their results depend on data or the device cannot."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, helper

from npusim.errors import ModelError, UnsupportedError, shown

Array = npt.NDArray[Any]

DATA_DEPENDENT_SIZE = "the size of its result depends on data"
_TRAINING = "it trains"
_TABLES = "it is not arithmetic of tensors"
_TEXT = "it computes with strings"
_RANDOM = "its result is random"

RANDOM = ("Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")

HOST_STEPS: Mapping[tuple[str, str], str] = {
    ("", "NonZero"): DATA_DEPENDENT_SIZE,
    ("", "Compress"): DATA_DEPENDENT_SIZE,
    ("", "Unique"): DATA_DEPENDENT_SIZE,
    ("", "NonMaxSuppression"): DATA_DEPENDENT_SIZE,
    ("", "ImageDecoder"): "it reads an encoded image",
    ("", "MelWeightMatrix"): DATA_DEPENDENT_SIZE,
    **{("", name): _RANDOM for name in RANDOM},
    **{("", name): _TEXT for name in ("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit")},
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


MOST_RANDOM = 1 << 24
"""Maximum number of elements of a random tensor."""


def _seeded(node: NodeProto) -> NodeProto:
    """A copy of the node with a seed, so that a model has the same results in each run; other nodes unchanged."""
    if node.domain or node.op_type not in (*RANDOM, "Dropout"):
        return node
    given = {attribute.name: attribute for attribute in node.attribute}
    if "shape" in given and math.prod(given["shape"].ints) > MOST_RANDOM:
        reason = f"a random tensor of shape {list(given['shape'].ints)}: at most {MOST_RANDOM} elements are supported"
        raise UnsupportedError([(node.name, node.op_type, reason)])
    seeded = NodeProto()
    seeded.CopyFrom(node)
    if "seed" in given:
        return seeded
    # Nodes of equal shapes must not have equal results. 24 bits are exact in a float attribute.
    number = zlib.crc32("/".join((node.name, *node.output)).encode()) & 0xFFFFFF
    seeded.attribute.append(helper.make_attribute("seed", number if node.op_type == "Dropout" else float(number)))
    return seeded


def _full_matches(node: NodeProto, texts: Array) -> Array:
    """Whether each text matches the expression of the node. The evaluator uses Python's expressions, which may take a
    time that is exponential in the text; the operator is defined by those of RE2, which never do."""
    try:
        import re2
    except ImportError as error:
        reason = "the host cannot compute it without google-re2: pip install 'npusim[strings]'"
        raise UnsupportedError([(node.name, node.op_type, reason)]) from error
    options = re2.Options()
    options.log_errors = False
    pattern = next((attribute.s for attribute in node.attribute if attribute.name == "pattern"), b"")
    try:
        expression = re2.compile(pattern.decode(), options)
    except (re2.error, UnicodeDecodeError) as error:
        raise ModelError(f"pattern {shown(pattern.decode(errors='replace'))} is no expression of RE2") from error
    return np.array([expression.fullmatch(str(text)) is not None for text in texts.flat], bool).reshape(texts.shape)


def compute(node: NodeProto, version: int, inputs: Sequence[Array | None]) -> list[Array]:
    """The results of an operator, by the reference evaluator of the onnx package.

    ``version``: of the operator set of its domain. Raises UnsupportedError for an operator that the evaluator does not
    have, and whatever it raises for values that the operator does not allow.
    """
    if node.op_type == "NonZero" and not node.domain:  # the one that is common and may be large
        assert inputs[0] is not None
        return [np.asarray(np.nonzero(np.atleast_1d(inputs[0])), np.int64)]
    if node.op_type == "RegexFullMatch" and not node.domain:
        assert inputs[0] is not None
        return [_full_matches(node, inputs[0])]
    from onnx.reference import ReferenceEvaluator

    node = _seeded(node)
    if node.op_type == "Dropout" and inputs[1] is None:  # the evaluator does not know the default in this place
        node.input[1], inputs = "ratio of 0.5", [inputs[0], np.asarray(0.5, np.float32), *inputs[2:]]
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
