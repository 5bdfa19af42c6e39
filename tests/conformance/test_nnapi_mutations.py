"""Every kind of mutation gives a refused model, for small models, and for the examples if they are installed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from hal.nnapi import open_device
from hal.nnapi.aidl.types import PrepareModelConfig
from hal.nnapi.types import DataLocation, ErrorStatus, Model, Operation
from hal.nnapi.types import OperandLifeTime as Life
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as Op
from hal.nnapi.validation import validate_model
from tests.support.nnapi.client import aidl_prepare
from tests.support.nnapi.one_operation import build, given, i32, result, scalar, vector
from tests.support.nnapi.valid_models import ALL, NO_ACTIVATION, chain, constant, operand, subgraph
from tests.support.nnapi_examples.examples import VECTORS, available, build_model, examples
from tests.support.nnapi_examples.mutants import KINDS, Mutant, mutants, refusal, valid_models
from tests.support.nnapi_examples.mutations import MUTATIONS
from tests.support.nnapi_examples.mutations.operand_lists import OPTIONAL_INPUTS
from tests.support.nnapi_examples.mutations.operand_types import ANYWHERE, INPUT_TYPES, OUTPUT_TYPES, retyped


def two_adds() -> Model:
    """Build (x + y) + y with the first sum also an output: an output that is read."""
    operands = [
        operand(T.TENSOR_FLOAT32, [2], Life.SUBGRAPH_INPUT),
        operand(T.TENSOR_FLOAT32, [2], Life.SUBGRAPH_INPUT),
        constant(T.INT32, [], 0, 4),
        operand(T.TENSOR_FLOAT32, [2], Life.SUBGRAPH_OUTPUT),
        operand(T.TENSOR_FLOAT32, [2], Life.SUBGRAPH_OUTPUT),
    ]
    operations = [Operation(Op.ADD, [0, 1, 2], [3]), Operation(Op.ADD, [3, 1, 2], [4])]
    return Model(subgraph(operands, operations), operandValues=NO_ACTIVATION)


SMALL: dict[str, Callable[[], Model]] = {**ALL, "two_adds": two_adds}


@pytest.mark.parametrize("kind", KINDS)
def test_mutants_of_small_models_are_refused(kind: str) -> None:
    count = 0
    for name, make in SMALL.items():
        model = make()
        validate_model(model)
        for mutant in mutants(model, [kind]):
            assert refusal(mutant), f"{name}: {mutant.what}"
            count += 1
        assert model == make()  # mutants share with it, and leave it alone
    assert count


@pytest.mark.parametrize("kind", [kind for kind in MUTATIONS if kind != "numberOfConsumers"])
def test_mutants_are_refused_though_their_consumers_are_right(kind: str) -> None:
    """The AIDL interface has no consumer counts: the driver computes them, so they are always right."""
    for name, make in SMALL.items():
        for mutant in mutants(make(), [kind]):
            main = mutant.model.main
            read = Counter(index for operation in main.operations for index in operation.inputs)
            operands = [replace(each, numberOfConsumers=read[number]) for number, each in enumerate(main.operands)]
            counted = replace(mutant.model, main=replace(main, operands=operands))
            assert refusal(Mutant(kind, mutant.what, counted)), f"{name}: {mutant.what}"


def test_how_many_mutants_there_are() -> None:
    """For ``chain``, counted by hand: 5 operands (1 constant, 4 read) and 2 operations."""
    counts = {kind: sum(1 for _ in mutants(chain(), [kind])) for kind in KINDS}
    assert counts == {
        "executionOrder": 2,  # RELU first, ADD last
        "operandType": 5 * 4,
        "operandRank": 1,
        "operandScale": 5,
        "operandZeroPoint": 5,
        "operandLifeTime": 5 * 2,
        "operandInputOutput": 5,
        "numberOfConsumers": 5 + 4,
        "addWriter": 2,
        "operationOperandType": 5 * 15,
        "operationType": 2 * 3,
        "inputOperandIndex": 4,
        "outputOperandIndex": 2,
        "removeWrite": 1,
        "removeOperand": 4,
        "removeOperation": 2,
        "removeOperationInput": 4,
        "removeOperationOutput": 2,
        "addOperationInput": 2,
        "addOperationOutput": 2 * 2,
        "executionPreference": 2,
        "priority": 2,
    }


@pytest.mark.parametrize("kind", [kind for kind in T if kind not in (T.OEM, T.TENSOR_OEM_BYTE, T.SUBGRAPH)])
def test_an_operand_of_another_type_is_legal_in_itself(kind: T) -> None:
    """So the operation must be what refuses it. Here only an unknown operation reads it."""
    for make in ALL.values():
        for each in make().main.operands:
            if each.lifetime in (Life.SUBGRAPH_INPUT, Life.TEMPORARY_VARIABLE):
                alone = retyped(each, kind)
                alone.lifetime, alone.location = Life.SUBGRAPH_INPUT, DataLocation()
                output = operand(T.TENSOR_FLOAT32, [], Life.SUBGRAPH_OUTPUT)
                validate_model(Model(subgraph([alone, output], [Operation(Op.OEM_OPERATION, [0], [1])])))


def test_what_is_skipped_is_named_by_operations() -> None:
    assert set(OPTIONAL_INPUTS) | set(ANYWHERE) | {kind for kind, _ in INPUT_TYPES} | set(OUTPUT_TYPES) <= set(Op)


FIVE = (T.TENSOR_FLOAT32, T.TENSOR_FLOAT16, T.TENSOR_INT32, T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED)
BYTES = FIVE[3:]


def newest() -> Iterator[tuple[str, Model]]:
    """Yield models of the operations that feature levels 6 and 7 brought: every operand type, several shapes, alone and
    behind another operation."""
    for kind in FIVE:
        scale = (0.5, 3) if kind in BYTES else ()
        x = given(kind, np.zeros((2, 3)), *scale)
        for dims in ((2, 3), ()):  # known and unknown dimensions of the output
            y = result(kind, *scale, dims=dims)
            yield f"REVERSE {kind.name}", build(Op.REVERSE, [x, vector([1])], [y])
            for count in (1, 2):
                stacked = result(kind, *scale, dims=(2, count, 3) if dims else ())
                yield f"PACK {count} {kind.name}", build(Op.PACK, [i32(1), *[x] * count], [stacked])
            for mode in (0, 1):
                pads, padded = vector([[0, 0], [1, 2]]), result(kind, *scale, dims=(2, 6) if dims else ())
                yield f"MIRROR_PAD {mode} {kind.name}", build(Op.MIRROR_PAD, [x, pads, i32(mode)], [padded])
            if kind != T.TENSOR_QUANT8_ASYMM:
                for swapped in (False, True):
                    b = given(kind, np.zeros((3, 2)), *scale)
                    made = result(kind, *scale, dims=(3, 3) if swapped else (2, 2) if dims else ())
                    flags = [scalar(T.BOOL, swapped)] * 2
                    yield f"BATCH_MATMUL {kind.name}", build(Op.BATCH_MATMUL, [x, b, *flags], [made])
    for kind in BYTES:
        yield f"RSQRT {kind.name}", build(Op.RSQRT, [given(kind, np.ones(4), 0.5, 3)], [result(kind, 0.25, 1)])
    x = given(T.TENSOR_INT32, np.zeros((2, 3)))
    yield "RESHAPE of integers", build(Op.RESHAPE, [x, vector([3, 2])], [result(T.TENSOR_INT32, dims=(3, 2))])


def behind_an_addition(model: Model) -> Model | None:
    """Return the model with its first input made by an ADD; None if it has no such input."""
    main = model.main
    first = main.inputIndexes[0]
    operands = [replace(each) for each in main.operands]
    if not operands[first].dimensions:
        return None
    count, kind = len(operands), operands[first]
    operands[first] = replace(kind, lifetime=Life.TEMPORARY_VARIABLE)
    operands += [replace(kind, lifetime=Life.SUBGRAPH_INPUT), replace(kind, lifetime=Life.SUBGRAPH_INPUT)]
    values = bytes(model.operandValues)
    operands.append(constant(T.INT32, [], len(values), 4))
    addition = Operation(Op.ADD, [count, count + 1, count + 2], [first])
    return Model(subgraph(operands, [addition, *main.operations]), operandValues=values + NO_ACTIVATION)


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_mutants_of_the_newest_operations_are_refused(step: int) -> None:
    count = 0
    for name, model in newest():
        for made in filter(None, (model, behind_an_addition(model))):
            validate_model(made)
            for mutant in islice(mutants(made), count % step, None, step):
                assert refusal(mutant), f"{name}: {mutant.what}"
                count += 1
    assert count > 20_000 // step


def test_the_aidl_interface_refuses_them_at_the_launch_and_in_the_callback() -> None:
    with open_device("tiny") as device:
        for name, model in newest():
            chosen = [mutant for mutant in mutants(model) if mutant.kind != "numberOfConsumers"][::40]
            for mutant in chosen:
                config = PrepareModelConfig(mutant.preference, mutant.priority)
                found = aidl_prepare(device, mutant.model, config)
                assert found == (ErrorStatus.INVALID_ARGUMENT, ErrorStatus.INVALID_ARGUMENT, None), (name, mutant.what)


@pytest.mark.skipif(not available(), reason=f"no examples in {VECTORS}")
def test_examples_are_valid() -> None:
    """Also those that must fail: only their execution shows why."""
    count = 0
    for rec, get in examples():
        model, *_ = build_model(rec, get)
        assert refusal(Mutant("none", "nothing", model)) is None, rec["test"]
        count += 1
    assert count > 1000


def _sample() -> Iterator[tuple[str, Mutant]]:
    """Yield two kinds of mutants per model, and of these every seventh; the kinds change with each model."""
    for number, (name, model) in enumerate(valid_models()):
        kinds = [KINDS[(2 * number + offset) % len(KINDS)] for offset in range(2)]
        yield from ((name, mutant) for mutant in islice(mutants(model, kinds), number % 7, None, 7))


@pytest.mark.skipif(not available(), reason=f"no examples in {VECTORS}")
def test_mutants_of_examples_are_refused() -> None:
    judged: dict[str, int] = dict.fromkeys(KINDS, 0)
    accepted = []
    for name, mutant in _sample():
        judged[mutant.kind] += 1
        if refusal(mutant) is None:
            accepted.append(f"{name}: {mutant.kind}: {mutant.what}")
    assert not accepted
    assert all(judged.values()), judged
