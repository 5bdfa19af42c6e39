"""QUANTIZED_LSTM and QUANTIZED_16BIT_LSTM compared bit for bit with their definitions on Python integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hal.nnapi.operations.lowering import InvalidOperationError
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O
from tests.support.nnapi.one_operation import Given, given, i32, left_out, omitted, problem, result, run, scalar
from tests.support.oracle import fixed_point
from tests.support.oracle.fixed_point import INT16, clamp, divide, high, logistic, rescale, saturated_left, tanh

Q8, Q8S, Q8SYMM, Q16S, I32 = (
    T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED, T.TENSOR_QUANT8_SYMM, T.TENSOR_QUANT16_SYMM, T.TENSOR_INT32,
)  # fmt: skip
BATCHES, INPUTS, UNITS = 2, 5, 4
INT8 = (-128, 127)


def values(operand: Given) -> Any:
    assert operand.value is not None
    return operand.value.astype(np.int64)


# QUANTIZED_16BIT_LSTM


def sixteen_bit(seed: int, const: bool = False, weight_zero: int = 100) -> list[Given]:
    rng = np.random.default_rng(seed)
    scale = 1 / 200

    def byte(shape: tuple[int, ...], scale: float, zero: int, const: bool = False) -> Given:
        return given(Q8, rng.integers(0, 256, shape), scale, zero, const=const)

    weights = [byte((UNITS, INPUTS), scale, weight_zero, const) for _ in range(4)]
    weights += [byte((UNITS, UNITS), scale, weight_zero, const) for _ in range(4)]
    biases = [given(I32, rng.integers(-50000, 50000, UNITS), scale / 128, const=const) for _ in range(4)]
    cell = given(Q16S, rng.integers(-32768, 32767, (BATCHES, UNITS)), 2.0**-11)
    x, output = byte((BATCHES, INPUTS), 1 / 128, 128), byte((BATCHES, UNITS), 1 / 128, 128)
    return [x, *weights, *biases, cell, output]


SIXTEEN_OUTPUTS = [result(Q16S, 2.0**-11), result(Q8, 1 / 128, 128)]


def sixteen_bit_step(operands: list[Given]) -> tuple[Any, Any]:
    """Return cell state and output, computed one element at a time."""
    entries = np.concatenate([values(operands[0]), values(operands[14])], 1) - 128
    zero, factor = operands[1].zero, float(np.float32(operands[9].scale)) * 4096
    cell, output = np.zeros((BATCHES, UNITS), int), np.zeros((BATCHES, UNITS), int)
    for b in range(BATCHES):
        for u in range(UNITS):
            sums = []
            for gate in range(4):
                row = np.concatenate([values(operands[5 + gate])[u], values(operands[1 + gate])[u]]) - zero
                total = int(entries[b] @ row + values(operands[9 + gate])[u])
                sums.append(clamp(rescale(total, factor), INT16))
            fresh = high(logistic(sums[0]), tanh(sums[2], 3))
            kept = high(logistic(sums[1]), int(values(operands[13])[b, u]))
            cell[b, u] = clamp(divide(fresh, 4) + kept, INT16)
            hidden = high(logistic(sums[3]), tanh(saturated_left(int(cell[b, u]), 1), 3))
            output[b, u] = 128 + clamp(divide(hidden, 8), INT8)
    return cell, output


@pytest.mark.parametrize(("seed", "const", "zero"), [(1, False, 100), (2, True, 128), (3, True, 0), (4, False, 255)])
def test_16_bit(seed: int, const: bool, zero: int) -> None:
    operands = sixteen_bit(seed, const, zero)
    wanted = sixteen_bit_step(operands)
    for config in (None, "edge") if seed < 3 else (None,):
        for array, numbers in zip(run(O.QUANTIZED_16BIT_LSTM, operands, SIXTEEN_OUTPUTS, config), wanted, strict=True):
            assert array.tolist() == numbers.tolist()


@pytest.mark.parametrize(
    ("index", "change", "message"),
    [
        (0, {"zero": 127}, "input 0, input 14 and output 1 must have scale 1/128"),
        (14, {"scale": 1 / 64}, "input 0, input 14 and output 1 must have scale 1/128"),
        (8, {"zero": 99}, "inputs 1 to 8 must have one scale and one zero point"),
        (3, {"scale": 0.1}, "inputs 1 to 8 must have one scale and one zero point"),
        (11, {"scale": 0.1}, "inputs 9 to 12 must have zero point 0 and the scale of the weights / 128"),
        (13, {"scale": 2.0**-12}, "input 13 and output 0 must have scale 1/2048"),
        (13, {"kind": I32}, "input 13 must be TENSOR_QUANT16_SYMM, got TENSOR_INT32"),
        (6, {"value": np.zeros((UNITS, INPUTS + 3))}, "agree in the dimensions"),
    ],
)
def test_16_bit_rules(index: int, change: dict[str, Any], message: str) -> None:
    operands = sixteen_bit(1)
    assert problem(O.QUANTIZED_16BIT_LSTM, operands, SIXTEEN_OUTPUTS) is None
    old = operands[index]
    parts = {"kind": old.type, "value": old.value, "scale": old.scale, "zero": old.zero, **change}
    operands[index] = given(**parts)
    assert message in str(problem(O.QUANTIZED_16BIT_LSTM, operands, SIXTEEN_OUTPUTS))


# QUANTIZED_LSTM


class Eight:
    """Operands of QUANTIZED_LSTM with the requested features, and its definition."""

    def __init__(
        self, features: frozenset[str], seed: int = 1, exponent: int = -12, clips: tuple[float, float] = (0, 0)
    ) -> None:
        rng = np.random.default_rng(seed)
        self.features, self.exponent, self.clips = features, exponent, clips
        self.outputs = 3 if "projection" in features else UNITS
        self.normal = "norm" in features
        self.scales = [0.007, 0.0078, 0.0071, 0.0079] if self.normal else [2.0**-12] * 4
        self.hidden_zero, self.hidden_scale = 5, 0.0075

        def there(gate: int) -> bool:
            return gate != 0 or "input gate" in features

        def tensor(kind: T, ok: bool, bound: int, shape: tuple[int, ...], scale: float, zero: int = 0) -> Given:
            if not ok:
                return omitted(kind)
            return given(kind, rng.integers(-bound, bound, shape), scale, zero, const="const" in features)

        def gates(kind: T, ok: bool, bound: int, shape: tuple[int, ...], scale: float) -> list[Given]:
            return [tensor(kind, ok and there(gate), bound, shape, scale * (1 + gate / 8)) for gate in range(4)]

        self.w = gates(Q8SYMM, True, 127, (UNITS, INPUTS), 0.005)
        self.r = gates(Q8SYMM, True, 127, (UNITS, self.outputs), 0.006)
        looks = gates(Q16S, "peephole" in features, 32767, (UNITS,), 2.0**-15)
        self.peephole = [looks[0], looks[1], None, looks[3]]
        self.bias = gates(I32, True, 2**23 if self.normal else 2**12, (UNITS,), 0.0)
        self.projection = tensor(Q8SYMM, "projection" in features, 127, (self.outputs, UNITS), 0.004)
        self.projection_bias = tensor(I32, "projection bias" in features, 2000, (self.outputs,), 0.0)
        self.norm = gates(Q16S, self.normal, 32767, (UNITS,), 2.0**-15)
        self.x = given(Q8S, rng.integers(-128, 127, (BATCHES, INPUTS)), 1 / 128, 3)
        self.h = given(Q8S, rng.integers(-128, 127, (BATCHES, self.outputs)), 0.02, -4)
        self.c = given(Q16S, rng.integers(-32768, 32767, (BATCHES, UNITS)), 2.0**exponent)

    def operands(self) -> list[Given]:
        looks = [each for each in self.peephole if each is not None]
        numbers = [scalar(T.FLOAT32, each) for each in (*self.clips, *self.scales)]
        return [
            self.x, *self.w, *self.r, *looks, *self.bias, self.projection, self.projection_bias, self.h, self.c,
            *self.norm, *numbers, i32(self.hidden_zero), scalar(T.FLOAT32, self.hidden_scale),
        ]  # fmt: skip

    def results(self) -> list[Given]:
        return [result(Q8S, 0.02, -4), result(Q16S, 2.0**self.exponent), result(Q8S, 0.02, -4)]

    def _sums(self, gate: int, batch: int, cell: Any) -> list[int]:
        """Return the argument of a gate's function for each unit."""
        sums = []
        for u in range(UNITS):
            total = 0
            for source, weights, bias in ((self.x, self.w[gate], True), (self.h, self.r[gate], False)):
                products = int((values(source)[batch] - source.zero) @ values(weights)[u])
                products += int(values(self.bias[gate])[u]) if bias and not self.normal else 0
                total = clamp(total + rescale(products, self._factor(weights, source, gate)), INT16)
            look = self.peephole[gate]
            if look is not None and look.value is not None:
                factor = float(np.float32(2.0**self.exponent * look.scale / float(np.float32(self.scales[gate]))))
                total = clamp(total + rescale(int(cell[u]) * int(values(look)[u]), factor), INT16)
            sums.append(total)
        if self.normal:
            weights, bias = values(self.norm[gate]).tolist(), values(self.bias[gate]).tolist()
            return fixed_point.layer_norm(sums, weights, bias, self.norm[gate].scale)
        return sums

    def _factor(self, weights: Given, source: Given, gate: int) -> float:
        return float(np.float32(weights.scale) * np.float32(source.scale) / np.float32(self.scales[gate]))

    def step(self) -> tuple[Any, Any]:
        """Return output and cell state."""
        output, state = np.zeros((BATCHES, self.outputs), int), np.zeros((BATCHES, UNITS), int)
        for b in range(BATCHES):
            before = values(self.c)[b]
            forget = list(map(logistic, self._sums(1, b, before)))
            coupled = "input gate" not in self.features
            let_in = [32767 - f for f in forget] if coupled else list(map(logistic, self._sums(0, b, before)))
            fresh = [tanh(total, 3) for total in self._sums(2, b, before)]
            cell = [
                clamp(divide(f * int(c), 15) + divide(i * g, 30 + self.exponent), INT16)
                for f, c, i, g in zip(forget, before, let_in, fresh, strict=True)
            ]
            most = int(np.float32(self.clips[0]) / np.float32(self.c.scale))
            cell = [clamp(c, (-most, most)) for c in cell] if most else cell
            let_out = map(logistic, self._sums(3, b, cell))
            factor = float(np.float32(2.0**-30 / float(np.float32(self.hidden_scale))))
            hidden = [
                clamp(rescale(o * tanh(c, 15 + self.exponent), factor) + self.hidden_zero, INT8)
                for o, c in zip(let_out, cell, strict=True)
            ]
            state[b], output[b] = cell, self._project(hidden)
        return output, state

    def _project(self, hidden: list[int]) -> list[int]:
        if self.projection.value is None:
            return hidden
        sums = values(self.projection) @ (np.array(hidden) - self.hidden_zero)
        sums = sums + (values(self.projection_bias) if self.projection_bias.value is not None else 0)
        factor = float(np.float32(self.projection.scale) * np.float32(self.hidden_scale) / np.float32(self.h.scale))
        reach = int(np.float32(self.clips[1]) / np.float32(self.h.scale)) or 1000
        low, top = max(-128, self.h.zero - reach), min(127, self.h.zero + reach)
        return [clamp(rescale(int(total), factor) + self.h.zero, (low, top)) for total in sums]


