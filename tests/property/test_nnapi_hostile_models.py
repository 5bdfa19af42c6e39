"""Whatever a client puts in a model: it is valid, or refused with InvalidModelError."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.nnapi.errors import InvalidModelError
from hal.nnapi.types import DataLocation, ExtensionNameAndPrefix, ExtraParams, Model, Operand, Operation, Subgraph
from hal.nnapi.types import SymmPerChannelQuantParams as Channels
from hal.nnapi.validation import validate_model
from tests.support.nnapi.valid_models import ALL

CODES = (0, 1, 2, 3, 4, 15, 16, 96, 101, 102, 105, 106, 10000, 10001)
LIMITS = (*CODES, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 64, -1, -(1 << 31))
NUMBERS = st.one_of(st.sampled_from(LIMITS), st.integers())
OBJECTS = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.floats(), st.text(max_size=3), st.binary(max_size=8),
    st.sampled_from([np.int64(1), np.float32(1), np.uint8([1, 2]), object, object(), ..., {0: 1}, {1}, 1j, 10**400]),
    st.builds(DataLocation, NUMBERS, NUMBERS, NUMBERS), st.builds(Channels, st.lists(st.floats()), NUMBERS),
    st.builds(ExtraParams, st.none(), st.binary()), st.builds(ExtensionNameAndPrefix, st.text(), NUMBERS),
    st.builds(Operand, NUMBERS), st.builds(Operation, NUMBERS, st.lists(NUMBERS), st.lists(NUMBERS)),
    st.just(Subgraph([], [], [], [])),
)  # fmt: skip
VALUES = st.one_of(OBJECTS, st.lists(OBJECTS, max_size=4), st.tuples(OBJECTS), st.lists(NUMBERS, max_size=5))


def places(thing: Any) -> list[tuple[Any, Any]]:
    """Return every field and item below an object as (holder, name or index)."""
    found: list[tuple[Any, Any]] = []
    if is_dataclass(thing):
        for each in fields(thing):
            found.append((thing, each.name))
            found += places(getattr(thing, each.name))
    elif isinstance(thing, list):
        for index, item in enumerate(thing):
            found.append((thing, index))
            found += places(item)
    return found


def put(holder: Any, key: Any, value: object) -> None:
    if isinstance(holder, list):
        holder[key] = value
    else:
        setattr(holder, key, value)


def accepted(model: Model) -> Model | None:
    """Return the driver's copy; None if the model is properly refused, with a place and a reason."""
    try:
        return validate_model(model)
    except InvalidModelError as error:
        if not (error.where and error.message):
            raise AssertionError("a refusal must say where and why") from error
        return None


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
@given(data=st.data())
@settings(max_examples=75)
def test_any_value_anywhere(make: Callable[[], Model], data: st.DataObject) -> None:
    model = make()
    everywhere = places(model)
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(everywhere))
        put(holder, key, data.draw(VALUES))
    own = accepted(model)
    assert own is None or validate_model(own) == own


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_no_field_may_be_missing_or_none(make: Callable[[], Model]) -> None:
    """Every field in turn; ``extraParams`` and its parts may be None."""
    for number in range(len(places(make()))):
        model = make()
        holder, key = places(model)[number]
        if key not in ("extraParams", "channelQuant", "extension"):
            put(holder, key, None)
            with pytest.raises(InvalidModelError):
                validate_model(model)
        model = make()
        holder, key = places(model)[number]
        if is_dataclass(holder) and not isinstance(holder, list):
            delattr(holder, key)
            with pytest.raises(InvalidModelError):
                validate_model(model)


def test_numbers_of_numpy_are_numbers() -> None:
    model = ALL["quantised"]()
    wanted = validate_model(copy.deepcopy(model))
    for operand in model.main.operands:
        operand.dimensions = np.array(operand.dimensions, np.int64)  # type: ignore[assignment]
        operand.scale = np.float32(operand.scale)  # type: ignore[assignment]
        operand.zeroPoint = np.int8(operand.zeroPoint)  # type: ignore[assignment]
        operand.type = np.uint8(operand.type)  # type: ignore[assignment]
        operand.numberOfConsumers = np.uint32(operand.numberOfConsumers)  # type: ignore[assignment]
    for operation in model.main.operations:
        operation.inputs = np.array(operation.inputs)  # type: ignore[assignment]
    model.main.inputIndexes = tuple(model.main.inputIndexes)
    assert validate_model(model) == wanted
