"""onnx's node tests through both implementations of ONNXIFI: clients can use everything that the frontend supports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hal import abi, onnxifi
from hal.onnxifi.constants import DataType
from tests.support.onnx_node_tests.cases import BOUND, NodeCase, node_cases, recorded
from tests.support.onnx_node_tests.through_onnxifi import Outcome, Runner, outcomes
from tests.support.onnxifi.c_library import CDoor
from tests.support.onnxifi.client import Door

STRIDE = 37
"""The default run includes every STRIDE-th case."""
LIBRARIES = {library.name: library for library in abi.LIBRARIES if "onnxifi" in library.name}


@pytest.fixture(scope="module", params=["python", *LIBRARIES])
def door(request: pytest.FixtureRequest) -> Door:
    """hal.onnxifi, and each flavour of the C library through ctypes."""
    return onnxifi if request.param == "python" else CDoor(LIBRARIES[request.param])


def check(door: Door, cases: Sequence[NodeCase]) -> list[Outcome]:
    """Check that no case fails, and that cases that npusim passes also pass here unless descriptors cannot bind their
    tensors."""
    with Runner(door) as runner:
        found = outcomes(runner, cases)
    assert [outcome for outcome in found if outcome.result == "failed"] == []
    passed = {outcome.case for outcome in found if outcome.result == "passed"}
    wanted = {case.name for case in cases if can_bind(case)}
    wanted |= {name + BOUND for name in wanted}
    assert (recorded() & wanted) - passed == set()
    return found


def can_bind(case: NodeCase) -> bool:
    """Return whether descriptors can bind all tensors of a case: they have no dimension of 0, and few types."""
    graph = case.model.graph
    arrays = (value for value in (*case.inputs.values(), *case.expected) if isinstance(value, np.ndarray))
    types = {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    return all(array.size for array in arrays) and types <= set(DataType)


def test_a_sample_of_the_node_tests(door: Door) -> None:
    check(door, node_cases()[::STRIDE])


@pytest.mark.slow
def test_all_node_tests(door: Door) -> None:
    found = check(door, node_cases())
    skipped = [outcome for outcome in found if outcome.result == "skipped"]
    assert all("UNSUPPORTED_" in outcome.reason for outcome in skipped)
