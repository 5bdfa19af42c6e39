"""onnx's node tests through frontend and references, with operands that decide shapes made constants.

The package's node tests feed everything as a graph input: axes, shapes, sizes, depths. In models these are constants,
and a device whose programs have static shapes takes them only so. Here a case that is refused for want of a constant
is run again with its operands baked into the model, first all but the first, then all.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from npusim.errors import UnsupportedError
from tests.support.onnx_node_tests.adapters import reference
from tests.support.onnx_node_tests.cases import BOUND, NodeCase, Verdict, judge, node_cases, recorded

Array = npt.NDArray[Any]
WANTS_CONSTANT = "must be a constant"
LEAST_PASSED = 1400
"""Cases that must pass; the suite of another onnx release may have a few fewer."""


def baked(model: onnx.ModelProto, inputs: Mapping[str, Array], first: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model with its inputs from number ``first`` on as initializers, and the inputs that are left."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    names = [info.name for info in model.graph.input if info.name in inputs]
    for name in names[first:]:
        if isinstance(inputs[name], np.ndarray):
            copy.graph.initializer.append(numpy_helper.from_array(inputs[name], name))
    weights = {tensor.name for tensor in copy.graph.initializer}
    return copy, {name: array for name, array in inputs.items() if name not in weights}


def with_constants(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    """The reference adapter, which bakes operands where it is told that they must be constants."""
    for first in (len(inputs), 1):
        try:
            return reference(*baked(model, inputs, first))
        except UnsupportedError as error:
            if not any(WANTS_CONSTANT in reason for _, _, reason in error.reasons):
                raise
    return reference(*baked(model, inputs, 0))


def widened(case: NodeCase) -> NodeCase:
    """The case with two units in the last place for float16, whose expected values are rounded after every step."""
    half = any(isinstance(value, np.ndarray) and value.dtype == np.float16 for value in case.expected)
    tolerance = max(case.rtol, 2.0**-9) if half else case.rtol
    return NodeCase(case.name, case.model, case.inputs, case.expected, tolerance, case.atol)


@functools.cache
def verdicts() -> tuple[Verdict, ...]:
    """Every case, judged."""
    return tuple(judge(widened(case), with_constants) for case in node_cases())


def test_no_case_fails() -> None:
    failed = [f"{v.case}: {v.reason}" for v in verdicts() if v.outcome == "failed"]
    assert not failed, "\n".join(failed)


def test_most_cases_pass() -> None:
    counts = Counter(verdict.outcome for verdict in verdicts())
    assert counts["passed"] >= LEAST_PASSED, counts


def test_what_passed_before_passes_still() -> None:
    """The record is that of the standard's cases as they are: those that wanted constants have passed with them."""
    now = {verdict.case: verdict for verdict in verdicts()}
    floor = {name.removesuffix(BOUND) for name in recorded()} & set(now)
    lost = [f"{name}: {now[name].reason}" for name in sorted(floor) if now[name].outcome != "passed"]
    assert not lost, "\n".join(lost)


def test_no_refusal_is_for_want_of_a_constant() -> None:
    assert not [v.case for v in verdicts() if v.outcome == "refused" and WANTS_CONSTANT in v.reason]
