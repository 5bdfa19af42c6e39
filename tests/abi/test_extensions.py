"""Functions beyond the 15 of the specification, through a C library: a run in one call, timing, trace, injected
failures."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from ctypes import byref, c_int32, c_size_t, c_uint32, c_void_p
from pathlib import Path

import numpy as np
import pytest

from hal import abi, onnxifi
from hal.onnxifi.constants import EventState
from hal.onnxifi.descriptor import MemoryFenceV1, TensorDescriptorV1
from hal.onnxifi.extensions import EXTENSIONS
from hal.onnxifi.status import Status
from tests.support.c_compiler import ROOT, compile_client, needs_gcc, run
from tests.support.onnxifi.c_library import CDoor, Fence
from tests.support.onnxifi.models import IDENTITY, convolution


class Event(ctypes.Structure):
    """onnxTraceEvent."""

    _fields_ = [
        ("name", ctypes.c_char * 33),
        ("type", ctypes.c_char),
        ("timestamp", ctypes.c_uint64),
        ("tid", c_uint32),
        ("duration", ctypes.c_uint64),
    ]


class Events(ctypes.Structure):
    """onnxTraceEventList."""

    _fields_ = [("count", ctypes.c_uint64), ("items", ctypes.POINTER(ctypes.POINTER(Event)))]


class Bound:
    """A graph with its tensors on the first device."""

    def __init__(self, model: bytes, x: np.ndarray, y: np.ndarray) -> None:
        self.door = CDoor(abi.LIBRARIES[0])
        _, self.ids, _ = self.door.onnxGetBackendIDs(16)
        _, self.backend = self.door.onnxInitBackend(self.ids[0])
        status, self.graph = self.door.onnxInitGraph(self.backend, None, model)
        assert status == Status.SUCCESS
        self.inputs, self.outputs = [TensorDescriptorV1.of("x", x)], [TensorDescriptorV1.of("y", y)]

    def close(self) -> None:
        assert self.door.onnxReleaseGraph(self.graph) == 0
        assert self.door.onnxReleaseBackend(self.backend) == 0
        for each in self.ids:
            assert self.door.onnxReleaseBackendID(each) == 0

    def call(self, name: str, *arguments: object) -> int:
        status, address = self.door.extension(self.ids[0], name)
        assert status == Status.SUCCESS
        return int(ctypes.CFUNCTYPE(c_int32)(address)(*arguments))

    def start(self, traces: Events | None = None) -> int:
        """Start a run and return its output event."""
        fence = Fence(tag=MemoryFenceV1().tag)
        status = self.call(
            "onnxSetIOAndRunGraphFunction",
            c_void_p(self.graph),
            c_uint32(1),
            self.door.descriptors(self.inputs),
            c_uint32(1),
            self.door.descriptors(self.outputs),
            byref(fence),
            None if traces is None else byref(traces),
        )
        assert status == Status.SUCCESS
        return int(fence.event)

    def wait_for(self, event: int, milliseconds: int) -> tuple[int, int, int, str]:
        """Return (status, state, status of the event, message)."""
        state, status, text, length = c_int32(), c_int32(), ctypes.create_string_buffer(512), c_size_t(512)
        result = self.call(
            "onnxWaitEventForFunction",
            c_void_p(event),
            c_uint32(milliseconds),
            byref(state),
            byref(status),
            text,
            byref(length),
        )
        assert length.value == len(text.value)
        return result, state.value, status.value, text.value.decode()


@pytest.fixture
def small() -> Iterator[Bound]:
    made = Bound(IDENTITY, np.arange(4, dtype=np.float32), np.zeros(4, np.float32))
    yield made
    made.close()


def test_every_listed_extension_is_there(small: Bound) -> None:
    for name in EXTENSIONS:
        assert small.door.extension(small.ids[0], name)[0] == Status.SUCCESS
    assert small.door.extension(small.ids[0], "onnxFly") == (Status.UNIDENTIFIED_NAME, 0)
    assert small.door.extension(small.ids[0], None) == (Status.INVALID_POINTER, 0)
    assert small.door.extension(small.ids[0], EXTENSIONS[0], out=False)[0] == Status.INVALID_POINTER
    assert small.door.extension(0, EXTENSIONS[0]) == (Status.INVALID_ID, 0)


def test_timing_and_trace_of_a_run() -> None:
    """The numbers are those of the Python interface, and the trace is that of the same run."""
    x, y = np.ones((1, 3, 16, 16), np.float32), np.zeros((1, 10), np.float32)
    bound, traces = Bound(convolution(), x, y), Events()
    event = bound.start(traces)
    assert bound.wait_for(event, 0) == (0, EventState.SIGNALLED, 0, "")
    status, timing = bound.door.run_timing(event)
    assert status == Status.SUCCESS
    cycles, run_ps, _queued, _host, total_ps = timing
    assert y.any()
    assert (cycles, run_ps) == python_timing(x)
    assert total_ps >= run_ps
    spans = [traces.items[i].contents for i in range(traces.count)]
    assert len(spans) > 5
    assert any(b"matrix" in span.name for span in spans)
    assert {span.type for span in spans} == {b"X"}
    assert max(span.timestamp + span.duration for span in spans) <= run_ps // 10**6
    assert bound.call("onnxReleaseTraceEventsFunction", byref(traces)) == 0
    assert traces.count == 0
    assert bound.door.onnxReleaseEvent(event) == 0
    bound.close()


def python_timing(x: np.ndarray) -> tuple[int, int]:
    """Return (cycles, run_ps) of the convolution through hal.onnxifi."""
    _, ids, _ = onnxifi.onnxGetBackendIDs(16)
    _, backend = onnxifi.onnxInitBackend(ids[0])
    _, graph = onnxifi.onnxInitGraph(backend, None, convolution())
    y = np.zeros((1, 10), np.float32)
    assert onnxifi.onnxSetGraphIO(graph, [TensorDescriptorV1.of("x", x)], [TensorDescriptorV1.of("y", y)]) == 0
    start, end = MemoryFenceV1(onnxifi.onnxInitEvent(backend)[1]), MemoryFenceV1()
    assert onnxifi.onnxRunGraph(graph, start, end) == 0
    assert onnxifi.onnxSignalEvent(start.event) == 0
    assert onnxifi.onnxWaitEvent(end.event) == 0
    _, (cycles, run_ps, *_) = onnxifi.run_timing(end.event)
    for event in (start.event, end.event):
        onnxifi.onnxReleaseEvent(event)
    onnxifi.onnxReleaseGraph(graph)
    onnxifi.onnxReleaseBackend(backend)
    for each in ids:
        onnxifi.onnxReleaseBackendID(each)
    return cycles, run_ps


def test_waiting_with_a_limit(small: Bound) -> None:
    _, never = small.door.onnxInitEvent(small.backend)
    assert small.wait_for(never, 10) == (0, EventState.NONSIGNALLED, 0, "")
    assert small.door.run_timing(never)[0] == Status.INVALID_STATE
    assert small.door.onnxReleaseEvent(never) == 0
    assert small.wait_for(never, 10)[0] == Status.INVALID_EVENT


def test_a_failed_run_says_why(small: Bound) -> None:
    small.door.inject("run", Status.INTERNAL_ERROR)
    event = small.start()
    result, state, status, message = small.wait_for(event, 0)
    assert (result, state, status) == (0, EventState.SIGNALLED, Status.INTERNAL_ERROR)
    assert message
    assert small.door.onnxWaitEvent(event) == Status.INTERNAL_ERROR
    assert small.door.onnxReleaseEvent(event) == 0


@needs_gcc
def test_failures_from_the_environment(tmp_path: Path) -> None:
    source = ROOT / "examples/onnxifi_conv.c"
    program = compile_client(source, tmp_path / "conv", abi.LIBRARIES[0])
    (tmp_path / "m").write_bytes(convolution())
    (tmp_path / "x").write_bytes(bytes(4 * 3 * 16 * 16))
    for wanted, said in {
        "onnxInitGraph=NO_DEVICE_MEMORY": "onnxInitGraph: status 0x0402\n",
        "onnxInitGraph=NO_DEVICE_MEMORY:0,run=BACKEND_UNAVAILABLE:1": "onnxWaitEvent: status 0x0405\n",
        "onnxFly=INTERNAL_ERROR": "NPUSIM_ONNXIFI_INJECT: 'onnxFly=INTERNAL_ERROR' must be FUNCTION=STATUS",
        "onnxReleaseGraph=NO_SYSTEM_MEMORY": "NPUSIM_ONNXIFI_INJECT: 'onnxReleaseGraph=NO_SYSTEM_MEMORY' must be",
    }.items():
        done = run(program, tmp_path / "m", tmp_path / "x", NPUSIM_ONNXIFI_INJECT=wanted)
        assert done.stderr.startswith(said)


def test_more_runs_at_once_than_the_device_has_room_for(small: Bound) -> None:
    """They wait in the core; none fails."""
    assert small.door.onnxSetGraphIO(small.graph, small.inputs, small.outputs) == 0
    start = MemoryFenceV1(small.door.onnxInitEvent(small.backend)[1])
    ends = [MemoryFenceV1() for _ in range(600)]
    for end in ends:
        assert small.door.onnxRunGraph(small.graph, start, end) == 0
    assert small.door.onnxSignalEvent(start.event) == 0
    assert {small.door.onnxWaitEvent(end.event) for end in ends} == {0}
    for end in (start, *ends):
        assert small.door.onnxReleaseEvent(end.event) == 0


def test_a_library_that_comes_late_knows_that_a_device_is_gone() -> None:
    script = """
from hal import abi, onnxifi
from tests.support.onnxifi.c_library import CDoor
onnxifi.unplug(0)
door = CDoor(abi.LIBRARIES[0])
assert door.onnxGetBackendIDs()[2] == 1
onnxifi.plug(0)
assert door.onnxGetBackendIDs()[2] == 2
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
