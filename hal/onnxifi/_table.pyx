"""The engine's table of functions, which the C libraries import, and the engine's notifications to them.

Each function only converts C arguments to Python, calls the engine, and converts an exception to a status.
"""

import os
import sys
import traceback

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from ._descriptors cimport read_numbers, read_tensors
from ._interface cimport (
    NPU_ONNXIFI_VERSION,
    c_bool,
    npu_onnxifi_core,
    npu_onnxifi_engine,
    npu_outcome,
    npu_span,
    npu_tensor,
    npu_timing,
)

from npusim.report.format import printable

from . import engine
from .status import OnnxifiError, Status

cdef extern from *:
    """
    /* Keep Python's thread state of the dispatcher's thread, which never ends, between runs: creating it takes longer
     * than everything else in the C core. A state that is not released stays until the interpreter ends. */
    static _Thread_local int npu_thread_state_kept;
    static void npu_keep_thread_state(void) {
        if (!npu_thread_state_kept) {
            npu_thread_state_kept = 1;
            (void)PyGILState_Ensure();
        }
    }
    """
    void keep_thread_state "npu_keep_thread_state" ()

cdef enum:
    MOST_CORES = 8

DEBUG = bool(os.environ.get("NPUSIM_DEBUG"))


# ------------------------------------------------------------------------------------------------ engine, for C


cdef const npu_onnxifi_core *cores[MOST_CORES]
cdef int cores_count = 0
cdef set gone = set()  # numbers of unplugged devices


cdef int32_t failed(object error) noexcept:
    """Return the status for an exception; with NPUSIM_DEBUG, print its traceback."""
    try:
        if DEBUG:
            sys.stderr.write(printable("".join(traceback.format_exception(error))))
        return engine.status_of(error)
    except BaseException:  # noqa: BLE001 a C caller needs a status
        return <int32_t>0x406


cdef void *keep(object made):
    """Return a reference for C, released by drop()."""
    Py_INCREF(made)
    return <void *>made


cdef void drop(void *kept):
    made = <object>kept
    Py_DECREF(made)


cdef int32_t engine_attach(const npu_onnxifi_core *core, uint32_t *devices) noexcept with gil:
    global cores_count
    try:
        if cores_count == MOST_CORES:
            raise OnnxifiError(Status.INTERNAL_ERROR, f"more than {MOST_CORES} libraries in one process")
        devices[0] = engine.device_count()
        cores[cores_count] = core
        cores_count += 1
        return 0
    except BaseException as error:  # noqa: BLE001
        return failed(error)


cdef c_bool engine_is_plugged(uint32_t device) noexcept with gil:
    return device not in gone


cdef int32_t engine_info(uint32_t device, int32_t type, void *value, size_t *size) noexcept with gil:
    cdef size_t room = size[0]
    try:
        found = engine.info(device, type)
        size[0] = PyBytes_GET_SIZE(found)
        if value == NULL or room < size[0]:
            return <int32_t>Status.FALLBACK
        memcpy(value, PyBytes_AS_STRING(found), size[0])
        return 0
    except BaseException as error:  # noqa: BLE001
        return failed(error)


cdef int32_t engine_compatibility(uint32_t device, const void *model, size_t size) noexcept with gil:
    try:
        return engine.compatibility(device, PyBytes_FromStringAndSize(<const char *>model, size))
    except BaseException as error:  # noqa: BLE001
        return failed(error)


cdef int32_t engine_init_backend(
    uint32_t device, const uint64_t *properties, uint32_t count, void **backend
) noexcept with gil:
    cdef uint32_t i
    try:
        pairs = tuple([(properties[i], properties[i + 1]) for i in range(0, count, 2)])
        backend[0] = keep(engine.init_backend(device, pairs))
        return 0
    except BaseException as error:  # noqa: BLE001
        return failed(error)


cdef int32_t engine_init_graph(
    void *backend,
    const uint64_t *properties,
    uint32_t count,
    const void *model,
    size_t size,
    const npu_tensor *weights,
    uint32_t weights_count,
    void **graph,
) noexcept with gil:
    try:
        copied = PyBytes_FromStringAndSize(<const char *>model, size)
        given = None if weights == NULL else read_tensors(weights, weights_count)
        status, made = engine.init_graph(<object>backend, read_numbers(properties, count), copied, given)
        graph[0] = keep(made)
        return status
    except BaseException as error:  # noqa: BLE001
        return failed(error)


