"""Results do not depend on the floating-point mode set by the process or by a library in it."""

from __future__ import annotations

import ctypes
import platform
import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from onnx import helper, numpy_helper

from npusim._core import DefaultFloats
from npusim.runtime import Executor, Request, Session
from tests.support.onnxifi.models import TENTH, tensor

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() != "x86_64", reason="knows the registers of x86-64 only"
)

MXCSR = 28
"""Offset in glibc's fenv_t."""
UPWARD, FLUSH, TRAP_INEXACT = 0x5F80, 0x9FC0, 0x0F80
X = np.array([1, 1e-39, 3, 7], np.float32)
EXPECTED = X / np.float32(10)


def mode(value: int | None = None) -> int:
    """Return the control bits of this thread's MXCSR before it is set."""
    libm = ctypes.CDLL("libm.so.6")
    environment = ctypes.create_string_buffer(32)
    libm.fegetenv(environment)
    (before,) = struct.unpack_from("<I", environment, MXCSR)
    if value is not None:
        struct.pack_into("<I", environment, MXCSR, value)
        libm.fesetenv(environment)
    return int(before & 0xFFC0)


@pytest.fixture(params=[UPWARD, FLUSH])
def changed(request: pytest.FixtureRequest) -> Iterator[int]:
    before = mode(request.param)
    yield request.param
    mode(before)


def folded() -> bytes:
    """Build y = max(x, a / 10), where the compiler divides."""
    nodes = [helper.make_node("Div", ["a", "ten"], ["b"]), helper.make_node("Max", ["x", "b"], ["y"])]
    constants = [numpy_helper.from_array(X, "a"), numpy_helper.from_array(np.float32(10), "ten")]
    graph = helper.make_graph(nodes, "g", [tensor("x", (4,))], [tensor("y", (4,))], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(("model", "x"), [(TENTH, X), (folded(), np.zeros(4, np.float32))], ids=["run", "folded"])
def test_a_session(changed: int, model: bytes, x: np.ndarray) -> None:
    with Session("tiny", cache_dir=False) as session:
        result = session.run(model, {"x": x})
        assert mode() == changed & 0xFFC0
    assert result.outputs["y"].tobytes() == EXPECTED.tobytes()


@pytest.mark.parametrize("here", [False, True])
def test_an_executor(changed: int, here: bool) -> None:
    """Its thread is created in the caller's mode; a small job runs on the caller's own thread."""
    with Session("tiny", cache_dir=False) as session:
        program = session.compile(TENTH)
    results = []

    def work() -> None:
        mode(changed)
        with Executor("tiny") as executor:
            for _ in range(2):  # how long it takes is known from the second on
                results.append(executor.submit(Request(program, {"x": X}), here=here).wait().outputs["y"].tobytes())
        results.append(mode())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [EXPECTED.tobytes(), EXPECTED.tobytes(), changed & 0xFFC0]


def test_what_traps_is_given_back() -> None:
    before = mode()
    try:
        with DefaultFloats():
            mode(TRAP_INEXACT | UPWARD)
            with DefaultFloats():
                assert mode() == 0x1F80
                np.float32(1) / np.float32(3)
            assert mode() == (TRAP_INEXACT | UPWARD) & 0xFFC0
    finally:
        mode(before)
