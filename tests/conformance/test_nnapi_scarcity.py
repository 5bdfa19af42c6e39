"""A driver that runs out of descriptors and threads, and files that disappear while they are read: it continues to
work."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hal.nnapi import fence, memory, open_device
from hal.nnapi.execution import tasks
from hal.nnapi.types import BufferDesc, BufferRole, ErrorStatus
from tests.support.nnapi.client import Burst, BurstRefusedError, ExecutionCallback, PreparedCallback, prepared_model
from tests.support.nnapi.models import add, add_case, chain
from tests.support.waits_and_leaks import PATIENCE_S, resources, settled

NONE, FAILURE, INVALID = ErrorStatus.NONE, ErrorStatus.GENERAL_FAILURE, ErrorStatus.INVALID_ARGUMENT
TOKEN = bytes(32)


class World:
    """A device, and operations on it that need descriptors."""

    def __init__(self, state: Path) -> None:
        self.device = open_device("tiny", state_dir=state)
        self.prepared = prepared_model(self.device, add())
        self.case, self.blob = add_case(), memory.allocate_blob(16)
        self.gates = [fence.create() for _ in range(6)]
        self.files = [os.open(state / name, os.O_RDWR | os.O_CREAT) for name in ("model", "data")]
        self.handles: list[list[int]] = []
        self.ways: dict[str, Callable[[], ErrorStatus]] = {
            "sync": lambda: self.prepared.executeSynchronously_1_3(self.case.request, 0, None, None)[0],
            "fenced": lambda: self.fenced([]),
            "behind fences": lambda: self.fenced([gate.handle for gate in self.gates]),
            "prepare": lambda: self.prepare(self.device.prepareModel_1_3, chain(2), 1, 1, None),
            "from cache": lambda: self.prepare(self.device.prepareModelFromCache_1_3, None),
            "buffer": self.buffer,
            "async": self.asynchronous,
        }

    def close(self) -> None:
        self.device.close()
        for file in self.files:
            os.close(file)

    def fenced(self, waits: list[Any]) -> ErrorStatus:
        status, handle, callback = self.prepared.executeFenced(self.case.request, waits, 0, None, None, None)
        assert (status is NONE) == (handle is not None) == (callback is not None)
        if handle is not None:
            self.handles.append(handle)
        return ErrorStatus(status)

    def prepare(self, method: Callable[..., ErrorStatus], *arguments: Any) -> ErrorStatus:
        callback = PreparedCallback()
        method(*arguments, [[self.files[0]]], [[self.files[1]]], TOKEN, callback)
        status, prepared = callback.wait()
        assert (prepared is not None) == (status is NONE)
        return status

    def buffer(self) -> ErrorStatus:
        status, buffer, _ = self.device.allocate(BufferDesc(), [self.prepared], [BufferRole(0, 0)], [])
        assert status is NONE
        copied: ErrorStatus = buffer.copyFrom(self.blob, [])
        return copied

    def asynchronous(self) -> ErrorStatus:
        callback = ExecutionCallback()
        launched = self.prepared.execute_1_3(self.case.request, 0, None, None, callback)
        status = callback.wait()[0]
        assert launched in (NONE, status)
        return status

    def settle(self) -> None:
        """Wait for the end of everything that is pending."""
        for gate in self.gates:
            gate.signal()
        for handle in self.handles:
            assert fence.wait(handle, PATIENCE_S) is fence.FenceStatus.SIGNALED
            os.close(handle[0])
        self.handles.clear()
        for gate in self.gates:
            gate.close()
        self.gates = [fence.create() for _ in range(6)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_too_few_descriptors(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With any number of available descriptors, a call succeeds or fails, and releases what it had taken."""
    monkeypatch.setattr(logging.getLogger("hal.nnapi"), "disabled", True)  # pytest keeps records, and they the frames
    assert {name: way() for name, way in world.ways.items()} == dict.fromkeys(world.ways, NONE)
    world.settle()
    seen: dict[str, set[ErrorStatus]] = {name: set() for name in world.ways}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for name, way in world.ways.items():
        for left in range(14):
            world.case = add_case()  # whose pool is not mapped
            before = resources()
            resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1 + left, hard))  # listing takes one itself
            try:
                seen[name].add(way())
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            world.settle()
            settled((before[0], 1 << 20))
    assert not world.device._engine.waits
    assert all(statuses <= {NONE, FAILURE, INVALID} for statuses in seen.values()), seen
    assert all(NONE in statuses for statuses in seen.values())
    assert FAILURE in seen["behind fences"]


def test_no_threads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started, the launch fails and the callback is notified."""
    monkeypatch.setattr(tasks, "IDLE_S", 0.05)
    with open_device("tiny") as device:
        prepared, before = prepared_model(device, add()), resources()
        settled((before[0], before[1] - 1))  # until the thread of the preparation has gone

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            callback = ExecutionCallback()
            launched = prepared.execute_1_3(world.case.request, 0, None, None, callback)
            assert launched is not NONE
            assert callback.calls[0][0] is launched
            late = PreparedCallback()
            assert device.prepareModel_1_3(add(), 1, 1, None, [], [], TOKEN, late) is late.calls[0][0]
            assert late.calls[0][0] is not NONE
            with pytest.raises(BurstRefusedError):
                Burst(prepared)
        assert prepared.executeSynchronously_1_3(world.case.request, 0, None, None)[0] is NONE
        assert not any(
            device._engine.executor._call(lambda: dict(device._engine.executor._dispatcher.memory._pins)).values()
        )


def test_files_that_are_cut_under_the_driver() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "tests.support.nnapi.cut_files"],
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    words = {tuple(line.split()[:2]) for line in found.stdout.splitlines()}
    ways = {"sync", "async", "burst", "copyFrom", "copyTo", "explain", "prepare"}
    assert {way for way, _ in words} - {"weights"} == ways
    assert {status for _, status in words} <= {"NONE", "GENERAL_FAILURE", "INVALID_ARGUMENT"}
    assert {way for way, status in words if status == "NONE"}, words
    assert {way for way, status in words if status != "NONE"}, words


def test_a_file_that_is_cut_at_each_moment() -> None:
    """The outcome of each step depends on what the driver was about to do; afterwards everything works again."""
    found = subprocess.run(
        [sys.executable, "-m", "tests.support.nnapi.cut_moments"],
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    rows = {words[0]: words[1:] for words in map(str.split, found.stdout.splitlines())}
    failed, invalid, good = "GENERAL_FAILURE", "INVALID_ARGUMENT", "NONE"
    without = ["-", "-", "-", failed]  # a model, and a cache entry
    assert {moment: words[1:7] for moment, words in rows.items()} == {
        "rules": [invalid, invalid, *without],
        "fingerprint": [failed, failed, *without],
        "compile": [good, good, good, good, "NONE+NONE", good],  # which does not look at float32 weights
        "mapped": [good, invalid, *without],
        "save": [good, good, failed, failed, "NONE+NONE", failed],
        "write": [good, good, good, good, "NONE+NONE", good],
        "weights": [good, good, failed, failed, "NONE+NONE", good],
        "input": [good, good, failed, failed, "GENERAL_FAILURE+INVALID_ARGUMENT", good],
        "job": [good, good, failed, failed, "NONE+NONE", good],
        "store": [good, good, failed, failed, "NONE+GENERAL_FAILURE", good],
        "never": [good, good, good, good, "NONE+NONE", good],
    }
    assert {moment for moment, words in rows.items() if words[0] == "False"} == {"never"}
    assert {tuple(words[7:]) for words in rows.values()} == {(good, good, good, good, "NONE+NONE")}
