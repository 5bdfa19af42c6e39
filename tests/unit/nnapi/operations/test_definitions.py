"""Signatures, optional inputs and rules of all operations are as recorded."""

from __future__ import annotations

import difflib

import pytest

from tests.unit.nnapi.operations.definitions import PATH, record


def test_definitions_are_those_on_record() -> None:
    changed = difflib.unified_diff(PATH.read_text(encoding="utf-8").splitlines(), [*record()], "record", "now", n=0)
    if lines := list(changed):
        text = "\n".join([*lines, "if this is meant: python -m tests.unit.nnapi.operations.definitions"])
        pytest.fail(text, pytrace=False)
