"""IF and WHILE: requirements for referenced subgraphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hal.nnapi.errors import InvalidModelError
from hal.nnapi.operations import REGISTRY
from hal.nnapi.types import DataLocation, Model, Operand, Operation
from hal.nnapi.types import OperandLifeTime as Life
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as Op
from hal.nnapi.validation import validate_model
from hal.nnapi.validation.control import compatible
from npusim.errors import UsageError
from tests.support.nnapi.valid_models import NO_ACTIVATION, branching, constant, loop, operand, reference, subgraph

IF, WHILE = "main: operation 0 (IF): ", "main: operation 0 (WHILE): "


def refused(model: Model, message: str) -> None:
    with pytest.raises(InvalidModelError) as caught:
        validate_model(model)
    assert message in str(caught.value)


def test_a_condition_may_be_a_constant_and_of_unknown_shape() -> None:
    for dims in ([], [0], [1], [1, 1]):
        model = branching()
        model.main.operands[0].dimensions = dims
        validate_model(model)
    model = branching()
    model.main.operands[0] = constant(T.TENSOR_BOOL8, [1], 4, 1, numberOfConsumers=1)  # type: ignore[index]
    model.main.inputIndexes = [3, 4]
    model.operandValues = NO_ACTIVATION + b"\x01"
    validate_model(model)


def test_conditions_that_are_none() -> None:
    model = branching()
    model.main.operands[0].dimensions = [2]
    refused(model, IF + "input 0 must have one element")
    model = branching()
    model.main.operands[0].type = T.TENSOR_INT32
    refused(model, IF + "takes a TENSOR_BOOL8, two SUBGRAPHs")
    model = branching()
    model.main.operands[0].type = T.BOOL
    model.main.operands[0].dimensions = []
    refused(model, IF + "takes a TENSOR_BOOL8, two SUBGRAPHs")
    model = loop()
    model.referenced[0].operands[2].dimensions = [2]
    refused(model, WHILE + "the subgraph of input 0 does not fit: its output must have one element")


@pytest.mark.parametrize("make", [branching, loop])
@pytest.mark.parametrize("which", [0, 1])
def test_inner_operands_have_the_types_of_outer_ones(make: Callable[[], Model], which: int) -> None:
    for number in (0, 1):
        model = make()
        outer = model.main.operands[number + (3 if make is branching else 2)]
        outer.type = T.TENSOR_FLOAT16
        refused(model, "does not fit: input")
        model = make()
        model.referenced[which].operands[number].dimensions = [3]
        refused(model, "does not fit: input")
        model = make()
        model.referenced[which].operands[number].dimensions = [0]
        validate_model(model)
        model.referenced[which].operands[number].dimensions = []
        validate_model(model)


def test_counts_of_inputs_and_outputs() -> None:
    model = branching()
    model.main = subgraph(
        [*model.main.operands, operand(T.TENSOR_FLOAT32, [2], Life.SUBGRAPH_INPUT)],
        [Operation(Op.IF, [0, 1, 2, 3, 4, 6], [5])],
    )
    refused(model, IF + "the subgraph of input 1 does not fit: it must have 3 inputs, got 2")
    model = branching()
    model.main = subgraph(
        [*model.main.operands, operand(T.TENSOR_FLOAT32, [2], Life.SUBGRAPH_OUTPUT)],
        [Operation(Op.IF, [0, 1, 2, 3, 4], [5, 6])],
    )
    refused(model, IF + "the subgraph of input 1 does not fit: it must have 2 outputs, got 1")
    model = loop()
    model.main = subgraph(
        [*model.main.operands, operand(T.TENSOR_FLOAT32, [1], Life.SUBGRAPH_OUTPUT)],
        [Operation(Op.WHILE, [0, 1, 2, 3], [4, 5])],
    )
    refused(model, WHILE + "the subgraph of input 1 does not fit: it must have at least 2 outputs and at most 2, got 1")


def test_a_loop_needs_something_to_go_on_with() -> None:
    model = loop()
    first, second, *_, output = model.main.operands
    model.main = subgraph([first, second, output], [Operation(Op.WHILE, [0, 1], [2])])
    refused(model, WHILE + "takes two SUBGRAPHs and one operand or more")


def test_a_condition_of_a_loop_is_one_truth_value() -> None:
    model = loop()
    model.main.operands[0].location = DataLocation(0, 1, 0)
    refused(
        model, WHILE + "the subgraph of input 0 does not fit: its output must be one TENSOR_BOOL8, got TENSOR_FLOAT32"
    )


def test_what_a_body_gives_is_what_it_takes() -> None:
    model = loop()
    body = model.referenced[1]
    for number in (0, 1):
        body.operands[number].dimensions = []
    body.operands[3].dimensions = [2]
    refused(model, "does not fit: output 0 is TENSOR_FLOAT32 [1]")
    model.main.operands[4].dimensions = []
    validate_model(model)
    body.operands[0].dimensions = [1]
    refused(model, "does not fit: its input 0 is TENSOR_FLOAT32 [1] (0.0, 0), but its output 0 is TENSOR_FLOAT32 [2]")


def test_quantisation_is_compared_too() -> None:
    one = Operand(T.TENSOR_QUANT8_ASYMM, [2], scale=0.5, zeroPoint=3)
    assert compatible(one, Operand(T.TENSOR_QUANT8_ASYMM, [0], scale=0.5, zeroPoint=3))
    assert not compatible(one, Operand(T.TENSOR_QUANT8_ASYMM, [2], scale=0.25, zeroPoint=3))
    assert not compatible(one, Operand(T.TENSOR_QUANT8_ASYMM, [2], scale=0.5, zeroPoint=4))
    assert not compatible(one, Operand(T.TENSOR_QUANT8_ASYMM, [2, 1], scale=0.5, zeroPoint=3))
    assert not compatible(one, Operand(T.TENSOR_QUANT8_ASYMM_SIGNED, [2], scale=0.5, zeroPoint=3))


def _referring(targets: list[list[int]]) -> Model:
    """Return a model whose referenced subgraph ``n`` refers to the subgraphs ``targets[n]`` without using them."""
    model = branching()
    parts = []
    for numbers in targets:
        part = branching().referenced[0]
        part.operands = [*part.operands, *(reference(number) for number in numbers)]
        parts.append(part)
    model.referenced = parts
    return model


def test_references_may_meet_but_not_go_round() -> None:
    validate_model(_referring([[2], [2], [3, 3], []]))
    refused(_referring([[1], [0]]), "0 -> 1 -> 0")
    refused(_referring([[0], []]), "must not refer to each other in a circle: 0 -> 0")
    refused(_referring([[], [2], [3], [1]]), "must not refer to each other in a circle")


def test_a_long_chain_of_references() -> None:
    count = 5000
    validate_model(_referring([[number + 1] for number in range(count)] + [[]]))
    refused(_referring([[(number + 1) % count] for number in range(count)]), "must not refer to each other in a circle")


def test_control_is_not_lowered() -> None:
    for kind in (Op.IF, Op.WHILE):
        with pytest.raises(UsageError, match="is run by a plan"):
            REGISTRY[kind].lower(_Stub(kind))  # type: ignore[arg-type]


class _Stub:
    def __init__(self, kind: Op) -> None:
        self.view = self
        self.operation = Operation(kind, [], [])
