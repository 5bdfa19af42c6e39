"""The rules of every operation with operands of any rank, shape, lifetime and value: they refuse or accept, but never
fail."""

from __future__ import annotations

import random

import pytest

from hal.nnapi.errors import InvalidModelError
from hal.nnapi.operations import REGISTRY, Definition
from hal.nnapi.operations.view import QUANTISED, SCALARS, STORAGE
from hal.nnapi.types import DataLocation, ExtraParams, Model, Operand, Operation, SymmPerChannelQuantParams
from hal.nnapi.types import OperandLifeTime as Life
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as Op
from hal.nnapi.validation import validate_model
from tests.support.nnapi.valid_models import branching, reference, subgraph

CASES = 150
DIMENSIONS = (0, 0, 1, 1, 2, 2, 3, 4, 5, 8, 50)
WORDS = (0, 1, 2, 3, 4, 255, 0xFFFFFFFF, 0xFFFFFFFE, 0x7FFFFFFF, 0x80000000, 0x3F800000, 0x7FC00000, 0xFF800000)
"""Values of constants: small and extreme integers, 1.0, NaN and -infinity as float32."""
INPUTS = (*[Life.SUBGRAPH_INPUT] * 30, *[Life.CONSTANT_COPY] * 30, Life.NO_VALUE)


def _signature(definition: Definition, chance: random.Random) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return one of the operation's own signatures, or random types."""
    if isinstance(definition.signatures, frozenset) and chance.random() < 0.9:
        return chance.choice(sorted(definition.signatures))
    kinds = [int(kind) for kind in STORAGE]
    count = chance.randint(1, 6)
    one = chance.choice(kinds)
    inputs = [*[one] * count, *[int(T.INT32)] * chance.randint(0, 2)]
    if chance.random() < 0.3:
        inputs[chance.randrange(len(inputs)) :] = chance.choices(kinds, k=2)
    return tuple(inputs), (one,) * chance.randint(0, 4)


class _Maker:
    """Creates random operands, each valid by itself."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.values = bytearray()
        self.rank = chance.randint(1, 5)

    def operand(self, kind: int, *, written: bool) -> Operand:
        chance = self.chance
        if kind == T.SUBGRAPH:
            return reference(chance.randint(0, 1))
        life = Life.SUBGRAPH_OUTPUT if written else chance.choice(INPUTS)
        dims = [] if kind in SCALARS or chance.random() < 0.6 else [chance.choice(DIMENSIONS) for _ in self._rank()]
        if life == Life.CONSTANT_COPY and kind not in SCALARS:
            dims = [chance.randint(1, 4) for _ in dims] or [chance.randint(1, 5)]
        found = Operand(kind, dims, lifetime=life)
        if kind in QUANTISED:
            found.scale = chance.choice([0.5, 1 / 256, 1 / 128, 1.0, 2**-15, 0.1, 1e30, 1e-30])
            symmetric = kind in (T.TENSOR_QUANT8_SYMM, T.TENSOR_QUANT16_SYMM)
            found.zeroPoint = 0 if symmetric else chance.choice([0, 127, 1])
        if kind == T.TENSOR_QUANT8_SYMM_PER_CHANNEL:
            found.dimensions = dims = [dim % 5 + 1 for dim in dims] or [2]
            channel = chance.randrange(len(dims))
            found.extraParams = ExtraParams(SymmPerChannelQuantParams([0.5] * dims[channel], channel))
        if life == Life.CONSTANT_COPY:
            found.location = self._constant(kind, dims)
        return found

    def _rank(self) -> range:
        """Most tensors have the same rank."""
        return range(self.rank if self.chance.random() < 0.8 else self.chance.randint(1, 4))

    def _constant(self, kind: int, dims: list[int]) -> DataLocation:
        size = STORAGE[kind].itemsize
        for dim in dims:
            size *= dim
        location = DataLocation(0, len(self.values), size)
        self.values += b"".join(self.chance.choice(WORDS).to_bytes(4, "little") for _ in range(size // 4 + 1))
        return location


@pytest.mark.parametrize("kind", REGISTRY, ids=lambda kind: kind.name)
def test_rules_never_fail(kind: Op) -> None:
    definition = REGISTRY[kind]
    for case in range(CASES):
        chance = random.Random(f"{kind.name} {case}")
        maker = _Maker(chance)
        inputs, outputs = _signature(definition, chance)
        operands = [maker.operand(each, written=False) for each in inputs]
        operands += [maker.operand(each, written=True) for each in outputs]
        if not outputs:
            continue
        numbers = list(range(len(operands)))
        operation = Operation(kind, numbers[: len(inputs)], numbers[len(inputs) :])
        for each in operands:
            if each.lifetime == Life.CONSTANT_COPY:
                each.location.offset += 4  # after the indices of the referenced subgraphs
        values = bytes(4) + bytes(maker.values)
        _check(Model(subgraph(operands, [operation]), branching().referenced, values), kind)


def _check(model: Model, kind: Op) -> None:
    """Check that an error in the model concerns the operation."""
    try:
        validate_model(model)
    except InvalidModelError as error:
        if error.where != f"main: operation 0 ({kind.name})":
            raise
