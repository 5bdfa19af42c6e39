"""``com.example.fibonacci``: its rules, its arithmetic, and its routine on the device."""

from __future__ import annotations

import numpy as np
import pytest

from hal.nnapi.extensions import definitions_of, fibonacci, storage_of
from hal.nnapi.extensions.fibonacci import EXAMPLE_TENSOR_QUANT64_ASYMM, FibonacciQuant64Params
from hal.nnapi.operations.constants import Constants
from hal.nnapi.operations.lowering import InvalidOperationError
from hal.nnapi.operations.view import OpView
from hal.nnapi.plan import Plan, Vocabulary
from hal.nnapi.types import (
    ExtraParams,
    Operand,
    OperandType,
)
from npusim.runtime import Session
from tests.support.nnapi.fibonacci_model import F32, HALVES, INT64, PREFIX, QUANT64, fibonacci_model
from tests.support.nnapi_examples.running import HostBackend, SessionBackend


def run(asked, n, backend=None):
    backend = backend or HostBackend()
    vocabulary = Vocabulary(definitions_of(asked), storage_of(asked))
    plan = Plan(asked, Constants(asked, (), storage_of(asked)), vocabulary, backend.compile)
    return plan.execute(backend, [n], [lambda shape, dtype: None], 10**12)[0]


def problem(asked):
    view = OpView(asked.main, asked.main.operations[0], Constants(asked))
    return definitions_of(asked)[PREFIX << 16].problem(view)


NUMBERS = [1, 1, 2, 3, 5, 8, 13, 21, 34, 55]


@pytest.mark.parametrize(
    "backend", [HostBackend(), SessionBackend(Session("tiny", cache_dir=False))], ids=["host", "device"]
)
@pytest.mark.parametrize(
    ("source", "n"),
    [(INT64, np.asarray(10, np.int64)), (F32, np.asarray([10.9], np.float32))],
    ids=["int64", "float32"],
)
def test_the_first_ten(source, n, backend):
    dims = () if source == INT64 else (1,)
    real = run(fibonacci_model(source, F32, dims), n, backend)
    assert real.dtype == np.float32
    assert real.tolist() == NUMBERS
    stored = run(fibonacci_model(source, QUANT64, dims), n, backend)
    assert stored.dtype == np.int64
    assert stored.tolist() == [2 * number + 10 for number in NUMBERS]  # number / 0.5 + 10


def test_the_largest_is_exact():
    whole = FibonacciQuant64Params(1.0, 0)
    stored = run(fibonacci_model(INT64, QUANT64, params=whole), np.asarray(fibonacci.LARGEST, np.int64))
    assert stored[-1] == 7540113804746346429
    assert (stored[2:] == stored[:-2] + stored[1:-1]).all()


def test_integers_saturate():
    tiny = FibonacciQuant64Params(2.0**-60, 0)
    stored = run(fibonacci_model(INT64, QUANT64, params=tiny), np.asarray(10, np.int64))
    assert stored[0] == 2**60
    assert stored[-1] == np.iinfo(np.int64).max


@pytest.mark.parametrize("n", [0, -1, fibonacci.LARGEST + 1])
def test_n_has_limits(n):
    with pytest.raises(InvalidOperationError, match=r"must be in \[1, 92\]"):
        run(fibonacci_model(INT64, F32), np.asarray(n, np.int64))


def test_a_float_that_is_no_number_is_refused():
    with pytest.raises(InvalidOperationError, match="got nan"):
        run(fibonacci_model(F32, F32, (1,)), np.asarray([np.nan], np.float32))


def test_the_declared_size_must_be_n():
    with pytest.raises(InvalidOperationError, match=r"declared as \[9\]"):
        run(fibonacci_model(INT64, F32, out_dims=(9,)), np.asarray(10, np.int64))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (fibonacci_model(OperandType.TENSOR_INT32, F32, (1,)), "EXAMPLE_INT64"),
        (fibonacci_model(INT64, OperandType.TENSOR_INT32), "EXAMPLE_TENSOR_QUANT64_ASYMM"),
        (fibonacci_model(INT64, F32, inputs=(0, 0)), "EXAMPLE_INT64"),
        (fibonacci_model(F32, F32, (2,)), "one element"),
        (fibonacci_model(INT64, F32, out_dims=(2, 5)), "rank 1"),
    ],
)
def test_what_it_refuses(asked, message):
    assert message in problem(asked)


def test_what_it_accepts():
    assert problem(fibonacci_model(INT64, QUANT64)) is None
    assert problem(fibonacci_model(F32, F32, (0,))) is None


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (None, "got none"),
        (ExtraParams(extension=b"short"), "got 5 bytes"),
        (ExtraParams(extension=FibonacciQuant64Params(0.0, 1).pack()), "scale"),
        (ExtraParams(extension=FibonacciQuant64Params(float("nan"), 1).pack()), "scale"),
    ],
)
def test_attached_data_is_checked(extra, message):
    kind = fibonacci.EXTENSION.operand_types[EXAMPLE_TENSOR_QUANT64_ASYMM]
    assert message in kind.check(Operand(QUANT64, (4,), extraParams=extra))
    assert kind.check(Operand(QUANT64, (4,), extraParams=ExtraParams(extension=HALVES.pack()))) is None
