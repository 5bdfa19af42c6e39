"""Networks through hal.onnxifi give the bits and the modelled time of npusim.Session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper

import npusim
from hal import onnxifi
from hal.onnxifi import MemoryFenceV1, Status, TensorDescriptorV1
from npusim.hw.config import load_config
from tests.support.onnx_models import cnn, oracle, transformers

Array = npt.NDArray[Any]
NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "resnet": lambda: cnn.resnet((1, 1), image=32, classes=10, width=8),
    "unet": lambda: cnn.unet(seed=1),
    "gpt": lambda: transformers.gpt(transformers.GPT_TINY, seed=1),
}


@pytest.fixture
def backend() -> Iterator[int]:
    """Return the first backend."""
    _, _, count = onnxifi.onnxGetBackendIDs()
    _, ids, _ = onnxifi.onnxGetBackendIDs(count)
    status, made = onnxifi.onnxInitBackend(ids[0])
    assert status == Status.SUCCESS
    yield made
    onnxifi.onnxReleaseBackend(made)
    for backend_id in ids:
        onnxifi.onnxReleaseBackendID(backend_id)


def session() -> npusim.Session:
    """Return a session on the device of the first backend."""
    _, _, count = onnxifi.onnxGetBackendIDs()
    _, ids, _ = onnxifi.onnxGetBackendIDs(count)
    _, name, _ = onnxifi.onnxGetBackendInfo(ids[0], onnxifi.BackendInfo.DEVICE, 99)
    for backend_id in ids:
        onnxifi.onnxReleaseBackendID(backend_id)
    return npusim.Session(load_config(name.rstrip(b"\0").decode()), cache_dir=False)


def by_descriptors(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[TensorDescriptorV1]]:
    """Return the model with its weights as graph inputs, and their values as descriptors."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    weights = []
    for tensor in model.graph.initializer:
        changed.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        weights.append(TensorDescriptorV1.of(tensor.name, np.array(numpy_helper.to_array(tensor), order="C")))
    del changed.graph.initializer[:]
    return changed, weights


def run(
    backend: int, model: onnx.ModelProto, weights: list[TensorDescriptorV1], inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
) -> list[tuple[int, ...]]:  # fmt: skip
    """Run twice to fill the outputs; return the times of both runs."""
    status, graph = onnxifi.onnxInitGraph(backend, None, model.SerializeToString(), weights or None)
    assert status in (Status.SUCCESS, Status.FALLBACK)
    descriptors = [[TensorDescriptorV1.of(n, a) for n, a in arrays.items()] for arrays in (inputs, outputs)]
    assert onnxifi.onnxSetGraphIO(graph, *descriptors) == Status.SUCCESS
    times = []
    for _ in range(2):
        _, start = onnxifi.onnxInitEvent(backend)
        end = MemoryFenceV1()
        assert onnxifi.onnxRunGraph(graph, MemoryFenceV1(start), end) == Status.SUCCESS
        onnxifi.onnxSignalEvent(start)
        assert onnxifi.onnxWaitEvent(end.event) == Status.SUCCESS
        times.append(onnxifi.run_timing(end.event)[1])
        onnxifi.onnxReleaseEvent(start)
        onnxifi.onnxReleaseEvent(end.event)
    assert onnxifi.onnxReleaseGraph(graph) == Status.SUCCESS
    return times


@pytest.mark.parametrize("static", ["initializers", "descriptors"])
@pytest.mark.parametrize("name", NETWORKS)
def test_bits_and_time_are_those_of_a_session(backend: int, name: str, static: str) -> None:
    model = NETWORKS[name]()
    inputs = oracle.random_inputs(model, 2)
    expected = session().run(model, inputs)
    given, weights = by_descriptors(model) if static == "descriptors" else (model, [])
    outputs = {name: np.zeros_like(array) for name, array in expected.outputs.items()}
    arrays = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
    times = run(backend, given, weights, arrays, outputs)
    for output, array in expected.outputs.items():
        np.testing.assert_array_equal(outputs[output], array)
    assert [timing[:2] for timing in times] == [(expected.cycles, expected.time_ps)] * 2
