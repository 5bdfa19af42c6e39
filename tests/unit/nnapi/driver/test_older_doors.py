"""Each interface version accepts what it had, through every ``getSupportedOperations*`` and ``prepareModel*``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from hal.nnapi import open_device, v1_0, v1_1, v1_2
from hal.nnapi.driver.device import Device
from hal.nnapi.operations import REGISTRY
from hal.nnapi.operations.versions import (
    AIDL_2,
    AIDL_3,
    V1_0,
    V1_1,
    V1_2,
    V1_3,
    Version,
    operand_version,
    operation_version,
)
from hal.nnapi.types import ErrorStatus, ExecutionPreference, Model, OperandType, OperationType, Priority
from tests.support.nnapi.client import TOKEN, PreparedCallback
from tests.support.nnapi.one_operation import Given, build, given, scalar
from tests.support.nnapi.one_operation import result as made

T, Op = OperandType, OperationType
NONE, INVALID = ErrorStatus.NONE, ErrorStatus.INVALID_ARGUMENT
F32, F16, I32, Q8, Q8S = (
    T.TENSOR_FLOAT32, T.TENSOR_FLOAT16, T.TENSOR_INT32, T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED,
)  # fmt: skip
SCALE = {Q8: (0.5, 3), Q8S: (0.5, 3)}


def tensor(kind: T, *dims: int, scale: float = 0.5, zero: int = 3) -> Given:
    return given(kind, np.zeros(dims), *((scale, zero) if kind in SCALE else ()))


def result(kind: T, *dims: int, scale: float = 0.5, zero: int = 3) -> Given:
    return made(kind, *((scale, zero) if kind in SCALE else ()), dims=dims)


def i(value: int) -> Given:
    return scalar(T.INT32, value)


def f(value: float) -> Given:
    return scalar(T.FLOAT32, value)


def b(value: int) -> Given:
    return scalar(T.BOOL, value)


def softmax(kind: T, dims: Sequence[int], *more: Given) -> tuple[list[Given], list[Given]]:
    beta = scalar(T.FLOAT16, 1) if kind == F16 else f(1)
    zero = -128 if kind == Q8S else 0
    return [tensor(kind, *dims), beta, *more], [result(kind, *dims, scale=1 / 256, zero=zero)]


def same(kind: T, *more: Given, dims: Sequence[int] = (2, 2)) -> tuple[list[Given], list[Given]]:
    return [tensor(kind, *dims), *more], [result(kind, *dims)]


def two(kind: T, *more: Given) -> tuple[list[Given], list[Given]]:
    return [tensor(kind, 2, 2), tensor(kind, 2, 2), *more], [result(kind, 2, 2, scale=4.0)]


IMAGE = (1, 4, 4, 2)
POOL = (i(1), i(1), i(1), i(2), i(2), i(0))
CASES: list[tuple[str, Version, OperationType, tuple[list[Given], list[Given]]]] = [
    ("softmax", V1_0, Op.SOFTMAX, softmax(F32, (2, 3))),
    ("softmax of 4 dimensions", V1_0, Op.SOFTMAX, softmax(F32, (2, 3, 2, 2))),
    ("softmax of bytes", V1_0, Op.SOFTMAX, softmax(Q8, (2, 3))),
    ("softmax with an axis", V1_2, Op.SOFTMAX, softmax(F32, (2, 3), i(1))),
    ("softmax of 3 dimensions", V1_2, Op.SOFTMAX, softmax(F32, (2, 3, 2))),
    ("softmax of halves", V1_2, Op.SOFTMAX, softmax(F16, (2, 3))),
    ("softmax of signed bytes", V1_3, Op.SOFTMAX, softmax(Q8S, (2, 3))),
    ("add", V1_0, Op.ADD, two(F32, i(0))),
    ("add of bytes", V1_0, Op.ADD, two(Q8, i(0))),
    ("add of integers", V1_3, Op.ADD, two(I32, i(0))),
    ("add of signed bytes", V1_3, Op.ADD, two(Q8S, i(0))),
    ("multiplication of integers", V1_3, Op.MUL, two(I32, i(0))),
    ("subtraction", V1_1, Op.SUB, two(F32, i(0))),
    ("subtraction of bytes", V1_2, Op.SUB, two(Q8, i(0))),
    ("subtraction of integers", V1_3, Op.SUB, two(I32, i(0))),
    ("division of integers", V1_3, Op.DIV, two(I32, i(0))),
    ("maximum of integers", V1_2, Op.MAXIMUM, two(I32)),
    ("pool", V1_0, Op.AVERAGE_POOL_2D, same(F32, *POOL, dims=IMAGE)),
    ("pool with a layout", V1_2, Op.AVERAGE_POOL_2D, same(F32, *POOL, b(0), dims=IMAGE)),
    ("normalisation", V1_0, Op.L2_NORMALIZATION, same(F32, dims=IMAGE)),
    ("normalisation along an axis", V1_2, Op.L2_NORMALIZATION, same(F32, i(1), dims=IMAGE)),
    ("normalisation of 2 dimensions", V1_2, Op.L2_NORMALIZATION, same(F32)),
    (
        "normalisation of bytes", V1_2, Op.L2_NORMALIZATION,
        ([tensor(Q8, *IMAGE)], [result(Q8, *IMAGE, scale=1 / 128, zero=128)]),
    ),
    ("response", V1_0, Op.LOCAL_RESPONSE_NORMALIZATION, same(F32, i(1), f(1), f(1), f(1), dims=IMAGE)),
    (
        "response along an axis", V1_2, Op.LOCAL_RESPONSE_NORMALIZATION,
        same(F32, i(1), f(1), f(1), f(1), i(3), dims=IMAGE),
    ),
    ("response of 2 dimensions", V1_2, Op.LOCAL_RESPONSE_NORMALIZATION, same(F32, i(1), f(1), f(1), f(1))),
    ("resizing", V1_0, Op.RESIZE_BILINEAR, same(F32, i(4), i(4), dims=IMAGE)),
    ("resizing of bytes", V1_2, Op.RESIZE_BILINEAR, same(Q8, i(4), i(4), dims=IMAGE)),
    ("resizing by factors", V1_2, Op.RESIZE_BILINEAR, same(F32, f(1), f(1), dims=IMAGE)),
    ("resizing with a layout", V1_2, Op.RESIZE_BILINEAR, same(F32, i(4), i(4), b(0), dims=IMAGE)),
    ("resizing of corners", V1_3, Op.RESIZE_BILINEAR, same(F32, i(4), i(4), b(0), b(1), dims=IMAGE)),
    ("nearest", V1_2, Op.RESIZE_NEAREST_NEIGHBOR, same(F32, i(4), i(4), b(0), dims=IMAGE)),
    ("nearest of corners", V1_3, Op.RESIZE_NEAREST_NEIGHBOR, same(F32, i(4), i(4), b(0), b(1), dims=IMAGE)),
    ("tanh", V1_0, Op.TANH, same(F32)),
    ("tanh of bytes", V1_2, Op.TANH, ([tensor(Q8, 2, 2)], [result(Q8, 2, 2, scale=1 / 128, zero=128)])),
    ("sigmoid of bytes", V1_0, Op.LOGISTIC, ([tensor(Q8, 2, 2)], [result(Q8, 2, 2, scale=1 / 256, zero=0)])),
    ("relu of halves", V1_2, Op.RELU, same(F16)),
    ("relu of signed bytes", V1_3, Op.RELU, same(Q8S)),
    ("absolute values", V1_2, Op.ABS, same(F32)),
    ("absolute integers", V1_3, Op.ABS, same(I32)),
    ("negative integers", V1_2, Op.NEG, same(I32)),
    ("cast to itself", V1_3, Op.CAST, same(T.TENSOR_BOOL8)),
    ("cast", V1_2, Op.CAST, ([tensor(F32, 2, 2)], [result(I32, 2, 2)])),
    ("lookup", V1_0, Op.EMBEDDING_LOOKUP, ([tensor(I32, 2), tensor(F32, 2, 2)], [result(F32, 2, 2)])),
    ("lookup of integers", V1_2, Op.EMBEDDING_LOOKUP, ([tensor(I32, 2), tensor(I32, 2, 2)], [result(I32, 2, 2)])),
    ("lookup of halves", V1_3, Op.EMBEDDING_LOOKUP, ([tensor(I32, 2), tensor(F16, 2, 2)], [result(F16, 2, 2)])),
    ("blocks", V1_0, Op.SPACE_TO_DEPTH, ([tensor(F32, *IMAGE), i(2)], [result(F32, 1, 2, 2, 8)])),
    ("blocks with a layout", V1_2, Op.SPACE_TO_DEPTH, ([tensor(F32, *IMAGE), i(2), b(0)], [result(F32, 1, 2, 2, 8)])),
    ("exponential", V1_2, Op.EXP, same(F32)),
    ("hard swish", V1_3, Op.HARD_SWISH, same(F32)),
    ("matrix products", AIDL_2, Op.BATCH_MATMUL, two(F32, b(0), b(0))),
    ("pack", AIDL_2, Op.PACK, ([i(0), tensor(F32, 2)], [result(F32, 1, 2)])),
    ("reshape of integers", AIDL_2, Op.RESHAPE, ([tensor(I32, 4), given(I32, np.int32([2, 2]))], [result(I32, 2, 2)])),
    ("mirrored padding", AIDL_3, Op.MIRROR_PAD, same(F32, given(I32, np.zeros((2, 2), np.int32)), i(0))),
    ("reverse", AIDL_3, Op.REVERSE, same(F32, given(I32, np.int32([0])))),
    ("reciprocal root of bytes", AIDL_3, Op.RSQRT, same(Q8)),
    ("reciprocal root of signed bytes", AIDL_3, Op.RSQRT, same(Q8S)),
]  # fmt: skip


def older(model: Model, version: Version) -> Any:
    """Return the model as a client of that version writes it."""
    main = model.main
    if version >= V1_3:
        return model
    module = {V1_0: v1_0, V1_1: v1_1, V1_2: v1_2}[version]
    operands = [
        module.Operand(o.type, o.dimensions, o.numberOfConsumers, o.scale, o.zeroPoint, o.lifetime, o.location)
        for o in main.operands
    ]
    return module.Model(operands, main.operations, main.inputIndexes, main.outputIndexes, model.operandValues)


Door = tuple[Version, Callable[[], ErrorStatus], Callable[[PreparedCallback], ErrorStatus]]


def doors(device: Device, model: Model) -> Iterator[Door]:
    fast = ExecutionPreference.FAST_SINGLE_ANSWER
    by = {version: older(model, version) for version in Version}
    yield V1_0, lambda: device.getSupportedOperations(by[V1_0])[0], lambda c: device.prepareModel(by[V1_0], c)
    yield (
        V1_1, lambda: device.getSupportedOperations_1_1(by[V1_1])[0],
        lambda c: device.prepareModel_1_1(by[V1_1], fast, c),
    )  # fmt: skip
    yield (
        V1_2, lambda: device.getSupportedOperations_1_2(by[V1_2])[0],
        lambda c: device.prepareModel_1_2(by[V1_2], fast, [], [], TOKEN, c),
    )  # fmt: skip
    yield (
        V1_3, lambda: device.getSupportedOperations_1_3(by[V1_3])[0],
        lambda c: device.prepareModel_1_3(by[V1_3], fast, Priority.MEDIUM, None, [], [], TOKEN, c),
    )  # fmt: skip
    for version in Version:
        if version > V1_3:
            yield (
                version, functools.partial(_supported, device, model, version),
                functools.partial(device.prepare, lambda: model, version, fast, Priority.MEDIUM, None, [], [], TOKEN),
            )  # fmt: skip


def _supported(device: Device, model: Model, version: Version) -> ErrorStatus:
    return device.supported(model, version)[0]


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with open_device("tiny") as opened:
        yield opened


@pytest.mark.parametrize(("brought", "kind", "operands"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_door_takes_what_its_interface_has(
    device: Device, brought: Version, kind: OperationType, operands: tuple[list[Given], list[Given]]
) -> None:
    model = build(kind, *operands)
    for version, supported, prepare in doors(device, model):
        expected = NONE if version >= brought else INVALID
        callback = PreparedCallback()
        assert (supported(), prepare(callback)) == (expected, expected), version
        status, prepared = callback.wait()
        assert (status, prepared is None) == (expected, expected is INVALID), version


def test_every_type_and_operation_has_its_version() -> None:
    """As the comments in each version's types.hal say."""
    types = {
        V1_0: "FLOAT32 INT32 UINT32 TENSOR_FLOAT32 TENSOR_INT32 TENSOR_QUANT8_ASYMM OEM TENSOR_OEM_BYTE",
        V1_2: "BOOL TENSOR_QUANT16_SYMM TENSOR_FLOAT16 TENSOR_BOOL8 FLOAT16 TENSOR_QUANT8_SYMM_PER_CHANNEL "
        "TENSOR_QUANT16_ASYMM TENSOR_QUANT8_SYMM",
        V1_3: "TENSOR_QUANT8_ASYMM_SIGNED SUBGRAPH",
    }
    found: dict[Version | None, set[str]] = {}
    for kind in OperandType:
        found.setdefault(operand_version(kind), set()).add(kind.name)
    assert found == {version: set(names.split()) for version, names in types.items()}
    counts = [sum(operation_version(kind) is version for kind in REGISTRY) for version in Version]
    assert counts == [29, 9, 57, 7, 0, 2, 2, 0]
    assert [operation_version(kind) for kind in (-1, 106, 9999, 10002)] == [None] * 4
    assert [operand_version(kind) for kind in (-1, 16, 9999, 10002, 1 << 16)] == [None] * 4 + [V1_2]
