"""The onnx package's backend test suite on npusim.backend, and the manual's table of its results.

``python -m tests.support.onnx_node_tests.suite`` runs every case and writes docs/reference/onnx-backend.md; with
``--check`` it only says whether that page is up to date.
"""

from __future__ import annotations

import os
import pprint
import sys
import tempfile
import unittest
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest import mock

import numpy as np
import onnx
from onnx.backend.test import BackendTest

from npusim.backend import BackendUnsupportedError, NpusimBackend, PreparedModel
from npusim.errors import UnsupportedError
from npusim.frontends.onnx.host_steps import RANDOM
from npusim.pages import write_or_check
from tests.support.onnx_node_tests.cases import ATOL, HALF_RTOL

PATH = Path("docs/reference/onnx-backend.md")
CPU = "_cpu"
TOLERANCES = {
    "test_attention_4d_causal_fp16": {"rtol": HALF_RTOL["float16"]},
    "test_attention_4d_causal_fp16_expanded": {"rtol": HALF_RTOL["float16"]},
    **{name: {"atol": atol} for name, atol in ATOL.items()},
}
"""Wider than those of the suite, for cases whose expected values are farther from the exact result than ours."""
_HEAD = f"""\
# The onnx package's suite

Made by `python -m tests.support.onnx_node_tests.suite` in a source tree; do not edit.

`npusim.backend` is the onnx package's interface of a backend: `prepare`, `run_model`, `run_node`, `is_compatible`,
`supports_device`. The package's own suite runs on it as its documentation says:

<!-- not run: it makes two thousand models -->
```python
import onnx.backend.test
import npusim.backend

tolerances = {pprint.pformat(TOLERANCES, width=100)}
suite = onnx.backend.test.BackendTest(npusim.backend, __name__, test_kwargs=tolerances)
globals().update(suite.test_cases)      # and then: pytest, or unittest.main()
```

A case that npusim refuses is shown as skipped, with the reason. The cases of Bernoulli fail, because the expected
results are those of another random generator. Inputs whose value decides shapes are bound to the
value that the case has. Without the tolerances four cases fail: their expected values are farther from the exact
result than npusim's. Two want a softmax that is rounded to float16 after each of its steps, two have the rounding
errors of an inverse Fourier transform where the exact result is 0. The suite itself cannot compare the results of
test_loop16_seq_none, a sequence with a scalar in it; the figures below compare them.
"""


class Case(NamedTuple):
    """The outcome of a case of the suite; ``reason`` says why it did not pass."""

    category: str
    name: str
    outcome: Literal["passed", "refused", "random", "failed"]
    reason: str = ""


class _Telling(NpusimBackend):
    """Claims support for every model, so that it reports why it refuses one, and records the last one."""

    last: onnx.ModelProto | None = None

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        cls.last = model
        return super().prepare(model, device, **kwargs)


class _Comparing(BackendTest):
    """Compares scalars in sequences, for which the suite asks for their length."""

    @classmethod
    def assert_similar_outputs(
        cls, ref_outputs: Any, outputs: Any, rtol: float, atol: float, model_dir: str | None = None
    ) -> None:
        if isinstance(outputs, np.ndarray) and not outputs.ndim:
            ref_outputs, outputs = [ref_outputs], [outputs]
        super().assert_similar_outputs(ref_outputs, outputs, rtol, atol, model_dir)


def items() -> Iterator[tuple[str, str, Callable[[], None]]]:
    """Yield (category, name, test) of every case, in order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases overflow and divide by zero on purpose while they are built
        suite = _Comparing(_Telling, __name__, test_kwargs=TOLERANCES)
    for name, case in sorted(suite.test_cases.items()):
        category = name.removeprefix("OnnxBackend").removesuffix("ModelTest")
        for test in unittest.defaultTestLoader.getTestCaseNames(case):
            if test.endswith(CPU):
                yield category, test.removesuffix(CPU), getattr(case(test), test)


def judge(category: str, name: str, test: Callable[[], None]) -> Case:
    """Run one case."""
    _Telling.last = None
    try:
        # By default the suite stores inputs of networks in the user's home directory.
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"ONNX_MODELS": folder}):
            test()
    except BackendUnsupportedError as error:
        return Case(category, name, "refused", _first(error))
    except (Exception, unittest.SkipTest) as error:  # noqa: BLE001 - whatever it is, it is this case's verdict
        nodes = [] if _Telling.last is None else _Telling.last.graph.node
        if found := [node.op_type for node in nodes if node.op_type in RANDOM]:
            return Case(category, name, "random", f"{found[0]}: the numbers of another generator are expected")
        return Case(category, name, "failed", f"{type(error).__name__}: {error}")
    return Case(category, name, "passed")


def _first(error: UnsupportedError) -> str:
    _, kind, reason = error.reasons[0]
    return f"{kind}: {reason}"


def render(cases: Sequence[Case]) -> str:
    """Return the whole page."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    refused: dict[str, list[str]] = defaultdict(list)
    for case in cases:
        counts[case.category][case.outcome] += 1
        if case.outcome != "passed":
            refused[case.reason].append(case.name.removeprefix("test_"))
    lines = [_HEAD, f"With onnx {onnx.__version__}:\n", "| cases | passed | refused | random | failed | all |"]
    lines.append("|---|---|---|---|---|---|")
    lines += [_row(category, count) for category, count in sorted(counts.items())]
    lines += [_row("all", sum(counts.values(), Counter())), "", "## What does not pass, and why\n"]
    lines += ["| reason | number | cases |", "|---|---|---|"]
    for reason, names in sorted(refused.items(), key=lambda item: (-len(item[1]), item[0])):
        text = reason.splitlines()[0].replace("|", "\\|")
        lines.append(f"| {text} | {len(names)} | {' '.join(sorted(names))} |")
    return "\n".join([*lines, ""])


def _row(label: str, counts: Mapping[str, int]) -> str:
    cells = [counts.get(outcome, 0) for outcome in ("passed", "refused", "random", "failed")]
    return f"| {label} | {' | '.join(map(str, cells))} | {sum(cells)} |"


def results() -> list[Case]:
    """Run every case."""
    return [judge(*item) for item in items()]


def on_record() -> frozenset[str]:
    """Return the names of the cases that the page lists as refused or random."""
    rows = PATH.read_text(encoding="utf-8").partition("## What does not pass")[2].splitlines()[4:]
    return frozenset(f"test_{name}" for row in rows for name in row.rstrip("| ").rpartition("|")[2].split())


if __name__ == "__main__":
    module = "tests.support.onnx_node_tests.suite"
    sys.exit(write_or_check(module, __doc__, PATH, lambda: render(results()), None))
