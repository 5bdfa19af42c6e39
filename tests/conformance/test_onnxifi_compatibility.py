"""onnxGetBackendCompatibility predicts the status of onnxInitGraph, for onnx's node tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest

from hal.onnxifi import engine
from hal.onnxifi.backend import Backend
from hal.onnxifi.status import OnnxifiError, Status
from tests.support.onnx_node_tests.cases import NodeCase, bound, node_cases

DONE = (Status.SUCCESS, Status.FALLBACK)
STRIDE = 37
"""The default run includes every STRIDE-th case."""
Answer = tuple[Status, Status]


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPUSIM_ONNXIFI_BACKENDS", "edge")
        yield engine.init_backend(0, ())


def answers(backend: Backend, case: NodeCase) -> Answer:
    """Return the statuses of both functions for a model without further weights."""
    data = case.model.SerializeToString()
    return _status(lambda: engine.compatibility(0, data)), _status(lambda: _init(backend, data))


def _init(backend: Backend, data: bytes) -> int:
    status, graph = engine.init_graph(backend, (), data, None)
    engine.release_graph(graph)
    return status


def _status(call: Callable[[], int]) -> Status:
    try:
        return Status(call())
    except OnnxifiError as error:
        return error.status


def check(backend: Backend, cases: Iterable[NodeCase]) -> Counter[Answer]:
    """Check that both statuses are equal. Exception: a model without weights that needs some of its inputs as weights,
    but not all, is compatible."""
    seen: Counter[Answer] = Counter()
    for case in cases:
        asked, made = answers(backend, case)
        seen[asked, made] += 1
        if asked is not made:
            assert (asked in DONE, made) == (True, Status.UNSUPPORTED_SHAPE), case.name
            assert not case.model.graph.initializer, case.name
            assert len(case.inputs) > 1, case.name
        if len(case.inputs) > 1 and all(isinstance(value, np.ndarray) for value in case.inputs.values()):
            both = answers(backend, bound(case))
            assert both[0] is both[1], case.name
            seen[both] += 1
    return seen


def test_a_sample_of_the_node_tests(backend: Backend) -> None:
    seen = check(backend, node_cases()[::STRIDE])
    assert seen[Status.SUCCESS, Status.SUCCESS] > 20
    assert seen[Status.FALLBACK, Status.FALLBACK] > 10


@pytest.mark.slow
def test_all_node_tests(backend: Backend) -> None:
    seen = check(backend, node_cases())
    assert sum(seen.values()) > 3000
