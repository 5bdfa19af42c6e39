"""Operators that ONNX defines by other operators: their bodies, from the schemas of the installed onnx package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto

from npusim.frontends.onnx.schema import schema_of
from npusim.frontends.onnx.scope import domain_of
from npusim.frontends.onnx.tensors import TO_ONNX
from npusim.graph import Tensor


def schema_function(
    node: NodeProto, version: int, inputs: Sequence[Tensor | None], attributes: Mapping[str, AttributeProto]
) -> tuple[FunctionProto, dict[str, AttributeProto]] | None:
    """(body, default attributes) of an operator that its schema defines as a function. None if it does not."""
    schema = schema_of(domain_of(node), node.op_type, version)
    if schema is None:
        return None
    defaults = {
        name: attribute.default_value
        for name, attribute in schema.attributes.items()
        if attribute.default_value.type != AttributeProto.UNDEFINED
    }
    body = FunctionProto()
    if schema.has_context_dependent_function:
        # A body is written for a certain operator set: use the newest that is not newer than the model's.
        usable = [v for v in schema.context_dependent_function_opset_versions if v <= version]
        if not usable:
            return None
        call = NodeProto()
        call.CopyFrom(node)
        # The function of the schema reads attributes of the node, in which references to attributes of functions are
        # not resolved yet.
        del call.attribute[:]
        call.attribute.extend(attributes.values())
        make = onnx.helper.make_tensor_type_proto
        types = [b"" if t is None else make(TO_ONNX[t.dtype], t.shape).SerializeToString() for t in inputs]
        data = schema.get_context_dependent_function_with_opset_version(max(usable), call.SerializeToString(), types)
    elif schema.has_function:
        usable = [v for v in schema.function_opset_versions if v <= version]
        data = schema.get_function_with_opset_version(max(usable)) if usable else b""
    else:
        return None
    if not data:
        return None
    body.ParseFromString(data)
    return body, defaults


def is_function(node: NodeProto, version: int) -> bool:
    """Whether the schema of an operator may define it as a function."""
    schema = schema_of(domain_of(node), node.op_type, version)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)
