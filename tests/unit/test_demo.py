"""The demo's network is what it is said to be, and its judgement can fail."""

from __future__ import annotations

import numpy as np
import pytest

from npusim import demo
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
    """The fingerprint covers kinds, attributes and weights: the same on every machine and in every run."""
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
    """The largest difference of all outputs, as a part of the largest element."""
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
