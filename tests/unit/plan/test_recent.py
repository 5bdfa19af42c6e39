"""The mapping of limited size."""

from __future__ import annotations

from collections.abc import Callable

from npusim.plan import Recent


def test_recent_values_to_the_limit() -> None:
    dropped: list[int] = []
    recent: Recent[str, int] = Recent(2, dropped.append)
    make: Callable[[int], Callable[[], int]] = lambda value: lambda: value  # noqa: E731
    assert [recent.find(key, make(value)) for key, value in (("a", 1), ("b", 2), ("a", 3))] == [1, 2, 1]
    assert dropped == []
    assert recent.find("c", make(4)) == 4
    assert dropped == [2]
    assert list(recent) == ["a", "c"]
