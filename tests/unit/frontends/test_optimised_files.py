"""Models that onnxruntime has optimised and saved: fused operators, channels last and in blocks."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from npusim import _core
from npusim.errors import ModelError
from npusim.frontends.onnx import load
from npusim.frontends.onnx.blocked_layout import channel_block
from npusim.frontends.onnx.registry import BLOCKED
from npusim.ops import reference
from tests.support.onnx_models.builder import ModelBuilder
from tests.support.onnx_models.oracle import relative_error, runtime_outputs
from tests.support.onnx_models.small import MICROSOFT, compared, node_model, normal

CHANNELS = [8, 12, 24] + [16, 32] * _core.simd().startswith("avx512")
"""Numbers whose blocks are known: with blocks of 8 channels, onnxruntime saves the others like blocks of 16."""
LEVELS = ("ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


def optimised(model: onnx.ModelProto, level: str, folder: Path) -> onnx.ModelProto:
    """Return the model as onnxruntime saves it with its optimisations of a level."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(folder / "saved.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "saved.onnx")


def network(channels: int, activation: str, upsample: str, depthwise: bool, ceil: bool) -> onnx.ModelProto:
    """Build convolutions with an activation each, a sum, pools, and upsampling: what becomes blocks of channels."""
    parameters: dict[str, dict[str, Any]] = {"LeakyRelu": {"alpha": 0.2}, "HardSigmoid": {"alpha": 0.3, "beta": 0.4}}
    build = ModelBuilder("network")
    x = build.input("x", (1, 3, 13, 12))

    def act(value: str) -> str:
        return build.op(activation, value, **parameters.get(activation, {}))

    x = act(build.conv(x, 3, channels, 3, stride=2, gain=1.0))
    y = act(build.conv(x, channels, channels, 3, groups=channels if depthwise else 1))
    x = build.op("Add", build.conv(y, channels, channels, 1), x)
    x = build.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=int(ceil))
    x = build.op("AveragePool", x, kernel_shape=[2, 2], pads=[1, 1, 0, 0], count_include_pad=1)
    if upsample:
        how = {"nearest": ("asymmetric", "floor"), "linear": ("half_pixel", "round_prefer_floor")}[upsample]
        scales = build.const(np.array([1, 1, 2, 3], np.float32))
        x = build.op("Resize", x, "", scales, mode=upsample, coordinate_transformation_mode=how[0], nearest_mode=how[1])
    x = act(build.conv(x, channels, 20, 3))
    return build.finish([build.op("GlobalAveragePool", x), x])


@given(
    st.sampled_from(CHANNELS), st.sampled_from(["Relu", "LeakyRelu", "HardSigmoid", "Tanh", "Sigmoid"]),
    st.sampled_from(["", "nearest", "linear"]), st.booleans(), st.booleans(), st.sampled_from(LEVELS),
)  # fmt: skip
@settings(max_examples=15, deadline=None)
def test_saved_networks(
    tmp_path_factory: pytest.TempPathFactory, channels: int, activation: str, upsample: str, depthwise: bool,
    ceil: bool, level: str,
) -> None:  # fmt: skip
    model = network(channels, activation, upsample, depthwise, ceil)
    saved = optimised(model, level, tmp_path_factory.mktemp("saved"))
    fed = {"x": normal(1, 1, 3, 13, 12)}
    found = reference.run(load(saved), fed)
    for name, wanted in runtime_outputs(model, fed, optimise=False).items():
        assert relative_error(found[name], wanted) < 1e-5, name


def blocked(out: int, within: int, channels: int | None = None, *, plain: bool = False) -> onnx.GraphProto:
    """Build a graph of one convolution in blocks, and of its conversion to ``channels``. ``plain``: it reads an image
    without blocks."""
    weights = numpy_helper.from_array(np.zeros((out, within, 1, 1), np.float32), "w")
    nodes = [onnx.helper.make_node("ReorderInput", ["i"], ["x"], domain=BLOCKED)] * (not plain)
    nodes.append(onnx.helper.make_node("Conv", ["x", "w"], ["y"], domain=BLOCKED))
    if channels is not None:
        nodes.append(onnx.helper.make_node("ReorderOutput", ["y"], ["z"], domain=BLOCKED, channels=channels))
    return onnx.helper.make_graph(nodes, "graph", [], [], [weights])


@pytest.mark.parametrize(
    ("out", "within", "plain", "channels", "block"),
    [
        (24, 16, False, None, 8), (24, 3, True, 20, 8), (32, 16, False, 24, 16), (48, 3, True, 33, 16),
        (40, 8, False, 33, 8), (32, 8, False, 32, 8), (32, 24, False, 32, 8), (32, 8, True, 32, 16),
        (32, 15, True, None, 16),
    ],
)  # fmt: skip
def test_sizes_tell_the_block(
    out: int, within: int, plain: bool, channels: int | None, block: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "npusim"):
        assert channel_block(blocked(out, within, channels, plain=plain)) == block
    assert not caplog.records