cdef int32_t engine_set_io(
    void *graph,
    const npu_tensor *inputs,
    uint32_t inputs_count,
    const npu_tensor *outputs,
    uint32_t outputs_count,
    void **binding,
) noexcept with gil:
    try:
        made = engine.set_io(
            <object>graph, read_tensors(inputs, inputs_count), read_tensors(outputs, outputs_count)
        )
        binding[0] = keep(made)
        return 0
    except BaseException as error:  # noqa: BLE001
        return failed(error)


@cython.auto_pickle(False)
cdef class Run:
    """An active run. The engine passes it to complete() at its end."""

    cdef const npu_onnxifi_core *core
    cdef void *job

    def __dealloc__(self):
        cdef npu_outcome outcome
        if self.job != NULL:  # the engine lost it, but a client may be waiting
            outcome.status = 0x406
            outcome.message = "the run was abandoned"
            outcome.timing = NULL
            outcome.spans = NULL
            outcome.spans_count = 0
            self.core.complete(self.job, &outcome)


cdef int32_t engine_start(
    void *graph, void *binding, c_bool traced, const npu_onnxifi_core *core, void *job
) noexcept with gil:
    cdef Run run = Run.__new__(Run)
    keep_thread_state()
    run.core = core
    run.job = job
    try:
        engine.start(<object>graph, <object>binding, run, bool(traced))
        return 0
    except BaseException as error:  # noqa: BLE001
        run.job = NULL
        return failed(error)


cdef void engine_drop(void *kept) noexcept with gil:
    """Release a binding or a backend. A device is powered off when nothing holds its executor any more."""
    drop(kept)


cdef void engine_drop_graph(void *graph) noexcept with gil:
    try:
        engine.release_graph(<object>graph)
    except BaseException as error:  # noqa: BLE001
        failed(error)
    drop(graph)


cdef void engine_set_plugged(uint32_t device, c_bool plugged) noexcept with gil:
    try:
        if plugged:
            plug(device)
        else:
            unplug(device)
    except BaseException as error:  # noqa: BLE001
        failed(error)


cdef void tell_cores(uint32_t device, bint plugged):
    cdef int i
    if plugged:
        gone.discard(device)
    else:
        gone.add(device)
    for i in range(cores_count):
        cores[i].set_plugged(device, plugged)


def _unplugged(device: int) -> None:
    """Called by the engine when a device is gone."""
    tell_cores(device, False)


def complete(Run run not None, int status, timing=None, trace=None, message: str = "") -> None:
    """Report the end of a run; only the first call for a run counts.

    ``timing``: (cycles, run_ps, queued_ps, host_ps, total_ps); ``trace``: list of (name, start_ps, end_ps).
    """
    cdef npu_outcome outcome
    cdef npu_timing times
    cdef npu_span *spans = NULL
    cdef Py_ssize_t i, count = len(trace) if trace is not None else 0
    cdef void *job = run.job
    text = message.encode("utf-8", "replace")
    outcome.status = status
    outcome.message = text
    outcome.timing = NULL
    if timing is not None:
        times.cycles, times.run_ps, times.queued_ps, times.host_ps, times.total_ps = timing
        outcome.timing = &times
    names = [name.encode("utf-8", "replace") for name, _start, _end in trace] if count else []
    if count:
        spans = <npu_span *>calloc(count, sizeof(npu_span))
        if spans == NULL:
            raise MemoryError
    try:
        for i in range(count):
            spans[i].name = <bytes>names[i]
            spans[i].start_ps, spans[i].end_ps = trace[i][1], trace[i][2]
        outcome.spans = spans
        outcome.spans_count = count
        run.job = NULL
        if job != NULL:
            run.core.complete(job, &outcome)
    finally:
        free(spans)


TABLE.head.version = NPU_ONNXIFI_VERSION
TABLE.head.size = sizeof(npu_onnxifi_engine)
TABLE.attach = engine_attach
TABLE.is_plugged = engine_is_plugged
TABLE.info = engine_info
TABLE.compatibility = engine_compatibility
TABLE.init_backend = engine_init_backend
TABLE.init_graph = engine_init_graph
TABLE.set_io = engine_set_io
TABLE.start = engine_start
TABLE.drop_backend = engine_drop
TABLE.drop_graph = engine_drop_graph
TABLE.drop_binding = engine_drop
TABLE.set_plugged = engine_set_plugged

_C_API = PyCapsule_New(&TABLE, "hal.onnxifi._table._C_API", NULL)

engine.connect(complete, _unplugged)


# ------------------------------------------------------------------------------------------------- devices that go


def unplug(device: int) -> None:
    """Remove a device from every library of this process."""
    tell_cores(device, False)  # first, so that no new run begins
    engine.unplug(device)


def plug(device: int) -> None:
    """Insert it again. Older objects stay unavailable."""
    engine.plug(device)
    tell_cores(device, True)
