"""Models through the NNAPI, ONNXIFI and both C libraries, and all interfaces ("doors") by name."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from hal import abi, onnxifi
from hal.nnapi import fence, open_device
from hal.nnapi.capi import devices as c_devices
from hal.nnapi.capi.handles import TABLE, Kind
from hal.nnapi.memory import allocate_blob
from hal.nnapi.types import (
    BufferDesc,
    BufferRole,
    DataLocation,
    ErrorStatus,
    MemoryPool,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    OptionalTimeoutDuration,
    OptionalTimePoint,
    Request,
    RequestArgument,
    Subgraph,
)
from hal.onnxifi import MemoryFenceV1, TensorDescriptorV1
from npusim.errors import UsageError
from npusim.runtime import Executor
from tests.support.nnapi import c_api
from tests.support.nnapi.client import BurstRefusedError, ExecutionCallback, Frame, execute_burst, execute_sync, prepare
from tests.support.nnapi.models import BOOL8, F32, IN, OUT, add, chain, scalar, tensor
from tests.support.onnxifi.c_library import CDoor
from tests.support.removal import plays
from tests.support.removal.plays import CONFIG, MODELS, PATIENCE_S, TIMEOUT_PS, Play, model

NONE = ErrorStatus.NONE
FOREVER = OptionalTimePoint(), OptionalTimeoutDuration()
A, B = np.arange(1, 9, dtype=np.float32), np.full(8, 10, np.float32)
SIZE = A.nbytes


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """Give the facades' executors the short time limit of plays."""
    defaults = Executor.__init__.__kwdefaults__
    assert defaults is not None
    before, defaults["timeout_ps"] = defaults["timeout_ps"], TIMEOUT_PS
    try:
        yield
    finally:
        defaults["timeout_ps"] = before


# NNAPI


def _graph(number: int) -> Operand:
    where = DataLocation(0, number, 0)
    return Operand(OperandType.SUBGRAPH, (), 1, lifetime=OperandLifeTime.SUBGRAPH, location=where)


def _number(offset: int) -> Operand:
    where = DataLocation(0, offset, 4)
    return Operand(F32, (1,), 1, lifetime=OperandLifeTime.CONSTANT_COPY, location=where)


def _choice() -> Model:
    """IF a comparison computed on the device holds, a + b, else a * b."""
    then, other = (
        Subgraph([tensor(IN, (8,)), tensor(IN, (8,)), scalar(0), tensor(OUT, (8,))],
                 [Operation(kind, (0, 1, 2), (3,))], (0, 1), (3,))
        for kind in (OperationType.ADD, OperationType.MUL)
    )  # fmt: skip
    operands = [
        tensor(IN, (8,)), tensor(IN, (8,)), _number(4), _number(8),
        tensor(OperandLifeTime.TEMPORARY_VARIABLE, (1,), 1, BOOL8), _graph(0), _graph(1), tensor(OUT, (8,)),
    ]  # fmt: skip
    operations = [
        Operation(OperationType.LESS, (2, 3), (4,)),
        Operation(OperationType.IF, (4, 5, 6, 0, 1), (7,)),
    ]
    return Model(Subgraph(operands, operations, (0, 1), (7,)), [then, other], struct.pack("<iff", 0, 1, 3))


def _counted() -> Model:
    """WHILE a count is below 3, it grows by 1, and y, which starts as a, grows by b."""
    condition = Subgraph(
        [tensor(IN, (1,)), tensor(IN, (8,), 0), tensor(IN, (8,), 0), _number(8), tensor(OUT, (1,), 0, BOOL8)],
        [Operation(OperationType.LESS, (0, 3), (4,))], (0, 1, 2), (4,),
    )  # fmt: skip
    body = Subgraph(
        [tensor(IN, (1,)), tensor(IN, (8,)), tensor(IN, (8,)), _number(4), scalar(0, 2), tensor(OUT, (1,)),
         tensor(OUT, (8,))],
        [Operation(OperationType.ADD, (0, 3, 4), (5,)), Operation(OperationType.ADD, (1, 2, 4), (6,))],
        (0, 1, 2), (5, 6),
    )  # fmt: skip
    operands = [
        _graph(0), _graph(1), _number(0), tensor(IN, (8,)), tensor(IN, (8,)),
        tensor(OperandLifeTime.TEMPORARY_VARIABLE, (1,), 0), tensor(OUT, (8,)),
    ]  # fmt: skip
    main = Subgraph(operands, [Operation(OperationType.WHILE, (0, 1, 2, 3, 4), (5, 6))], (3, 4), (6,))
    return Model(main, [condition, body], struct.pack("<iff", 0, 1, 3))


