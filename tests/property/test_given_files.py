"""A small part of the fuzz of user files; ``python -m tests.support.fuzz.run`` runs all of it."""

from __future__ import annotations

import pytest

from tests.support.fuzz.run import GIVEN, rng_of, world_of

CASES = 150
KINDS = {
    "checkpoints": {"CheckpointError", "goes on", "a driver goes on"},
    "bus-traces": {"InputError", "the same", "differs"},
    "fault-scripts": {"ConfigError", "a device with faults"},
    "scenarios": {"ConfigError", "UsageError", "requests"},
    "goldens": {"InputError", "differs", "the same"},
    "debugger-scripts": {"UsageError", "to its end"},
    "run-files": {"UsageError", "compared"},
    "arrays": {"InputError", "an array"},
}
"""Outcomes that must occur for each kind of file; cases that all end alike would prove nothing."""


@pytest.mark.parametrize("kind", KINDS)
def test_changed_files_end_in_a_result_or_in_one_error(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.chdir(tmp_path)  # type: ignore[arg-type]
    world = world_of(kind)
    for number in range(CASES):
        assert world.case(rng_of(kind, 0, number)) == [], number
    assert KINDS[kind] <= set(world.tally)  # type: ignore[attr-defined]


def test_all_kinds_are_here() -> None:
    assert set(KINDS) == set(GIVEN)
