"""onnx's node tests: none fails, refusals have reasons, and cases that once passed still pass.

Every twentieth case runs on the simulated device, and all of them in the slow tests. All cases run with the reference
operators in tests/unit/frontends.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from npusim.errors import UnsupportedError
from tests.support.onnx_node_tests.adapters import ADAPTERS
from tests.support.onnx_node_tests.cases import NodeCase, Verdict, judge, judge_all, node_cases, recorded


@functools.cache
def verdicts(adapter: str, step: int) -> tuple[Verdict, ...]:
    """Return the verdict of each case, or of one in ``step``."""
    return tuple(judge_all(node_cases()[::step], ADAPTERS[adapter]))


runs = pytest.mark.parametrize(
    ("adapter", "step"),
    [
        ("device", 20),
        pytest.param("reference", 1, marks=pytest.mark.slow),
        pytest.param("device", 1, marks=pytest.mark.slow),
    ],
)


def test_each_adapter_is_tried() -> None:
    assert set(ADAPTERS) == {"reference", "device"}


@runs
def test_no_case_fails(adapter: str, step: int) -> None:
    failed = [f"{v.case}: {v.reason}" for v in verdicts(adapter, step) if v.outcome == "failed"]
    assert not failed, "\n".join(failed)


@runs
def test_what_passed_before_passes_still(adapter: str, step: int) -> None:
    now = verdicts(adapter, step)
    floor = recorded() & {verdict.case for verdict in now}
    lost = [f"{v.case}: {v.outcome}: {v.reason}" for v in now if v.outcome != "passed" and v.case in floor]
    assert not lost, "\n".join(lost)
    assert len(floor) > 1000 // step, "the record must name most of the cases; write it again"


@runs
def test_every_refusal_names_the_operator_and_a_reason(adapter: str, step: int) -> None:
    refused = [verdict for verdict in verdicts(adapter, step) if verdict.outcome == "refused"]
    assert refused
    assert not [verdict for verdict in refused if not all(part.strip() for part in verdict.reason.split(":", 1))]


@pytest.mark.slow
def test_the_record_is_complete() -> None:
    """A passing case that is not recorded could break unnoticed."""
    passed = {v.case for v in verdicts("reference", 1) if v.outcome == "passed"}
    assert passed == recorded(), "write the record again: python -m tests.support.onnx_node_tests.cases --write"


@pytest.fixture(scope="module")
def relu() -> NodeCase:
    return next(case for case in node_cases() if case.name == "test_relu")


def test_the_judge_passes_the_expected_and_nothing_else(relu: NodeCase) -> None:
    assert judge(relu, lambda model, inputs: relu.expected).outcome == "passed"
    off = [relu.expected[0] + np.float32(0.01)]
    assert judge(relu, lambda model, inputs: off).reason.startswith("output 0: ")
    assert "must be float32" in judge(relu, lambda model, inputs: [relu.expected[0].astype(np.float64)]).reason
    assert "must have 1 outputs, got 0" in judge(relu, lambda model, inputs: []).reason


def test_the_judge_tells_a_refusal_from_a_crash(relu: NodeCase) -> None:
    def refuse(*_: object) -> list[NodeCase]:
        raise UnsupportedError([("n", "Relu", "not today")])

    def crash(*_: object) -> list[NodeCase]:
        raise KeyError("oops")

    assert judge(relu, refuse) == Verdict("test_relu", "refused", "Relu: not today")  # type: ignore[arg-type]
    assert judge(relu, crash) == Verdict("test_relu", "failed", "KeyError: 'oops'")  # type: ignore[arg-type]
