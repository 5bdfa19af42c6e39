"""Which operations are not supported, by their numbers."""

from __future__ import annotations

import numpy as np
import pytest

from hal.nnapi.operations import REGISTRY
from hal.nnapi.operations.constants import Constants
from hal.nnapi.operations.view import STORAGE
from hal.nnapi.plan import Support, Vocabulary
from hal.nnapi.types import OperandType
from npusim import load_config
from npusim.compiler.pipeline import compile_graph
from tests.support.nnapi.models import Model, chain


def reasons(model: Model, storage: dict[int, np.dtype] = STORAGE, **changes: object) -> dict[int, str]:
    config = load_config("tiny").with_(**changes)
    vocabulary = Vocabulary(REGISTRY, storage)
    return Support(model, Constants(model), vocabulary, config, lambda g: compile_graph(g, config)).unsupported()


def test_everything() -> None:
    assert reasons(chain(3)) == {}


def test_every_operation_without_its_unit_is_named() -> None:
    assert reasons(chain(3), vector=None) == dict.fromkeys(range(3), "tiny has no vector unit")


@pytest.mark.parametrize("number", range(4))
def test_a_type_without_elements_is_blamed_on_the_operation_that_reads_it(number: int) -> None:
    model = chain(4)
    model.main.operands[1].type = OperandType.TENSOR_INT32
    floats = {kind: dtype for kind, dtype in STORAGE.items() if kind != OperandType.TENSOR_INT32}
    for each, operation in enumerate(model.main.operations):
        operation.inputs = (0, 1 if each == number else 0, 2)
    found = reasons(model, floats)
    assert list(found) == [number]
    assert found[number] == "operands of TENSOR_INT32 are not supported"
