"""Runs of small models as lists of steps, each of which gives a value or an error."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import npusim
from npusim.device.npu import NpuDevice
from npusim.driver import Driver, Priority
from npusim.errors import NpusimError, UsageError
from npusim.hw.config import load_config
from npusim.program import Binding, Program
from npusim.runtime import Executor, Request

CONFIG = load_config("tiny")
TIMEOUT_PS = 200 * 10**9
"""Simulated time limit of a run: longer than any run takes, and short enough to wait for one that never ends."""
PATIENCE_S = 60.0
WRITTEN = bytes(range(1, 9))
FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32


class Play:
    """The results of a run's steps by name: values to compare, and errors."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.errors: list[str] = []

    def step(self, name: str, work: Callable[[], Any]) -> bool:
        """Execute a step. Returns whether it gave a value. Errors of npusim are recorded, others are raised."""
        try:
            self.values[name] = _plain(work())
        except NpusimError as error:
            self.errors.append(str(getattr(error, "code", type(error).__name__)))
            return False
        return True


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: np.array(array) for name, array in value.items()}
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def same(found: Any, wanted: Any) -> bool:
    """Return whether a step gave its undisturbed result."""
    if isinstance(wanted, Mapping):
        return (
            isinstance(found, Mapping)
            and found.keys() == wanted.keys()
            and all(same(found[name], wanted[name]) for name in wanted)
        )
    if isinstance(wanted, np.ndarray):
        return found.dtype == wanted.dtype and np.array_equal(found, wanted, equal_nan=wanted.dtype.kind == "f")
    return bool(found == wanted)


def _model(
    nodes: list[onnx.NodeProto], inputs: Mapping[str, Any], outputs: Mapping[str, int], weights: Mapping[str, Any]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in inputs.items()
        ],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _floats(*shape: int) -> Any:
    return np.random.default_rng(shape).random(shape, np.float32) + np.float32(0.5)


def _softmax() -> tuple[onnx.ModelProto, dict[str, Any]]:
    nodes = [
        helper.make_node("Softmax", ["x"], ["a"]),
        helper.make_node("Mul", ["a", "w"], ["b"]),
        helper.make_node("Tanh", ["b"], ["y"]),
    ]
    inputs = {"x": _floats(4, 16)}
    return _model(nodes, inputs, {"y": FLOAT}, {"w": np.ones((4, 16), np.float32)}), inputs


def _ends() -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Outputs of all zeros and all ones, like data read from a device that is gone."""
    nodes = [
        helper.make_node("Mul", ["x", "zero"], ["zeros"]),
        helper.make_node("Sub", ["zeros", "one"], ["ones"]),
        helper.make_node("Add", ["x", "x"], ["more"]),
    ]
    inputs = {"x": np.arange(1, 17, dtype=np.int32)}
    weights = {"zero": np.zeros(1, np.int32), "one": np.ones(1, np.int32)}
    return _model(nodes, inputs, {"zeros": INT32, "ones": INT32, "more": INT32}, weights), inputs


def _convolution() -> tuple[onnx.ModelProto, dict[str, Any]]:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    inputs = {"x": _floats(1, 2, 5, 5)}
    return _model(nodes, inputs, {"y": FLOAT}, {"w": _floats(3, 2, 3, 3) - 1}), inputs


def _classes() -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Two outputs, one of them 64-bit integers."""
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["y"]),
        helper.make_node("ArgMax", ["y"], ["best"], axis=1, keepdims=0),
    ]
    inputs = {"x": _floats(3, 8)}
    return _model(nodes, inputs, {"y": FLOAT, "best": TensorProto.INT64}, {"w": _floats(8, 5)}), inputs


def _grows() -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A cache that grows by a row per run, and a product with all of it."""
    nodes = [
        helper.make_node("Concat", ["cache", "x"], ["more"], axis=1),
        helper.make_node("Transpose", ["more"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["y"]),
    ]
    inputs = {"x": _floats(1, 1, 4), "cache": _floats(1, 2, 4)}
    return _model(nodes, inputs, {"y": FLOAT, "more": FLOAT}, {}), inputs


MODELS: dict[str, Callable[[], tuple[onnx.ModelProto, dict[str, Any]]]] = {
    "softmax": _softmax,
    "ends": _ends,
    "convolution": _convolution,
    "classes": _classes,
    "grows": _grows,
}
ROWS = 3


@functools.cache
def model(name: str) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return a model and its inputs."""
    return MODELS[name]()


@functools.cache
def program(name: str, rows: int = 0) -> Program:
    """Compile once for all runs; with ``rows`` in its cache, which has room for more."""
    session, (source, inputs) = npusim.Session(CONFIG, cache_dir=False), model(name)
    if not rows:
        return session.compile(source)
    shapes = {item: array.shape for item, array in inputs.items()} | {"cache": (1, rows, 4)}
    source = onnx.ModelProto.FromString(source.SerializeToString())
    source.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "rows"
    return session.compile(source, shapes, cache_rows=8)