NNAPI: Mapping[str, tuple[Callable[[], Model], Any]] = {
    "sum": (partial(add, (8,)), A),
    "zeros": (partial(chain, 1, (8,), OperationType.SUB), B),
    "chain": (partial(chain, 3, (8,)), A),
    "choice": (_choice, A),
    "counted": (_counted, A),
}
"""Models with two inputs (the second one is tens), and their first input."""


def of_nnapi(name: str) -> Play:
    """Execute in every way, also with driver buffers."""
    play, (made, first) = Play(), NNAPI[name]

    def work() -> None:
        device = open_device(CONFIG)
        try:
            launched, status, prepared = prepare(device, made())
            if _good(play, launched, status):
                _execute(play, device, prepared, first)
        finally:
            with contextlib.suppress(UsageError):
                device.close()

    with impatient():
        play.step("all", work)
    return play


def _good(play: Play, *statuses: ErrorStatus) -> bool:
    """Return whether no status is an error, and record the first error."""
    for status in statuses:
        if status is not NONE:
            play.errors.append(ErrorStatus(status).name)
            return False
    return True


def _execute(play: Play, device: Any, prepared: Any, first: Any) -> None:
    frame = Frame([first, B], [SIZE], [(8,)])
    for name, way in (("synchronous", execute_sync), ("burst", execute_burst)):
        _clear(frame)
        try:
            status = way(prepared, frame).status
        except BurstRefusedError as error:
            (status,) = error.args
        if _good(play, status):
            play.values[name] = frame.raw()[0]
    frames, callbacks = [Frame([first, B], [SIZE], [(8,)]) for _ in range(2)], []
    for each in frames:  # concurrently
        callbacks.append(ExecutionCallback())
        prepared.execute_1_3(each.request, 1, *FOREVER, callbacks[-1])
    for number, (each, callback) in enumerate(zip(frames, callbacks, strict=True)):
        if _good(play, callback.wait()[0]):
            play.values[f"asynchronous {number}"] = each.raw()[0]
    _clear(frame)
    status, handle, callback = prepared.executeFenced(frame.request, [], 1, *FOREVER, OptionalTimeoutDuration())
    if _good(play, status):
        signalled = True
        if handle:
            signalled = fence.wait(handle, PATIENCE_S) is fence.FenceStatus.SIGNALED
            os.close(handle[0])
        if _good(play, callback.getExecutionInfo()[0]) and signalled:
            play.values["fenced"] = frame.raw()[0]
    _buffers(play, device, prepared, frame)
    for each in (frame, *frames):
        each.close()


def _clear(frame: Frame) -> None:
    frame._out.map()[:] = bytes(frame._out.size)


