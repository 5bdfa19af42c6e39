"""Validation rules of models, before support by the device is checked. The docstring of a rule is in the guide.

The checks follow the specification; the lenient mode accepts known violations of real clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, NoReturn

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from npusim.frontends.onnx.importer import check_text
from npusim.frontends.onnx.scope import domain_of, nested_graphs, opset_imports
from npusim.frontends.onnx.signature import declared_dims
from npusim.frontends.onnx.tensors import ELEMENT_TYPES, PACKED, type_name

from .constants import DataType
from .info import ir_versions, opset_versions
from .schema import schema_of
from .status import OnnxifiError, Status

MAX_DEPTH = 64
"""Graphs inside nodes nest no deeper."""
_MEMBERS: dict[int, str] = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
}


def check_model(model: ModelProto, lenient: bool) -> None:
    """Raise OnnxifiError for the first rule that the model breaks. Lenient: attributes that the operator does not have
    are removed from the model.
    """
    check_frame(model, lenient)
    versions = check_versions(model)
    local = {(domain_of(function), function.name) for function in model.functions}
    check_signature(model)
    check_graph(model.graph, Scope(versions, local, lenient), frozenset(), 0)


class Scope(NamedTuple):
    """Properties shared by all nodes of a model."""

    versions: dict[str, int]
    local: Collection[tuple[str, str]]
    lenient: bool


def _invalid(message: str) -> NoReturn:
    raise OnnxifiError(Status.INVALID_MODEL, message)


def check_frame(model: ModelProto, lenient: bool) -> None:
    """A model has an IR version, at least one operator set, and a graph with a name and at least one output."""
    if not model.HasField("graph"):
        _invalid("the model has no graph")
    if not model.HasField("ir_version"):
        _invalid("the model has no IR version")
    if not model.opset_import:
        _invalid("the model names no operator set")
    check_text([model.graph.name])
    if not model.graph.name and not lenient:
        _invalid("the graph has no name")
    if not model.graph.output:
        _invalid("the graph has no outputs")


def check_versions(model: ModelProto) -> dict[str, int]:
    """IR version and operator sets are among those that the backend lists; no domain is imported twice."""
    known = ir_versions()
    if model.ir_version not in known:
        raise OnnxifiError(
            Status.UNSUPPORTED_VERSION, f"IR version {model.ir_version}: {known[0]} to {known[-1]} are supported"
        )
    check_text(entry.domain for entry in model.opset_import)
    versions = opset_imports(model.opset_import)
    if len(versions) != len(model.opset_import):
        _invalid("an operator set is imported twice")
    for domain, supported in opset_versions().items():
        if domain in versions and versions[domain] not in supported:
            raise OnnxifiError(
                Status.UNSUPPORTED_VERSION,
                f"operator set {domain or 'ai.onnx'} {versions[domain]}: {supported[0]} to {supported[-1]} are known",
            )
    return versions


def check_signature(model: ModelProto) -> None:
    """Inputs, outputs and initializers have names of their own; weights agree with the inputs that declare them."""
    graph = model.graph
    inputs = {value.name: value for value in graph.input}
    for kind, values in (("input", graph.input), ("output", graph.output), ("initializer", graph.initializer)):
        names = [value.name for value in values]
        check_text(names)
        doubled = [name for name, count in Counter(names).items() if count > 1]
        if doubled or "" in names:
            _invalid(f"a graph {kind} has no name" if "" in names else f"two graph {kind}s are named {doubled[0]!r}")
    for value in (*graph.input, *graph.output):
        check_declaration(value)
    weights = {tensor.name for tensor in graph.initializer}
    for value in (*graph.input, *graph.output):
        if value.name not in weights:
            check_bindable(value)
    for tensor in graph.initializer:
        if tensor.name in inputs:
            check_weight(inputs[tensor.name], tensor.data_type, tuple(tensor.dims), "the initializer")
        elif model.ir_version < 4:
            _invalid(f"initializer {tensor.name!r} is no graph input, which IR version {model.ir_version} wants")


def check_declaration(value: ValueInfoProto) -> None:
    """Every graph input and output declares a tensor type that the device computes with."""
    kind = value.type.WhichOneof("value")
    if kind is None:
        _invalid(f"{value.name!r} has no type")
    if kind != "tensor_type":
        raise OnnxifiError(Status.UNSUPPORTED_DATATYPE, f"{value.name!r}: {kind.removesuffix('_type')}s are no tensors")
    code = value.type.tensor_type.elem_type
    if code == TensorProto.UNDEFINED or code not in TensorProto.DataType.values():
        _invalid(f"{value.name!r}: element type {code} does not exist")
    if code not in ELEMENT_TYPES and code not in PACKED:
        raise OnnxifiError(Status.UNSUPPORTED_DATATYPE, f"{value.name!r}: {type_name(code)} is not supported")
    for dim in value.type.tensor_type.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value < 0:
            _invalid(f"{value.name!r}: dimension {dim.dim_value}")


def check_bindable(value: ValueInfoProto) -> None:
    """Bound tensors have elements (else UNSUPPORTED_SHAPE) and a descriptor type (else UNSUPPORTED_DATATYPE)."""
    code = value.type.tensor_type.elem_type
    if code not in set(DataType):
        raise OnnxifiError(Status.UNSUPPORTED_DATATYPE, f"{value.name!r}: descriptors have no {type_name(code)}")
    if 0 in (declared_dims(value) or ()):
        raise OnnxifiError(Status.UNSUPPORTED_SHAPE, f"{value.name!r}: tensors without elements cannot be bound")


def check_weight(value: ValueInfoProto, code: int, shape: tuple[int, ...], what: str) -> None:
    """A static input's type and shape are those that its graph input declares."""
    declared = value.type.tensor_type.elem_type
    if code != declared:
        raise OnnxifiError(
            Status.MISMATCHING_DATATYPE,
            f"{value.name!r} is declared as {type_name(declared)}, {what} is {type_name(code)}",
        )
    dims = declared_dims(value)
    if dims is not None and not fits(dims, shape):
        raise OnnxifiError(Status.MISMATCHING_SHAPE, f"{value.name!r} is declared as {dims}, {what} is {list(shape)}")