ALL = frozenset({"input gate", "peephole", "projection", "projection bias", "norm"})
CASES = [
    (frozenset({"norm"}), -15, (0, 0)),
    (frozenset({"input gate", "norm", "const"}), -12, (0, 0)),
    (frozenset({"input gate"}), -11, (0, 0)),
    (frozenset({"peephole", "projection"}), -9, (0, 0)),
    (ALL, -12, (0.5, 0.25)),
    (ALL - {"input gate"}, -15, (0, 0)),
]


@pytest.mark.parametrize(("features", "exponent", "clips"), CASES)
def test_8_bit(features: frozenset[str], exponent: int, clips: tuple[float, float]) -> None:
    case = Eight(features, 7, exponent, clips)
    wanted, wanted_cell = case.step()
    for config in (None, "edge") if clips[0] else (None,):
        state, cell, output = run(O.QUANTIZED_LSTM, case.operands(), case.results(), config)
        assert output.tolist() == wanted.tolist()
        assert state.tolist() == wanted.tolist()
        assert cell.tolist() == wanted_cell.tolist()
    assert len(set(wanted.ravel().tolist())) > 3, "not everything is saturated"


def test_8_bit_follows_the_real_numbers() -> None:
    """Without a normalisation and with fine scales it is an LSTM."""
    case = Eight(frozenset({"input gate", "projection"}), 3, -12)
    case.bias = [given(I32, np.zeros(UNITS)) for _ in range(4)]
    output, _, _ = run(O.QUANTIZED_LSTM, case.operands(), case.results())

    def real(operand: Given) -> Any:
        return (values(operand) - operand.zero) * operand.scale

    sums = [real(case.x) @ real(w).T + real(case.h) @ real(r).T for w, r in zip(case.w, case.r, strict=True)]
    let_in, forget, let_out = (1 / (1 + np.exp(-sums[gate])) for gate in (0, 1, 3))
    cell = np.clip(forget * real(case.c) + let_in * np.tanh(sums[2]), -8, 8)
    hidden = np.clip(np.rint(let_out * np.tanh(cell) / case.hidden_scale) + case.hidden_zero, -128, 127)
    numbers = (hidden - case.hidden_zero) * case.hidden_scale @ real(case.projection).T
    np.testing.assert_allclose(output, np.clip(numbers / 0.02 - 4, -128, 127), atol=1.1)