@pytest.mark.parametrize(("within", "plain"), [(16, False), (3, True), (7, True)])
def test_sizes_that_allow_both(within: int, plain: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The larger block, whatever this machine has."""
    with caplog.at_level(logging.WARNING, "npusim"):
        assert channel_block(blocked(32, within, 32, plain=plain)) == 16
    assert "graph: its channels fit blocks of 8 and of 16; the weights are read in blocks of 16" in caplog.text


@pytest.mark.parametrize(("out", "channels"), [(20, None), (32, 8)])
def test_sizes_that_allow_neither(out: int, channels: int | None) -> None:
    with pytest.raises(ModelError, match="not whole blocks of 8 or 16"):
        channel_block(blocked(out, 16, channels))


@pytest.mark.parametrize("activation", ["Relu", "Tanh", "Sigmoid", "LeakyRelu"])
@pytest.mark.parametrize("added", [False, True])
def test_fused_conv(activation: str, added: bool) -> None:
    inputs = {
        "x": normal(1, 1, 3, 6, 5), "w": normal(2, 4, 3, 3, 3), "b": normal(3, 4),
        "z": normal(4, 1, 4, 4, 3) if added else None,
    }  # fmt: skip
    parameters = {"activation_params": [0.3]} if activation == "LeakyRelu" else {}
    compared("FusedConv", inputs, activation=activation, **parameters)


@pytest.mark.parametrize(("activation", "parameters"), [("Relu", {}), ("LeakyRelu", {"activation_alpha": 0.3})])
def test_fused_gemm(activation: str, parameters: dict[str, float]) -> None:
    inputs = {"a": normal(1, 3, 4), "b": normal(2, 5, 4), "c": normal(3, 5)}
    compared("FusedGemm", inputs, transB=1, alpha=0.5, activation=activation, **parameters)


@given(st.booleans(), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=16, deadline=None)
def test_fused_products_with_the_batch_in_the_middle(ta: bool, tb: bool, ba: bool, bb: bool) -> None:
    def shaped(seed: int, rows: int, columns: int, turned: bool, inside: bool) -> Any:
        first, last = (columns, rows) if turned else (rows, columns)
        return normal(seed, *((first, 2, 6, last) if inside else (2, 6, first, last)))

    inputs = {"a": shaped(1, 3, 4, ta, ba), "b": shaped(2, 4, 5, tb, bb)}
    compared("FusedMatMul", inputs, transA=int(ta), transB=int(tb), transBatchA=int(ba), transBatchB=int(bb))


def test_simplified_layer_normalization() -> None:
    inputs = {"x": normal(1, 2, 3, 8), "scale": normal(2, 8)}
    model = node_model("SimplifiedLayerNormalization", inputs, axis=-1, epsilon=1e-5, stash_type=1)
    found, wanted = reference.run(load(model), inputs)["y0"], runtime_outputs(model, inputs, optimise=False)["y0"]
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-6)


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("directions", [1, 2])
def test_dynamic_quantize_lstm(unsigned: bool, channels: int, directions: int) -> None:
    rng, hidden, features = np.random.default_rng(0), 6, 5
    dtype = np.uint8 if unsigned else np.int8
    info = np.iinfo(dtype)
    sizes = (directions,) if channels == 1 else (directions, 4 * hidden)
    zero = 128 if unsigned else 0
    inputs = {
        "x": normal(1, 4, 2, features),
        "w": rng.integers(info.min, info.max, (directions, features, 4 * hidden)).astype(dtype),
        "r": rng.integers(info.min, info.max, (directions, hidden, 4 * hidden)).astype(dtype),
        "b": normal(3, directions, 8 * hidden), "lengths": None, "h": None, "c": None, "p": None,
        "ws": rng.uniform(0.002, 0.004, sizes).astype(np.float32), "wz": np.full(sizes, zero, dtype),
        "rs": rng.uniform(0.002, 0.004, sizes).astype(np.float32), "rz": np.full(sizes, zero, dtype),
    }  # fmt: skip
    constants = tuple(name for name in inputs if name != "x" and inputs[name] is not None)
    direction = "bidirectional" if directions == 2 else "forward"
    model = node_model(
        "DynamicQuantizeLSTM", inputs, constants, outputs=3, domain=MICROSOFT, hidden_size=hidden, direction=direction
    )
    fed = {"x": inputs["x"]}
    found, wanted = reference.run(load(model), fed), runtime_outputs(model, fed, optimise=False)
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], atol=1e-5)
