"""Damaged space files and study stores are refused with a message, or are what they say: some cases of the fuzz."""

from __future__ import annotations

import os

import pytest

from tests.support.fuzz import space_files, study_stores
from tests.support.fuzz.run import rng_of


@pytest.mark.parametrize("count", [60, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("library", "make"), [("spaces", space_files.make), ("stores", study_stores.make)])
def test_damaged_files_are_refused_in_words(library, make, count, monkeypatch):
    monkeypatch.setenv("NPUSIM_STATE_DIR", os.environ.get("NPUSIM_STATE_DIR", ""))  # which the world replaces
    world = make()
    found = {number: problems for number in range(count) if (problems := world.case(rng_of(library, 0, number)))}
    assert found == {}
    assert any(end.startswith("was ") for end in world.tally), world.tally