@pytest.mark.parametrize(
    ("index", "operand", "message"),
    [
        (19, given(Q16S, np.zeros((BATCHES, UNITS)), 0.001), "the scale of input 19 must be a power of two"),
        (19, given(Q16S, np.zeros((BATCHES, UNITS)), 2.0**-16), "the scale of input 19 must be a power of two"),
        (30, i32(128), "must be in [-128, 127]"),
        (27, scalar(T.FLOAT32, 0), "inputs 27, 28, 29, 31 must be > 0"),
        (24, scalar(T.FLOAT32, -1), "inputs 24, 25 must be >= 0"),
        (1, omitted(Q8SYMM), "input gate: inputs 1, 5, 12 must all have a value or all be omitted"),
        (11, omitted(Q16S), "peephole: inputs 10, 11"),
        (22, omitted(Q16S), "layer normalisation: inputs 21, 22, 23"),
        (16, omitted(Q8SYMM), "projection: with input 17, input 16"),
        (13, omitted(I32), "input 13 must have a value"),
        (2, given(Q8S, np.zeros((UNITS, INPUTS)), 1.0), "input 2 must be TENSOR_QUANT8_SYMM"),
        (21, given(Q16S, np.zeros(UNITS + 1), 1.0, const=True), "agree in the dimensions"),
    ],
)
def test_8_bit_rules(index: int, operand: Given, message: str) -> None:
    case = Eight(ALL | {"const"})
    operands = case.operands()
    assert problem(O.QUANTIZED_LSTM, operands, case.results()) is None
    operands[index] = operand
    assert message in str(problem(O.QUANTIZED_LSTM, operands, case.results()))


