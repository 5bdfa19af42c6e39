"""Preference and priority."""

from __future__ import annotations

import pytest

from hal.nnapi.errors import InvalidModelError
from hal.nnapi.types import ExecutionPreference, Priority
from hal.nnapi.validation import validate_preference, validate_priority


def test_members_are_accepted_also_as_numbers() -> None:
    for value in (0, 1, 2):
        assert validate_preference(value) is ExecutionPreference(value)
        assert validate_priority(Priority(value)) is Priority(value)


@pytest.mark.parametrize("value", [-1, 3, 1 << 40, 0.0, 1.5, "1", None, float("nan"), [1]])
def test_others_are_not(value: object) -> None:
    with pytest.raises(InvalidModelError, match="executionPreference"):
        validate_preference(value)
    with pytest.raises(InvalidModelError, match="priority"):
        validate_priority(value)
