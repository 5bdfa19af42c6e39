"""Integer models converted so that other implementations compute them exactly on every CPU.

On CPUs without dot-product instructions, onnxruntime multiplies 8-bit numbers by int8 weights with instructions that
add two products in 16 bits and saturate. It widens uint8 by uint8 first, and that result is exact everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# For each operator: the positions of its pairs (value, zero point), and of its result's zero point, if any.
_PAIRS: Mapping[str, tuple[Sequence[tuple[int, int]], int | None]] = {
    "QLinearConv": (((0, 2), (3, 5)), 7),
    "QLinearMatMul": (((0, 2), (3, 5)), 7),
    "MatMulInteger": (((0, 2), (1, 3)), None),
}
_SHIFT = 128


def unsigned(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with every int8 operand and result of its quantised products as uint8, with adapted zero points.

    The function is the same because (q + 128) - (zero + 128) is q - zero. Zero points must be initializers.
    """
    shifted = onnx.ModelProto()
    shifted.CopyFrom(model)
    del shifted.graph.node[:]
    builder = _Unsigned(shifted.graph)
    for node in model.graph.node:
        builder.add(node)
    return shifted


class _Unsigned:
    """Appends nodes to a graph, those of _PAIRS in uint8."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._stored = {tensor.name: tensor for tensor in graph.initializer}
        self._count = 0

    def add(self, node: onnx.NodeProto) -> None:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        pairs, result_zero = _PAIRS.get(node.op_type, ((), None))
        for value, zero in pairs:
            if self._is_signed(node.input[zero]):
                copy.input[value], copy.input[zero] = (self._moved(node.input[place]) for place in (value, zero))
        if result_zero is None or not self._is_signed(node.input[result_zero]):
            self._graph.node.append(copy)
            return
        copy.input[result_zero] = self._moved(node.input[result_zero])
        copy.output[0] = self._name()
        self._graph.node.append(copy)
        self._move(copy.output[0], -_SHIFT, TensorProto.INT8, node.output[0])

    def _is_signed(self, zero: str) -> bool:
        return bool(self._stored[zero].data_type == TensorProto.INT8)

    def _moved(self, name: str) -> str:
        """Return the name of the int8 value ``name`` + 128 in uint8."""
        target = self._name()
        if name in self._stored:
            array = numpy_helper.to_array(self._stored[name]).astype(np.int16) + _SHIFT
            self._graph.initializer.append(numpy_helper.from_array(array.astype(np.uint8), target))
        else:
            self._move(name, _SHIFT, TensorProto.UINT8, target)
        return target

    def _move(self, name: str, by: int, dtype: int, target: str) -> None:
        """Add nodes for ``target`` = ``name`` + by in another type."""
        wide, distance, moved = (self._name() for _ in range(3))
        self._graph.initializer.append(numpy_helper.from_array(np.array(by, np.int32), distance))
        self._graph.node.extend(
            (
                helper.make_node("Cast", [name], [wide], to=TensorProto.INT32),
                helper.make_node("Add", [wide, distance], [moved]),
                helper.make_node("Cast", [moved], [target], to=dtype),
            )
        )

    def _name(self) -> str:
        self._count += 1
        return f"unsigned_{self._count}"
