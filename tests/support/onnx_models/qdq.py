"""Statically quantised networks in QDQ format: per-channel int8 weights, 8-bit activations, by onnxruntime's tool."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from tests.support.onnx_models import cnn
from tests.support.onnx_models.builder import ModelBuilder
from tests.support.onnx_models.oracle import graph_inputs

ACTIVATIONS = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8}
CALIBRATION_SAMPLES = 2


def resnet50(cache: Path, *, activation: str = "uint8", seed: int = 0) -> onnx.ModelProto:
    """Return ResNet-50 with random weights, calibrated on random images; ``activation``: "uint8" or "int8".

    It is built once (seconds) and stored in the directory ``cache``. Logits are quantised, too.
    """
    path = cache / f"resnet50-{activation}-{seed}.qdq.onnx"
    if not path.exists():
        _store(quantised(cnn.resnet(seed=seed), cache, activation=activation, seed=seed), path)
    return onnx.load(path)


def small(cache: Path, *, activation: str = "uint8", seed: int = 0) -> onnx.ModelProto:
    """Return a net of a few thousand weights with every important pattern: plain, depthwise and strided convolution,
    residual add, concatenation, max and average pooling, sigmoid, a fully connected head. Input x [1, 3, 16, 16]."""
    return quantised(_small_float(seed), cache, activation=activation, seed=seed)


def quantised(model: onnx.ModelProto, cache: Path, *, activation: str, seed: int) -> onnx.ModelProto:
    """Return the float model in QDQ form, calibrated on seeded standard normal inputs; ``cache`` contains the tool's
    files."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation: must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / f".{model.graph.name}-{activation}-{seed}.onnx"
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # the tool warns about missing pre-processing, which these models do not need
    try:
        quantize_static(
            model,
            target,
            _random_samples(model, seed),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=ACTIVATIONS[activation],
            weight_type=QuantType.QInt8,
        )
        return onnx.load(target)
    finally:
        root.setLevel(level)
        target.unlink(missing_ok=True)


def output_scale(model: onnx.ModelProto) -> float:
    """Return one quantisation step of the model's only output. Raises ValueError if it does not come from a
    DequantizeLinear."""
    name = model.graph.output[0].name
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if name in node.output and node.op_type == "DequantizeLinear":
            return float(numpy_helper.to_array(stored[node.input[1]]))
    raise ValueError(f"output {name!r}: must come from a DequantizeLinear")


class Samples(CalibrationDataReader):  # type: ignore[misc]
    """Calibration inputs, in order."""

    def __init__(self, samples: Iterable[dict[str, npt.NDArray[Any]]]) -> None:
        self._samples = iter(samples)

    def get_next(self) -> dict[str, npt.NDArray[Any]] | None:
        return next(self._samples, None)


def _random_samples(model: onnx.ModelProto, seed: int) -> Samples:
    """Return a few seeded samples for every input."""
    rng = np.random.default_rng([seed, 1])
    feeds = graph_inputs(model)
    return Samples(
        [
            {name: rng.standard_normal(shape, np.float32) for name, (_, shape) in feeds.items()}
            for _ in range(CALIBRATION_SAMPLES)
        ]
    )


def _store(model: onnx.ModelProto, path: Path) -> None:
    """Write the file atomically."""
    partial = path.with_suffix(".partial")
    onnx.save(model, partial)
    partial.replace(path)


def _small_float(seed: int) -> onnx.ModelProto:
    build = ModelBuilder("small", seed=seed)
    x = build.input("x", (1, 3, 16, 16))
    x = build.op("Relu", build.conv(x, 3, 8, 3, gain=1.0))
    y = build.op("Relu", build.conv(x, 8, 8, 3, groups=8))
    x = build.op("Relu", build.op("Add", x, build.conv(y, 8, 8, 1)))
    pooled = build.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    strided = build.conv(x, 8, 12, 3, stride=2)
    x = build.op("Concat", pooled, strided, axis=1)
    x = build.conv(x, 20, 16, 3, groups=2)
    x = build.op("Mul", x, build.op("Sigmoid", x))
    x = build.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = build.op("Flatten", build.op("GlobalAveragePool", x), axis=1)
    return build.finish([build.gemm(x, 16, 40, gain=20.0)])