def _alone(made: Program) -> Binding:
    """Return an output that does not share memory with an input."""
    inputs = {item.region for item in made.inputs}
    return next(item for item in reversed(made.outputs) if item.region not in inputs)


def of_driver(name: str, *, preempt: bool) -> Play:
    """Load, run, run with a buffer and read it, and run again; with ``preempt`` beside a job of lower priority."""
    play, made = Play(), program(name)
    inputs = {item.name: model(name)[1][item.name] for item in made.inputs}
    device = NpuDevice(CONFIG)

    def work() -> None:
        driver = Driver(device.bus)
        if preempt:
            driver.enable_preemption()
        loaded = driver.load(made)
        low = driver.submit(loaded, inputs, priority=Priority.LOW) if preempt else None
        play.step(
            "high", lambda: driver.wait(driver.submit(loaded, inputs, priority=Priority.HIGH), TIMEOUT_PS).outputs
        )
        if low is not None:
            play.step("low", lambda: driver.wait(low, TIMEOUT_PS).outputs)
        output = _alone(made)
        place = driver.allocate(made.region_bytes[output.region])
        driver.write(place, WRITTEN)
        play.step("written", lambda: driver.read(place, 8))
        driver.write(place + 4, WRITTEN[4:])
        play.step("half written again", lambda: driver.read(place, 8))
        job = driver.submit(loaded, inputs, bound={output.region: place})
        if play.step("bound", lambda: driver.wait(job, TIMEOUT_PS).outputs):
            play.step("computed", lambda: driver.read(place, output.nbytes))
        play.step("again", lambda: driver.run(loaded, inputs, timeout_ps=TIMEOUT_PS).outputs)

    play.step("all", work)
    device.close()
    return play


def of_session(name: str) -> Play:
    """Run twice. A model that grows keeps its cache on the device; the cache is read at the end."""
    play, inputs = Play(), model(name)[1]

    def work() -> None:
        session = npusim.Session(CONFIG, cache_dir=False, timeout=TIMEOUT_PS)
        try:
            if name == "grows":
                _grow(play, session)
            for each in ("first", "second"):
                play.step(each, lambda: session.run(program(name), inputs).outputs)
        finally:
            with contextlib.suppress(UsageError):  # the fault has not happened
                session.close()

    play.step("all", work)
    return play


def _grow(play: Play, session: npusim.Session) -> None:
    inputs = model("grows")[1]
    with session.state({"cache": inputs["cache"]}, cache_rows=8) as state:
        for rows in range(2, 3 + ROWS):
            play.step(f"cache of {state.shapes['cache'][1]} rows", lambda: state.read("cache"))
            if rows == 2 + ROWS or not play.step(
                f"{rows} rows", functools.partial(_outputs, session, program("grows", rows), inputs["x"], state)
            ):
                break
        # A failed run must leave the state unchanged.
        play.step(f"cache of {state.shapes['cache'][1]} rows", lambda: state.read("cache"))


def _outputs(session: npusim.Session, made: Program, x: Any, state: Any) -> Any:
    return session.run(made, {"x": x}, state=state).outputs


def of_executor(name: str) -> Play:
    """Run two concurrent jobs, of which the later one preempts; write, compute and read a buffer."""
    play, made, inputs = Play(), program(name), model(name)[1]
    arrays = {item.name: inputs[item.name] for item in made.inputs}

    def work() -> None:
        executor = Executor(CONFIG, timeout_ps=TIMEOUT_PS)
        try:
            with executor.paused():
                jobs = [executor.submit(Request(made, arrays, priority=each)) for each in (Priority.LOW, Priority.HIGH)]
            for job in jobs:
                play.step(job.request.priority.name, lambda job=job: job.wait(PATIENCE_S).outputs)
            output = _alone(made)
            buffer = executor.buffer(made.region_bytes[output.region])
            executor.write(buffer, WRITTEN)
            play.step("written", lambda: executor.read(buffer, 8))
            executor.write(buffer, WRITTEN[4:], 4)
            play.step("half written again", lambda: executor.read(buffer, 8))
            bound = Request(made, arrays, {output.name: buffer})
            if play.step("bound", lambda: executor.submit(bound).wait(PATIENCE_S).outputs):
                play.step("computed", lambda: executor.read(buffer, output.nbytes))
            play.step("again", lambda: executor.submit(Request(made, arrays)).wait(PATIENCE_S).outputs)
        finally:
            with contextlib.suppress(UsageError):
                executor.close()

    play.step("all", work)
    return play
