"""Every kind of mutation gives a refused model, for small models, and for the examples if they are installed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import pytest

from hal.nnapi.types import DataLocation, Model, Operation
from hal.nnapi.types import OperandLifeTime as Life
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as Op
from hal.nnapi.validation import validate_model
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
