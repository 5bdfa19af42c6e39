"""TFLite models on the simulated device beside LiteRT's own kernels: ``make tflite``. Skipped without ai-edge-litert.

The default interpreter (XNNPACK, where it has a kernel) is the oracle. The distance of its reference kernels says how
far apart two right results may be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from npusim.runtime import Session

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="make tflite installs it")
pytest.importorskip("tflite", reason="the extra tflite")

from tests.support.tflite_cases import Case, Maker, cases, transposed_bias  # noqa: E402

CASES = dict(cases())
FLOATS, HYBRIDS = 1e-4, 1e-2
"""Least tolerances, as parts of the largest value."""
UNKNOWN = {"ATAN2 float32", "REVERSE_SEQUENCE int8", "ZEROS_LIKE int8"}
"""Cases that the oracle refuses: it lacks the broadcast or the type."""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session("edge", cache_dir=False) as session:
        yield session


def oracle(data: bytes, arrays: Mapping[str, Any], resolver: Any) -> dict[str, Any]:
    interpreter = litert.Interpreter(model_content=data, experimental_op_resolver_type=resolver)
    interpreter.allocate_tensors()
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], arrays[detail["name"]])
    interpreter.invoke()
    return {each["name"]: interpreter.get_tensor(each["index"]).copy() for each in interpreter.get_output_details()}


def reference(case: Case) -> dict[str, Any] | None:
    """The results of the reference kernels; None for operators that have none."""
    try:
        return oracle(case.data, case.arrays, litert.OpResolverType.BUILTIN_REF)
    except (RuntimeError, ValueError):
        return None


def check(case: Case, got: Mapping[str, Any], want: Mapping[str, Any], other: Mapping[str, Any] | None) -> None:
    for name, expected in want.items():
        found = got[name]
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        far = np.abs(found.astype(np.float64) - expected.astype(np.float64)).max(initial=0)
        if expected.dtype.kind != "f":
            # One step of a quantised output; indices and bools are exact.
            assert far <= (1 if expected.dtype.itemsize <= 2 and expected.dtype.kind in "iu" else 0)
            continue
        largest = np.abs(expected).max(initial=1e-30)
        apart = 0 if other is None else np.abs(other[name] - expected).max(initial=0)
        assert far <= max(2 * apart, (HYBRIDS if case.hybrid else FLOATS) * largest)


@pytest.mark.parametrize("name", sorted(CASES.keys() - UNKNOWN))
def test_an_operator(session: Session, name: str) -> None:
    case = CASES[name]
    want = oracle(case.data, case.arrays, litert.OpResolverType.AUTO)
    # A constant result would hide mistakes.
    assert name.startswith(("FILL", "ZEROS", "SHAPE")) or any(len(np.unique(each)) > 1 for each in want.values())
    check(case, session.run(case.data, case.arrays).outputs, want, reference(case))


def test_the_oracle_refuses_what_is_left_out() -> None:
    for name in UNKNOWN:
        with pytest.raises((RuntimeError, ValueError)):
            oracle(CASES[name].data, CASES[name].arrays, litert.OpResolverType.AUTO)


def test_mediapipes_transposed_convolution_is_the_builtin_one(session: Session) -> None:
    custom, builtin = (Maker("float32", "transposed") for _ in range(2))
    data = transposed_bias(custom, "custom")
    same = transposed_bias(builtin, "TRANSPOSE_CONV")
    want = oracle(same, builtin.arrays, litert.OpResolverType.AUTO)
    check(Case(data, custom.arrays), session.run(data, custom.arrays).outputs, want, None)
