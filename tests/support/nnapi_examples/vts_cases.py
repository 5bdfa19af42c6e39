"""Models with inputs and expected outputs for the test families of the vendor test suite: built here, and from the
examples if installed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from hal.nnapi.operations.view import STORAGE
from hal.nnapi.types import (
    ErrorStatus,
    Model,
    OperandType,
    Operation,
    OperationType,
    OutputShape,
    Subgraph,
)
from tests.support.nnapi.client import Array, Frame, Outcome
from tests.support.nnapi.models import IN, OUT, chain, dense, scalar, tensor
from tests.support.nnapi_examples.examples import HIDL_VERSIONS, available, build_model, examples
from tests.support.nnapi_examples.running import compare, compare_classes

NONE = ErrorStatus.NONE
I32, Q8, Q8S = OperandType.TENSOR_INT32, OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED


@dataclass(frozen=True)
class Case:
    """``expected``: None for an output that is not compared. ``verdict(index, array)``: returns what is wrong with an
    output."""

    name: str
    model: Model
    inputs: Sequence[Array | None]
    expected: Sequence[Array | None]
    sizes: Sequence[int]
    verdict: Callable[[int, Array], str]
    operations: frozenset[str]

    @property
    def dims(self) -> list[tuple[int, ...]]:
        """Dimensions of the outputs in the model."""
        main = self.model.main
        return [tuple(main.operands[number].dimensions) for number in main.outputIndexes]

    def opened(self) -> Case:
        """Return the case with outputs of unknown dimensions."""
        model = deepcopy(self.model)
        for number in model.main.outputIndexes:
            operand = model.main.operands[number]
            operand.dimensions = [0] * len(operand.dimensions)
        return replace(self, model=model)

    def frame(self, *, specified: bool = True, short: bool = False) -> Frame:
        """Return memory and a request; with ``short``, the first output has a byte too few."""
        frame = Frame(self.inputs, self.sizes, self.dims if specified else None)
        if short:
            frame.request.outputs[0].location.length -= 1
        return frame

    def problem(self, outcome: Outcome) -> str:
        """Return what is wrong with the outputs of a successful execution."""
        if outcome.status is not NONE:
            return outcome.status.name
        for index, number in enumerate(self.model.main.outputIndexes):
            found = self.verdict(index, outcome.array(index, STORAGE[self.model.main.operands[number].type]))
            if found:
                return f"output {index}: {found}"
        return ""

    def shapes(self) -> list[OutputShape]:
        """Return the output shapes that a successful execution reports."""
        dims = [None if array is None else list(array.shape) for array in self.expected]
        return [OutputShape(each or [], True) for each in dims]


def own_cases() -> list[Case]:
    """Return small models with one or several operations and outputs."""
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((2, 3, 5), np.float32)
    x = rng.standard_normal((1, 32), np.float32)
    layer = dense(32, 16)
    weights = np.frombuffer(layer.operandValues, np.float32, 16 * 32, 4 + 16 * 4).reshape(16, 32)
    q1, q2 = rng.integers(0, 256, (2, 4, 7)).astype(np.uint8)
    total = np.clip(np.rint(((q1 - 128.0) + (q2 - 128.0)) / 2) + 128, 0, 255)
    row = rng.permutation(24).astype(np.float32).reshape(2, 12)
    order = np.argsort(-row, axis=1)[:, :3]
    return [
        _case("chain", chain(5, (3, 5)), [a, b], [a + 5 * b]),
        _case("dense", layer, [x], [x @ weights.T]),
        _case("quantised", quantised_sum(Q8, 128), [q1, q2], [total.astype(np.uint8)]),
        _case("signed", quantised_sum(Q8S, 0), [_signed(q1), _signed(q2)], [_signed(total.astype(np.uint8))]),
        _case("split", _split(), [row], list(np.split(row, 3, axis=1))),
        _case("topk", _topk(), [row], [np.take_along_axis(row, order, 1), order.astype(np.int32)]),
    ]


def sampled_cases(step: int) -> Iterator[Case]:
    """Yield every ``step``-th example that must succeed."""
    if not available():
        return
    for rec, get in list(examples(HIDL_VERSIONS))[::step]:
        if rec["expectFailure"] or "infinite" in rec["test"]:
            continue
        model, inputs, expected = build_model(rec, get)
        main, operands = rec["main"], rec["main"]["operands"]
        kinds = [STORAGE[model.main.operands[number].type] for number in main["outputs"]]
        dims = [operands[number]["dims"] for number in main["outputs"]]
        sizes = [int(np.prod(each, dtype=np.int64)) * kind.itemsize for each, kind in zip(dims, kinds, strict=True)]
        verdict = partial(_example_verdict, rec, model, inputs, expected)
        names = {each["type"] for group in (main, *rec["referenced"]) for each in group["operations"]}
        yield Case(rec["test"], model, inputs, expected, sizes, verdict, frozenset(names))


def _example_verdict(
    rec: Any, model: Model, inputs: Sequence[Any], expected: Sequence[Any], index: int, array: Array
) -> str:
    if rec["multinomialTol"]:
        return compare_classes(rec, np.asarray(inputs[0]), array)
    wanted = expected[index]
    return "" if wanted is None else compare(rec, model, index, wanted, array)


def _case(name: str, model: Model, inputs: Sequence[Array], expected: Sequence[Array]) -> Case:
    def verdict(index: int, array: Array) -> str:
        wanted = expected[index]
        if wanted.shape != array.shape or wanted.dtype != array.dtype:
            return f"must be {wanted.dtype} {wanted.shape}, is {array.dtype} {array.shape}"
        close = np.allclose(array, wanted, rtol=1e-5, atol=1e-5 if wanted.dtype.kind == "f" else 1)
        return "" if close else f"must be {wanted}, is {array}"

    names = frozenset(OperationType(each.type).name for each in model.main.operations)
    return Case(name, model, inputs, expected, [array.nbytes for array in expected], verdict, names)


def _signed(array: Array) -> Array:
    return (array.astype(int) - 128).astype(np.int8)


def quantised_sum(kind: OperandType, zero: int) -> Model:
    """Build y = a + b in 8 bits, where y has twice the scale."""
    operands = [
        replace(tensor(life, (4, 7), 1, kind), scale=scale, zeroPoint=zero)
        for life, scale in ((IN, 0.5), (IN, 0.5), (OUT, 1.0))
    ]
    operands.insert(2, scalar(0))
    main = Subgraph(operands, [Operation(OperationType.ADD, (0, 1, 2), (3,))], (0, 1), (3,))
    return Model(main, operandValues=bytes(4))


def _split() -> Model:
    operands = [tensor(IN, (2, 12)), scalar(0), scalar(4), *(tensor(OUT, (2, 4)) for _ in range(3))]
    main = Subgraph(operands, [Operation(OperationType.SPLIT, (0, 1, 2), (3, 4, 5))], (0,), (3, 4, 5))
    return Model(main, operandValues=struct.pack("<ii", 1, 3))


def _topk() -> Model:
    operands = [tensor(IN, (2, 12)), scalar(0), tensor(OUT, (2, 3)), tensor(OUT, (2, 3), 0, I32)]
    main = Subgraph(operands, [Operation(OperationType.TOPK_V2, (0, 1), (2, 3))], (0,), (2, 3))
    return Model(main, operandValues=struct.pack("<i", 3))
