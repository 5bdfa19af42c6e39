"""A client of the engine without the C core, for tests of the engine alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt

from hal.onnxifi import engine
from hal.onnxifi.backend import Backend
from hal.onnxifi.descriptor import Descriptor
from hal.onnxifi.graph import Graph
from hal.onnxifi.status import OnnxifiError, Status
from npusim.dtypes import dtype_of
from npusim.frontends.onnx.tensors import TO_ONNX

Array = npt.NDArray[Any]


class Runs:
    """Stands in for the core and records the engine's reports by run."""

    def __init__(self) -> None:
        self.outcomes: dict[int, tuple[int, Any, Any]] = {}
        self.order: list[int] = []
        self.unplugged: list[int] = []
        self._changed = threading.Condition()

    def complete(self, run: int, status: int, timing: Any, trace: Any, message: str) -> None:
        with self._changed:
            assert run not in self.outcomes, "a run is completed once"
            assert bool(message) == (status != Status.SUCCESS)
            self.outcomes[run] = status, timing, trace
            self.order.append(run)
            self._changed.notify_all()

    def wait(self, run: int) -> tuple[int, Any, Any]:
        with self._changed:
            assert self._changed.wait_for(lambda: run in self.outcomes, 20), f"run {run} is not over"
            return self.outcomes[run]


@contextmanager
def connected() -> Iterator[Runs]:
    """Yield runs that the engine reports to; the core, if any, is connected again afterwards."""
    runs = Runs()
    before = dict(vars(engine.Core))
    engine.connect(runs.complete, runs.unplugged.append)
    try:
        yield runs
    finally:
        for name in ("complete", "unplugged"):
            if name in before:
                setattr(engine.Core, name, before[name])


def describe(name: str, array: Array, /, **changes: Any) -> Descriptor:
    """Return a descriptor of an array that the caller keeps."""
    plain = Descriptor(name, TO_ONNX[dtype_of(array)], 0, array.shape, array.ctypes.data)
    return plain._replace(**changes)


def quantized(name: str, array: Array, scales: Sequence[float], biases: Sequence[int], axis: int = 0) -> Descriptor:
    return describe(
        name, array, quantization_axis=axis, quantization_params=len(scales), scales=tuple(scales), biases=tuple(biases)
    )


def init(model: bytes, weights: Sequence[Descriptor] | None = None, properties: Sequence[int] = ()) -> Graph:
    status, graph = engine.init_graph(backend(), properties, model, weights)
    assert status in (Status.SUCCESS, Status.FALLBACK)
    return graph


def backend(device: int = 0) -> Backend:
    return engine.init_backend(device, ())


def compute(
    runs: Runs, graph: Graph, inputs: Mapping[str, Array], outputs: Mapping[str, Array], number: int = 0
) -> tuple[int, Any, Any]:
    """Bind, run once and wait; the outputs are then filled."""
    io = engine.set_io(graph, [describe(n, a) for n, a in inputs.items()], [describe(n, a) for n, a in outputs.items()])
    engine.start(graph, io, number, True)
    return runs.wait(number)


def status_of(call: Any, *args: Any, **kwargs: Any) -> Status:
    """Return the status of a call."""
    try:
        call(*args, **kwargs)
    except OnnxifiError as error:
        return error.status
    return Status.SUCCESS
