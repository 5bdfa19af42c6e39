"""One thread at a time: which calls wait, which are refused, and when posted work is executed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from npusim.errors import UsageError
from npusim.turns import DrivingLock, Turns, exclusive, in_use, serialised
from tests.support.waits_and_leaks import PATIENCE_S, asleep


class Counter:
    """Counts threads in its methods; two methods of two kinds that call their argument."""

    def __init__(self) -> None:
        self.turns, self.turn = Turns(), DrivingLock()
        self.inside = self.most = 0

    def _count(self, work: Callable[[], object]) -> object:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            return work()
        finally:
            self.inside -= 1

    @serialised
    def waits(self, work: Callable[[], object] = int) -> object:
        return self._count(work)

    @exclusive
    def refuses(self, work: Callable[[], object] = int) -> object:
        return self._count(work)


def held(enter: Callable[[Callable[[], object]], object]) -> tuple[threading.Thread, threading.Event]:
    """Return a thread within a method until the event is set."""
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)

    thread = threading.Thread(target=lambda: enter(work))
    thread.start()
    assert begun.wait(PATIENCE_S)
    return thread, go_on


def test_a_serialised_method_waits_for_its_turn() -> None:
    counter = Counter()
    first, go_on = held(counter.waits)
    done: list[object] = []
    second = threading.Thread(target=lambda: done.append(counter.waits(lambda: 7)))
    second.start()
    asleep(second)
    assert done == []
    go_on.set()
    first.join(PATIENCE_S)
    second.join(PATIENCE_S)
    assert (done, counter.most, counter.inside) == ([7], 1, 0)


@pytest.mark.parametrize("method", [Counter.waits, Counter.refuses])
def test_a_thread_comes_in_again_and_results_and_errors_come_out(method: Callable[..., object]) -> None:
    counter = Counter()
    assert method(counter, lambda: method(counter, lambda: 5)) == 5
    assert counter.most == 2
    with pytest.raises(ZeroDivisionError):
        method(counter, lambda: 1 // 0)
    assert method(counter, lambda: 6) == 6
    assert not counter.turns.inside


def test_an_exclusive_method_refuses_a_second_thread_and_does_nothing() -> None:
    counter = Counter()
    thread, go_on = held(counter.refuses)
    with pytest.raises(UsageError, match=r"^Counter\.refuses: another thread is using the device; use a Session or an"):
        counter.refuses()
    assert counter.most == 1
    go_on.set()
    thread.join(PATIENCE_S)
    assert counter.refuses(lambda: 3) == 3


def test_posted_work_is_done_at_once_if_nobody_is_inside() -> None:
    turns, done = Turns(), []
    turns.post(lambda: done.append(turns.inside))
    assert done == [True]
    assert not turns.inside


def test_posted_work_waits_for_the_outermost_method_of_the_thread_that_is_inside() -> None:
    counter, done = Counter(), []

    def inner() -> None:
        counter.turns.post(lambda: done.append(counter.inside))
        counter.waits()
        assert done == []

    counter.waits(inner)
    assert done == [0]


def test_who_posts_never_waits_for_another_thread() -> None:
    counter, done = Counter(), []
    thread, go_on = held(counter.waits)
    counter.turns.post(lambda: done.append(threading.current_thread()))
    assert done == []
    go_on.set()
    thread.join(PATIENCE_S)
    assert done == [thread]


def test_work_that_posts_more_work_has_it_done_in_order() -> None:
    turns, done = Turns(), []

    def first() -> None:
        turns.post(lambda: done.append("second"))
        done.append("first")

    turns.post(first)
    assert done == ["first", "second"]


def test_the_error_names_object_and_call() -> None:
    assert str(in_use("NpuDevice", "run")).startswith("NpuDevice.run: another thread")


def visit(counter: Counter, work: Callable[[], object] = int) -> object:
    with counter.turn.visit():
        return counter._count(work)


@pytest.mark.parametrize(
    ("first", "second"),
    [(visit, Counter.refuses), (Counter.refuses, visit), (visit, visit)],
    ids=["drive", "visit", "both"],
)
def test_visitors_and_the_driving_thread_wait_for_each_other(
    first: Callable[..., object], second: Callable[..., object]
) -> None:
    counter, done = Counter(), list[object]()
    inside, go_on = held(lambda work: first(counter, work))
    waiting = threading.Thread(target=lambda: done.append(second(counter, lambda: 7)))
    waiting.start()
    asleep(waiting)
    assert done == []
    go_on.set()
    inside.join(PATIENCE_S)
    waiting.join(PATIENCE_S)
    assert (done, counter.most) == ([7], 1)


def test_the_driving_thread_visits_without_waiting() -> None:
    counter = Counter()
    assert counter.refuses(lambda: visit(counter, lambda: counter.refuses(lambda: 4))) == 4
    assert counter.inside == 0


def test_after_a_visit_a_second_driving_thread_is_refused_again() -> None:
    counter = Counter()
    with pytest.raises(ZeroDivisionError):
        visit(counter, lambda: 1 // 0)
    thread, go_on = held(counter.refuses)
    with pytest.raises(UsageError, match="another thread"):
        counter.refuses()
    go_on.set()
    thread.join(PATIENCE_S)
