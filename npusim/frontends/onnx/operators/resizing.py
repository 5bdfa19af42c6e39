"""Resize and Upsample as one ``resample`` per axis, with tables of source positions and weights computed here."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.registry import handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary
from npusim.ops.base import Array

MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
SIMPLE = "simple"
"""The rounding before models could select it: the next pixel when shrinking, otherwise the previous one."""
HALF_WAY = 1e-6
"""A position that is nearer than this to the middle between two neighbours counts as the middle, as in onnxruntime."""


@dataclass(frozen=True)
class Rule:
    """Mapping of positions and weights of neighbours, as in onnxruntime except for align_corners."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    exclude_outside: bool
    antialias: bool


@dataclass(frozen=True)
class ResizedAxis:
    """One dimension: sizes before and after, scale, and region of interest.

    ``is_sized``: the new size is given, and the scale follows from it.
    """

    size: int
    out: int
    scale: float
    start: float = 0.0
    end: float = 1.0
    is_sized: bool = False


def source_positions(rule: Rule, axis: ResizedAxis) -> Array:
    """The position of each output index in the input, as float32."""
    # In single precision and in the order of onnxruntime, because the last bit may determine the nearest neighbour.
    x, scale = np.arange(axis.out, dtype=np.float32), np.float32(axis.scale)
    half, last = np.float32(0.5), np.float32(axis.size - 1)
    if rule.coordinates == "half_pixel_symmetric":
        adjustment = np.float32(axis.out) / (scale * np.float32(axis.size))
        offset = float(np.float32(axis.size) / 2 * (np.float32(1) - adjustment))
        return (offset + (x.astype(np.float64) + 0.5) / float(scale) - 0.5).astype(np.float32)
    if rule.coordinates == "align_corners":
        # As in the reference of the standard: the length is scale * size, which need not be an integer. onnxruntime
        # uses the number of elements, and fails the standard's own examples of downsampling.
        length = np.float32(axis.out if axis.is_sized else axis.scale * axis.size)
        return x * last / (length - np.float32(1)) if axis.out > 1 and length != 1 else np.zeros_like(x)
    if rule.coordinates == "asymmetric":
        return x / scale
    if rule.coordinates == "tf_crop_and_resize":
        start, end = np.float32(axis.start), np.float32(axis.end)
        if axis.out == 1:
            return np.full(1, half * (start + end) * last)
        return start * last + x * (end - start) * last / np.float32(axis.out - 1)
    if rule.coordinates == "pytorch_half_pixel" and axis.out == 1:
        return np.zeros_like(x)
    return (x + half) / scale - half


def _nearest(rule: Rule, position: Array, scale: float) -> Array:
    """The nearest neighbour as an integer position, which may be outside."""
    if rule.nearest == SIMPLE:
        return np.ceil(position) if scale < 1 else np.floor(position)
    if rule.nearest.startswith("round"):
        half = position.astype(np.float64) - 0.5
        half = np.where(np.abs(half - np.rint(half)) < HALF_WAY, np.rint(half), half)
        return np.ceil(half) if rule.nearest == "round_prefer_floor" else np.floor(half + 1)
    return np.floor(position) if rule.nearest == "floor" else np.ceil(position)


