"""The engine of both interfaces: the functions that the C core calls.

The core owns handles, events and the order of runs. It passes devices by number, and backends, graphs and bindings as
objects created here. Every function raises OnnxifiError with a status that its ONNXIFI function may return.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from npusim.runtime import Job, Result

from . import backend as backends
from . import binding, edge, graph
from . import info as infos
from .backend import Backend
from .binding import IO
from .compatibility import compatibility as decide
from .descriptor import Descriptor
from .device import Device, make_devices
from .edge import answers
from .graph import Graph
from .settings import Settings, read_settings
from .status import Status, within

Timing = tuple[int, int, int, int, int]
"""cycles, run_ps, queued_ps, host_ps, total_ps of one run: see npusim.runtime.Result."""
Trace = list[tuple[str, int, int]]
"""(unit, operator and kind of instruction; start and end in ps since the run began) in order of their end."""


class Complete(Protocol):
    """Callback of the core for the end of a run; ``run`` is the argument of :func:`start`."""

    def __call__(
        self, run: object, status: int, timing: Timing | None, trace: Trace | None, message: str, /
    ) -> object: ...


class Core:
    """The callbacks of the core, set by :func:`connect`."""

    complete: Complete
    unplugged: Callable[[int], object]


def connect(complete: Complete, unplugged: Callable[[int], object]) -> None:
    """Set the callbacks of the core: ``complete(run, status, timing, trace, message)`` at the end of a run,
    ``unplugged(device)`` when a device disappears."""
    Core.complete = staticmethod(complete)
    Core.unplugged = staticmethod(unplugged)


class _State:
    """The user's settings, read once per process."""

    lock = threading.Lock()
    settings: Settings | None = None
    devices: tuple[Device, ...] = ()


def settings() -> Settings:
    """Return the settings, which are read on first use. Raises ConfigError."""
    with _State.lock:
        if _State.settings is None:
            _State.settings = read_settings()
            _State.devices = make_devices(_State.settings.backends)
        return _State.settings


def devices() -> tuple[Device, ...]:
    """Return the configured devices."""
    settings()
    return _State.devices


def status_of(error: BaseException) -> int:
    """Return the status for any exception of an engine function."""
    return int(edge.status_of(error))


@answers("onnxGetBackendIDs")
def device_count() -> int:
    """Return the number of configured devices. Raises OnnxifiError if the settings are wrong."""
    return len(devices())


@answers("onnxGetBackendInfo")
def info(device: int, info_type: int) -> bytes:
    """Return the value of one query; text includes its final NUL."""
    return infos.info(devices()[device].config, info_type)


@answers("onnxGetBackendCompatibility")
def compatibility(device: int, model: bytes) -> int:
    """Return SUCCESS or FALLBACK."""
    return int(decide(devices()[device].config, model, lenient=settings().lenient))


@answers("onnxInitBackend")
def init_backend(device: int, properties: Sequence[tuple[int, int]]) -> Backend:
    """Power on device number ``device`` and return a backend. Raises OnnxifiError."""
    return backends.init_backend(devices()[device], properties)


@answers("onnxInitGraph")
def init_graph(
    backend: Backend, properties: Sequence[int], model: bytes, weights: Sequence[Descriptor] | None
) -> tuple[int, Graph]:
    """Return (SUCCESS or FALLBACK, graph). ``properties``: ids and values without the final 0."""
    status, made = graph.init_graph(backend, properties, model, weights, lenient=settings().lenient)
    return int(status), made


@answers("onnxSetGraphIO")
def set_io(graph: Graph, inputs: Sequence[Descriptor], outputs: Sequence[Descriptor]) -> IO:
    """Return the binding for later runs."""
    return binding.set_io(graph, inputs, outputs)


@answers("onnxReleaseGraph")
def release_graph(graph: Graph) -> None:
    """Free the device memory of the graph, which has no active run."""
    graph.release()


@answers("onnxWaitEvent")
def start(graph: Graph, io: IO, run: object, trace: bool = False) -> None:
    """Submit a run; a small one may be executed at once. ``Core.complete`` is called at its end."""
    job = graph.power.executor.submit(io.request, here=True)
    job.add_done_callback(partial(_finish, graph.backend.device, io, run, trace))


def _finish(device: Device, io: IO, run: object, trace: bool, job: Job) -> None:
    timing: Timing | None = None
    events: Trace | None = None
    status, message = Status.SUCCESS, ""
    try:
        done = job.wait()
        for name, array in done.outputs.items():
            # Directly to the client's memory, before anybody is notified of the end of the run.
            np.copyto(io.outputs[name], array)
        timing = (done.cycles, done.time_ps, done.queued_ps, done.host_ps, done.total_ps)
        events = _events(io, done) if trace else None
    except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for the run
        status, message = within("onnxWaitEvent", edge.status_of(error)), str(error)
        # An unplugged device: the core must end everything that waits for it.
        if status is Status.BACKEND_UNAVAILABLE and device.present:
            Core.unplugged(device.number)
    Core.complete(run, int(status), timing, events, message)


def _events(io: IO, done: Result) -> Trace:
    ops = io.request.program.ops
    return [
        (f"{span.unit} {ops[span.op].name if span.op < len(ops) else ''} {span.kind}", span.start_ps, span.end_ps)
        for span in done.timeline.spans
    ]


def unplug(device: int) -> None:
    """Remove a device; the core notifies the clients."""
    devices()[device].unplug()


def plug(device: int) -> None:
    """Insert a new device of the same description in its place."""
    devices()[device].plug()
