"""Values of a saved state: each accessor accepts values of its type, up to its limits, and names what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from npusim.errors import CheckpointError
from npusim.sim.saved import WIDEST, Saved

ANY: list[Any] = [None, True, 0, 1.5, "text", [], {}]
KINDS: dict[str, tuple[Callable[[Saved], Any], tuple[Any, ...], str]] = {
    "integer": (Saved.integer, (0,), "an integer >= 0"),
    "index": (lambda saved: saved.index(3), (0,), "an integer from 0 to 2"),
    "integers": (lambda saved: saved.integers(0), ([],), "a list of 0 integers"),
    "flag": (Saved.flag, (True,), "true or false"),
    "text": (Saved.text, ("text",), "text"),
    "items": (lambda saved: saved.items(), ([],), "a list"),
    "iteration": (list, ([],), "a list"),
    "names": (Saved.names, ({},), "a mapping"),
    "member": (lambda saved: saved["x"], (), "a mapping"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_other_kinds_are_refused_by_their_path(kind: str) -> None:
    ask, own, allowed = KINDS[kind]
    for value in ANY:
        if any(type(value) is type(each) for each in own):
            assert list(ask(Saved(value))) == [] if kind == "names" else ask(Saved(value)) == value
        elif kind != "member" or value != {}:
            with pytest.raises(CheckpointError) as error:
                ask(Saved({"a": [0, value]})["a"].items(2)[1])
            assert str(error.value).startswith(f"state.a[1]: must be {allowed}, got ")


@pytest.mark.parametrize(("low", "high"), [(0, WIDEST), (-2, 5), (3, 3)])
def test_integers_reach_from_the_lowest_to_the_highest(low: int, high: int) -> None:
    for value in (low, high):
        assert Saved(value).integer(low, high) == value
        assert Saved([value, value]).integers(2, low, high) == [value, value]
    for value in (low - 1, high + 1):
        with pytest.raises(CheckpointError, match="must be an integer"):
            Saved(value).integer(low, high)
        with pytest.raises(CheckpointError, match=r"state\[1\]: must be an integer"):
            Saved([low, value]).integers(2, low, high)


def test_lists_have_the_length_that_is_asked_for() -> None:
    for count in (1, 3):
        with pytest.raises(CheckpointError, match=f"a list of {count}, got"):
            Saved([1, 2]).items(count)
        with pytest.raises(CheckpointError, match=f"a list of {count} integers, got"):
            Saved([1, 2]).integers(count)
        with pytest.raises(CheckpointError, match=f"from 0 to {count - 1}, got {count}"):
            Saved(count).index(count)
    assert [(item.value, item.path) for item in Saved([1, 2]).items()] == [(1, "state[0]"), (2, "state[1]")]
    assert Saved(2).index(3) == 2


def test_members_are_named() -> None:
    saved = Saved({"a": None, "b": 2})
    assert (saved.names(), saved["b"].path) == (["a", "b"], "state.b")
    assert [saved[name].missing for name in saved.names()] == [True, False]
    with pytest.raises(CheckpointError, match=r"^state: has no 'c'$"):
        saved["c"]
