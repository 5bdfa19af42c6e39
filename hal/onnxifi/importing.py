"""Import of ONNX graphs with ONNXIFI's additions: later shapes, and tensors that are quantised outside the graph."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import NodeProto

from npusim.compiler.pipeline import compile_traced
from npusim.dtypes import DType
from npusim.frontends.onnx.importer import Importer
from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.registry import Handler
from npusim.frontends.onnx.scope import Scope, Value
from npusim.frontends.onnx.signature import DeclaredShapeError
from npusim.frontends.onnx.source import Model
from npusim.graph import Graph, Tensor
from npusim.hw.config import Config
from npusim.ops.budget import Budget
from npusim.program import Program

from .quantization import Quantization

UNROLLED = frozenset({"RNN", "GRU", "LSTM"})
"""Operators that become a chain of steps."""

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Outside:
    """Tensors by name whose external form differs from the declaration of the graph."""

    weights: Mapping[str, Quantization] = field(default_factory=dict)
    inputs: Mapping[str, Quantization] = field(default_factory=dict)
    outputs: Mapping[str, Quantization] = field(default_factory=dict)


NOTHING = Outside()


class OnnxifiImporter(Importer):
    """The importer for models of ONNXIFI clients.

    ``decomposed``: nodes that become several operators. The ``origin`` of each operator is the number of its node.
    """

    def __init__(
        self, model: Model, config: Config, input_shapes: Shapes | None, outside: Outside, bind: Mapping[str, Any]
    ) -> None:
        super().__init__(model, input_shapes, bind, budget=Budget.of(config))
        self._outside = outside
        self._numbers = itertools.count()

    def _import_node(self, node: NodeProto, name: str, needed: set[str], scope: Scope) -> Sequence[Value]:
        if not scope.depth:
            self.builder.origin = next(self._numbers)
        return super()._import_node(node, name, needed, scope)

    def _define_inputs(self, scope: Scope) -> None:
        super()._define_inputs(scope)
        for name, quantization in self._outside.inputs.items():
            tensor = scope.values.get(name)
            if isinstance(tensor, Tensor):
                # The input becomes the integers in the client's memory; the model continues with floats.
                tensor_type, tensor.dtype = tensor.dtype, quantization.dtype
                scope.values[name] = self._dequantized(tensor, quantization, tensor_type)

    def _define_initializers(self, scope: Scope, needed: set[str]) -> None:
        super()._define_initializers(scope, needed)
        for name, quantization in self._outside.weights.items():
            tensor = scope.values.get(name)
            if isinstance(tensor, Tensor):
                scope.values[name] = self._dequantized(tensor, quantization, DType.FLOAT32)

    def _dequantized(self, tensor: Tensor, quantization: Quantization, to: DType) -> Tensor:
        scale, zero = self._parameters(tensor, quantization)
        return self.builder.add("dequantize", [tensor, scale, zero], {"to": to}, f"{tensor.name}/dequantize")

    def _parameters(self, tensor: Tensor, quantization: Quantization) -> tuple[Tensor, Tensor]:
        scales, biases = quantization.arrays(tensor.shape)
        return (
            self.builder.const(np.asarray(scales, np.float32), f"{tensor.name}/scale"),
            self.builder.const(np.asarray(biases, np.int32), f"{tensor.name}/zero"),
        )

    def _contradicted(self, problems: Sequence[str]) -> None:
        raise DeclaredShapeError(problems[0])  # the specification has a status for it

    def _outputs(self, scope: Scope) -> list[Tensor]:
        return [self._quantized(tensor) for tensor in super()._outputs(scope)]

    def _quantized(self, tensor: Tensor) -> Tensor:
        quantization = self._outside.outputs.get(tensor.name)
        if quantization is None:
            return tensor
        scale, zero = self._parameters(tensor, quantization)
        name = tensor.name
        self.builder.rename(tensor, f"{name}/float")
        result = self.builder.add("quantize", [tensor, scale, zero], {"to": quantization.dtype}, f"{name}/quantize")
        self.builder.rename(result, name, reserved=True)
        return result

    def _handle(self, handler: Handler, node: Node) -> Sequence[Value]:
        if node.op_type in UNROLLED:
            self.decomposed.append((node.name, node.op_type))
        return super()._handle(handler, node)


def import_graph(
    model: Model,
    config: Config,
    input_shapes: Shapes | None = None,
    outside: Outside = NOTHING,
    bind: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Graph, bool]:
    """Return (graph, whether it has decomposed nodes). Raises like ``load``, and UsageError for impossible shapes.

    The model is not modified. ``bind``: values of inputs.
    """
    own = Model(model.proto, None, dict(model.blobs))  # an importer empties its model
    importer = OnnxifiImporter(own, config, input_shapes, outside, bind)
    return importer.run(), bool(importer.decomposed)


def compile_nodes(graph: Graph, config: Config) -> tuple[Program, bool]:
    """Return (program, whether a node became several device operators). Raises like ``compile_graph``."""
    program, operators = compile_traced(graph, config)
    return program, _repeated(operators)


def _repeated(operators: Iterable[frozenset[int]]) -> bool:
    counts = Counter(node for nodes in operators for node in nodes)
    return any(count > 1 for count in counts.values())
