"""The execution provider of ONNX Runtime: models through ``onnxruntime``, compared with npusim and with its CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import npusim.ort
from hal.ort.provider import Provider
from npusim import Session
from npusim.runtime import Result
from tests.support.onnx_models import cnn, qdq
from tests.support.onnx_models.run_time_decisions import decided_model
from tests.support.onnx_models.transformers import BertSizes, bert, bert_inputs

Array = npt.NDArray[Any]
VERSION = tuple(int(part) for part in ort.__version__.split(".")[:2])
F, I64 = TensorProto.FLOAT, TensorProto.INT64
BERT = BertSizes(layers=1, hidden=32, heads=2, sequence=8, intermediate=64, vocabulary=50)
value = helper.make_tensor_value_info

pytestmark = pytest.mark.skipif(VERSION < npusim.ort.OLDEST, reason="onnxruntime has no plug-ins that compile")


@pytest.fixture(scope="module")
def devices() -> list[Any]:
    return npusim.ort.register()


@dataclass
class Door:
    """Makes sessions of ONNX Runtime on the device. ``results``: of all runs."""

    devices: list[Any]
    dumped: Path
    results: list[Result] = field(default_factory=list)

    def options(self, given: Mapping[str, str] | None = None, **entries: str) -> Any:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.add_provider_for_devices(self.devices, {"cache": "off", "config": "tiny", **(given or {})})
        for key, text in entries.items():
            options.add_session_config_entry(key.replace("__", "."), text)
        return options

    def session(self, model: onnx.ModelProto, given: Mapping[str, str] | None = None, **entries: str) -> Any:
        return ort.InferenceSession(model.SerializeToString(), self.options(given, **entries))

    def same_as_npusim(self, model: onnx.ModelProto, inputs: Mapping[str, Array], config: str = "edge") -> list[Array]:
        """The outputs of a model that runs whole, with the bits and picoseconds of ``npusim run`` of its dump."""
        session = self.session(model, {"config": config, "dump": str(self.dumped)})
        [file] = self.dumped.glob("*.onnx")
        outputs: list[Array] = session.run(None, dict(inputs))
        wanted = Session(config, cache_dir=False).run(file, inputs)
        names = [each.name for each in session.get_outputs()]
        assert [each.tobytes() for each in outputs] == [wanted.outputs[name].tobytes() for name in names]
        assert [result.total_ps for result in self.results] == [wanted.total_ps]
        return outputs


@pytest.fixture
def door(devices: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Door:
    found = Door(devices, tmp_path)
    finished = Provider.finished

    def noted(self: Provider, group: Any, result: Result, started_ns: int) -> None:
        found.results.append(result)
        finished(self, group, result, started_ns)

    monkeypatch.setattr(Provider, "finished", noted)
    return found


def made(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: Mapping[str, Any] | None = None
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def on_cpu(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    outputs: list[Array] = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, dict(inputs)
    )
    return outputs


def product(rows: int | str = 4, seed: int = 0) -> tuple[onnx.ModelProto, Callable[[Array], Array]]:
    """Relu(x @ w), and the same in numpy."""
    w = np.random.default_rng(seed).standard_normal((8, 8), np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    model = made(nodes, [value("x", F, [rows, 8])], [value("y", F, [rows, 8])], {"w": w})
    return model, lambda x: np.maximum(x @ w, 0)


def normal(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


# ------------------------------------------------------------------------------------------------------- networks


def test_resnet(door: Door) -> None:
    model = cnn.resnet((1, 1), image=32, classes=10, width=16)
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    inputs = {model.graph.input[0].name: normal(*shape)}
    for got, wanted in zip(door.same_as_npusim(model, inputs), on_cpu(model, inputs), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


def test_quantised_resnet(door: Door, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = qdq.small(tmp_path_factory.mktemp("qdq"))
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    door.same_as_npusim(model, {model.graph.input[0].name: normal(*shape)})


def test_bert(door: Door) -> None:
    model, inputs = bert(BERT), bert_inputs(BERT, 0)
    for got, wanted in zip(door.same_as_npusim(model, inputs), on_cpu(model, inputs), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_decisions_at_run_time(door: Door, seed: int) -> None:
    """If, Loop and sizes that depend on data do not split a model."""
    case = decided_model(seed)
    for got, wanted in zip(door.same_as_npusim(case.model, case.inputs), on_cpu(case.model, case.inputs), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