def _buffers(play: Play, device: Any, prepared: Any, frame: Frame) -> None:
    """Put the first input and the output in driver buffers, filled and read by copies."""
    inside, out = (
        device.allocate(BufferDesc((8,)), [prepared], inputs, outputs)
        for inputs, outputs in (([BufferRole(0, 0)], []), ([], [BufferRole(0, 0)]))
    )
    if not _good(play, inside[0], out[0]):
        return
    with allocate_blob(SIZE) as blob:
        blob.map()[:] = frame._in.map()[:SIZE]
        if _good(play, inside[1].copyFrom(blob, (8,))):
            request = Request(
                [RequestArgument(False, DataLocation(1, 0, 0), (8,)), frame.request.inputs[1]],
                [RequestArgument(False, DataLocation(2, 0, 0), (8,))],
                [frame.request.pools[0], MemoryPool(token=inside[2]), MemoryPool(token=out[2])],
            )
            if _good(play, prepared.executeSynchronously_1_3(request, 1, *FOREVER)[0]):
                blob.map()[:] = bytes(SIZE)
                if _good(play, out[1].copyTo(blob)):
                    play.values["in a buffer"] = bytes(blob.map())
        blob.map()[:] = bytes(SIZE)
        if _good(play, inside[1].copyTo(blob)):
            play.values["what was copied"] = bytes(blob.map())


# ONNXIFI


@functools.cache
def _c_door() -> CDoor:
    return CDoor(abi.LIBRARIES[0])


def of_onnxifi(name: str, door: Callable[[], Any]) -> Play:
    """Run a graph three times, twice concurrently."""
    play = Play()
    with impatient():
        _run_graph(play, door(), name)
    return play


def _succeeds(play: Play, status: int) -> bool:
    if status in (onnxifi.Status.SUCCESS, onnxifi.Status.FALLBACK):
        return True
    play.errors.append(onnxifi.Status(status).name)
    return False


def _run_graph(play: Play, door: Any, name: str) -> None:
    source, inputs = model(name)
    status, ids, _ = door.onnxGetBackendIDs(64)
    assert status == onnxifi.Status.SUCCESS
    outputs = {item.name: np.zeros(item.shape, item.dtype.storage) for item in plays.program(name).outputs}
    status, backend = door.onnxInitBackend(ids[0])
    if _succeeds(play, status):
        status, graph = door.onnxInitGraph(backend, None, source.SerializeToString(), None)
        if _succeeds(play, status):
            descriptors = [[TensorDescriptorV1.of(*item) for item in each.items()] for each in (inputs, outputs)]
            if _succeeds(play, door.onnxSetGraphIO(graph, *descriptors)):
                for number in range(3):
                    _run_once(play, door, backend, graph, outputs, f"run {number}")
            door.onnxReleaseGraph(graph)
        door.onnxReleaseBackend(backend)
    door.plug(0)
    for each in ids:
        door.onnxReleaseBackendID(each)


def _run_once(play: Play, door: Any, backend: int, graph: int, outputs: Mapping[str, Any], name: str) -> None:
    for array in outputs.values():
        array[...] = 99
    status, start = door.onnxInitEvent(backend)
    if not _succeeds(play, status):
        return
    end = MemoryFenceV1()
    if _succeeds(play, door.onnxRunGraph(graph, MemoryFenceV1(start), end)):
        if _succeeds(play, door.onnxSignalEvent(start)) and _succeeds(play, door.onnxWaitEvent(end.event)):
            play.values[name] = {name: array.copy() for name, array in outputs.items()}
        door.onnxReleaseEvent(end.event)
    door.onnxReleaseEvent(start)


# The C API of the NNAPI


@functools.cache
def _api() -> c_api.Api:
    return c_api.Api()


C_MODELS: Mapping[str, tuple[str, Any]] = {"ADD": ("ADD", A), "SUB": ("SUB", B), "MUL": ("MUL", A)}


def of_c_nnapi(name: str) -> Play:
    """Make executions, a burst, and use driver memory."""
    play, api = Play(), _api()
    before, os.environ[c_devices.VARIABLE] = os.environ.get(c_devices.VARIABLE), "tiny"
    others, c_devices._opened[:] = c_devices._opened[:], []  # the library opens the devices once per process
    kind, first = C_MODELS[name]
    made = list[tuple[str, int]]()

    def do(function: str, *arguments: Any) -> bool:
        result = getattr(api, function)(*arguments)
        if result:
            play.errors.append(f"error {result}")
        return not result

    def make(function: str, *arguments: Any) -> int:
        handle = ctypes.c_void_p()
        if not do(function, *arguments, ctypes.byref(handle)):
            return 0
        made.append((function, handle.value or 0))
        return handle.value or 0

    try:
        with impatient():
            _use_c(play, api, do, make, kind, first)
    finally:
        for function, handle in reversed(made):
            getattr(api, function.split("_")[0] + "_free")(handle)
        _close_devices()
        c_devices._opened[:] = others
        os.environ.pop(c_devices.VARIABLE)
        if before is not None:
            os.environ[c_devices.VARIABLE] = before
    return play