def fits(dims: Sequence[int | str | None], shape: Sequence[int]) -> bool:
    """Whether a shape has the declared rank and sizes; symbols and unknown dimensions fit any size."""
    return len(dims) == len(shape) and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(dims, shape, strict=True)
    )


def check_graph(graph: GraphProto, scope: Scope, outer: frozenset[str], depth: int) -> None:
    """Names are produced before they are read, and once; in the graphs inside nodes, too."""
    if depth > MAX_DEPTH:
        _invalid("graphs inside nodes nest too deep")
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {sparse.values.name for sparse in graph.sparse_initializer}
    defined = set(own)
    for index, node in enumerate(graph.node):
        label = f"node {node.name or index!r} ({node.op_type})"
        check_text((node.op_type, node.domain, *node.input, *node.output))
        for name in node.input:
            if name and name not in defined and name not in outer:
                _invalid(f"{label} reads {name!r} before anything produces it")
        check_node(node, label, scope)
        for inner in nested_graphs(node):
            check_graph(inner, scope, outer | defined, depth + 1)
        for name in node.output:
            if name in defined:
                _invalid(f"{label} produces {name!r} once more")
            if name:
                defined.add(name)
    for value in graph.output:
        if value.name not in defined and value.name not in outer:
            _invalid(f"graph output {value.name!r} is produced by nothing")


def check_node(node: NodeProto, label: str, scope: Scope) -> None:
    """A node is of an operator set that the model imports, and has the operands and attributes of its definition."""
    if not node.op_type:
        _invalid(f"{label} has no operator")
    check_text(attribute.name for attribute in node.attribute)
    names = [attribute.name for attribute in node.attribute]
    if len(set(names)) != len(names) or "" in names:
        _invalid(f"{label} has an attribute twice or without a name")
    domain = domain_of(node)
    if (domain, node.op_type) in scope.local:
        return
    version = scope.versions.get(domain)
    if version is None:
        _invalid(f"{label}: the model does not import operator set {domain or 'ai.onnx'!r}")
    schema = schema_of(domain, node.op_type, version)
    if schema is None:
        return  # whether the device knows it is another question
    used = max((place for place, name in enumerate(node.input, 1) if name), default=0)  # those behind are left out
    _check_count(label, "inputs", used, schema.inputs)
    _check_count(label, "outputs", len(node.output), schema.outputs)
    missing = schema.required.difference(names)
    if missing:
        _invalid(f"{label}: attribute {min(missing)} is required")
    for attribute in list(node.attribute):
        wanted = schema.attributes.get(attribute.name)
        if wanted is not None:
            check_attribute(attribute, wanted, label)
        elif scope.lenient:
            node.attribute.remove(attribute)
        else:
            _invalid(f"{label}: attribute {attribute.name} is not defined in operator set {version}")


def check_attribute(attribute: AttributeProto, wanted: int, label: str) -> None:
    """An attribute has the type of the operator's definition, and a value of that type."""
    if attribute.ref_attr_name:
        _invalid(f"{label}: attribute {attribute.name} refers to a function's attribute outside of a function")
    if attribute.type not in (wanted, AttributeProto.UNDEFINED):
        name = AttributeProto.AttributeType.Name
        given = name(attribute.type) if attribute.type in AttributeProto.AttributeType.values() else attribute.type
        _invalid(f"{label}: attribute {attribute.name} must be of type {name(wanted)}, is {given}")
    member = _MEMBERS.get(wanted)
    if member in ("t", "g", "sparse_tensor", "tp") and not attribute.HasField(member):
        _invalid(f"{label}: attribute {attribute.name} has no value")


def _check_count(label: str, kind: str, count: int, limits: tuple[int, int]) -> None:
    low, high = limits
    if not low <= count <= high:
        _invalid(f"{label}: {low} to {high} {kind} are defined, it has {count}")


RULES: tuple[Callable[..., object], ...] = (
    check_frame,
    check_versions,
    check_signature,
    check_declaration,
    check_bindable,
    check_weight,
    check_graph,
    check_node,
    check_attribute,
)
"""The rules in the order of the guide, which has their docstrings."""
