"""Both sides of the limits of single rules and fields: the last valid value and the first invalid one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hal.nnapi.types import DataLocation, ExtraParams, Operand, SymmPerChannelQuantParams
from hal.nnapi.types import OperandLifeTime as Life
from hal.nnapi.types import OperandType as T
from hal.nnapi.validation import fields, operands
from hal.nnapi.validation.context import Context
from hal.nnapi.validation.fields import MalformedError

# Elements of 4 bytes, 10 bytes of operandValues, a pool of 20 bytes and one of unknown size, two subgraphs.
CONTEXT = cast(
    Context,
    SimpleNamespace(
        element_bytes=lambda kind: None if kind == T.OEM else 4, values=10, pools=[20, None], referenced=2,
        operand_type={0x10001: SimpleNamespace(tensor=True), 0x10002: SimpleNamespace(tensor=False)}.get,
        knows_operand=lambda kind: kind == T.FLOAT32,
    ),
)  # fmt: skip


def holds(rule: operands.Rule, **values: Any) -> bool:
    kind, dims = values.pop("type", T.TENSOR_FLOAT32), values.pop("dimensions", [])
    return rule(Operand(kind, dims, **values), CONTEXT)


def at(offset: int = 0, length: int = 0, pool: int = 0, padding: int = 0) -> dict[str, DataLocation]:
    return {"location": DataLocation(pool, offset, length, padding)}


def channels(scales: list[float], dim: int) -> dict[str, ExtraParams]:
    return {"extraParams": ExtraParams(SymmPerChannelQuantParams(scales, dim))}


EDGES: list[tuple[operands.Rule, list[dict[str, Any]], list[dict[str, Any]]]] = [
    (operands.type_is_known, [{"type": T.FLOAT32}], [{"type": T.INT32}]),
    (operands.scalar_has_no_dimensions, [{}], [{"dimensions": [0]}]),
    (
        operands.tensor_is_addressable,
        [
            {}, {"dimensions": [(1 << 30) - 1]}, {"dimensions": [1 << 31, 1 << 31, 0]},
            {"type": T.OEM, "dimensions": [2**32 - 1]},
        ],
        [{"dimensions": [1 << 30]}, {"dimensions": [1 << 15, 1 << 15]}, {"type": T.OEM, "dimensions": [2**32]}],
    ),
    (operands.scale_is_zero, [{"scale": 0.0}], [{"scale": 1e-9}, {"scale": -1.0}]),
    (operands.scale_is_not_negative, [{"scale": 0.0}, {"scale": 1.0}], [{"scale": -1e-9}]),
    (operands.scale_is_positive, [{"scale": 1e-9}], [{"scale": 0.0}, {"scale": -1.0}]),
    (operands.zero_point_is_zero, [{"zeroPoint": 0}], [{"zeroPoint": 1}, {"zeroPoint": -1}]),
    (operands.zero_point_is_uint8, [{"zeroPoint": 0}, {"zeroPoint": 255}], [{"zeroPoint": -1}, {"zeroPoint": 256}]),
    (operands.zero_point_is_int8, [{"zeroPoint": -128}, {"zeroPoint": 127}], [{"zeroPoint": -129}, {"zeroPoint": 128}]),
    (
        operands.zero_point_is_uint16, [{"zeroPoint": 0}, {"zeroPoint": 65535}],
        [{"zeroPoint": -1}, {"zeroPoint": 65536}],
    ),
    (operands.no_extra_params, [{}], [channels([1.0], 0), {"extraParams": ExtraParams(extension=b"x")}]),
    (operands.extension_data_only, [{}, {"extraParams": ExtraParams(extension=b"x")}], [channels([1.0], 0)]),
    (
        operands.channels_have_scales,
        [{"dimensions": [3, 2], **channels([1.0, 1e-9], 1)}, {"dimensions": [3], **channels([1.0] * 3, 0)}],
        [
            {"dimensions": [3]}, {"dimensions": [3], "extraParams": ExtraParams(extension=b"x")},
            {"dimensions": [2, 2], **channels([1.0] * 2, 2)}, {"dimensions": [3, 2], **channels([1.0] * 3, 1)},
            {"dimensions": [2], **channels([1.0, 0.0], 0)}, {"dimensions": [0], **channels([], 0)},
        ],
    ),
    (operands.subgraph_lifetime, [{"lifetime": Life.SUBGRAPH}], [{"lifetime": Life.NO_VALUE}]),
    (operands.not_subgraph_lifetime, [{"lifetime": Life.NO_VALUE}], [{"lifetime": Life.SUBGRAPH}]),
    (
        operands.extension_type_agrees,
        [{"type": 0x10001, "dimensions": [2]}, {"type": 0x10002}, {"type": 0x10009, "dimensions": [2]}],
        [{"type": 0x10002, "dimensions": [1]}],
    ),
    (operands.no_location, [at()], [at(1), at(0, 1), at(0, 0, 1), at(0, 0, 0, 1)]),
    (operands.values_in_first_pool, [at(3, 3, 0)], [at(3, 3, 1)]),
    (operands.values_in_bounds, [at(6, 4), at(5, 4, 0, 1)], [at(7, 4), at(6, 5), at(6, 4, 0, 1)]),
    (operands.pool_exists, [at(pool=0), at(pool=1)], [at(pool=2)]),
    (
        operands.pool_in_bounds, [at(16, 4), at(15, 4, 0, 1), at(99, 99, 1)], [at(17, 4), at(16, 5), at(16, 4, 0, 1)],
    ),
    (
        operands.constant_is_specified,
        [{"dimensions": [1]}, {"type": T.INT32}, {"type": T.OEM}, {"type": 0x10002}, {"type": 0x10009}],
        [{}, {"dimensions": [2, 0]}, {"type": 0x10001}, {"type": T.TENSOR_OEM_BYTE}],
    ),
    (
        operands.constant_has_its_length,
        [{**at(0, 24), "dimensions": [2, 3]}, at(0, 4), {**at(0, 1), "type": T.OEM}],
        [{**at(0, 20), "dimensions": [2, 3]}, {**at(0, 28), "dimensions": [2, 3]}, {**at(0, 0), "type": T.OEM}],
    ),
    (operands.subgraph_exists, [at(0), at(1)], [at(2), at(1, 1), at(1, 0, 1), at(1, 0, 0, 1)]),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "good", "bad"), EDGES, ids=lambda value: getattr(value, "__name__", ""))
def test_rules_of_operands(rule: operands.Rule, good: list[dict[str, Any]], bad: list[dict[str, Any]]) -> None:
    assert [holds(rule, **dict(values)) for values in good] == [True] * len(good)
    assert [holds(rule, **dict(values)) for values in bad] == [False] * len(bad)


def test_every_rule_of_operands_has_its_edge_here() -> None:
    rules = {rule for each in (*operands.TYPE_RULES.values(), *operands.LIFETIME_RULES.values()) for rule in each}
    assert rules | set(operands.EXTENSION_RULES) | {operands.type_is_known} == {rule for rule, *_ in EDGES}


# Fields


def malformed(message: str, function: Callable[..., object], *arguments: object) -> None:
    with pytest.raises(MalformedError, match=message):
        function(*arguments, "field")


def test_integers() -> None:
    assert [fields.integer(v, -3, 7, "f") for v in (-3, 7, np.int8(5), True)] == [-3, 7, 5, 1]
    assert type(fields.integer(np.int8(5), 0, 9, "f")) is int
    for value in (-4, 8):
        malformed(rf"field must be in \[-3, 7\], got {value}", fields.integer, value, -3, 7)
    malformed("field must be an integer, got float 1.0", fields.integer, 1.0, 0, 9)
    assert fields.integers([0, 9, np.int64(4)], 9, "f") == (0, 9, 4)
    assert fields.integers(np.array([1, 2]), 9, "f") == (1, 2)
    assert fields.integers(range(3), 2, "f") == (0, 1, 2)
    for values in ([10], [-1], (np.int64(10),), np.array([3, 10])):
        malformed(r"field must be in \[0, 9\]", fields.integers, values, 9)
    malformed("field must be an integer, got str 'a'", fields.integers, ["a"], 9)


def test_sequences() -> None:
    for text in ("abc", b"abc", bytearray(b"abc"), {1: 2}, 5, None):
        malformed("field must be a sequence", fields.items, text)
    pair = (1, 2)
    assert fields.items(pair, "f") is pair
    assert fields.items(range(1 << 20), "f")[-1] == (1 << 20) - 1
    malformed("field must have at most 1048576 items", fields.items, range((1 << 20) + 1))


def test_numbers() -> None:
    assert [fields.real(v, "f") for v in (1, 0.5, np.float64(2), np.int8(-3))] == [1.0, 0.5, 2.0, -3.0]
    assert fields.real(0.1, "f") == float(np.float32(0.1))
    for value in (float("inf"), float("nan")):
        malformed("field must be a finite number", fields.real, value)
    malformed("field must be a number of single precision, got float 1e\\+39", fields.real, 1e39)
    malformed("field must be a number, got str '1'", fields.real, "1")
    malformed("field must be a number, got NoneType None", fields.real, None)


def test_booleans_codes_and_bytes() -> None:
    assert [fields.boolean(v, "f") for v in (True, 0, 1, np.bool_(True), np.bool_(False))] == [
        True,
        False,
        True,
        True,
        False,
    ]
    malformed(r"field must be in \[0, 1\], got 2", fields.boolean, 2)
    assert [fields.code(v, "f") for v in (5, -1, -(1 << 31), (1 << 32) - 1)] == [5, 0xFFFF_FFFF, 1 << 31, 0xFFFF_FFFF]
    malformed("field must be in", fields.code, 1 << 32)
    malformed("field must be in", fields.code, -(1 << 31) - 1)
    raw = b"123"
    assert fields.blob(raw, "f") is raw
    view = fields.blob(bytearray(b"12"), "f")
    assert isinstance(view, memoryview)
    assert view.readonly
    assert fields.blob(np.arange(2, dtype=np.int16), "f").nbytes == 4  # type: ignore[union-attr]
    malformed("field must be contiguous bytes", fields.blob, np.arange(9)[::2])
    malformed("field must be contiguous bytes", fields.blob, "text")


def test_structures() -> None:
    place = DataLocation(0, 0, 0)
    assert fields.instance(place, DataLocation, "f") is place
    assert list(fields.instances([place, place], DataLocation, "f")) == [(0, place), (1, place)]
    with pytest.raises(MalformedError, match=r"f\[1\] must be of type DataLocation, got int 3"):
        list(fields.instances([place, 3], DataLocation, "f"))
