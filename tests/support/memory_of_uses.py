# ruff: noqa: T201 a program
"""Memory, descriptors and address space left behind by uses of npusim, each on a new thread of one process.

``python -m tests.support.memory_of_uses USE MODEL COUNT`` makes COUNT uses and prints a :class:`Usage` as JSON. USE:
one of USES; MODEL: one of MODELS. ENVIRONMENT must be set, so that allocations can be counted exactly.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import onnx

from npusim.hw.config import load_config
from npusim.runtime import Executor, Request, Session
from tests.support.onnx_models.builder import ModelBuilder

SHAPE = (1, 8, 16, 16)
STEPS, BATCH, FEATURES, HIDDEN = 4, 8, 64, 16
LOOKS = 10
"""Number of measurements of the process. Caches fill during the first four; the minimum of the next three is compared
with that of the last three."""
ENVIRONMENT = {
    "PYTHONMALLOC": "malloc",
    "MALLOC_ARENA_MAX": "1",
    "GLIBC_TUNABLES": "glibc.pthread.stack_cache_size=0",  # stacks of finished threads are unmapped
}

Use = Callable[[], None]


class Usage(NamedTuple):
    """Resources of the process, or those left behind by one use."""

    allocated: float
    """Bytes allocated and not freed."""
    resident: float
    """Bytes of resident memory, without free pages kept by malloc."""
    mapped: float
    """Bytes of address space, without those of malloc."""
    descriptors: float


class _Mallinfo2(ctypes.Structure):
    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names.split())


def _conv(build: ModelBuilder, x: str) -> str:
    return build.conv(x, 8, 8, 3)


def _depthwise(build: ModelBuilder, x: str) -> str:
    return build.conv(x, 8, 8, 3, groups=8)


def _lstm(build: ModelBuilder, x: str) -> str:
    rows = build.op("Reshape", x, build.ints(STEPS, BATCH, FEATURES))
    weights = [build.normal((1, 4 * HIDDEN, width), 0.1) for width in (FEATURES, HIDDEN)]
    return build.multi("LSTM", 3, rows, *weights, hidden_size=HIDDEN)[0]


def _transposed(build: ModelBuilder, x: str) -> str:
    y = build.op("ConvTranspose", x, build.normal((8, 4, 4, 4), 0.1), strides=[2, 2], pads=[1] * 4)
    return build.op("Transpose", y, perm=[0, 2, 3, 1])


MODELS = {"conv": _conv, "depthwise": _depthwise, "lstm": _lstm, "transposed": _transposed}


def model_of(name: str) -> onnx.ModelProto:
    """Return one of MODELS: input x with floats of SHAPE, one output."""
    build = ModelBuilder(name)
    return build.finish([MODELS[name](build, build.input("x", SHAPE))])


def _thread(model: str) -> Use:
    """Threads that run one program in one session."""
    session = Session("tiny", cache_dir=False)
    program, x = session.compile(model_of(model)), np.ones(SHAPE, np.float32)
    return lambda: _check(session.run(program, {"x": x}).outputs)


def _session(model: str) -> Use:
    source, x = model_of(model), np.ones(SHAPE, np.float32)

    def use() -> None:
        with Session("tiny", cache_dir=False) as session:
            _check(session.run(session.compile(source), {"x": x}).outputs)

    return use


def _executor(model: str) -> Use:
    program = Session("tiny", cache_dir=False).compile(model_of(model))
    x = np.ones(SHAPE, np.float32)

    def use() -> None:
        with Executor(load_config("tiny")) as executor:
            _check(executor.submit(Request(program, {"x": x})).wait(600).outputs)

    return use


def _check(outputs: dict[str, np.ndarray]) -> None:
    assert all(np.any(output) for output in outputs.values())


USES = {"thread": _thread, "session": _session, "executor": _executor}


def _look(libc: ctypes.CDLL) -> Usage:
    """Return the minimum of several measurements, because other threads may free memory a little later."""
    return _least(_look_once(libc) for _ in range(10))


def _least(looks: Iterable[Usage]) -> Usage:
    return Usage(*map(min, zip(*looks, strict=True)))


def _look_once(libc: ctypes.CDLL) -> Usage:
    time.sleep(0.005)
    gc.collect()
    libc.malloc_trim(0)
    heap = libc.mallinfo2()
    with open("/proc/self/statm", encoding="ascii") as file:
        size, resident = (int(pages) * os.sysconf("SC_PAGE_SIZE") for pages in file.read().split()[:2])
    mapped = size - heap.arena - heap.hblkhd
    return Usage(heap.uordblks + heap.hblkhd, resident, mapped, len(os.listdir("/proc/self/fd")))


def measure(use: Use, count: int) -> Usage:
    """Return what each of ``count`` uses leaves behind, each on its own thread. Raises the errors of a use."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Mallinfo2
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            use()
        except BaseException as failure:  # noqa: BLE001 raised below, on the thread that counts
            failures.append(failure)

    use()
    gc.collect()
    gc.freeze()  # modules then cost no time in each collection
    looks = []
    for number in range(1, count + 1):
        thread = threading.Thread(target=guarded)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]
        if number % (count // LOOKS) == 0:
            looks.append(_look(libc))
    before, after = _least(looks[-6:-3]), _least(looks[-3:])
    return Usage(*((now - then) / (3 * (count // LOOKS)) for now, then in zip(after, before, strict=True)))


def main(uses: Mapping[str, Callable[[str], Use]]) -> None:
    """Entry point of the command line: one of ``uses``, a model, and the number of uses."""
    kind, model, count = sys.argv[1:]
    print(json.dumps(measure(uses[kind](model), int(count))))


if __name__ == "__main__":
    main(USES)
