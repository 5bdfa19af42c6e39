"""The onnx package's backend suite: npusim computes a case correctly or refuses it, as the manual's table says."""

from __future__ import annotations

import onnx
import pytest

from tests.support.onnx_node_tests.suite import PATH, items, judge, on_record, render, results

STRIDE = 31
"""The default run includes every STRIDE-th case."""
LEAST_PASSED = 2010


def test_a_sample_of_the_suite_goes_as_the_table_says() -> None:
    found = [judge(*item) for item in list(items())[::STRIDE]]
    assert [case for case in found if case.outcome == "failed"] == []
    if f"With onnx {onnx.__version__}:" not in PATH.read_text(encoding="utf-8"):
        return  # the table is for another release with other cases
    refused = on_record()
    wrong = {case.name: case for case in found if (case.outcome != "passed") != (case.name in refused)}
    assert not wrong, f"{wrong}: python -m tests.support.onnx_node_tests.suite"


@pytest.mark.slow
def test_the_table_is_true() -> None:
    found = results()
    assert [case for case in found if case.outcome == "failed"] == []
    assert sum(case.outcome == "passed" for case in found) >= LEAST_PASSED
    assert PATH.read_text(encoding="utf-8") == render(found), "python -m tests.support.onnx_node_tests.suite"
