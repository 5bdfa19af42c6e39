"""Operators of onnxruntime's optimised files: a convolution or product with an activation, images with channels last
or in blocks.

In the graph, an image with channels in blocks has its channels first. Only the weights are stored in blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.operators.elementwise import PARAMETERS, PLAIN_UNARY
from npusim.frontends.onnx.operators.matrix import convolve, gemm
from npusim.frontends.onnx.operators.pooling import global_pool, pool
from npusim.frontends.onnx.operators.quantised import qlinear_conv
from npusim.frontends.onnx.operators.resizing import COORDINATES, MODES, Rule, resize, scaled_axes
from npusim.frontends.onnx.registry import BLOCKED, MICROSOFT, handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Unary

_STANDARD = 13
"""The operator set whose attributes these operators have."""


def _activated(node: Node, x: Tensor, parameters: list[float]) -> Tensor:
    """The function that attribute ``activation`` names, of x."""
    name = node.text_attr("activation", "")
    if not name:
        return x
    if name in PLAIN_UNARY:
        return node.unary(PLAIN_UNARY[name], x)
    if name == "Clip":
        low, high = parameters if len(parameters) == 2 else (-math.inf, math.inf)
        return node.unary(Unary.CLIP, x, low, high)
    if name not in PARAMETERS:
        node.refuse(f"activation {name!r} is not supported")
    fn, *known = PARAMETERS[name]
    defaults = [entry[1] for entry in known if entry is not None]
    given = [*parameters[: len(defaults)], *defaults[len(parameters) :]]
    return node.unary(fn, x, *given)


@handles("FusedConv", "NhwcFusedConv", domain=MICROSOFT)
def fused_conv(node: Node) -> Tensor:
    """Import FusedConv and NhwcFusedConv: a convolution, the sum with an image, an activation."""

    def compute(x: Tensor, added: Tensor | None) -> Tensor:
        y = convolve(node, x, node.input(1), node.optional(2))
        y = y if added is None else node.binary(Binary.ADD, y, added)
        return _activated(node, y, node.floats_attr("activation_params") or [])

    if node.op_type == "FusedConv":
        return compute(node.input(0), node.optional(3))
    added = node.optional(3)
    return around(node, node.input(0), lambda x: compute(x, added and _to_front(node, added)))


@handles("FusedGemm", domain=MICROSOFT)
def fused_gemm(node: Node) -> Tensor:
    """Import FusedGemm: a product and an activation."""
    names = ("alpha", "beta", "gamma")
    given = [node.float_attr(f"activation_{name}", 0.0) for name in names if node.has(f"activation_{name}")]
    node.ignore(*(f"activation_{name}" for name in names))
    return _activated(node, gemm(node), given)


def _to_front(node: Node, x: Tensor) -> Tensor:
    last = len(x.shape) - 1
    return node.transpose(x, (0, last, *range(1, last)))


def around(node: Node, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """``compute`` on an image with its channels first, of an image with its channels last."""
    y = compute(_to_front(node, x))
    return node.transpose(y, (0, *range(2, len(y.shape)), 1))


@handles("NhwcConv", domain=MICROSOFT)
def nhwc_conv(node: Node) -> Tensor:
    """Import NhwcConv: a convolution of an image with its channels last."""
    return around(node, node.input(0), lambda x: convolve(node, x, node.input(1), node.optional(2)))


@handles("QLinearConv", domain=MICROSOFT)
def qlinear_conv_layouts(node: Node) -> Tensor:
    """Import QLinearConv of images with their channels first or last."""
    if not node.int_attr("channels_last", 0):
        return qlinear_conv(node)
    rest = node.inputs[1:]
    return around(node, node.input(0), lambda x: qlinear_conv(node.acting_as("QLinearConv", [x, *rest], _STANDARD)))


@handles("NhwcMaxPool", domain=MICROSOFT)
def nhwc_max_pool(node: Node) -> Tensor:
    """Import NhwcMaxPool: the maxima of an image with its channels last."""
    return around(node, node.input(0), lambda x: pool(node, x, "max"))


@handles("ReorderInput", domain=BLOCKED)
def reorder_input(node: Node) -> Tensor:
    """Import ReorderInput: channels are rounded up to whole blocks."""
    x = node.input(0)
    x = _to_front(node, x) if node.int_attr("channels_last", 0) else x
    missing = -x.shape[1] % node.channel_block
    if not missing:
        return x
    none = (0,) * len(x.shape)
    return node.add("pad", x, before=none, after=(0, missing, *none[2:]), mode="constant", value=0.0)


@handles("ReorderOutput", domain=BLOCKED)
def reorder_output(node: Node) -> Tensor:
    """Import ReorderOutput: the channels that the model has."""
    x, channels = node.input(0), node.int_attr("channels")
    if not 0 < channels <= x.shape[1]:
        node.damaged(f"attribute channels must be from 1 to {x.shape[1]}, is {channels}")
    x = node.slice(x, 1, 0, channels)
    return node.transpose(x, (0, *range(2, len(x.shape)), 1)) if node.int_attr("channels_last", 0) else x


@handles("Conv", domain=BLOCKED)
def blocked_conv(node: Node) -> Tensor:
    """Import Conv with weights in blocks: a convolution, the sum with an image, an activation."""
    y = convolve(node, node.input(0), _unblocked(node, node.input(1)), node.optional(2))
    added = node.optional(3)
    y = y if added is None else node.binary(Binary.ADD, y, added)
    return _activated(node, y, node.floats_attr("activation_params") or [])


def _unblocked(node: Node, w: Tensor) -> Tensor:
    """Weights with their channels in order. Blocks of output channels come last, after those of input channels."""
    block = node.channel_block
    out, within, *kernel = w.shape
    if out % block or not kernel:
        node.damaged(f"weights {list(w.shape)} are not whole blocks of {block} channels")
    taps = range(len(kernel))
    # Few input channels, and those of a depthwise convolution, are not in blocks.
    if within < block:
        blocks = node.reshape(w, (out // block, within, *kernel, block))
        return node.reshape(node.transpose(blocks, (0, len(kernel) + 2, 1, *(2 + tap for tap in taps))), w.shape)
    if within % block:
        node.damaged(f"weights {list(w.shape)} are not whole blocks of {block} channels")
    blocks = node.reshape(w, (out // block, within // block, *kernel, block, block))
    last = len(kernel) + 2
    return node.reshape(node.transpose(blocks, (0, last + 1, 1, last, *(2 + tap for tap in taps))), w.shape)


@handles("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", domain=BLOCKED)
def blocked_pool(node: Node) -> Tensor:
    """Import pools of images with channels in blocks."""
    if node.op_type.startswith("Global"):
        return global_pool(node)
    node.ignore("storage_order")
    if node.op_type == "MaxPool":
        return pool(node, node.input(0), "max")
    return pool(node, node.input(0), "average", bool(node.int_attr("count_include_pad", 0)))


@handles("Upsample", domain=BLOCKED)
def blocked_upsample(node: Node) -> Tensor:
    """Import Upsample by whole factors."""
    x, mode = node.input(0), node.text_attr("mode", "nearest")
    coordinates = node.text_attr("coordinate_transformation_mode", "asymmetric")
    if mode not in MODES or coordinates not in COORDINATES:
        node.refuse(f"mode {mode!r} and coordinate_transformation_mode {coordinates!r} are not supported")
    scales = [float(scale) for scale in node.ints_attr("scales") or ()]
    plan = scaled_axes(node, x.shape, list(range(len(x.shape))), scales)
    return resize(node, x, plan, Rule(mode, coordinates, "floor", 0.0, False, False))
