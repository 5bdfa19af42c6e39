"""Programs of every kind take exactly the recorded time."""

from __future__ import annotations

import difflib

import pytest

from tests.unit.sim.timelines import PATH, record


def test_timelines_are_those_on_record() -> None:
    changed = difflib.unified_diff(PATH.read_text(encoding="utf-8").splitlines(), [*record()], "record", "now", n=0)
    if lines := list(changed):
        pytest.fail("\n".join([*lines, "if this is meant: python -m tests.unit.sim.timelines"]), pytrace=False)
