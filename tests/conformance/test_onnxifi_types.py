"""Models of one node over operators, versions and types: a violation of the operator's definition is INVALID_MODEL.

The reference is the type inference of the onnx package.
"""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Iterator

import onnx
import pytest
from onnx import TensorProto

from hal.onnxifi import engine
from hal.onnxifi.status import OnnxifiError, Status
from npusim.frontends.onnx.scope import nested_graphs
from tests.support.onnx_node_tests.cases import NodeCase, node_cases

TYPES = (
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT8, TensorProto.UINT8,
    TensorProto.INT16, TensorProto.UINT16, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL,
)  # fmt: skip
STRIDE = 29
"""The default run includes every STRIDE-th model."""
TAKEN = (Status.SUCCESS, Status.FALLBACK)


def first_cases() -> list[NodeCase]:
    """Return one case per operator and number of inputs. Only tensors, because inner graphs have their own types."""
    found: dict[tuple[str, int], NodeCase] = {}
    for case in node_cases():
        graph = case.model.graph
        tensors = all(value.type.HasField("tensor_type") for value in (*graph.input, *graph.output))
        if len(graph.node) == 1 and not graph.node[0].domain and not nested_graphs(graph.node[0]) and tensors:
            found.setdefault((graph.node[0].op_type, len(graph.input)), case)
    return [found[key] for key in sorted(found)]


def versions() -> dict[str, list[onnx.defs.OpSchema]]:
    """Return the definitions of each operator of the standard domain."""
    schemas = sorted(onnx.defs.get_all_schemas_with_history(), key=lambda schema: (schema.name, schema.since_version))
    current = [schema for schema in schemas if not schema.domain and not schema.deprecated]
    return {name: list(group) for name, group in itertools.groupby(current, lambda schema: schema.name)}


def variant(case: NodeCase, schema: onnx.defs.OpSchema, kind: int) -> onnx.ModelProto:
    """Return the case in the opset of a definition, with type ``kind`` for all operands that share the first one's
    type."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = 10
    del model.opset_import[1:]
    model.opset_import[0].version = schema.since_version
    (node,) = model.graph.node
    kept = [attribute for attribute in node.attribute if attribute.name in schema.attributes]
    del node.attribute[:]
    node.attribute.extend(kept)
    formal = {
        name: parameters[min(index, len(parameters) - 1)].type_str
        for names, parameters in ((node.input, schema.inputs), (node.output, schema.outputs))
        for index, name in enumerate(names)
    }
    for value in (*model.graph.input, *model.graph.output):
        if formal.get(value.name) == schema.inputs[0].type_str:
            value.type.tensor_type.elem_type = kind
    return model


def models() -> Iterator[tuple[str, onnx.ModelProto]]:
    history = versions()
    for case in first_cases():
        for schema in history[case.model.graph.node[0].op_type]:
            if len(case.model.graph.node[0].input) <= schema.max_input and schema.inputs:
                for kind in TYPES:
                    label = f"{schema.name}-{schema.since_version} of {TensorProto.DataType.Name(kind).lower()}"
                    yield label, variant(case, schema, kind)


def types_agree(model: onnx.ModelProto) -> bool:
    """Return whether the package accepts the types."""
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True)
    except onnx.shape_inference.InferenceError:
        return False
    return True


def is_right(model: onnx.ModelProto) -> bool:
    """Return whether the package accepts the model."""
    try:
        onnx.checker.check_model(model)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def answer(model: onnx.ModelProto) -> Status:
    try:
        return Status(engine.compatibility(1, model.SerializeToString()))
    except OnnxifiError as error:
        return error.status


# The package says nothing about the slope's shape, but its size must be the number of channels: 4, and not 5.
SLOPES = tuple(f"PRelu-{version} of {kind}" for version in (1, 6) for kind in ("float", "float16"))
# Its definition gives the result the scale's type; the package's inference gives it the input's.
NORMS = ("RMSNormalization-23 of float16", "RMSNormalization-23 of bfloat16")


def check(step: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    problems = []
    for label, model in itertools.islice(models(), 0, None, step):
        status, agree = answer(model), types_agree(model)
        counts["agree" if agree else "differ"] += 1
        if status in TAKEN and not agree and label not in NORMS:
            problems.append(f"{label} is {status.name}")
        if status is Status.INVALID_MODEL and is_right(model) and label not in SLOPES:
            problems.append(f"{label} is refused as {status.name}")
    assert not problems, "\n".join(problems)
    return counts


def test_a_sample_of_models_of_one_node() -> None:
    counts = check(STRIDE)
    assert counts["agree"] > 50 < counts["differ"]


@pytest.mark.slow
def test_all_models_of_one_node() -> None:
    counts = check(1)
    assert counts["agree"] > 3000 < counts["differ"]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
