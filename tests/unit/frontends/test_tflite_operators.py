"""TFLite operators beside their definitions in numpy, on real numbers: quantised results are within one step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from npusim.frontends import models
from npusim.ops.reference import run

pytest.importorskip("tflite", reason="the extra tflite")

from npusim.frontends.tflite.reader import OperatorRecord, TensorRecord, parse
from npusim.frontends.tflite.tensors import broadcast_parameters, constant
from tests.support.tflite_cases import Case, cases

Array = npt.NDArray[Any]
Definition = Callable[..., Any]


class Node:
    """Options of an operator; ``options`` is the kind of its table."""

    def __init__(self, record: OperatorRecord, results: list[TensorRecord]) -> None:
        self._record = record
        self.shape = results[0].shape
        self.count = len(results)
        self.dilated = record.name.endswith("CONV_2D")

    def __getattr__(self, name: str) -> Any:
        return self._record.options.get(self._record.options.kind, name)

    def bounded(self, y: Array) -> Array:
        low, high = {0: (-math.inf, math.inf), 1: (0, math.inf), 3: (0, 6)}[self.FusedActivationFunction]
        return np.clip(y, low, high)


def windows(node: Node, x: Array, kernel: tuple[int, int], value: float) -> Array:
    """The windows [n, rows, columns, channels, kernel...] over images padded with a value."""
    dilation = (node.DilationHFactor, node.DilationWFactor) if node.dilated else (1, 1)
    pads, stride = [(0, 0)], (node.StrideH, node.StrideW)
    extent = [(taps - 1) * factor + 1 for taps, factor in zip(kernel, dilation, strict=True)]
    for size, step, reach in zip(x.shape[1:3], stride, extent, strict=True):
        total = max((-(-size // step) - 1) * step + reach - size, 0) if node.Padding == 0 else 0
        pads.append((total // 2, total - total // 2))
    padded = np.pad(x, [*pads, (0, 0)], constant_values=value)
    found = np.lib.stride_tricks.sliding_window_view(padded, extent, (1, 2))[:, :: stride[0], :: stride[1]]
    return found[..., :: dilation[0], :: dilation[1]]


def conv(node: Node, x: Array, w: Array, b: Array) -> Array:
    found, groups = windows(node, x, w.shape[1:3], 0), x.shape[3] // w.shape[3]
    parts = np.split(found, groups, 3), np.split(w, groups, 0)
    sums = [np.einsum("nhwcij,oijc->nhwo", *each) for each in zip(*parts, strict=True)]
    return node.bounded(np.concatenate(sums, 3) + b)


def depthwise(node: Node, x: Array, w: Array, b: Array) -> Array:
    found = np.repeat(windows(node, x, w.shape[1:3], 0), w.shape[3] // x.shape[3], 3)
    return node.bounded(np.einsum("nhwcij,ijc->nhwc", found, w[0]) + b)


def transposed(node: Node, shape: Array, w: Array, x: Array, b: Array) -> Array:
    (_, height, width, _), (kh, kw) = shape.astype(int), w.shape[1:3]
    full = np.zeros((1, x.shape[1] * 2 + kh, x.shape[2] * 2 + kw, w.shape[0]))
    for row, column in np.ndindex(*x.shape[1:3]):
        place = full[:, 2 * row : 2 * row + kh, 2 * column : 2 * column + kw]
        place += np.einsum("nc,oijc->nijo", x[:, row, column], w)
    same = node.Padding == 0
    top, left = (same * max((-(-n // 2) - 1) * 2 + k - n, 0) // 2 for n, k in ((height, kh), (width, kw)))
    return full[:, top : top + height, left : left + width] + b


def lstm(node: Node, x: Array, *weights: Array | None) -> Array:
    def sigmoid(v: Array) -> Array:
        return 1 / (1 + np.exp(-v))

    of_input, of_state, peephole, bias = weights[:4], weights[4:8], weights[8:11], weights[11:15]
    project, project_bias, h, c = weights[15:19]
    assert h is not None
    assert c is not None
    x = x if node.TimeMajor else x.swapaxes(0, 1)
    outputs = []
    for step in x:
        gates = [
            np.zeros(()) if w is None or r is None else step @ w.T + h @ r.T + b
            for w, r, b in zip(of_input, of_state, bias, strict=True)
        ]
        seen = [0 if p is None else c * p for p in peephole]
        forget = sigmoid(gates[1] + seen[1])
        come = 1 - forget if of_input[0] is None else sigmoid(gates[0] + seen[0])
        c = forget * c + come * np.tanh(gates[2])
        if node.CellClip:
            c = np.clip(c, -node.CellClip, node.CellClip)
        h = sigmoid(gates[3] + (0 if peephole[2] is None else c * peephole[2])) * np.tanh(c)
        if project is not None:
            h = h @ project.T + project_bias
        outputs.append(h)
    y = np.stack(outputs)
    return y if node.TimeMajor else y.swapaxes(0, 1)


def pooled(node: Node, x: Array, value: float, function: Definition) -> Array:
    return function(windows(node, x, (node.FilterHeight, node.FilterWidth), value), (4, 5))


def turned(x: Array, turn: bool) -> Array:
    return x.swapaxes(-1, -2) if turn else x


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def reduced(function: Definition) -> Definition:
    return lambda node, x, axes: function(x, tuple(axes.astype(int)), keepdims=bool(node.KeepDims))


DEFINITIONS: Mapping[str, Definition] = {
    "ADD": lambda node, a, b: node.bounded(a + b),
    "SUB": lambda node, a, b: node.bounded(a - b),
    "MUL": lambda node, a, b: node.bounded(a * b),
    "DIV": lambda node, a, b: a / b,
    "MAXIMUM": lambda node, a, b: np.maximum(a, b),
    "MINIMUM": lambda node, a, b: np.minimum(a, b),
    "SQUARED_DIFFERENCE": lambda node, a, b: (a - b) ** 2,
    "FLOOR_DIV": lambda node, a, b: np.floor(a / b),
    "ATAN2": lambda node, a, b: np.arctan2(a, b),
    "LESS": lambda node, a, b: a < b,
    "EQUAL": lambda node, a, b: a == b,
    "SELECT_V2": lambda node, c, a, b: np.where(c, a, b),
    "ABS": lambda node, x: np.abs(x),
    "EXP": lambda node, x: np.exp(x),
    "LOGISTIC": lambda node, x: 1 / (1 + np.exp(-x)),
    "TANH": lambda node, x: np.tanh(x),
    "RSQRT": lambda node, x: 1 / np.sqrt(x),
    "HARD_SWISH": lambda node, x: x * np.clip(x + 3, 0, 6) / 6,
    "RELU": lambda node, x: np.maximum(x, 0),
    "RELU6": lambda node, x: np.clip(x, 0, 6),
    "ELU": lambda node, x: np.where(x > 0, x, np.expm1(x)),
    "LEAKY_RELU": lambda node, x: np.where(x > 0, x, x * node.Alpha),
    "PRELU": lambda node, x, a: np.where(x > 0, x, x * a),
    "QUANTIZE": lambda node, x: x,
    "DEQUANTIZE": lambda node, x: x,
    "CONV_2D": conv,
    "DEPTHWISE_CONV_2D": depthwise,
    "TRANSPOSE_CONV": transposed,
    "FULLY_CONNECTED": lambda node, x, w, b: node.bounded((x.reshape(-1, w.shape[1]) @ w.T + b).reshape(node.shape)),
    "BATCH_MATMUL": lambda node, a, b: turned(a, node.AdjX) @ turned(b, node.AdjY),
    "MAX_POOL_2D": lambda node, x: pooled(node, x, -math.inf, np.max),
    "AVERAGE_POOL_2D": lambda node, x: pooled(node, x, math.nan, np.nanmean),
    "RESHAPE": lambda node, x, *rest: x.reshape(node.shape),
    "SQUEEZE": lambda node, x: x.reshape(node.shape),
    "EXPAND_DIMS": lambda node, x, axis: np.expand_dims(x, int(axis)),
    "TRANSPOSE": lambda node, x, perm: x.transpose(perm.astype(int)),
    "REVERSE_V2": lambda node, x, axes: np.flip(x, tuple(axes.astype(int))),
    "PAD": lambda node, x, pads: np.pad(x, pads.astype(int)),
    "MIRROR_PAD": lambda node, x, pads: np.pad(x, pads.astype(int), "symmetric" if node.Mode else "reflect"),
    "TILE": lambda node, x, repeats: np.tile(x, repeats.astype(int)),
    "BROADCAST_TO": lambda node, x, shape: np.broadcast_to(x, shape.astype(int)),
    "CONCATENATION": lambda node, *parts: np.concatenate(parts, node.Axis),
    "PACK": lambda node, *parts: np.stack(parts, node.Axis),
    "UNPACK": lambda node, x: list(np.moveaxis(x, node.Axis, 0)),
    "SPLIT": lambda node, axis, x: np.split(x, node.count, int(axis)),
    "SPLIT_V": lambda node, x, sizes, axis: np.split(x, np.cumsum(sizes.astype(int))[:-1], int(axis)),
    "MEAN": reduced(np.mean),
    "SUM": reduced(np.sum),
    "REDUCE_MAX": reduced(np.max),
    "REDUCE_PROD": reduced(np.prod),
    "ARG_MAX": lambda node, x, axis: np.argmax(x, int(axis)),
    "SOFTMAX": lambda node, x: softmax(x * node.Beta),
    "LOG_SOFTMAX": lambda node, x: np.log(softmax(x)),
    "L2_NORMALIZATION": lambda node, x: x / np.sqrt((x**2).sum(-1, keepdims=True)),
    "MATRIX_DIAG": lambda node, x: x[..., None] * np.eye(x.shape[-1]),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": lstm,
}
CASES = {name: case for name, case in cases() if parse(case.data, "").subgraphs[0].operators[0].name in DEFINITIONS}


def real(record: TensorRecord, stored: Array) -> Array:
    if record.quantization is None or stored.dtype.kind not in "iu":
        return stored if stored.dtype == np.bool_ else stored.astype(np.float64)
    scale, zero = broadcast_parameters(record.quantization, stored.ndim)
    return (stored.astype(np.float64) - zero) * scale


def expected(case: Case) -> tuple[list[TensorRecord], list[Array]]:
    graph = parse(case.data, "the case").subgraphs[0]
    (op,) = graph.operators
    arrays: list[Array | None] = []
    for number in op.inputs:
        if number < 0:
            arrays.append(None)
            continue
        record = graph.tensors[number]
        stored = case.arrays.get(record.name)
        if stored is None:
            stored = np.zeros(record.shape) if record.data is None else constant(record, record.data)
        arrays.append(real(record, stored))
    while arrays[-1] is None:
        arrays.pop()
    results = [graph.tensors[number] for number in op.outputs]
    made = DEFINITIONS[op.name](Node(op, results), *arrays)
    return results, made if isinstance(made, list) else [made]


@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_what_its_definition_says(name: str) -> None:
    case = CASES[name]
    results, wanted = expected(case)
    graph = models.load(case.data)
    states = {item.name: item for item in graph.inputs if item.name not in case.arrays}
    missing = {name: np.zeros(item.shape, item.dtype.storage) for name, item in states.items()}
    outputs = run(graph, {**case.arrays, **missing})
    for record, want in zip(results, wanted, strict=True):
        found = outputs[record.name]
        assert found.shape == want.shape
        if record.quantization is None:
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
            continue
        scale, zero = float(record.quantization.scale[0]), int(record.quantization.zero[0])
        info = np.iinfo(found.dtype)
        steps = np.clip(np.rint(want / scale) + zero, info.min, info.max)
        # The integer LSTM rounds between its steps, too.
        assert np.abs(found - steps).max() <= (2 if "LSTM" in name else 1)
        assert len(np.unique(found)) > 1
