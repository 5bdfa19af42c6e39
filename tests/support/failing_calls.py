# ruff: noqa: T201 a program
"""Operations in which the n-th allocation, write, fsync, rename or mmap fails, for n = 1, 2, ... until they succeed.

``python -m tests.support.failing_calls OPERATION EVERY`` prints a :class:`Walk` for each of KINDS as JSON. LD_PRELOAD
must name ``failing_calls.c``, compiled. With EVERY 0 the steps grow from n = 10 on.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from hal import abi
from hal.nnapi.capi.codes import ResultCode
from hal.onnxifi.descriptor import MemoryFenceV1, TensorDescriptorV1
from hal.onnxifi.status import Status
from npusim.cli.app import main
from npusim.device.npu import NpuDevice
from npusim.device.transports.vfio_user import VfioUser
from npusim.errors import NpusimError
from npusim.hw.config import load_config
from npusim.runtime import Session
from npusim.testing.golden import Golden
from npusim.testing.record import record
from tests.support.memory_of_uses import SHAPE, model_of
from tests.support.nnapi.c_api import Api, ModelMaker
from tests.support.onnx_models.builder import ModelBuilder
from tests.support.onnxifi.c_library import CDoor
from tests.support.onnxifi.models import IDENTITY
from tests.support.vfio_client import Client

KINDS = {"allocation": 1, "write": 2, "fsync": 3, "rename": 4, "mmap": 5}
FOREVER = 2**62
Files = Mapping[str, bytes]


class RefusedError(Exception):
    """The operation failed with this status as text."""


@dataclass
class Walk:
    """``points``: number of injected failures. ``refused``: after how many of them the operation reported an error;
    after the others it succeeded."""

    points: int = 0
    refused: int = 0
    problems: list[str] = field(default_factory=list)


def _command(*arguments: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    if code:
        assert code in (1, 2), f"exit code {code}: {err.getvalue()}"
        assert "npusim: error: " in err.getvalue(), err.getvalue()
        assert "a defect" not in err.getvalue(), err.getvalue()
        raise RefusedError(err.getvalue())


def _run(folder: Path) -> None:
    outputs = ["--json", f"{folder}/run.json", "--trace", f"{folder}/run.trace", "--html", f"{folder}/run.html"]
    outputs += ["--output-dir", str(folder)]
    _command("run", f"{folder}/in/m.onnx", "--config", "tiny", "--cache-dir", f"{folder}/cache", *outputs)


def _compile(folder: Path) -> None:
    _command("compile", f"{folder}/in/m.onnx", "--config", "tiny", "--no-cache", "-o", f"{folder}/m.npu")


def _explore(folder: Path) -> None:
    files = ["--store", f"{folder}/study.sqlite", "--json", f"{folder}/study.json", "--csv", f"{folder}/study.csv"]
    _command("explore", f"{folder}/in/space.toml", "--workers", "0", *files)


def _time(folder: Path) -> None:
    """Timing only, with simulated DRAM banks."""
    keys = {"kind": "jedec", "part": "DDR4_8Gb_x8_3200", "efficiency": 1, "bandwidth": "50793650.792 kB/s"}
    dram = [word for key, value in keys.items() for word in ("--set", f"dram.{key}={json.dumps(value)}")]
    _command("run", f"{folder}/in/m.onnx", "--config", "edge", "--no-cache", "--timing-only", *dram)


def _library(work: Callable[[], object]) -> None:
    try:
        work()
    except (NpusimError, OSError, MemoryError) as error:
        raise RefusedError(str(error)) from error


def _golden(folder: Path) -> None:
    class Run:
        record: Any

    with Session("tiny", cache_dir=False) as session:

        def work() -> None:
            run = Run()
            result = session.run(session.compile(model_of("conv")), {"x": np.ones(SHAPE, np.float32)})
            run.record = record(result)
            Golden(folder / "test_it.py", "test_it", True)(run)  # type: ignore[arg-type]

        _library(work)


def _checkpoint(folder: Path) -> None:
    def work() -> None:
        NpuDevice(load_config("tiny")).checkpoint().write(folder / "device.npuckpt")

    _library(work)


def _trace(folder: Path) -> None:
    def work() -> None:
        with Session("tiny", cache_dir=False, bus_trace=folder / "bus.trace") as session:
            session.run(session.compile(model_of("conv")), {"x": np.ones(SHAPE, np.float32)})

    _library(work)


def _serve(folder: Path) -> None:
    def work() -> None:
        server = VfioUser(NpuDevice(load_config("tiny").with_(**{"dram.bytes": "64 MiB"}), shared_memory=True))
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=server.serve, args=(theirs,))
        thread.start()
        client = Client(ours)
        try:
            client.agree()
            client.enable()
            assert client.read(0, 0, 4) == (0x3155504E).to_bytes(4, "little")
        finally:
            client.close()
            thread.join(60)
            assert not thread.is_alive()

    _library(work)


def _onnxifi_client(folder: Path) -> None:
    """A client of the ONNXIFI C library that releases its handles."""
    door, model = CDoor(abi.LIBRARIES[0]), (folder / "in/small.onnx").read_bytes()
    made: list[tuple[Callable[[int], int], int]] = []

    def given(status: int, handle: int = 0, release: Callable[[int], int] | None = None) -> int:
        if status:
            assert Status(status) in (Status.NO_SYSTEM_MEMORY, Status.NO_DEVICE_MEMORY), Status(status)
            raise RefusedError(Status(status).name)
        if release is not None:
            made.append((release, handle))
        return handle

    try:
        status, ids, _ = door.onnxGetBackendIDs(64)
        given(status)
        made += [(door.onnxReleaseBackendID, each) for each in ids]
        backend = given(*door.onnxInitBackend(ids[0]), door.onnxReleaseBackend)
        graph = given(*door.onnxInitGraph(backend, None, model), door.onnxReleaseGraph)
        before = given(*door.onnxInitEvent(backend), door.onnxReleaseEvent)
        x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
        given(door.onnxSetGraphIO(graph, [TensorDescriptorV1.of("x", x)], [TensorDescriptorV1.of("y", y)]))
        after = MemoryFenceV1()
        given(door.onnxRunGraph(graph, MemoryFenceV1(before), after))
        given(0, after.event, door.onnxReleaseEvent)
        given(door.onnxSignalEvent(before))
        given(door.onnxWaitEvent(after.event))
        assert np.array_equal(x, y), y
    finally:
        for release, handle in reversed(made):
            assert release(handle) == 0


def _nnapi_client(folder: Path) -> None:
    """A client of the NNAPI C library with input and output in shared memory."""
    api = Api()
    made: list[tuple[Callable[[int], None], int]] = []

    def make(name: str, *arguments: Any) -> int:
        handle = ctypes.c_void_p()
        given(getattr(api, name)(*arguments, ctypes.byref(handle)))
        assert handle.value
        made.append((getattr(api, name.partition("_")[0] + "_free"), handle.value))
        return handle.value

    def given(result: int) -> None:
        if result:
            name = ResultCode(result).name
            assert name in ("OUT_OF_MEMORY", "UNMAPPABLE", "OP_FAILED", "RESOURCE_EXHAUSTED_TRANSIENT"), name
            raise RefusedError(name)

    data = np.arange(4, dtype=np.float32)
    descriptors = [os.memfd_create(name) for name in "xy"]
    try:
        for descriptor in descriptors:
            _library(partial(os.pwrite, descriptor, data.tobytes(), 0))
        maker = ModelMaker(api)
        made.append((api.Model_free, maker.model))
        x, y = maker.operand("TENSOR_FLOAT32", (1, 4)), maker.operand("TENSOR_FLOAT32", (1, 4))
        constants = [maker.constant("TENSOR_FLOAT32", each) for each in (np.eye(4, dtype="f4"), np.zeros(4, "f4"))]
        maker.add("FULLY_CONNECTED", [x, *constants, maker.i32(0)], [y])
        compilation = make("Compilation_create", maker.finish([x], [y]))
        given(api.Compilation_finish(compilation))
        places = [make("Memory_createFromFd", data.nbytes, 3, descriptor, 0) for descriptor in descriptors]
        execution = make("Execution_create", compilation)
        given(api.Execution_setInputFromMemory(execution, 0, None, places[0], 0, data.nbytes))
        given(api.Execution_setOutputFromMemory(execution, 0, None, places[1], 0, data.nbytes))
        given(api.Execution_compute(execution))
        assert os.pread(descriptors[1], data.nbytes, 0) == data.tobytes()
    finally:
        for release, handle in reversed(made):
            release(handle)
        for descriptor in descriptors:
            os.close(descriptor)


OPERATIONS: dict[str, Callable[[Path], None]] = {
    "run": _run,
    "time": _time,
    "compile": _compile,
    "explore": _explore,
    "golden": _golden,
    "checkpoint": _checkpoint,
    "trace": _trace,
    "serve": _serve,
    "onnxifi": _onnxifi_client,
    "nnapi": _nnapi_client,
}


def _model() -> onnx.ModelProto:
    """Build convolutions whose order the compiler chooses, and kernels that sort."""
    build = ModelBuilder("convolutions")
    x = build.input("x", (1, 8, 64, 64))
    for _ in range(3):
        x = build.op("Relu", build.conv(x, 8, 8, 3))
    rows = build.op("Softmax", build.op("Reshape", x, build.ints(8, 4096)))
    return build.finish(build.multi("TopK", 2, rows, build.ints(5)))


def _prepare(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "in").mkdir(parents=True)
    onnx.save(_model(), folder / "in/m.onnx")
    (folder / "in/small.onnx").write_bytes(IDENTITY)
    space = 'base = "tiny"\n[vary]\n"sram.bytes" = ["64 KiB", "128 KiB"]\n[[model]]\nfile = "m.onnx"\n'
    (folder / "in/space.toml").write_text(space)


def _contents(folder: Path) -> Files:
    files = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "in")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


_OLD = b"old\n"
_OWN = ("cache/", "study.sqlite", "bus.trace")
"""Files that the operation does not replace as a whole. They may exist or not, but the next use must find them
valid."""


def walk(name: str, kind: str, every: bool) -> Walk:
    """Fail each call of a kind, one at a time; for writes, also all calls from the n-th on, as on a full disk."""
    failing = ctypes.CDLL(None)
    failing.failing_begin.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_long]
    failing.failing_end.restype = ctypes.c_long
    operation, found = OPERATIONS[name], Walk()
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "folder"
        _prepare(folder)
        operation(folder)
        new = _contents(folder)
        operation(folder)
        again = _contents(folder)  # the output says whether the program came from the cache
        for last in (0, FOREVER) if kind == "write" else (0,):
            number = 1
            while True:
                _prepare(folder)
                replaced = [file for file in new if not file.startswith(_OWN)]
                for file in replaced:
                    (folder / file).parent.mkdir(parents=True, exist_ok=True)
                    (folder / file).write_bytes(_OLD)
                failing.failing_begin(KINDS[kind], number, last or number)
                outcome = "well"
                try:
                    operation(folder)
                except RefusedError:
                    outcome = "refused"
                except BaseException as error:  # noqa: BLE001 it is told
                    outcome = f"{type(error).__name__}: {error}"
                calls = failing.failing_end()
                where = f"{name}: {kind} {number}{' and all later' if last else ''}"
                if calls < number:
                    break
                found.points += 1
                found.refused += outcome == "refused"
                if outcome not in ("well", "refused"):
                    found.problems.append(f"{where}: {outcome}")
                found.problems += _wrong(where, _contents(folder), (new,), outcome)
                try:
                    operation(folder)
                except BaseException as error:  # noqa: BLE001 it is told
                    found.problems.append(f"{where}: afterwards {type(error).__name__}: {error}")
                found.problems += _wrong(f"{where}, and again", _contents(folder), (new, again), "well")
                number += 1 if every or number < 10 else number // 3
    return found


def _wrong(where: str, files: Files, new: Sequence[Files], outcome: str) -> list[str]:
    found = [f"{where}: leaves {file}" for file in files if file not in new[0] and not file.startswith(_OWN)]
    for file in (file for file in new[0] if not file.startswith(_OWN)):
        allowed = [each[file] for each in new] + ([] if outcome == "well" else [_OLD])
        if files.get(file) not in allowed:
            found.append(f"{where}: {outcome}, but {file} has {len(files.get(file, b''))} bytes")
    return found


if __name__ == "__main__":
    print(json.dumps({kind: asdict(walk(sys.argv[1], kind, sys.argv[2] == "1")) for kind in KINDS}))
