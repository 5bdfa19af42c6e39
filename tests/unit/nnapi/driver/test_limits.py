"""Preparations that end early: the deadline passes, or the device is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from hal.nnapi import aidl, open_device
from hal.nnapi.aidl.types import ServiceSpecificException
from hal.nnapi.driver.device import Device
from hal.nnapi.errors import StatusError
from hal.nnapi.execution import engine
from hal.nnapi.types import ErrorStatus, ExecutionPreference, Model, OperationType, Priority
from npusim.polling import polled
from tests.support.nnapi.client import TOKEN, WAIT_S, PreparedCallback, prepare, prepared_model
from tests.support.nnapi.models import Case, add, chain

NONE, UNAVAILABLE = ErrorStatus.NONE, ErrorStatus.DEVICE_UNAVAILABLE
TRANSIENT = ErrorStatus.MISSED_DEADLINE_TRANSIENT
LONG = chain(150, function=OperationType.MUL)


class Counted:
    """A clock that advances by 1 with every reading; ``then`` is called at ``at``."""

    def __init__(self, at: int = 0, then: Callable[[], object] = lambda: None) -> None:
        self.now, self.at, self.then = 10**12, 10**12 + at, then

    def __call__(self) -> int:
        self.now += 1
        if self.now == self.at:
            self.then()
        return self.now


def launch(device: Device, model: Model, deadline: int | None) -> PreparedCallback:
    callback = PreparedCallback()
    status = device.prepareModel_1_3(
        model, ExecutionPreference.FAST_SINGLE_ANSWER, Priority.MEDIUM, deadline, [], [], TOKEN, callback
    )
    assert status is NONE
    return callback


def looks() -> int:
    """Return how often a preparation of the long model reads the clock."""
    clock = Counted()
    with open_device("edge", clock=clock) as device:
        assert prepare(device, LONG, deadline=10**15)[1] is NONE
    return clock.now - 10**12


@pytest.mark.parametrize("part", [0.1, 0.3, 0.5, 0.9])
def test_a_deadline_ends_a_preparation_at_once(part: float) -> None:
    """At any position: the clock is not read again."""
    whole = looks()
    assert whole > 500
    clock = Counted()
    with open_device("edge", clock=clock) as device:
        deadline = 10**12 + int(part * whole)
        assert prepare(device, LONG, deadline=deadline) == (NONE, TRANSIENT, None)
        assert clock.now == deadline
        assert prepare(device, LONG, deadline=10**15)[1] is NONE  # nothing of it is left
        client = aidl.device(device)
        told: list[Any] = []
        came = threading.Event()

        class Callback:
            def notify(self, status: ErrorStatus, prepared: Any) -> None:
                told.append((status, prepared))
                came.set()

        other = chain(150)
        deadline = clock.now + int(part * whole)
        client.prepareModel(_aidl_model(other), 1, 1, deadline, [], [], TOKEN, Callback())
        assert came.wait(WAIT_S)
        assert told == [(TRANSIENT, None)]
        assert clock.now == deadline


def _aidl_model(model: Model) -> Any:
    main = model.main
    operands = [
        aidl.types.Operand(o.type, o.dimensions, o.scale, o.zeroPoint, o.lifetime, o.location, o.extraParams)
        for o in main.operands
    ]
    subgraph = aidl.types.Subgraph(operands, main.operations, main.inputIndexes, main.outputIndexes)
    return aidl.types.Model(subgraph, [], model.operandValues, [], False, [])


def test_an_execution_that_compiles_keeps_its_deadline() -> None:
    clock = Counted()
    ones = np.ones(3, np.float32)
    with open_device("edge", clock=clock) as device:
        prepared = prepared_model(device, chain(150, (0,)))
        deadline = clock.now + 300
        case = Case([ones, ones], [12], [(3,)])
        assert prepared.executeSynchronously_1_3(case.request, 0, deadline, None)[0] is TRANSIENT
        assert clock.now == deadline
        assert prepared.executeSynchronously_1_3(case.request, 0, None, None)[0] is NONE
        assert case.output().tolist() == [151, 151, 151]


@pytest.mark.parametrize("at", [50, 400])
def test_closing_ends_a_preparation_at_once(at: int) -> None:
    """The clock is read at each poll; here another thread first closes the device."""
    closed = threading.Event()

    def close() -> None:
        threading.Thread(target=lambda: (device.close(), closed.set())).start()
        while not device._engine.closed:
            pass

    clock = Counted(at, close)
    device = open_device("edge", clock=clock)
    callback = launch(device, LONG, 10**15)
    assert callback.wait() == (UNAVAILABLE, None)
    assert clock.now == 10**12 + at  # it was the last look
    assert closed.wait(WAIT_S)


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_THREADS", 1)


class Stuck:
    """Occupies all threads of a device for preparations of one priority."""

    def __init__(self, device: Device) -> None:
        self.gate, begun = threading.Event(), threading.Semaphore(0)
        for _ in range(2):
            device._engine.tasks.submit(lambda: (begun.release(), self.gate.wait(WAIT_S)), int(Priority.MEDIUM))
        for _ in range(2):
            assert begun.acquire(timeout=WAIT_S)


class Alarm:
    """A timer that expires when the test says so."""

    all: ClassVar[list[Alarm]] = []

    def __init__(self, interval: float, function: Callable[..., object], args: Sequence[Any]) -> None:
        self.interval = interval
        self.go_off = lambda: function(*args)
        self.daemon = False

    def start(self) -> None:
        self.all.append(self)

    def cancel(self) -> None:
        self.all.remove(self)


@pytest.mark.usefixtures("one_thread")
def test_a_deadline_is_told_though_no_thread_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many waiting preparations, each is notified at its deadline; those without one continue to wait."""
    monkeypatch.setattr(threading, "Timer", Alarm)
    clock = Counted()
    with open_device("edge", clock=clock) as device:
        stuck = Stuck(device)
        late = [launch(device, LONG, 10**12 + 10**9) for _ in range(8)]
        patient = launch(device, add(), None)
        assert len(Alarm.all) == 8
        assert all(0.9 < alarm.interval <= 1 for alarm in Alarm.all)
        clock.now += 10**9
        for alarm in Alarm.all:
            alarm.go_off()
        assert [callback.wait() for callback in late] == [(TRANSIENT, None)] * 8
        assert patient.calls == []
        stuck.gate.set()
        assert patient.wait()[0] is NONE