def test_what_only_an_execution_shows() -> None:
    case = Eight(ALL)
    operands = case.operands()
    operands[10] = left_out(Q16S, (UNITS,), 1.0)
    with pytest.raises(InvalidOperationError, match="peephole: inputs 10, 11 must all have a value"):
        run(O.QUANTIZED_LSTM, operands, case.results())
    operands = case.operands()
    operands[16:18] = [omitted(Q8SYMM), omitted(I32)]
    with pytest.raises(InvalidOperationError, match="as many outputs as units, 4, got 3"):
        run(O.QUANTIZED_LSTM, operands, case.results())
    operands = case.operands()
    operands[26] = scalar(T.FLOAT32, 0)
    with pytest.raises(InvalidOperationError, match="input 26 must be > 0, got 0"):
        run(O.QUANTIZED_LSTM, operands, case.results())
    case = Eight(frozenset({"norm"}))  # clips may be omitted, the scale of a gate that is not there may be anything
    operands = case.operands()
    wanted = run(O.QUANTIZED_LSTM, operands, case.results())
    operands[24:27] = [omitted(T.FLOAT32), omitted(T.FLOAT32), scalar(T.FLOAT32, 0)]
    for array, numbers in zip(run(O.QUANTIZED_LSTM, operands, case.results()), wanted, strict=True):
        np.testing.assert_array_equal(array, numbers)
