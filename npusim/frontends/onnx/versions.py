"""Supported operator sets, and conversion of older models to a newer set."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, TensorShapeProto, helper, shape_inference, version_converter

from npusim.errors import ModelError, UnsupportedError
from npusim.frontends.onnx.scope import opset_imports
from npusim.frontends.onnx.signature import bound_array, declared_inputs, free_inputs
from npusim.frontends.onnx.source import Model

FIRST_OPSET = 1
OLDEST_OPSET = 7
"""The oldest operator set of the importers. Older models are converted to it."""
CONVERTER = (1, 23)
"""The first onnx package whose converter rejects damaged models. Older ones crash the process for some of them."""
_BROADCASTING = 6
"""The last operator set in which broadcasting is an attribute."""
_STUMBLES = (shape_inference.InferenceError, LookupError, MemoryError, RuntimeError, ValueError)
"""Exceptions of the onnx package for invalid models. C++ exceptions arrive as Python's own."""
_ASSERTION = re.compile(r"^\S+: \w+: Assertion `.*?` failed: ", re.DOTALL)


def has_converter() -> bool:
    """Whether the converter of the installed package is safe for untrusted models."""
    return tuple(int(part) for part in onnx.__version__.split(".")[:2]) >= CONVERTER


def upgraded(model: Model, input_shapes: Mapping[str, Sequence[int]], bind: Mapping[str, Any]) -> Model:
    """The model, converted to operator set :data:`OLDEST_OPSET` if it is older.

    All shapes must be known, because they determine the meaning of broadcasting as an attribute. ``input_shapes`` and
    the arrays in ``bind`` give those that the model leaves open. Raises the errors of :func:`declared_inputs`,
    ModelError for types that the operators of the model do not allow, and UnsupportedError with the reason of the
    converter of the onnx package.
    """
    version = opset_imports(model.proto.opset_import).get("", OLDEST_OPSET)
    if not FIRST_OPSET <= version < OLDEST_OPSET or not model.proto.graph.node:
        return model
    if not has_converter():
        needed = ".".join(map(str, CONVERTER))
        reason = f"operator set {version} is converted by onnx {needed} or newer; here is onnx {onnx.__version__}"
        raise UnsupportedError([(model.proto.graph.name, "model", reason)])
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    # Remove declared shapes of results: the converter would report a wrong one as an operator set that it cannot
    # convert.
    del proto.graph.value_info[:]
    for value in proto.graph.output:
        value.ClearField("type")
    inputs = {value.name: value for value in free_inputs(proto.graph)}
    bound = {
        name: bound_array(inputs[name], value, input_shapes.get(name)).shape
        for name, value in bind.items()
        if name in inputs
    }
    for name, sizes, _ in declared_inputs(list(inputs.values()), {**input_shapes, **bound}, [], proto.graph.name):
        shape = inputs[name].type.tensor_type.shape
        del shape.dim[:]
        shape.dim.extend(TensorShapeProto.Dimension(dim_value=size) for size in sizes)
    try:
        shape_inference.infer_shapes(proto, check_type=True)
    except _STUMBLES as error:
        raise ModelError(f"operator set {version}: {error}") from error
    try:
        # Via set 6, because most operators of older sets have no shape inference.
        converted = version_converter.convert_version(proto, _BROADCASTING) if version < _BROADCASTING else proto
        _align(converted)
        converted = version_converter.convert_version(converted, OLDEST_OPSET)
    except (version_converter.ConvertError, *_STUMBLES) as error:
        why = _ASSERTION.sub("", str(error).strip())
        reason = f"operator set {version} cannot be converted to {OLDEST_OPSET}: {why}"
        raise UnsupportedError([(model.proto.graph.name, "model", reason)]) from error
    kept = {tensor.name for tensor in model.proto.graph.initializer}
    made = [tensor for tensor in converted.graph.initializer if tensor.name not in kept]
    for field in ("input", "output", "value_info", "initializer"):
        converted.graph.ClearField(field)
        getattr(converted.graph, field).extend(getattr(model.proto.graph, field))
    converted.graph.initializer.extend(made)
    return Model(converted, model.files, model.blobs)


def _align(proto: ModelProto) -> None:
    """Add the trailing dimensions of 1 that operator set 7 requires of operands broadcast at an axis.

    The converter only does so for axis 0, treats other axes the same way, and does not change a slope per channel.
    """
    if all(_axis(node) is None for node in proto.graph.node):
        return
    inferred = shape_inference.infer_shapes(proto).graph
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*inferred.value_info, *inferred.input)
        if value.type.tensor_type.HasField("shape")
    }
    shapes.update({tensor.name: list(tensor.dims) for tensor in proto.graph.initializer})
    nodes = []
    for original in proto.graph.node:
        node = NodeProto()
        node.CopyFrom(original)
        axis = _axis(node)
        if axis is not None:
            nodes += _align_node(node, axis, shapes)
        nodes.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def _align_node(node: NodeProto, axis: int, shapes: Mapping[str, Sequence[int]]) -> list[NodeProto]:
    """Remove the axis of a node. Returns the node to insert before it, if any."""
    first, second = (shapes.get(name) for name in node.input)
    if first is None or second is None:
        raise UnsupportedError([(node.name, node.op_type, "the dimensions of its operands are not known")])
    if node.op_type == "PRelu" and (len(second) != 1 or len(first) < 2):
        return []
    rest = [attribute for attribute in node.attribute if attribute.name != "axis"]
    del node.attribute[:]
    node.attribute.extend(rest)
    missing = len(first) - len(second) - (axis + len(first) if axis < 0 else axis)
    if missing < 0:
        raise ModelError(f"{node.name} ({node.op_type}): {second} does not fit into {first} at axis {axis}")
    if missing == 0 or list(second) == [1]:
        return []
    aligned, axes = f"{node.output[0]}/aligned", range(len(second), len(second) + missing)
    added = helper.make_node("Unsqueeze", [node.input[1]], [aligned], axes=list(axes))
    node.input[1] = aligned
    return [added]


def _axis(node: NodeProto) -> int | None:
    """The axis of the second operand of a node in the first. None if it is broadcast from the last dimension."""
    if len(node.input) != 2 or not node.output:
        return None
    if node.op_type == "PRelu":
        return 1
    values = {attribute.name: attribute.i for attribute in node.attribute}
    return values.get("axis") if values.get("broadcast") else None
