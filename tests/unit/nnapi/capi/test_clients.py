"""C programs as clients: in an empty environment, with threads, forks and late calls; the manual's example."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hal import abi
from tests.support.c_compiler import PROGRAMS, ROOT, compile_client, needs_gcc, run

LIBRARY = next(library for library in abi.LIBRARIES if library.name == "neuralnetworks")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("client") / "client"
    return compile_client(PROGRAMS / "nnapi_client.c", target, LIBRARY, "-lpthread")


@needs_gcc
@pytest.mark.parametrize(
    "mode", ["run", "threads", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("fork", "early"))]
)
def test_in_an_empty_environment(client: Path, mode: str) -> None:
    done = run(client, mode)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@needs_gcc
def test_after_main(client: Path) -> None:
    done = run(client, "atexit")
    assert (done.returncode, done.stdout) == (0, "done\nended\n"), done.stderr


@needs_gcc
def test_without_python(client: Path) -> None:
    done = run(client, "none", NPUSIM_LIBPYTHON="/nowhere/libpython.so")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("libneuralnetworks"), done.stderr


@needs_gcc
def test_a_configuration_that_does_not_exist(client: Path) -> None:
    done = run(client, "run", NPUSIM_NNAPI_DEVICES="nonsense")
    assert done.returncode == 1
    assert "nonsense" in done.stderr


@needs_gcc
def test_the_log(client: Path) -> None:
    assert run(client, "run", NPUSIM_NNAPI_LOG="info").stderr.count("BAD_DATA") == 1
    assert "must be a level" in run(client, "run", NPUSIM_NNAPI_LOG="loud").stderr


def expected() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Compute the network of the example in numpy."""
    x = (np.arange(16 * 16 * 3) % 13 / 13).reshape(16, 16, 3)
    w = ((np.arange(8 * 9 * 3) * 7 % 11 - 5) / 16).reshape(8, 3, 3, 3)
    dense = ((np.arange(4 * 8) * 5 % 9 - 4) / 8).reshape(4, 8)
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (0, 1))
    features = np.maximum(np.einsum("hwcij,oijc->hwo", windows, w), 0).mean((0, 1))
    powers = np.exp(dense @ features)
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = powers / powers.sum()
    return found


@needs_gcc
def test_the_example(tmp_path: Path) -> None:
    source = ROOT / "examples/nnapi_conv.c"
    code = source.read_text("utf-8")
    assert len(code.splitlines()) <= 80
    assert code in (ROOT / "docs/guide/nnapi-c-api.md").read_text("utf-8"), "the manual shows another program"
    done = run(compile_client(source, tmp_path / "example", LIBRARY))
    assert done.returncode == 0, done.stderr
    *numbers, last = done.stdout.splitlines()
    np.testing.assert_allclose([float(number) for number in numbers], expected(), atol=2e-6)
    assert last.endswith(" ns on the device")
    assert int(last.split()[0]) > 0


def test_the_end_of_a_python_that_has_loaded_it() -> None:
    """An active computation, an event that is never freed, and a call after the interpreter has ended the engine."""
    script = f"""
import ctypes, atexit, numpy as np
library = ctypes.CDLL({str(LIBRARY.path)!r})
model = ctypes.c_void_p()
atexit.register(lambda: print("late", library.ANeuralNetworksModel_create(ctypes.byref(model))))
from tests.support.nnapi.c_api import *
api = Api()
execution = api.make("Execution_create", compiled(api, add_model(api)))
atexit.register(lambda: print("before", library.ANeuralNetworksModel_create(ctypes.byref(model))))
a, y = np.ones(4, np.float32), np.zeros(4, np.float32)
set_inputs(api, execution, a, a)
api.ok("Execution_setOutput", execution, 0, None, address(y), 16)
event = api.make("Execution_startCompute", execution)
print("end")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["end", "before 0", "late 14"]


def test_an_interrupt_while_a_python_waits() -> None:
    """The wait ends, and the interrupt reaches the host."""
    script = """
import os, signal
from tests.support.nnapi.c_api import Api
signal.signal(signal.SIGINT, signal.default_int_handler)  # a process inherits an ignored signal
api = Api()
readable, writable = os.pipe()
event = api.make("Event_createFromSyncFenceFd", readable)
try:
    print("waiting", flush=True)
    result = api.Event_wait(event)
    for _ in range(1000):
        pass
except KeyboardInterrupt:
    print("interrupted")
"""
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == "waiting\n"
        time.sleep(0.1)
        host.send_signal(signal.SIGINT)
        try:
            told, _ = host.communicate(timeout=60)
        finally:
            host.kill()
    assert (host.returncode, told) == (0, "interrupted\n")
