"""Scopes of names during import, and the set of needed nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

from npusim.errors import ModelError
from npusim.frontends.operation import Poison
from npusim.graph import Tensor


@dataclass(frozen=True, eq=False, slots=True)
class Listed:
    """A sequence whose tensors are known one by one."""

    items: tuple[Tensor, ...]


class Absent:
    """An optional value that is absent."""


Value = Tensor | Poison | Listed | Absent | None
"""None is an optional parameter of a function that the caller omits."""


@dataclass
class Scope:
    """The names that are visible to the nodes of one graph or function body."""

    opsets: Mapping[str, int]
    parent: Scope | None = None
    prefix: str = ""
    depth: int = 0
    attributes: Mapping[str, AttributeProto] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    calls: tuple[str, ...] = ()
    is_definition: bool = False
    """Whether this is the body of an operator that ONNX defines by other operators."""

    def find(self, name: str) -> Value:
        """The value of a name in this scope or an enclosing one. Raises KeyError."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        raise KeyError(name)

    def result(self, name: str, where: str) -> Value:
        """The value of an output of this body. Raises ModelError if nothing produces it."""
        try:
            return self.find(name)
        except KeyError:
            raise ModelError(f"{where}: output {name!r} of its body is not produced") from None

    def define(self, name: str, value: Value, where: str) -> None:
        """Bind a name to a value. Raises ModelError, with ``where``, if the name is defined already."""
        if name in self.values:
            raise ModelError(f"{where}: the name {name!r} is defined twice")
        self.values[name] = value


def domain_of(proto: NodeProto | FunctionProto) -> str:
    """The domain of an operator set; the standard domain is the empty string."""
    return "" if proto.domain == "ai.onnx" else proto.domain


def opset_imports(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Operator set versions by domain."""
    return {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in imports}


def nested_graphs(node: NodeProto) -> list[GraphProto]:
    """The graphs in the attributes of a node."""
    return [a.g for a in node.attribute if a.type == AttributeProto.GRAPH] + [
        graph for a in node.attribute if a.type == AttributeProto.GRAPHS for graph in a.graphs
    ]


def names_read(node: NodeProto) -> set[str]:
    """All names that a node, or a graph inside it, reads."""
    names = {name for name in node.input if name}
    for graph in nested_graphs(node):
        # A graph inside may use a value from outside as its output without reading it in a node.
        names.update(output.name for output in graph.output)
        for inner in graph.node:
            names |= names_read(inner)
    return names


def needed_nodes(nodes: Sequence[NodeProto], outputs: Iterable[str]) -> tuple[list[NodeProto], set[str]]:
    """The nodes that the outputs depend on, in order, and the names that are read."""
    needed = {name for name in outputs if name}
    kept: list[NodeProto] = []
    # One backward pass, because in ONNX each node follows the producers of its inputs.
    for node in reversed(nodes):
        if any(name in needed for name in node.output if name):
            kept.append(node)
            needed |= names_read(node)
    return kept[::-1], needed
