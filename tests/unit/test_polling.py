"""Cancellable work: whose check is called, and when."""

from __future__ import annotations

import threading

import pytest

from npusim.polling import poll, polled


def test_checks_are_asked_from_the_outermost_on_while_they_are_in_force() -> None:
    asked: list[str] = []
    poll()
    with polled(lambda: asked.append("outer")):
        poll()
        with polled(lambda: asked.append("inner")):
            poll()
        poll()
    poll()
    assert asked == ["outer", "outer", "inner", "outer"]


def test_what_a_check_raises_ends_the_work_and_the_check() -> None:
    def refuse() -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"), polled(refuse):
        poll()
    poll()


def test_a_check_is_of_one_thread() -> None:
    asked: list[int] = []
    with polled(lambda: asked.append(threading.get_ident())):
        other = threading.Thread(target=poll)
        other.start()
        other.join()
        poll()
    assert asked == [threading.get_ident()]