def _close_devices() -> None:
    while c_devices._opened:
        device = c_devices._opened.pop()
        TABLE.pop(Kind.Device, device.handle, "device")
        with contextlib.suppress(UsageError):
            device.hal.close()


def _use_c(
    play: Play, api: c_api.Api, do: Callable[..., bool], make: Callable[..., int], kind: str, first: Any
) -> None:
    count, device = ctypes.c_uint32(), ctypes.c_void_p()
    if not do("getDeviceCount", ctypes.byref(count)) or not do("getDevice", 0, ctypes.byref(device)):
        return
    maker = c_api.ModelMaker(api)
    a, b = (maker.operand("TENSOR_FLOAT32", (8,)) for _ in range(2))
    fuse, y = maker.i32(0), maker.operand("TENSOR_FLOAT32", (8,))
    maker.add(kind, [a, b, fuse], [y])
    source = maker.finish([a, b], [y])
    compilation = make("Compilation_createForDevices", source, c_api.handles([device.value or 0]), 1)
    result = np.zeros(8, np.float32)
    if compilation and do("Compilation_finish", compilation):
        burst = make("Burst_create", compilation)
        for name in ("computed", "burst"):
            execution = make("Execution_create", compilation)
            if not execution or (name == "burst" and not burst):
                continue
            result[:] = 0
            c_api.set_inputs(api, execution, first, B)
            api.ok("Execution_setOutput", execution, 0, None, c_api.address(result), SIZE)
            last = (execution, burst) if name == "burst" else (execution,)
            if do("Execution_burstCompute" if name == "burst" else "Execution_compute", *last):
                play.values[name] = result.copy()
        _c_memory(play, api, do, make, compilation, first)
    api.Model_free(source)


def _c_memory(
    play: Play, api: c_api.Api, do: Callable[..., bool], make: Callable[..., int], compilation: int, first: Any
) -> None:
    described = make("MemoryDesc_create")
    api.ok("MemoryDesc_addOutputRole", described, compilation, 0, 1.0)
    api.ok("MemoryDesc_finish", described)
    inside, execution = make("Memory_createFromDesc", described), make("Execution_create", compilation)
    if not inside or not execution:
        return
    c_api.set_inputs(api, execution, first, B)
    if do("Execution_setOutputFromMemory", execution, 0, None, inside, 0, 0) and do("Execution_compute", execution):
        file = c_api.File(api, np.zeros(8, np.float32))
        if do("Memory_copy", inside, file.memory):
            play.values["copied"] = np.array(file.read(), np.float32)
        api.Memory_free(file.memory)
        file.close()


DOORS: Mapping[str, Mapping[str, Callable[[], Play]]] = {
    "driver": {name: partial(plays.of_driver, name, preempt=False) for name in MODELS},
    "driver+preempt": {name: partial(plays.of_driver, name, preempt=True) for name in MODELS},
    "session": {name: partial(plays.of_session, name) for name in MODELS},
    "executor": {name: partial(plays.of_executor, name) for name in MODELS},
    "nnapi": {name: partial(of_nnapi, name) for name in NNAPI},
    "onnxifi": {name: partial(of_onnxifi, name, lambda: onnxifi) for name in MODELS},
    "c-nnapi": {name: partial(of_c_nnapi, name) for name in C_MODELS},
    "c-onnxifi": {name: partial(of_onnxifi, name, _c_door) for name in MODELS},
}
