"""Fixed-point operators of the graph compared with the same arithmetic on Python integers, and with real numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hal.nnapi.operations.fixed_norm import inverse_root, layer_norm
from hal.nnapi.operations.fixed_point import FixedPoint, quantised_multiplier
from hal.nnapi.operations.lowering import InvalidOperationError, Lowering
from hal.nnapi.operations.view import OpView
from hal.nnapi.types import Operation, OperationType, Subgraph
from npusim.dtypes import dtype_of
from npusim.graph import Tensor
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from tests.support.oracle import fixed_point

ALL = np.arange(-32768, 32768, dtype=np.int32)
SOME = np.unique(np.concatenate([ALL[::257], ALL[:3], ALL[-3:], np.arange(-70, 70), [-16384, 16384, -8192, 8192]]))


def compute(function: Callable[..., Tensor | tuple[Tensor, ...]], *arrays: Any) -> list[Any]:
    """Evaluate the operators that a function adds on these arrays."""
    builder = GraphBuilder("fixed point", fold=True)
    view = OpView(Subgraph([], [], [], []), Operation(OperationType.QUANTIZED_LSTM, [], []), lambda operand: None)
    fixed = FixedPoint(Lowering(view, builder, {}, lambda number: pytest.fail("nothing is read"), lambda number: None))
    tensors = [builder.input(f"x{i}", array.shape, dtype_of(array)) for i, array in enumerate(arrays)]
    results = function(fixed, *tensors)
    graph = builder.finish(list(results) if isinstance(results, tuple) else [results])
    outputs = reference.run(graph, {f"x{i}": array for i, array in enumerate(arrays)})
    return [outputs[tensor.name] for tensor in graph.outputs]


def test_logistic() -> None:
    [levels] = compute(FixedPoint.logistic, ALL)
    assert np.abs(levels - 32768 / (1 + np.exp(-ALL / 4096))).max() < 7
    assert [fixed_point.logistic(int(x)) for x in SOME] == levels[SOME + 32768].tolist()


@pytest.mark.parametrize("bits", range(7))
def test_tanh(bits: int) -> None:
    [levels] = compute(lambda fixed, x: fixed.tanh(x, bits), ALL)
    assert np.abs(levels - 32768 * np.tanh(ALL / 2.0 ** (15 - bits))).max() < 13
    assert [fixed_point.tanh(int(x), bits) for x in SOME] == levels[SOME + 32768].tolist()


@pytest.mark.parametrize("bits", [0, 1, 4, 15])
def test_rounded_right(bits: int) -> None:
    [levels] = compute(lambda fixed, x: fixed.rounded_right(x, bits), ALL)
    assert [fixed_point.divide(int(x), bits) for x in ALL[::5]] == levels[::5].tolist()


def test_shifts_of_each_element() -> None:
    x = np.array([-5, -4, -3, -1, 0, 1, 3, 4, 5, 12345, -12345], np.int64)
    bits = np.array([0, 1, 2, 3, 0, 1, 1, 3, 2, 5, 7], np.int64)
    wanted = [fixed_point.divide(int(a), int(b)) for a, b in zip(x, bits, strict=True)]
    assert compute(FixedPoint.shifted, x, bits)[0].tolist() == wanted
    assert compute(lambda fixed, a: fixed.shifted(a, bits), x)[0].tolist() == wanted


@pytest.mark.parametrize("factor", [0.0, 1e-9, 0.25, 0.3, 0.999999999999, 1.0, 3.7])
def test_rescale(factor: float) -> None:
    x = np.array([0, 1, -1, 2, -2, 3, -3, 5, 1000, -12345, 2**27, -(2**27) - 1], np.int32)
    [levels] = compute(lambda fixed, a: fixed.rescale(a, [factor]), x)
    assert levels.dtype == np.int32
    assert [fixed_point.rescale(int(a), factor) for a in x] == levels.tolist()
    assert np.abs(levels - x * factor).max() <= 1


def test_rescale_by_gate() -> None:
    x = np.arange(-12, 12, dtype=np.int32).reshape(2, 3, 4) * 1001
    [levels] = compute(lambda fixed, a: fixed.rescale(a, [0.3, 2.5, 1.0]), x)
    for gate, factor in enumerate([0.3, 2.5, 1.0]):
        wanted = [fixed_point.rescale(int(a), factor) for a in x[:, gate].ravel()]
        assert levels[:, gate].ravel().tolist() == wanted


def test_inverse_root() -> None:
    values = [0, 1, 2, 3, 4, 7, 1000, 2**20, 12345678, 2**27 - 1, 2**29 - 1, 2**29, 2**30 + 5, 2**31 - 1]
    numbers, shifts = compute(inverse_root, np.array(values, np.int64))
    assert [fixed_point.inverse_root(value) for value in values] == list(
        zip(numbers.tolist(), shifts.tolist(), strict=True)
    )
    wanted = 1 / np.sqrt(np.maximum(values, 1).astype(np.float64))
    np.testing.assert_allclose(numbers / 2.0 ** (31 + shifts), wanted, rtol=2e-6)


@pytest.mark.parametrize("units", [1, 4, 7])
def test_layer_norm(units: int) -> None:
    rng = np.random.default_rng(units)
    x = rng.integers(-32768, 32767, (3, 2, units), np.int32)
    x[1], x[2] = 7, x[2] // 1000  # no variance at all; and little
    weights, bias = (
        rng.integers(-32768, 32767, (2, units), np.int16),
        rng.integers(-(2**24), 2**24, (2, units), np.int32),
    )
    scales = [2.0**-15, 3e-5]
    [levels] = compute(lambda fixed, a: layer_norm(fixed, a, fixed.op.const(weights), fixed.op.const(bias), scales), x)
    for row in range(3):
        for gate, scale in enumerate(scales):
            wanted = fixed_point.layer_norm(x[row, gate].tolist(), weights[gate].tolist(), bias[gate].tolist(), scale)
            assert wanted == levels[row, gate].tolist()


@pytest.mark.parametrize("factor", [-1.0, float("nan"), float("inf"), 2.0**31])
def test_scales_that_are_none(factor: float) -> None:
    with pytest.raises(InvalidOperationError, match="scale"):
        quantised_multiplier(factor)
