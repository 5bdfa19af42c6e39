"""The number of channels in a block of onnxruntime's NCHWc layout, which its files do not state."""

from __future__ import annotations

import logging

from onnx import GraphProto

from npusim.errors import ModelError
from npusim.frontends.onnx.registry import BLOCKED

_log = logging.getLogger("npusim.frontends.onnx")

SIZES = (8, 16)
"""Channels in a block, on processors without and with vectors of 512 bits."""


def channel_block(graph: GraphProto) -> int:
    """Channels per block in the layout of a graph; 0 if no node uses it.

    onnxruntime rounds channels up to whole blocks, and only reads images of fewer channels than a block without
    blocks. If that allows both numbers, it is the larger one, which servers have. Raises ModelError for sizes that
    allow neither.
    """
    nodes = [node for node in graph.node if node.domain == BLOCKED]
    if not nodes:
        return 0
    dims = {tensor.name: tensor.dims for tensor in graph.initializer}
    blocked = {name for node in nodes if node.op_type != "ReorderOutput" for name in node.output}
    kernels = {node.output[0]: node for node in nodes if node.op_type == "Conv" and len(node.input) > 1}
    rounded = {name: dims[node.input[1]][0] for name, node in kernels.items() if dims.get(node.input[1])}
    pairs = [(count, count) for count in rounded.values()]
    for node in nodes:
        if node.op_type == "ReorderOutput" and node.input and node.input[0] in rounded:
            pairs += [(attr.i, rounded[node.input[0]]) for attr in node.attribute if attr.name == "channels"]
    plain = []
    for name in rounded:
        grouped = any(attr.name == "group" and attr.i != 1 for attr in kernels[name].attribute)
        channels = dims[kernels[name].input[1]][1:2]
        if not grouped and channels and kernels[name].input[0] in blocked:
            pairs.append((channels[0], channels[0]))
        elif not grouped and channels:
            plain.append(channels[0])
    possible = [
        size
        for size in SIZES
        if all(whole == -(-count // size) * size for count, whole in pairs) and all(count < size for count in plain)
    ]
    if not possible:
        raise ModelError(f"the channels of {BLOCKED} operators are not whole blocks of {SIZES[0]} or {SIZES[1]}")
    if len(possible) > 1 and kernels:
        text = "%s: its channels fit blocks of %d and of %d; the weights are read in blocks of %d"
        _log.warning(text, graph.name or "model", *SIZES, possible[-1])
    return possible[-1] if kernels else possible[0]
