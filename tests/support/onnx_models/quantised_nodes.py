"""The nodes of a quantised model, each as a model of its own between tensors of quantised integers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, shape_inference

from tests.support.onnx_models.oracle import runtime_outputs

Array = npt.NDArray[Any]
QUANTISED = {TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16}


class QuantisedNode(NamedTuple):
    """One output of quantised integers: the model that computes it from others, with the arrays of onnxruntime."""

    name: str
    model: onnx.ModelProto
    inputs: dict[str, Array]
    expected: Array


def quantised_nodes(model: onnx.ModelProto, inputs: dict[str, Array]) -> Iterator[QuantisedNode]:
    """Cut a model at the tensors of 8-bit and 16-bit integers that nodes compute.

    ``inputs``: of the model; from these, onnxruntime computes the inputs of each part, without its optimisations.
    """
    inferred = shape_inference.infer_shapes(model)
    graph = inferred.graph
    kinds = {value.name: value for value in (*graph.value_info, *graph.output)}
    maker = {name: node for node in graph.node for name in node.output if name}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    cuts = [name for name in maker if name in kinds and kinds[name].type.tensor_type.elem_type in QUANTISED]
    whole = onnx.ModelProto()
    whole.CopyFrom(inferred)
    known = {value.name for value in graph.output}
    whole.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in cuts if name not in known)
    values = {**inputs, **runtime_outputs(whole, inputs, optimise=False)}
    for cut in cuts:
        needed: list[onnx.NodeProto] = []
        ends: dict[str, None] = {}
        pending, seen = [cut], {cut}
        while pending:
            node = maker[pending.pop()]
            if node in needed:
                continue
            needed.append(node)
            for name in node.input:
                if name in values and name != cut:
                    ends[name] = None
                elif name in maker and name not in seen:
                    seen.add(name)
                    pending.append(name)
        order = [node for node in graph.node if node in needed]
        # A node with several outputs is computed for all of them.
        ends = {name: None for name in ends if maker.get(name) not in needed}
        read = {name for node in order for name in node.input}
        part = helper.make_graph(
            order, cut,
            [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(values[n].dtype), values[n].shape)
             for n in ends],
            [kinds[cut]], [weights[name] for name in sorted(read & weights.keys())],
        )  # fmt: skip
        single = helper.make_model(part, opset_imports=model.opset_import, ir_version=model.ir_version)
        yield QuantisedNode(cut, single, {name: values[name] for name in ends}, np.asarray(values[cut]))
