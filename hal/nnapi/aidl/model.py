"""Convert models of the AIDL interface to HAL 1.3: count consumers, unpack the union Memory."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from .. import types
from ..errors import invalid_argument
from ..memory import Memory
from ..validation.fields import MalformedError, items
from . import types as aidl_types
from .memory import to_memory

_VALUE = attrgetter("scale", "zeroPoint", "lifetime", "location", "extraParams")
MAX_PREFIX = (1 << aidl_types.EXTENSION_TYPE_HIGH_BITS_PREFIX) - 1


def model_to_1_3(model: Any) -> types.Model:
    """Convert a model to HAL 1.3. Raises StatusError (INVALID_ARGUMENT) if it is not a model of the AIDL interface;
    ``validate_model`` checks the rules."""
    try:
        for entry in _items(model.extensionNameToPrefix):
            if not 0 <= entry.prefix <= MAX_PREFIX:
                raise invalid_argument(f"the prefix of {entry.name} must be in [0, {MAX_PREFIX}], got {entry.prefix}")
        return types.Model(
            _subgraph(model.main),
            [_subgraph(each) for each in _items(model.referenced)],
            model.operandValues,
            [pool if isinstance(pool, Memory) else to_memory(pool) for pool in _items(model.pools)],
            model.relaxComputationFloat32toFloat16,
            model.extensionNameToPrefix,
        )
    except (AttributeError, TypeError, MalformedError) as error:
        raise invalid_argument(f"not a model of the AIDL interface: {error}") from None


def _subgraph(subgraph: aidl_types.Subgraph) -> types.Subgraph:
    given = _items(subgraph.operands)
    counts = _consumers(len(given), _items(subgraph.operations))
    operands = [
        types.Operand(each.type, each.dimensions, consumers, *_VALUE(each))
        for each, consumers in zip(given, counts, strict=True)
    ]
    return types.Subgraph(operands, subgraph.operations, subgraph.inputIndexes, subgraph.outputIndexes)


def _consumers(operands: int, operations: Sequence[Any]) -> list[int]:
    """How often each operand is read. Indexes out of range are left to the validation."""
    counts = [0] * operands
    for operation in operations:
        for index in _items(operation.inputs):
            if isinstance(index, int) and 0 <= index < operands:
                counts[index] += 1
    return counts


def _items(values: object) -> Sequence[Any]:
    return items(values, "a list")
