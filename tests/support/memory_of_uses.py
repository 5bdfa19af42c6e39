# ruff: noqa: T201 a program
"""Memory, descriptors and address space that uses of npusim leave behind, each on a new thread of one process.

``python -m tests.support.memory_of_uses USE MODEL COUNT`` makes COUNT uses and prints a :class:`Usage` as JSON. USE:
one of USES; MODEL: one of MODELS. ENVIRONMENT must be set, so that what is allocated can be counted to the byte.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import onnx

from hal import abi
from hal.onnxifi.descriptor import MemoryFenceV1, TensorDescriptorV1
from npusim.hw.config import load_config
from npusim.runtime import Executor, Request, Session
from tests.support.nnapi import c_api
from tests.support.onnx_models.builder import ModelBuilder
from tests.support.onnxifi.c_library import CDoor

SHAPE = (1, 8, 16, 16)
STEPS, BATCH, FEATURES, HIDDEN = 4, 8, 64, 16
LOOKS = 10
"""How often the process is looked at. The first four looks see caches fill; the least of the next three is compared
with the least of the last three."""
ENVIRONMENT = {
    "PYTHONMALLOC": "malloc",
    "MALLOC_ARENA_MAX": "1",
    "GLIBC_TUNABLES": "glibc.pthread.stack_cache_size=0",  # stacks of threads that have ended are unmapped
}

Use = Callable[[], None]


class Usage(NamedTuple):
    """What a process has; or what one use leaves behind."""

    allocated: float
    """Bytes that were allocated and not freed."""
    resident: float
    """Bytes of resident memory, less the free pages that malloc keeps."""
    mapped: float
    """Bytes of address space, less those of malloc."""
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
    """One of MODELS: x, floats of SHAPE, to one output."""
    build = ModelBuilder(name)
    return build.finish([MODELS[name](build, build.input("x", SHAPE))])


def _thread(model: str) -> Use:
    """Threads that run one program on one session."""
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


def _onnxifi(model: str) -> Use:
    """Clients of the C library of ONNXIFI, each with a backend of its own."""
    proto = model_of(model)
    source, x = proto.SerializeToString(), np.ones(SHAPE, np.float32)
    [output] = proto.graph.output
    shape = [each.dim_value for each in output.type.tensor_type.shape.dim]
    door = CDoor(abi.LIBRARIES[0])

    def use() -> None:
        y = np.zeros(shape, np.float32)
        _, ids, _ = door.onnxGetBackendIDs(64)
        status, backend = door.onnxInitBackend(ids[0])
        _, graph = door.onnxInitGraph(backend, None, source)
        _, before = door.onnxInitEvent(backend)
        given, wanted = TensorDescriptorV1.of("x", x), TensorDescriptorV1.of(output.name, y)
        assert (status, door.onnxSetGraphIO(graph, [given], [wanted])) == (0, 0)
        after = MemoryFenceV1()
        assert door.onnxRunGraph(graph, MemoryFenceV1(before), after) == 0
        assert (door.onnxSignalEvent(before), door.onnxWaitEvent(after.event)) == (0, 0)
        made = [(door.onnxReleaseEvent, before), (door.onnxReleaseEvent, after.event), (door.onnxReleaseGraph, graph)]
        made += [(door.onnxReleaseBackend, backend), *((door.onnxReleaseBackendID, each) for each in ids)]
        assert [release(handle) for release, handle in made] == [0] * len(made)
        assert np.any(y)

    return use


def _nnapi(model: str) -> Use:
    """Clients of the C library of the NNAPI, each with a model and a compilation of its own."""
    api = c_api.Api()

    def use() -> None:
        maker = c_api.ModelMaker(api)
        x_shape, y_shape, x, y = NNAPI_MODELS[model](maker)
        made = maker.finish([x], [y])
        compilation = c_api.compiled(api, made)
        execution = api.make("Execution_create", compilation)
        given, result = np.ones(x_shape, np.float32), np.zeros(y_shape, np.float32)
        c_api.set_inputs(api, execution, given)
        api.ok("Execution_setOutput", execution, 0, None, c_api.address(result), result.nbytes)
        api.ok("Execution_compute", execution)
        api.Execution_free(execution)
        api.Compilation_free(compilation)
        api.Model_free(made)
        assert np.any(result)

    return use


Built = tuple[tuple[int, ...], tuple[int, ...], int, int]
"""Shapes of input and output, and their operands."""
Model = Callable[[c_api.ModelMaker], Built]


def _weights(maker: c_api.ModelMaker, *shape: int) -> int:
    return maker.constant("TENSOR_FLOAT32", np.full(shape, 0.1, np.float32))


def _nnapi_windows(
    kind: str, weights: tuple[int, ...], y_shape: tuple[int, ...], *numbers: int
) -> Callable[..., Built]:
    def build(maker: c_api.ModelMaker) -> Built:
        x_shape = (1, 16, 16, 8)
        x, w, b = maker.operand("TENSOR_FLOAT32", x_shape), _weights(maker, *weights), _weights(maker, y_shape[-1])
        inputs = [x, w, b, *(maker.i32(number) for number in numbers)]
        y = maker.operand("TENSOR_FLOAT32", y_shape)
        maker.add(kind, inputs, [y])
        return x_shape, y_shape, x, y

    return build


def _nnapi_transposed(maker: c_api.ModelMaker) -> Built:
    x_shape, y_shape = (1, 16, 16, 8), (1, 32, 32, 4)
    x, w, b = maker.operand("TENSOR_FLOAT32", x_shape), _weights(maker, 4, 4, 4, 8), _weights(maker, 4)
    shape = maker.constant("TENSOR_INT32", np.array(y_shape, np.int32))
    rest = [maker.i32(number) for number in (1, 2, 2, 0)]  # padding "same", strides, no activation
    y = maker.operand("TENSOR_FLOAT32", y_shape)
    maker.add("TRANSPOSE_CONV_2D", [x, w, b, shape, *rest, maker.constant("BOOL", np.bool_(False))], [y])
    return x_shape, y_shape, x, y


def _nnapi_lstm(maker: c_api.ModelMaker) -> Built:
    x_shape, y_shape = (STEPS, BATCH, FEATURES), (STEPS, BATCH, HIDDEN)
    x = maker.operand("TENSOR_FLOAT32", x_shape)

    def none() -> int:
        index = maker.operand("TENSOR_FLOAT32", (0,))
        maker.api.ok("Model_setOperandValue", maker.model, index, None, 0)
        return index

    inputs = [x, *(_weights(maker, HIDDEN, width) for width in (FEATURES, HIDDEN) for _ in range(4))]
    inputs += [*(none() for _ in range(3)), *(_weights(maker, HIDDEN) for _ in range(4)), none(), none()]
    inputs += [_weights(maker, BATCH, HIDDEN), _weights(maker, BATCH, HIDDEN), maker.i32(4)]  # states; 4: tanh
    inputs += [maker.constant("FLOAT32", np.float32(0)) for _ in range(2)]
    inputs += [maker.constant("BOOL", np.bool_(True)), *(none() for _ in range(4))]  # time first; no normalisation
    y = maker.operand("TENSOR_FLOAT32", y_shape)
    maker.add("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [y])
    return x_shape, y_shape, x, y


# Padding 1: "same". Then strides, of depthwise ones the multiplier, and no activation.
NNAPI_MODELS: dict[str, Model] = {
    "conv": _nnapi_windows("CONV_2D", (8, 3, 3, 8), (1, 16, 16, 8), 1, 1, 1, 0),
    "depthwise": _nnapi_windows("DEPTHWISE_CONV_2D", (1, 3, 3, 8), (1, 16, 16, 8), 1, 1, 1, 1, 0),
    "lstm": _nnapi_lstm,
    "transposed": _nnapi_transposed,
}
USES = {"thread": _thread, "session": _session, "executor": _executor, "onnxifi": _onnxifi, "nnapi": _nnapi}


def _look(libc: ctypes.CDLL) -> Usage:
    """The least of several looks: what other threads free, they may free a little later."""
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
    """What each of ``count`` uses leaves behind, each on a thread that ends with it. Raises what a use raises."""
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
    gc.freeze()  # so that a look takes no time for the modules
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


if __name__ == "__main__":
    kind, model, count = sys.argv[1:]
    print(json.dumps(measure(USES[kind](model), int(count))))
