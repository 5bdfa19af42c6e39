"""Exact costs in every cost model."""

from __future__ import annotations

import difflib

import pytest

from tests.unit.hw.record import PATH, record


def test_costs_are_those_on_record() -> None:
    changed = difflib.unified_diff(PATH.read_text(encoding="utf-8").splitlines(), [*record()], "record", "now", n=0)
    if lines := list(changed):
        pytest.fail("\n".join([*lines, "if this is meant: python -m tests.unit.hw.record"]), pytrace=False)