def _cubic(distance: Array, a: float) -> Array:
    """The cubic convolution kernel with coefficient a."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def tables(rule: Rule, axis: ResizedAxis) -> tuple[Array, Array]:
    """(index INT32 [out, taps], weight FLOAT32 [out, taps]). Index -1: no contribution."""
    position = source_positions(rule, axis)
    if rule.antialias and axis.out == axis.size:  # only positions outside change
        index, weight = np.arange(axis.size)[:, None], np.ones((axis.size, 1))
    elif rule.mode == "nearest":
        index = _nearest(rule, position, axis.scale)[:, None]
        weight = np.ones_like(index)
    else:
        reach = 1 if rule.mode == "linear" else 2
        shrink = min(axis.scale, 1.0) if rule.antialias else 1.0
        # Shrinking with antialias widens the filter by the same factor, so that every input pixel contributes.
        first = math.floor(-reach / shrink) + 1
        base = np.floor(position)
        offsets = np.arange(first, 2 - first if shrink < 1 else reach + 1)
        index = base[:, None] + offsets
        distance = (index - position[:, None]) * shrink
        weight = np.maximum(1 - np.abs(distance), 0) if rule.mode == "linear" else _cubic(distance, rule.cubic)
        if rule.antialias:
            weight = weight / weight.sum(axis=1, keepdims=True)
    if rule.exclude_outside:
        # The weight of pixels outside is moved to those inside. Without the flag the edge pixel replaces them (clip
        # below).
        weight = np.where((index >= 0) & (index < axis.size), weight, 0.0)
        weight = weight / weight.sum(axis=1, keepdims=True)
    index = np.clip(index, 0, axis.size - 1).astype(np.int32)
    if rule.coordinates == "tf_crop_and_resize":
        outside = (position < 0) | (position > axis.size - 1)
        index = np.where(outside[:, None], np.int32(-1), index)
    return index, weight.astype(np.float32)


def resize(node: Node, x: Tensor, axes: dict[int, ResizedAxis], rule: Rule, extrapolation: float = 0.0) -> Tensor:
    """Resample x along each of the axes."""
    # Resampling is linear, and taps outside add nothing: subtract the value before, and add it again after.
    if extrapolation:
        x = node.binary(Binary.SUB, x, node.like(extrapolation, x))
    # As in onnxruntime, an image that already has the requested size is not resampled.
    same_sizes = rule.coordinates != "align_corners" and all(axis.out == axis.size for axis in axes.values())
    for position, axis in sorted(axes.items()):
        if axis.out == 0 or axis.size == 0:
            node.refuse(f"dimension {position} is empty")
        if same_sizes or (axis.out == axis.size and axis.scale == 1.0):
            continue
        reach = 4 if not rule.antialias else math.ceil(4 / min(axis.scale, 1.0)) + 2
        node.limit(8 * axis.out * reach)  # several arrays of doubles per entry
        index, weight = tables(rule, axis)
        same = index.shape[1] == 1 and np.array_equal(index[:, 0], np.arange(axis.size))
        if not same or not bool(np.all(weight == 1)):
            x = node.add("resample", x, node.const(index), node.const(weight), axis=position)
    return node.binary(Binary.ADD, x, node.like(extrapolation, x)) if extrapolation else x


def _read_rule(node: Node) -> Rule:
    mode = node.text_attr("mode", "nearest")
    coordinates = node.text_attr("coordinate_transformation_mode", "half_pixel" if node.opset >= 11 else "asymmetric")
    nearest = node.text_attr("nearest_mode", "round_prefer_floor" if node.opset >= 11 else "floor")
    for name, value, allowed in (
        ("mode", mode, MODES),
        ("coordinate_transformation_mode", coordinates, COORDINATES),
        ("nearest_mode", nearest, NEAREST),
    ):
        if value not in allowed:
            node.refuse(f"attribute {name} must be one of {', '.join(allowed)}, is {value!r}")
    return Rule(
        mode,
        coordinates,
        nearest,
        node.float_attr("cubic_coeff_a", -0.75),
        bool(node.int_attr("exclude_outside", 0)),
        bool(node.int_attr("antialias", 0)) and mode != "nearest",
    )


def scaled_axes(node: Node, shape: tuple[int, ...], axes: list[int], scales: list[float]) -> dict[int, ResizedAxis]:
    """Axes with sizes computed from scales."""
    if len(scales) != len(axes) or any(not math.isfinite(s) or s <= 0 for s in scales):
        node.damaged(f"scales {scales} must be positive, one for each of {len(axes)} dimensions")
    pairs = zip(axes, scales, strict=True)
    # In single precision, as in shape inference.
    return {a: ResizedAxis(shape[a], math.floor(np.float32(shape[a]) * np.float32(scale)), scale) for a, scale in pairs}


def _sized_axes(node: Node, shape: tuple[int, ...], axes: list[int], sizes: list[int]) -> dict[int, ResizedAxis]:
    """Axes with given sizes, which a policy may change to keep the aspect ratio."""
    policy = node.text_attr("keep_aspect_ratio_policy", "stretch")
    if len(sizes) != len(axes) or min(sizes, default=1) < 0 or any(shape[axis] == 0 for axis in axes):
        node.damaged(f"sizes {sizes} must be >= 0, one for each of {len(axes)} dimensions of {list(shape)}")
    ratios = [size / shape[axis] for size, axis in zip(sizes, axes, strict=True)]
    if policy != "stretch":
        if policy not in ("not_larger", "not_smaller"):
            node.damaged(f"keep_aspect_ratio_policy {policy!r} must be stretch, not_larger or not_smaller")
        ratio = min(ratios) if policy == "not_larger" else max(ratios)
        ratios = [ratio] * len(axes)
        sizes = [math.floor(shape[axis] * ratio + 0.5) for axis in axes]
    return {
        axis: ResizedAxis(shape[axis], size, ratio, is_sized=True)
        for axis, size, ratio in zip(axes, sizes, ratios, strict=True)
    }


@handles(
    "Resize",
    since=11,
    limits=[
        "roi, scales and sizes are constants",
        "with scales, align_corners takes scale times size for the length, as the standard's reference does; "
        "onnxruntime takes the number of elements",
    ],
)
def resize_modern(node: Node) -> Tensor:
    """Import Resize from operator set 11 on; roi, scales and sizes are constants."""
    x = node.input(0)
    rule = _read_rule(node)
    axes = node.normal_axes(node.ints_attr("axes") or range(len(x.shape)), len(x.shape))
    sizes = node.int_values(3) if node.optional(3) is not None and node.input(3).size else None
    node.text_attr("keep_aspect_ratio_policy", "stretch")
    if sizes is not None:
        plan = _sized_axes(node, x.shape, axes, sizes)
    else:
        plan = scaled_axes(node, x.shape, axes, [float(value) for value in node.value(2).reshape(-1)])
    if rule.coordinates == "tf_crop_and_resize":
        roi = [float(value) for value in node.value(1).reshape(-1)]
        if len(roi) != 2 * len(axes):
            node.damaged(f"roi {roi} must have two entries for each of {len(axes)} dimensions")
        plan = {axis: replace(plan[axis], start=roi[i], end=roi[i + len(axes)]) for i, axis in enumerate(axes)}
    return resize(node, x, plan, rule, node.float_attr("extrapolation_value", 0.0))


@handles("Resize", "Upsample", limits=["scales are constants"])
def resize_by_scales(node: Node) -> Tensor:
    """Upsample, and Resize of operator set 10: positions are x / scale."""
    x = node.input(0)
    given = node.floats_attr("scales")
    scales = given if given is not None else [float(value) for value in node.value(1).reshape(-1)]
    rule = _read_rule(node)
    plan = scaled_axes(node, x.shape, list(range(len(x.shape))), scales)
    return resize(node, x, plan, Rule(rule.mode, "asymmetric", SIMPLE, -0.75, False, False))
