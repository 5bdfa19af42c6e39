"""Outputs computed by other implementations, and error measures between them and ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

Array = npt.NDArray[Any]


def runtime_session(
    model: onnx.ModelProto | str, *, threads: int = 1, optimise: bool = True
) -> onnxruntime.InferenceSession:
    """Return an onnxruntime session on the CPU with a fixed number of threads.

    ``optimise=False`` keeps every node as written: a QDQ model is then computed in float between its quantisers. With
    fusion it is computed in integers, configured not to multiply uint8 by int8, because that kernel saturates on CPUs
    without VNNI. A model written with such products must be converted by ``unsigned`` first.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    options.add_session_config_entry("session.x64quantprecision", "1" if optimise else "0")
    source = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def runtime_outputs(
    model: onnx.ModelProto | str, inputs: Mapping[str, Array], *, threads: int = 1, optimise: bool = True
) -> dict[str, Array]:
    """Return the outputs of onnxruntime by name."""
    session = runtime_session(model, threads=threads, optimise=optimise)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def graph_inputs(model: onnx.ModelProto) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Return the inputs that a caller must provide (without initializers): name -> (onnx element type, static
    shape)."""
    given = {tensor.name for tensor in model.graph.initializer}
    feeds = {}
    for info in model.graph.input:
        if info.name not in given:
            tensor = info.type.tensor_type
            feeds[info.name] = (tensor.elem_type, tuple(dim.dim_value for dim in tensor.shape.dim))
    return feeds


def random_inputs(model: onnx.ModelProto, seed: int) -> dict[str, Array]:
    """Return seeded standard normal values for every input of a float model.

    Raises ValueError for an input of another type, because its valid values are not known.
    """
    rng = np.random.default_rng(seed)
    feeds = {}
    for name, (elem_type, shape) in graph_inputs(model).items():
        if elem_type != onnx.TensorProto.FLOAT:
            raise ValueError(f"input {name!r}: must be float32 to be drawn at random, got onnx type {elem_type}")
        feeds[name] = rng.standard_normal(shape, np.float32)
    return feeds


def relative_error(actual: Array, expected: Array) -> float:
    """Return the largest |difference| over the largest |expected|. Raises AssertionError for another shape or type."""
    assert actual.shape == expected.shape, f"shape must be {expected.shape}, got {actual.shape}"
    assert actual.dtype == expected.dtype, f"dtype must be {expected.dtype}, got {actual.dtype}"
    assert np.isfinite(expected).all(), "the expected output itself is not finite"
    largest = float(np.abs(expected.astype(np.float64)).max())
    difference = float(np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max())
    return difference / largest if largest else difference


def share_within(actual: Array, expected: Array, step: float) -> float:
    """Return the fraction of elements within one quantisation step (with its float rounding) of the expected ones."""
    assert actual.shape == expected.shape, f"shape must be {expected.shape}, got {actual.shape}"
    difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    return float(np.mean(difference <= step * (1 + 1e-4)))
