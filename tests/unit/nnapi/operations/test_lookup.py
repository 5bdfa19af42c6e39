"""EMBEDDING_LOOKUP, HASHTABLE_LOOKUP, LSH_PROJECTION, TOPK_V2."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hal.nnapi.operations.lowering import InvalidOperationError
from hal.nnapi.operations.view import STORAGE
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O
from npusim import _core
from npusim.errors import DeviceFaultError, InputError
from npusim.hw.config import load_config
from tests.support.nnapi.one_operation import Given, given, i32, omitted, problem, result, run, run_one, vector

TINY = load_config("tiny")
each_device = pytest.mark.parametrize("config", [None, TINY], ids=["host", "device"])
EMBEDDED = [
    T.TENSOR_FLOAT32, T.TENSOR_FLOAT16, T.TENSOR_INT32, T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED,
]  # fmt: skip
HASHED = [T.TENSOR_FLOAT32, T.TENSOR_INT32, T.TENSOR_QUANT8_ASYMM]


def table(kind: T, *shape: int, seed: int = 0) -> Given:
    """Return any values of the type, with some quantisation if it has one."""
    rng = np.random.default_rng(seed)
    storage = STORAGE[kind]
    if storage.kind == "f":
        return given(kind, rng.normal(0, 3, shape))
    info = np.iinfo(storage)
    scale, zero = (0.5, 3) if storage.itemsize == 1 else (0.0, 0)
    return given(kind, rng.integers(info.min, info.max, shape, endpoint=True), scale, zero)


def like(operand: Given) -> Given:
    return result(operand.type, operand.scale, operand.zero)


@each_device
@pytest.mark.parametrize("kind", EMBEDDED)
@pytest.mark.parametrize("shape", [(5, 3), (4, 2, 3), (6, 1, 2, 2)])
def test_embedding_lookup(kind: T, shape: tuple[int, ...], config: Any) -> None:
    values, index = table(kind, *shape), [shape[0] - 1, 0, 2, 0]
    got = run_one(O.EMBEDDING_LOOKUP, [given(T.TENSOR_INT32, index), values], like(values), config)
    assert values.value is not None
    np.testing.assert_array_equal(got, values.value[index])


@pytest.mark.parametrize("bad", [-1, 5, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize(("config", "error"), [(None, InputError), (TINY, DeviceFaultError)], ids=["host", "device"])
def test_rows_that_do_not_exist_fail(bad: int, config: Any, error: type[Exception]) -> None:
    values = table(T.TENSOR_FLOAT32, 5, 3)
    with pytest.raises(error):
        run_one(O.EMBEDDING_LOOKUP, [given(T.TENSOR_INT32, [0, bad]), values], like(values), config)


@each_device
@pytest.mark.parametrize("kind", HASHED)
@pytest.mark.parametrize("shape", [(5, 3), (5, 2, 2)])
def test_hashtable_lookup(kind: T, shape: tuple[int, ...], config: Any) -> None:
    keys, lookups = [-7, 0, 3, 11, 12], [11, 1, -7, 12, -8, 11]
    values = table(kind, *shape)
    outputs = [like(values), result(T.TENSOR_QUANT8_ASYMM, 1.0)]
    inputs = [given(T.TENSOR_INT32, lookups), given(T.TENSOR_INT32, keys), values]
    rows, hits = run(O.HASHTABLE_LOOKUP, inputs, outputs, config)
    assert hits.tolist() == [int(key in keys) for key in lookups]
    assert values.value is not None
    for row, key in zip(rows, lookups, strict=True):
        np.testing.assert_array_equal(row, values.value[keys.index(key)] if key in keys else np.zeros(shape[1:]))


def seeds_of(kind: T, hashes: int, bits: int) -> Given:
    return given(kind, np.random.default_rng(5).normal(0, 1, (hashes, bits)))


def bits_of(seeds: Given, items: Given, weights: Given | None) -> np.ndarray:
    """Compute from the definition: the sign of the weighted sum of the signed fingerprints of seed and item."""
    assert seeds.value is not None
    assert items.value is not None
    bits = np.zeros(seeds.value.shape, np.int64)
    factors = np.ones(len(items.value)) if weights is None else np.asarray(weights.value, np.float64)
    for place in np.ndindex(*bits.shape):
        head = np.float32(seeds.value[place]).tobytes()
        prints = np.array([_core.fingerprint64(head + item.tobytes()) for item in items.value], np.uint64)
        bits[place] = float((prints.astype(np.int64).astype(np.float64) * factors).sum()) > 0
    return bits


def packed(bits: np.ndarray, apart: bool) -> list[int]:
    """Return each row as a 32-bit number, the first bit highest."""
    numbers = [int("".join(map(str, row)), 2) + (i << bits.shape[1]) * apart for i, row in enumerate(bits)]
    return np.array(numbers, np.uint64).astype(np.uint32).view(np.int32).tolist()


@each_device
@pytest.mark.parametrize("seed_kind", [T.TENSOR_FLOAT32, T.TENSOR_FLOAT16])
@pytest.mark.parametrize("kind", [*EMBEDDED, T.TENSOR_BOOL8, T.TENSOR_QUANT16_ASYMM])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("form", [1, 2, 3])
def test_lsh_projection(seed_kind: T, kind: T, weighted: bool, form: int, config: Any) -> None:
    seeds = seeds_of(seed_kind, 4, 3)
    items = given(kind, np.random.default_rng(6).integers(0, 2, (3, 2, 5)), *((0.5,) if "QUANT" in kind.name else ()))
    weights = given(seed_kind, [0.5, -1.5, 2.0]) if weighted else None
    inputs = [seeds, items, weights or omitted(seed_kind), i32(form)]
    got = run_one(O.LSH_PROJECTION, inputs, result(T.TENSOR_INT32), config)
    bits = bits_of(seeds, items, weights)
    assert got.tolist() == (bits.reshape(-1).tolist() if form == 2 else packed(bits, form == 3))


@pytest.mark.parametrize("bits", [1, 31, 32])
def test_hashes_of_many_bits(bits: int) -> None:
    seeds, items = seeds_of(T.TENSOR_FLOAT32, 3, bits), given(T.TENSOR_INT32, [[1, 2], [3, 4]])
    for form in (1, 3):
        inputs = [seeds, items, omitted(T.TENSOR_FLOAT32), i32(form)]
        got = run_one(O.LSH_PROJECTION, inputs, result(T.TENSOR_INT32), TINY)
        assert got.tolist() == packed(bits_of(seeds, items, None), form == 3)


def test_hashes_of_too_many_bits_are_refused() -> None:
    inputs = [seeds_of(T.TENSOR_FLOAT32, 2, 33), given(T.TENSOR_INT32, [1, 2]), omitted(T.TENSOR_FLOAT32), i32(2)]
    with pytest.raises(InvalidOperationError, match="a hash has at most 32 bits, got 33"):
        run_one(O.LSH_PROJECTION, inputs, result(T.TENSOR_INT32))


@each_device
@pytest.mark.parametrize("kind", EMBEDDED)
@pytest.mark.parametrize(("shape", "k"), [((7,), 3), ((4, 6), 6), ((2, 3, 5), 1)])
def test_topk(kind: T, shape: tuple[int, ...], k: int, config: Any) -> None:
    x = table(kind, *shape)
    assert x.value is not None
    x.value.reshape(-1)[:3] = x.value.reshape(-1)[3]  # of equals the first comes first
    values, places = run(O.TOPK_V2, [x, i32(k)], [like(x), result(T.TENSOR_INT32)], config)
    order = np.argsort(-x.value.astype(np.float64), axis=-1, kind="stable")[..., :k]
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x.value, order, axis=-1))


F = T.TENSOR_FLOAT32
LSH = [seeds_of(F, 2, 2), vector([1, 2]), omitted(F), i32(1)]


@pytest.mark.parametrize(
    ("operation", "inputs", "outputs", "message"),
    [
        (O.EMBEDDING_LOOKUP, [vector([[1]]), table(F, 2, 2)], [result(F)], "input 0 must have rank 1"),
        (O.EMBEDDING_LOOKUP, [vector([1]), table(F, 2)], [result(F)], "input 1 must have at least rank 2"),
        (O.EMBEDDING_LOOKUP, [vector([1]), table(F, 2, 2)], [result(T.TENSOR_FLOAT16)], "no such combination"),
        (
            O.EMBEDDING_LOOKUP, [vector([1]), table(T.TENSOR_QUANT8_ASYMM, 2, 2)],
            [result(T.TENSOR_QUANT8_ASYMM, 1.0)], "must have the same scale and zero point",
        ),
        (
            O.HASHTABLE_LOOKUP, [vector([1]), vector([1, 2]), table(F, 3, 2)],
            [result(F), result(T.TENSOR_QUANT8_ASYMM, 1.0)], "input 2 must have at least rank 2 and one row for each",
        ),
        (O.LSH_PROJECTION, [*LSH[:3], i32(4)], [result(T.TENSOR_INT32)], "input 3 must be 1"),
        (O.LSH_PROJECTION, [omitted(F), *LSH[1:]], [result(T.TENSOR_INT32)], "input 0 must have a value"),
        (O.TOPK_V2, [table(F, 2, 3), i32(4)], [result(F), result(T.TENSOR_INT32)], r"input 1 must be in [0, n]"),
        (O.TOPK_V2, [table(F, 2, 3), i32(2)], [result(F)], "has 2 outputs, got 1"),
    ],
)  # fmt: skip
def test_what_validation_refuses(operation: O, inputs: list[Given], outputs: list[Given], message: str) -> None:
    assert message in (problem(operation, inputs, outputs) or "nothing is wrong")
