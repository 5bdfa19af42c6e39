"""The number of channels in a block of onnxruntime's NCHWc layout, which its files do not state."""

from __future__ import annotations

import logging

from onnx import GraphProto

from npusim import _core
from npusim.errors import ModelError
from npusim.frontends.onnx.registry import BLOCKED

_log = logging.getLogger("npusim.frontends.onnx")

SIZES = (8, 16)
"""Channels in a block, on processors without and with vectors of 512 bits."""


def channel_block(graph: GraphProto) -> int:
    """Channels per block in the layout of a graph; 0 if no node uses it.

    onnxruntime rounds channels up to whole blocks. If the rounded sizes allow both numbers, it is the one that
    onnxruntime uses on this machine: such files are for machines like the one that saved them. Raises ModelError for
    sizes that allow neither.
    """
    nodes = [node for node in graph.node if node.domain == BLOCKED]
    if not nodes:
        return 0
    dims = {tensor.name: tensor.dims for tensor in graph.initializer}
    kernels = {node.output[0]: node.input[1] for node in nodes if node.op_type == "Conv" and len(node.input) > 1}
    rounded = {name: dims[kernel][0] for name, kernel in kernels.items() if dims.get(kernel)}
    pairs = [(count, count) for count in rounded.values()]
    for node in nodes:
        if node.op_type == "ReorderOutput" and node.input and node.input[0] in rounded:
            pairs += [(attr.i, rounded[node.input[0]]) for attr in node.attribute if attr.name == "channels"]
    possible = [size for size in SIZES if all(whole == -(-count // size) * size for count, whole in pairs)]
    if not possible:
        raise ModelError(f"the channels of {BLOCKED} operators are not whole blocks of {SIZES[0]} or {SIZES[1]}")
    if len(possible) == 1 or not kernels:
        return possible[0]
    here = SIZES[bool(_core.simd().startswith("avx512"))]
    text = "%s: its channels fit blocks of %d and of %d; the weights are read in blocks of %d, as onnxruntime does here"
    _log.warning(text, graph.name or "model", *SIZES, here)
    return here
