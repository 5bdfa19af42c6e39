"""Threads that run tasks: the most urgent first, each exactly once."""

from __future__ import annotations

import threading

import pytest

from hal.nnapi.execution.tasks import TaskPool


def test_every_task_runs_once():
    pool, lock, done = TaskPool(4, "test"), threading.Lock(), []

    def task(number):
        with lock:
            done.append(number)

    for number in range(200):
        pool.submit(lambda number=number: task(number))
    pool.close()
    assert sorted(done) == list(range(200))


def test_the_most_urgent_task_is_next_and_equals_keep_their_order():
    pool, order, last = TaskPool(1, "test"), [], threading.Event()
    gates = [(threading.Event(), threading.Event()) for _ in range(3)]
    for begun, gate in gates:  # all the threads that there may be
        pool.submit(lambda begun=begun, gate=gate: begun.set() or gate.wait(30), 2)
        assert begun.wait(30)
    for name, priority in [("low 1", 0), ("high 1", 2), ("low 2", 0), ("high 2", 2), ("medium", 1)]:
        pool.submit(lambda name=name: order.append(name), priority)
    pool.submit(last.set)
    gates[0][1].set()  # one thread is free now
    assert last.wait(30)
    assert order == ["high 1", "high 2", "medium", "low 1", "low 2"]
    for _, gate in gates:
        gate.set()
    pool.close()


def test_urgent_tasks_have_threads_of_their_own():
    pool, gate, urgent = TaskPool(1, "test"), threading.Event(), threading.Event()
    for _ in range(3):
        pool.submit(lambda: gate.wait(30), 0)
    pool.submit(urgent.set, 2)
    assert urgent.wait(30)  # though every thread for the others is taken
    gate.set()
    pool.close()


def test_waiting_tasks_do_not_keep_others_from_running():
    pool, both = TaskPool(2, "test"), threading.Barrier(3)
    pool.submit(lambda: both.wait(30))
    pool.submit(lambda: both.wait(30))
    both.wait(30)  # breaks unless both run at the same time
    pool.close()


def test_a_failing_task_harms_no_other(caplog):
    pool, done = TaskPool(1, "test"), []
    pool.submit(lambda: 1 // 0)
    pool.submit(lambda: done.append(1))
    pool.close()
    assert done == [1]
    assert "ZeroDivisionError" in caplog.text


def test_a_closed_pool_takes_nothing_and_has_no_threads():
    pool = TaskPool(8, "closed")
    for _ in range(20):
        pool.submit(lambda: None)
    pool.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("closed")]
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(lambda: None)


def test_a_task_may_close_the_pool():
    pool, done = TaskPool(2, "test"), threading.Event()

    def task():
        pool.close()
        done.set()

    pool.submit(task)
    assert done.wait(30)


def test_threads_go_when_there_is_nothing_to_do(monkeypatch):
    monkeypatch.setattr("hal.nnapi.execution.tasks.IDLE_S", 0.01)
    pool = TaskPool(4, "test")
    pool.submit(lambda: None)
    threads = list(pool._threads)
    for thread in threads:
        thread.join(30)
    assert pool._threads == set()
    ran = threading.Event()
    pool.submit(ran.set)
    assert ran.wait(30)
    pool.close()
