"""The demo's network is as described, and its check can fail."""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime
import pytest

from npusim import demo
from npusim.errors import UsageError
from npusim.hw.config import load_config

TINY = load_config("tiny")
LAYERS = [
    ("stem", (1, 16, 16, 16)), ("stem.relu", (1, 16, 16, 16)), ("block.expand", (1, 64, 16, 16)),
    ("block.expand.relu", (1, 64, 16, 16)), ("block.depthwise", (1, 64, 16, 16)),
    ("block.depthwise.relu", (1, 64, 16, 16)), ("block.project", (1, 16, 16, 16)), ("block.add", (1, 16, 16, 16)),
    ("head", (1, 128, 8, 8)), ("head.relu", (1, 128, 8, 8)), ("pool", (1, 128)), ("classify", (1, 10)),
    ("probabilities", (1, 10)),
]  # fmt: skip


def test_the_network() -> None:
    """The fingerprint covers kinds, attributes and weights and is the same on every machine and in every run."""
    graph = demo.network()
    assert [(op.output.name, op.output.shape) for op in graph.ops] == LAYERS
    assert graph.ops[0].attrs["stride"] == (2, 2)
    assert graph.ops[4].attrs["groups"] == 64
    assert graph.fingerprint() == demo.network().fingerprint()
    spread = {op.name: float(op.input(1).data.std()) for op in graph.ops if op.kind in ("conv", "matmul")}  # type: ignore[union-attr]
    inputs = {"stem": 27, "block.expand": 16, "block.depthwise": 9, "block.project": 64, "head": 144, "classify": 128}
    assert spread == pytest.approx({name: np.sqrt(2 / count) for name, count in inputs.items()}, rel=0.1)
    assert float(graph.ops[8].input(2).data.std()) == pytest.approx(np.sqrt(2 / 128), rel=0.2)  # type: ignore[union-attr]


def test_the_device_agrees_with_the_reference() -> None:
    done = demo.run(TINY)
    assert done.correct
    assert 0 <= done.difference <= 1e-5
    (scores,) = done.result.outputs.values()
    assert scores.shape == (1, 10)
    assert float(scores.sum()) == pytest.approx(1, abs=1e-5)
    assert (demo.TOLERANCE, demo.Demo(done.result, 1e-5).correct, demo.Demo(done.result, 1.1e-5).correct) == (
        1e-5, True, False,
    )  # fmt: skip


def test_a_wrong_device_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest difference of all outputs, relative to the largest element."""
    wanted = {"probabilities": np.array([[1.0, -4.0]], np.float32)}
    monkeypatch.setattr(demo.reference, "run", lambda graph, inputs: wanted)
    monkeypatch.setattr(demo, "network", lambda: demo.GraphBuilder("none"))

    class Broken:
        def __init__(self, config: object, cache_dir: object) -> None:
            assert (config, cache_dir) == (TINY, False)

        def compile(self, graph: object) -> object:
            return graph

        def run(self, program: object, inputs: dict[str, np.ndarray]) -> object:  # type: ignore[type-arg]
            assert inputs["image"].shape == (1, 3, 32, 32)
            return type("Result", (), {"outputs": {"probabilities": np.array([[3.0, -4.0]], np.float32)}})

    monkeypatch.setattr(demo, "Session", Broken)
    assert demo.run(TINY).difference == 0.5
    assert not demo.run(TINY).correct
    wanted["probabilities"] = np.zeros((1, 2), np.float32)
    assert demo.run(TINY).difference == 4


def test_as_a_model_it_is_the_same_network() -> None:
    data = demo.as_onnx()
    assert data == demo.as_onnx()
    image = np.random.default_rng(1).standard_normal((1, 3, 32, 32), np.float32)
    result = demo.Session(TINY, cache_dir=False).run(data, {"image": image})
    done = demo.run(TINY)
    assert result.outputs["probabilities"].tobytes() == done.result.outputs["probabilities"].tobytes()
    assert result.cycles == done.result.cycles
    (scores,) = onnxruntime.InferenceSession(data).run(None, {"image": image})
    np.testing.assert_allclose(result.outputs["probabilities"], scores, rtol=1e-5, atol=1e-7)


def test_without_onnx_there_is_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match=r"^writing ONNX models needs the onnx package: pip install 'npusim\[onnx\]'$"):
        demo.as_onnx()
