"""No mutation turns a signature of an operation into another valid one, except for the allowed ones.

So a mutant is refused whatever example it was made from.
"""

from __future__ import annotations

import pytest

from hal.nnapi.operations import REGISTRY, Definition
from hal.nnapi.operations.signature import Form, Types, type_name
from hal.nnapi.operations.view import OpView
from hal.nnapi.types import Model, Operand, Operation, Subgraph
from hal.nnapi.types import OperandLifeTime as Life
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as Op
from tests.support.nnapi_examples.mutations.operand_lists import may_gain, may_lose
from tests.support.nnapi_examples.mutations.operand_types import legal_types

KINDS = [kind for kind in T if kind not in (T.OEM, T.TENSOR_OEM_BYTE)]
VARIADIC: dict[Op, list[Form]] = {
    Op.CONCATENATION: [
        ((*[kind] * count, T.INT32), (kind,))
        for kind in (T.TENSOR_FLOAT32, T.TENSOR_FLOAT16, T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED)
        for count in (1, 2, 3)
    ],
    Op.PACK: [
        ((T.INT32, *[kind] * count), (kind,))
        for kind in (
            T.TENSOR_FLOAT32, T.TENSOR_FLOAT16, T.TENSOR_INT32, T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED,
        )
        for count in (1, 2, 3)
    ],
    Op.SPLIT: [
        ((kind, T.INT32, T.INT32), (kind,) * count)
        for kind in (
            T.TENSOR_FLOAT32, T.TENSOR_FLOAT16, T.TENSOR_INT32, T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED,
        )
        for count in (1, 2, 3)
    ],
}  # fmt: skip
"""Valid signatures of operations with any number of operands; IF and WHILE depend on their subgraphs."""
CONVOLUTIONS = (Op.CONV_2D, Op.DEPTHWISE_CONV_2D, Op.GROUPED_CONV_2D, Op.TRANSPOSE_CONV_2D)
OPERATIONS = [kind for kind in Op if kind not in (Op.IF, Op.WHILE, Op.OEM_OPERATION)]


def forms_of(kind: Op) -> list[Form]:
    signatures = REGISTRY[kind].signatures
    return sorted(signatures) if isinstance(signatures, frozenset) else VARIADIC[kind]


def legal(definition: Definition, form: Form) -> bool:
    if isinstance(definition.signatures, frozenset):
        return form in definition.signatures
    return definition.signatures(OpView(*_alone(definition, form), lambda operand: None))


def other_reading(kind: Op, place: int, count: int, other: T) -> bool:
    """Return whether the signature is valid but impossible for a mutant of a valid model, because another property
    breaks a rule.

    A filter with per-channel scales may become one with a single scale; but then the bias must have a scale, too. After
    the strides of an explicit padding comes an activation, after those of an implicit one a layout and dilations; but
    an INT32 constant is longer than a BOOL.
    """
    if kind in CONVOLUTIONS and place == 1:
        return other == T.TENSOR_QUANT8_ASYMM_SIGNED
    window = {Op.CONV_2D: (10, 7), Op.DEPTHWISE_CONV_2D: (11, 8)}
    return window.get(kind) == (count, place) and other in (T.INT32, T.BOOL)


def _alone(definition: Definition, form: Form) -> tuple[Subgraph, Operation]:
    inputs = [Operand(kind, lifetime=Life.SUBGRAPH_INPUT) for kind in form[0]]
    outputs = [Operand(kind, lifetime=Life.SUBGRAPH_OUTPUT) for kind in form[1]]
    numbers = list(range(len(inputs) + len(outputs)))
    operation = Operation(definition.type, numbers[: len(inputs)], numbers[len(inputs) :])
    subgraph = Subgraph([*inputs, *outputs], [operation], operation.inputs, operation.outputs)
    return subgraph, operation


def shown(form: Form) -> str:
    return " -> ".join(", ".join(map(type_name, part)) for part in form)


def _set(kinds: Types, place: int, kind: int) -> Types:
    return (*kinds[:place], kind, *kinds[place + 1 :])


def test_every_operation_of_the_interface_is_defined() -> None:
    assert set(OPERATIONS) <= set(REGISTRY)


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.name)
def test_an_operand_of_another_type(kind: Op) -> None:
    definition = REGISTRY[kind]
    for inputs, outputs in forms_of(kind):
        assert legal(definition, (inputs, outputs))
        subgraph, _ = _alone(definition, (inputs, outputs))
        for number in range(len(inputs) + len(outputs)):
            allowed = legal_types(Model(subgraph), number)
            for other in KINDS:
                if number < len(inputs):
                    form = (_set(inputs, number, other), outputs)
                else:
                    form = (inputs, _set(outputs, number - len(inputs), other))
                if form == (inputs, outputs) or other in allowed:
                    continue
                if not other_reading(kind, number, len(inputs), other):
                    assert not legal(definition, form), shown(form)


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.name)
def test_an_input_less_or_more(kind: Op) -> None:
    definition = REGISTRY[kind]
    for inputs, outputs in forms_of(kind):
        for place in range(len(inputs)):
            form = ((*inputs[:place], *inputs[place + 1 :]), outputs)
            if not may_lose(kind, len(inputs), place):
                assert not legal(definition, form), f"without input {place}: {shown(form)}"
        form = ((*inputs, T.INT32), outputs)
        if not may_gain(kind, len(inputs)):
            assert not legal(definition, form), f"with an INT32 more: {shown(form)}"


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.name)
def test_an_output_more(kind: Op) -> None:
    """One more output of type INT32; with one output less, an operand would never be written."""
    definition = REGISTRY[kind]
    for inputs, outputs in forms_of(kind):
        assert not legal(definition, (inputs, (*outputs, T.INT32)))
