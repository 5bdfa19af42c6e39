"""The onnx package's node tests on npusim: every case passes, or is refused with a reason.

The tests provide everything as run-time inputs, even axes and shapes. A case refused because such an operand must be
constant is judged again as ``<name>:bound``, with all inputs but the first as constants, as exporters write them.

``python -m tests.support.onnx_node_tests.cases`` counts the cases, lists refusals with reasons, and with ``--write``
records the names that pass. Later versions must pass at least those.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper

from npusim.errors import UnsupportedError

Array = npt.NDArray[Any]
Adapter = Callable[[onnx.ModelProto, Mapping[str, Array]], Sequence[Array]]
"""Computes a model: inputs by name, outputs in the model's order."""

PASSED_FILE = Path(__file__).with_name("passed.txt")
BOUND = ":bound"
WANTS_CONSTANT = "must be a constant"
HALF_RTOL = {"bfloat16": 2.0**-6, "float16": 2.0**-9}
"""Two units in the last place. onnx's own runner allows them for bfloat16. Expected float16 values of several steps are
rounded after each step and may be as far from the exact result as ours, on the other side."""
ATOL = dict.fromkeys(("test_dft_inverse", "test_dft_inverse_opset19"), 1e-6)
"""Per case: the expected values have rounding errors of this size where the exact result is 0."""


@dataclass(frozen=True)
class NodeCase:
    """One node test: a model of one or a few nodes, its inputs, and the outputs that onnx expects."""

    name: str
    model: onnx.ModelProto
    inputs: dict[str, Any]
    expected: list[Any]
    rtol: float
    atol: float

    @property
    def elements(self) -> int:
        """Tensor elements of inputs and outputs, roughly the cost of a run."""
        values = (*self.inputs.values(), *self.expected)
        return sum(value.size for value in values if isinstance(value, np.ndarray))


@dataclass(frozen=True)
class Verdict:
    """The outcome of a case; ``reason`` says why it did not pass."""

    case: str
    outcome: Literal["passed", "refused", "failed"]
    reason: str = ""


