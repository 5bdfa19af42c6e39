"""A device that is unplugged, reset or throttled at any moment: every interface gives right results or an error."""

from __future__ import annotations

import pytest

from npusim.device.bus import is_doubtful
from npusim.driver import link
from tests.support.removal.doors import DOORS
from tests.support.removal.plays import Play
from tests.support.removal.sweep import HARMLESS, KINDS, Course, Moment, courses, main, outcome_of, sweep


@pytest.mark.parametrize("adversary", [pytest.param(None, marks=pytest.mark.slow), 1])
def test_some_moments(adversary: int | None) -> None:
    tally = sweep(courses(DOORS, [adversary]), 280)
    assert tally.bad == []
    assert {door for door, _, _ in tally.counts} == {*DOORS}
    assert {kind for _, kind, _ in tally.counts} == {*KINDS}
    assert tally.counts.total() == 280
    errors = {kind for _, kind, outcome in tally.counts if outcome != "right"}
    assert errors == {*KINDS} - HARMLESS  # each of these faults is felt


@pytest.mark.slow
def test_many_moments() -> None:
    tally = sweep(courses(DOORS, [None, 1, 2, 3]), 20_000)
    assert tally.bad == []
    assert tally.counts.total() == 20_000


def found_in(door: str, count: int, *kinds: str) -> set[str]:
    """Return the kinds of faults with which a sweep finds wrong values."""
    tally = sweep(courses([door], [None]), count, kinds)
    assert all(": WRONG: step " in line for line in tally.bad)
    return {kind for _, kind, outcome in tally.counts if outcome == "WRONG"}


def test_a_driver_that_believes_everything(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(link, "is_doubtful", lambda address, data: False)
    assert found_in("driver", 400, "gone", "back") == {"gone", "back"}
    assert main(["--door", "driver", "--fault", "gone", "--moments", "200", "--seeds", "0"]) == 1
    report = capsys.readouterr().out
    moment = report.split(": WRONG")[0].splitlines()[-1]
    assert main(["--only", moment]) == 1
    monkeypatch.undo()
    assert main(["--only", moment]) == 0


def test_a_driver_that_does_not_know_of_memory_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    ones = b"\xff\xff\xff\xff"
    monkeypatch.setattr(link, "is_doubtful", lambda address, data: data[-4:] == ones and is_doubtful(address, data))
    assert found_in("driver", 400, "gone", "back") == {"back"}


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_each_door_shows_a_driver_that_believes_everything(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "is_doubtful", lambda address, data: False)
    assert found_in(door, 1500, "gone", "back") == {"gone", "back"}


def test_what_is_no_answer_is_bad() -> None:
    """An exception that is not npusim's, and an error although nothing was lost."""

    def crashes() -> Play:
        raise ZeroDivisionError("oh")

    def refuses() -> Play:
        play = Play()
        play.errors.append("TIMEOUT")
        return play

    for play, kind, wanted in (
        (crashes, "gone", ("FAILED", "ZeroDivisionError: oh")),
        (refuses, "throttle", ("FAILED", "TIMEOUT")),
        (refuses, "gone", ("TIMEOUT", "")),
        (Play, "throttle", ("right", "")),
    ):
        assert outcome_of(Moment(Course("door", "model", None, play), kind, 1, 0), Play()) == wanted