@pytest.mark.usefixtures("one_thread")
def test_preparations_that_wait_end_with_the_device() -> None:
    device = open_device("edge")
    stuck = Stuck(device)
    waiting = [launch(device, LONG, deadline) for deadline in (None, 10**18) for _ in range(4)]
    closing = threading.Thread(target=device.close)
    closing.start()
    while not device._engine.closed:
        pass
    stuck.gate.set()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    assert [callback.wait() for callback in waiting] == [(UNAVAILABLE, None)] * 8


def test_asking_what_is_supported_ends_with_the_limit_of_the_asker() -> None:
    """The interface has no deadline for it; a caller in its own thread may give one, as the NNAPI C library does."""
    polls = 0

    def check() -> None:
        nonlocal polls
        polls += 1
        if polls == 200:
            raise StatusError(TRANSIENT, "late")

    with open_device("edge") as device:
        with polled(check):
            assert device.getSupportedOperations_1_3(LONG) == (TRANSIENT, [])
            assert polls == 200
            polls = 0
            with pytest.raises(ServiceSpecificException, match="MISSED_DEADLINE_TRANSIENT"):
                aidl.device(device).getSupportedOperations(_aidl_model(LONG))
        assert device.getSupportedOperations_1_3(LONG) == (NONE, [True] * 150)
