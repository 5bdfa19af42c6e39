"""Operators whose output follows from attributes or shapes alone."""

from __future__ import annotations

import math

import numpy as np

from npusim.dtypes import DType, from_storage
from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.registry import handles
from npusim.frontends.onnx.tensors import element_type
from npusim.graph import Tensor
from npusim.ops.base import Array


@handles("Constant", limits=["sparse and string values are refused"])
def constant(node: Node) -> Tensor:
    """Import Constant."""
    tensor = node.tensor_attr("value")
    if tensor is not None:
        return node.const(*tensor)
    floats, ints = node.floats_attr("value_floats"), node.ints_attr("value_ints")
    if floats is not None:
        return node.const(np.asarray(floats, np.float32))
    if ints is not None:
        return node.const(np.asarray(ints, np.int64))
    if node.has("value_float"):
        return node.const(np.float32(node.float_attr("value_float", 0.0)))
    if not node.has("value_int"):
        node.refuse("a constant must have one of value, value_float(s), value_int(s)")
    return node.const(np.int64(node.int_attr("value_int")))


@handles("ConstantOfShape")
def constant_of_shape(node: Node) -> Tensor:
    """Import ConstantOfShape; the shape must be a constant."""
    tensor = node.tensor_attr("value")
    value, dtype = tensor if tensor is not None else (np.zeros(1, np.float32), DType.FLOAT32)
    if value.size != 1:
        node.damaged(f"attribute value must have one element, has {value.size}")
    shape = node.int_values(0)
    return node.expand(node.const(value.reshape(()), dtype), shape)


@handles("Shape")
def shape(node: Node) -> Tensor:
    """Import Shape as a constant."""
    dims = node.input(0).shape
    # Limits are clamped as in slices: negative ones count from the end.
    return node.const(np.asarray(dims[node.int_attr("start", 0) : node.int_attr("end", len(dims))], np.int64))


@handles("Size")
def size(node: Node) -> Tensor:
    """Import Size as a constant."""
    return node.const(np.int64(node.input(0).size))


@handles("Range")
def sequence(node: Node) -> Tensor:
    """Import Range as a constant."""
    dtype = node.input(0).dtype
    start, limit, delta = (node.scalar_value(index) for index in range(3))
    if delta == 0:
        node.damaged("delta must not be 0")
    count = max(math.ceil((limit - start) / delta), 0)
    node.limit(count)
    steps: Array = np.arange(count, dtype=np.float64 if dtype.is_float else np.int64)
    return node.const(steps * delta + start, dtype)


@handles("EyeLike")
def eye_like(node: Node) -> Tensor:
    """Import EyeLike as a constant."""
    x = node.input(0)
    dtype = element_type(node.int_attr("dtype"), node.name, "EyeLike") if node.has("dtype") else x.dtype
    if len(x.shape) != 2:
        node.damaged(f"the input must be a matrix, is {list(x.shape)}")
    node.limit(x.size)
    return node.const(np.eye(*x.shape, node.int_attr("k", 0)), dtype)


@handles("Identity")
def identity(node: Node) -> Tensor:
    """Import Identity: the input itself."""
    return node.input(0)


@handles("Dropout", limits=["the host executes training mode"])
def dropout(node: Node) -> list[Tensor | None]:
    """Import Dropout in inference mode: the input itself, and a mask of true."""
    node.ignore("ratio", "seed")
    if (
        node.optional(2) is not None
        and bool(node.value(2).any())
        and (node.optional(1) is None or node.scalar_value(1) != 0)
    ):
        node.leave_to_host("it drops elements at random in training mode")
    x = node.input(0)
    if not node.wants(1):
        return [x, None]
    ones = node.const(np.ones((), np.bool_), DType.BOOL if node.opset >= 10 else x.dtype)
    return [x, node.expand(ones, x.shape)]


@handles("NonZero", limits=["the input must be a constant"])
def non_zero(node: Node) -> Tensor:
    """Import NonZero of a constant."""
    node.limit(node.input(0).size * max(len(node.input(0).shape), 1))
    value = from_storage(node.value(0), node.input(0).dtype)
    return node.const(np.asarray(np.nonzero(value), np.int64))


@handles("BlackmanWindow", "HammingWindow", "HannWindow", limits=["the size must be a constant"])
def window(node: Node) -> Tensor:
    """Import a window function of constant length, such as HannWindow, as a constant."""
    count = int(node.scalar_value(0))
    periodic = node.int_attr("periodic", 1)
    dtype = element_type(node.int_attr("output_datatype", 1), node.name, node.op_type)
    node.limit(count)
    terms = {
        "BlackmanWindow": (0.42, 0.5, 0.08),
        "HammingWindow": (25 / 46, 21 / 46, 0.0),
        "HannWindow": (0.5, 0.5, 0.0),
    }[node.op_type]
    phase = 2 * np.pi * np.arange(count) / max(count if periodic else count - 1, 1)
    return node.const(terms[0] - terms[1] * np.cos(phase) + terms[2] * np.cos(2 * phase), dtype)