@functools.cache
def node_cases() -> tuple[NodeCase, ...]:
    """Return every node test of the installed onnx by name. Takes seconds."""
    from onnx.backend.test import loader

    if not hasattr(loader, "load_node_model_tests"):
        pytest.skip(f"the records are of the node tests of a newer onnx than {onnx.__version__}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases overflow and divide by zero on purpose while they are built
        found = loader.load_node_model_tests()
    return tuple(sorted(map(_case, found), key=lambda case: case.name))


def _case(test: Any) -> NodeCase:
    inputs, expected = test.data_sets[0]
    names = [info.name for info in test.model.graph.input]
    feeds = {name: _array(value) for name, value in zip(names, inputs, strict=True) if value is not None}
    atol = max(test.atol, ATOL.get(test.name, 0.0))
    return NodeCase(test.name, test.model, feeds, [_array(value) for value in expected], test.rtol, atol)


def _array(value: Any) -> Any:
    """Return a tensor as numpy; sequences and absent optionals are unchanged."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return value if value is None or isinstance(value, list) else np.asarray(value)


def judge(case: NodeCase, run: Adapter) -> Verdict:
    """Run one case: an UnsupportedError is a refusal, any other exception or difference a failure."""
    try:
        outputs = run(case.model, case.inputs)
    except UnsupportedError as error:
        return Verdict(case.name, "refused", "; ".join(f"{kind}: {reason}" for _, kind, reason in error.reasons))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this case's verdict
        return Verdict(case.name, "failed", f"{type(error).__name__}: {error}")
    problem = _difference(case, outputs)
    return Verdict(case.name, "failed", problem) if problem else Verdict(case.name, "passed")


def _difference(case: NodeCase, outputs: Sequence[Any]) -> str:
    """Return what is wrong with the outputs; empty if nothing is."""
    if len(outputs) != len(case.expected):
        return f"must have {len(case.expected)} outputs, got {len(outputs)}"
    for index, (actual, expected) in enumerate(zip(outputs, case.expected, strict=True)):
        if not isinstance(expected, np.ndarray):
            return f"output {index}: must be a {type(expected).__name__}, got a tensor"
        actual = _typed(actual, expected.dtype)
        wanted, got = (f"{array.dtype}{list(array.shape)}" for array in (expected, actual))
        if wanted != got:
            return f"output {index}: must be {wanted}, got {got}"
        close = _close(actual, expected, case)
        if not close.all():
            at = tuple(int(i) for i in np.argwhere(~np.atleast_1d(close))[0])
            pair = np.atleast_1d(actual)[at], np.atleast_1d(expected)[at]
            return (
                f"output {index}: {np.sum(~close)} of {close.size} differ, first at {at}: got {pair[0]}, not {pair[1]}"
            )
    return ""


def _typed(array: Any, dtype: np.dtype[Any]) -> Any:
    """The array; bytes that hold elements of a narrower type as an array of this type."""
    if dtype.itemsize != 1 or dtype.kind in "biu" or array.dtype not in (np.int8, np.uint8):
        return array
    return array.view(dtype) if "float" in dtype.name else array.astype(dtype)


def _close(actual: Array, expected: Array, case: NodeCase) -> npt.NDArray[np.bool_]:
    """Compare elements within the case's tolerance; text must be equal."""
    rtol = max(case.rtol, HALF_RTOL.get(expected.dtype.name, 0.0))
    if expected.dtype.kind in "OUST":
        return np.asarray(actual == expected)
    if expected.dtype.kind == "V":  # numpy's isclose does not support the small types of ml_dtypes
        actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    return np.asarray(np.isclose(actual, expected, rtol=rtol, atol=case.atol, equal_nan=True))


def bound(case: NodeCase) -> NodeCase:
    """Return the case with every input but the first as an initializer."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    first, *others = case.inputs
    for name in others:
        model.graph.initializer.append(numpy_helper.from_array(case.inputs[name], name))
    kept = [info for info in model.graph.input if info.name not in others]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    inputs = {first: case.inputs[first]}
    return replace(case, name=case.name + BOUND, model=model, inputs=inputs)


def judge_all(cases: Iterable[NodeCase], run: Adapter) -> list[Verdict]:
    """Return a verdict per case, in order. A refused case that needs constants is judged again with its inputs
    bound."""
    verdicts = []
    for case in cases:
        verdicts.append(judge(case, run))
        if verdicts[-1].outcome == "refused" and WANTS_CONSTANT in verdicts[-1].reason and len(case.inputs) > 1:
            verdicts.append(judge(bound(case), run))
    return verdicts


def recorded() -> frozenset[str]:
    """Return the recorded names of passed cases."""
    lines = PASSED_FILE.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def summary(verdicts: Sequence[Verdict]) -> str:
    """Return counts, every failure, and the reasons for refusals by frequency."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    lines = [f"{counts['passed']} passed, {counts['refused']} refused, {counts['failed']} failed of {len(verdicts)}"]
    lines += [f"FAILED {verdict.case}: {verdict.reason}" for verdict in verdicts if verdict.outcome == "failed"]
    refusals = Counter(verdict.reason for verdict in verdicts if verdict.outcome == "refused")
    lines += [f"{count:5} refused: {reason}" for reason, count in refusals.most_common()]
    return "\n".join(lines)


def _write(verdicts: Sequence[Verdict]) -> None:
    names = sorted(verdict.case for verdict in verdicts if verdict.outcome == "passed")
    head = "# Node tests of the onnx package that pass; made by: python -m tests.support.onnx_node_tests.cases --write"
    PASSED_FILE.write_text("\n".join([head, *names, ""]), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge, report, and optionally record. Returns 1 if a case failed."""
    from tests.support.onnx_node_tests.adapters import ADAPTERS

    parser = argparse.ArgumentParser(prog="python -m tests.support.onnx_node_tests.cases", description=__doc__)
    parser.add_argument("--adapter", choices=sorted(ADAPTERS), default="reference", help="what computes the models")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose name contains this")
    parser.add_argument("--write", action="store_true", help=f"record the passed names in {PASSED_FILE.name}")
    options = parser.parse_args(arguments)
    if options.write and options.only:
        parser.error("--write: needs all cases, not --only some")
    chosen = [case for case in node_cases() if options.only in case.name]
    start = time.perf_counter()
    verdicts = judge_all(chosen, ADAPTERS[options.adapter])
    sys.stdout.write(f"{summary(verdicts)}\n{time.perf_counter() - start:.1f} s\n")
    if options.write:
        _write(verdicts)
    return int(any(verdict.outcome == "failed" for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
