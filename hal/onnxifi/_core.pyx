"""Both ends of the C core: the engine's table of functions, which C libraries import, and the 15 functions for Python.

The core itself (hal/abi/onnxifi_*.c) is built into this module and into each library. Nothing here decides anything.
"""

import atexit
import os
import struct
import traceback

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from . import engine
from .descriptor import Descriptor
from .status import OnnxifiError, Status

cdef extern from "<stdbool.h>":
    ctypedef bint c_bool "bool"

cdef extern from *:
    """
    /* Python's state of the dispatcher's thread, which never ends, is kept between runs: to make it costs more than the
     * whole of the C core. A state that nobody releases stays until the interpreter ends. */
    static _Thread_local int npu_thread_state_kept;
    static void npu_keep_thread_state(void) {
        if (!npu_thread_state_kept) {
            npu_thread_state_kept = 1;
            (void)PyGILState_Ensure();
        }
    }
    """
    void keep_thread_state "npu_keep_thread_state" ()

cdef extern from "embed.h":
    ctypedef struct npu_table_head:
        uint32_t version
        uint32_t size
    void npu_embed_close() nogil

cdef extern from "onnxifi_engine.h":
    enum:
        NPU_ONNXIFI_VERSION
    ctypedef struct npu_tensor:
        const char *name
        uint64_t data_type
        uint64_t memory_type
        uint64_t buffer
        const uint64_t *shape
        uint32_t dimensions
        uint32_t quantization_axis
        uint64_t quantization_params
        const float *scales
        const int32_t *biases
        c_bool is_offline
    ctypedef struct npu_timing:
        uint64_t cycles
        uint64_t run_ps
        uint64_t queued_ps
        uint64_t host_ps
        uint64_t total_ps
    ctypedef struct npu_span:
        const char *name
        uint64_t start_ps
        uint64_t end_ps
    ctypedef struct npu_outcome:
        int32_t status
        const char *message
        const npu_timing *timing
        const npu_span *spans
        size_t spans_count
    ctypedef struct npu_onnxifi_core:
        void (*complete)(void *job, const npu_outcome *outcome) noexcept nogil
        void (*set_plugged)(uint32_t device, c_bool plugged) noexcept nogil
        int32_t (*inject)(const char *function, int32_t status, uint32_t times) noexcept nogil
    ctypedef struct npu_onnxifi_engine:
        npu_table_head head
        int32_t (*attach)(const npu_onnxifi_core *, uint32_t *) noexcept
        c_bool (*is_plugged)(uint32_t) noexcept
        int32_t (*info)(uint32_t, int32_t, void *, size_t *) noexcept
        int32_t (*compatibility)(uint32_t, const void *, size_t) noexcept
        int32_t (*init_backend)(uint32_t, const uint64_t *, uint32_t, void **) noexcept
        int32_t (*init_graph)(
            void *, const uint64_t *, uint32_t, const void *, size_t, const npu_tensor *, uint32_t, void **
        ) noexcept
        int32_t (*set_io)(void *, const npu_tensor *, uint32_t, const npu_tensor *, uint32_t, void **) noexcept
        int32_t (*start)(void *, void *, c_bool, const npu_onnxifi_core *, void *) noexcept
        void (*drop_backend)(void *) noexcept
        void (*drop_graph)(void *) noexcept
        void (*drop_binding)(void *) noexcept
        void (*set_plugged)(uint32_t, c_bool) noexcept

cdef extern from "onnxifi_module.h":
    void onnxifi_module_adopt(const npu_onnxifi_engine *table)

cdef extern from "onnxifi_ext.h":
    ctypedef struct onnxTensorDescriptorV1:
        int32_t tag
        const char *name
        uint64_t dataType
        uint64_t memoryType
        uint32_t dimensions
        const uint64_t *shape
        uint32_t quantizationAxis
        uint64_t quantizationParams
        const float *scales
        const int32_t *biases
        uint8_t isOffline
        uint64_t buffer
    ctypedef struct onnxMemoryFenceV1:
        int32_t tag
        uint64_t type
        void *event
    ctypedef struct npusimRunTiming:
        uint64_t cycles
        uint64_t runTime
        uint64_t queuedTime
        uint64_t hostTime
        uint64_t totalTime
    int32_t c_GetBackendIDs "onnxGetBackendIDs"(void **, size_t *) nogil
    int32_t c_ReleaseBackendID "onnxReleaseBackendID"(void *) nogil
    int32_t c_GetBackendInfo "onnxGetBackendInfo"(void *, int32_t, void *, size_t *) nogil
    int32_t c_GetBackendCompatibility "onnxGetBackendCompatibility"(void *, size_t, const void *) nogil
    int32_t c_InitBackend "onnxInitBackend"(void *, const uint64_t *, void **) nogil
    int32_t c_ReleaseBackend "onnxReleaseBackend"(void *) nogil
    int32_t c_InitEvent "onnxInitEvent"(void *, void **) nogil
    int32_t c_SignalEvent "onnxSignalEvent"(void *) nogil
    int32_t c_GetEventState "onnxGetEventState"(void *, int32_t *) nogil
    int32_t c_WaitEvent "onnxWaitEvent"(void *) nogil
    int32_t c_ReleaseEvent "onnxReleaseEvent"(void *) nogil
    int32_t c_InitGraph "onnxInitGraph"(
        void *, const uint64_t *, size_t, const void *, uint32_t, const onnxTensorDescriptorV1 *, void **, uint32_t,
        void *
    ) nogil
    int32_t c_SetGraphIO "onnxSetGraphIO"(
        void *, uint32_t, const onnxTensorDescriptorV1 *, uint32_t, const onnxTensorDescriptorV1 *
    ) nogil
    int32_t c_RunGraph "onnxRunGraph"(void *, const onnxMemoryFenceV1 *, onnxMemoryFenceV1 *) nogil
    int32_t c_ReleaseGraph "onnxReleaseGraph"(void *) nogil

cdef extern from "onnxifi_core.h":
    int32_t fault_inject(const char *function, int32_t status, uint32_t times) nogil
    int32_t event_timing(void *event, npusimRunTiming *timing) nogil

cdef enum:
    MOST_CORES = 8
    MOST_PARAMETERS = 1 << 20

DEBUG = bool(os.environ.get("NPUSIM_DEBUG"))


# ------------------------------------------------------------------------------------------------ engine, for C


cdef const npu_onnxifi_core *cores[MOST_CORES]
cdef int cores_count = 0
cdef set gone = set()  # numbers of the devices that are not plugged


cdef int32_t failed(object error) noexcept:
    """The status for an exception; with NPUSIM_DEBUG its traceback on standard error."""
    try:
        if DEBUG:
            traceback.print_exception(error)
        return engine.status_of(error)
    except BaseException:  # noqa: BLE001 a C caller has to get something
        return <int32_t>0x406


cdef object read_name(const char *name):
    if name == NULL:
        return None
    raw = <bytes>name
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


cdef object read_tensor(const npu_tensor *of):
    cdef uint64_t i, params = of.quantization_params
    if params > MOST_PARAMETERS:
        raise OnnxifiError(Status.INVALID_SHAPE, f"{params} quantization parameters, at most {MOST_PARAMETERS}")
    shape = None
    if of.shape != NULL or of.dimensions == 0:
        shape = tuple([of.shape[i] for i in range(of.dimensions)])
    scales = tuple([of.scales[i] for i in range(params)]) if params and of.scales != NULL else None
    biases = tuple([of.biases[i] for i in range(params)]) if params and of.biases != NULL else None
    return Descriptor(
        read_name(of.name),
        of.data_type,
        of.memory_type,
        shape,
        of.buffer,
        of.quantization_axis,
        scales,
        biases,
        params,
        of.is_offline,
    )


cdef tuple read_tensors(const npu_tensor *tensors, uint32_t count):
    cdef uint32_t i
    return tuple([read_tensor(&tensors[i]) for i in range(count)])


cdef tuple read_numbers(const uint64_t *numbers, uint32_t count):
    cdef uint32_t i
    return tuple([numbers[i] for i in range(count)])


cdef void *keep(object made):
    """A reference for C, given back by drop()."""
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
    """A run under way: the engine gives it back to complete() when it is over."""

    cdef const npu_onnxifi_core *core
    cdef void *job

    def __dealloc__(self):
        cdef npu_outcome outcome
        if self.job != NULL:  # whoever had it has forgotten it; somebody may be waiting
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


cdef void engine_drop_backend(void *backend) noexcept with gil:
    try:
        engine.release_backend(<object>backend)
    except BaseException as error:  # noqa: BLE001
        failed(error)
    drop(backend)


cdef void engine_drop_graph(void *graph) noexcept with gil:
    try:
        engine.release_graph(<object>graph)
    except BaseException as error:  # noqa: BLE001
        failed(error)
    drop(graph)


cdef void engine_drop_binding(void *binding) noexcept with gil:
    drop(binding)


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
    """The engine has noticed that a device is gone."""
    tell_cores(device, False)


def complete(Run run not None, int status, timing=None, trace=None, message: str = "") -> None:
    """A run is over. ``timing``: (cycles, run_ps, queued_ps, host_ps, total_ps); ``trace``: (name, start_ps, end_ps).

    Only the first call for a run counts.
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


cdef npu_onnxifi_engine TABLE
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
TABLE.drop_backend = engine_drop_backend
TABLE.drop_graph = engine_drop_graph
TABLE.drop_binding = engine_drop_binding
TABLE.set_plugged = engine_set_plugged

_C_API = PyCapsule_New(&TABLE, "hal.onnxifi._core._C_API", NULL)


def _close() -> None:
    with nogil:
        npu_embed_close()


engine.connect(complete, _unplugged)
onnxifi_module_adopt(&TABLE)
atexit.register(_close)


# ------------------------------------------------------------------------------------------ the door for Python
# Handles are ints, 0 is NULL; out=False stands for a NULL where the result would be stored.


cdef void *handle_of(handle) except? NULL:
    return <void *><uintptr_t>handle


cdef object number_of(void *handle):
    return <uintptr_t>handle


@cython.auto_pickle(False)
cdef class _Numbers:
    """A list of uint64 for C, or NULL."""

    cdef uint64_t *items

    def __cinit__(self, values):
        cdef Py_ssize_t i
        if values is None:
            return
        self.items = <uint64_t *>calloc(len(values) + 1, sizeof(uint64_t))
        if self.items == NULL:
            raise MemoryError
        for i in range(len(values)):
            self.items[i] = values[i]

    def __dealloc__(self):
        free(self.items)


@cython.auto_pickle(False)
cdef class _Tensors:
    """Descriptors for C, made of objects with the fields of onnxTensorDescriptorV1; None is NULL."""

    cdef onnxTensorDescriptorV1 *items
    cdef uint32_t count
    cdef list kept

    def __cinit__(self, descriptors, count):
        cdef uint32_t i
        self.kept = []
        given = 0 if descriptors is None else len(descriptors)
        self.count = given if count is None else count
        if descriptors is None:
            return
        if self.count > given:
            raise ValueError(f"count must be at most the {given} descriptors there are, not {self.count}")
        self.items = <onnxTensorDescriptorV1 *>calloc(given + 1, sizeof(onnxTensorDescriptorV1))
        if self.items == NULL:
            raise MemoryError
        for i in range(given):
            self.fill(&self.items[i], descriptors[i])

    cdef int fill(self, onnxTensorDescriptorV1 *to, of) except -1:
        to.tag = of.tag
        if of.name is not None:
            name = of.name.encode("utf-8") if isinstance(of.name, str) else of.name
            self.kept.append(name)
            to.name = <bytes>name
        to.dataType = of.dataType
        to.memoryType = of.memoryType
        to.buffer = of.buffer
        shape = _Numbers(of.shape)
        self.kept.append(shape)
        to.shape = shape.items
        to.dimensions = of.dimensions if of.dimensions >= 0 else len(of.shape or ())
        to.quantizationAxis = of.quantizationAxis
        to.quantizationParams = of.quantizationParams
        to.isOffline = of.isOffline
        to.scales = <const float *>self.packed("f", of.scales)
        to.biases = <const int32_t *>self.packed("i", of.biases)
        return 0

    cdef const void *packed(self, kind, values) except? NULL:
        if values is None:
            return NULL
        raw = struct.pack(f"{len(values)}{kind}", *values)
        self.kept.append(raw)
        return PyBytes_AS_STRING(raw)

    def __dealloc__(self):
        free(self.items)


ctypedef int32_t (*OfOneHandle)(void *) noexcept nogil


cdef ask(OfOneHandle function, number):
    """The status of a function that takes a handle and nothing else."""
    cdef void *handle = handle_of(number)
    cdef int32_t status
    with nogil:
        status = function(handle)
    return status


def onnxGetBackendIDs(capacity=None, bint out=True):
    """(status, IDs, number of devices); capacity None asks for the number only."""
    cdef size_t count = 0 if capacity is None else capacity
    cdef size_t i
    cdef void **ids = NULL
    cdef int32_t status
    if capacity is not None:
        ids = <void **>calloc(count + 1, sizeof(void *))
        if ids == NULL:
            raise MemoryError
    try:
        with nogil:
            status = c_GetBackendIDs(ids, &count if out else NULL)
        found = [number_of(ids[i]) for i in range(count)] if status == 0 and ids != NULL else []
    finally:
        free(ids)
    return status, found, count


def onnxReleaseBackendID(backendID):
    """status"""
    return ask(c_ReleaseBackendID, backendID)


def onnxGetBackendInfo(backendID, int32_t infoType, size=None, bint out=True):
    """(status, the value or None, its size in bytes); size None asks for the size only."""
    cdef void *handle = handle_of(backendID)
    cdef size_t length = 0 if size is None else size
    cdef int32_t status
    cdef void *value = NULL
    buffer = None if size is None else bytearray(length + 1)
    cdef unsigned char[::1] view
    if buffer is not None:
        view = buffer
        value = &view[0]
    with nogil:
        status = c_GetBackendInfo(handle, infoType, value, &length if out else NULL)
    return status, bytes(buffer[:length]) if status == 0 else None, length


def onnxGetBackendCompatibility(backendID, model, size=None):
    """status; model None is NULL, size goes before the model's length."""
    cdef void *handle = handle_of(backendID)
    cdef const void *start = NULL
    cdef size_t length = 0
    cdef int32_t status
    if model is not None:
        start = PyBytes_AS_STRING(model)
        length = PyBytes_GET_SIZE(model)
    length = length_of(size, length)
    with nogil:
        status = c_GetBackendCompatibility(handle, length, start)
    return status


cdef size_t length_of(wanted, size_t given) except? 0:
    """What the caller says, unless that reaches beyond the bytes there are."""
    if wanted is None:
        return given
    if given and wanted > given:
        raise ValueError(f"size must be at most the {given} bytes of the model, not {wanted}")
    return wanted


def onnxInitBackend(backendID, auxPropertiesList=None, bint out=True):
    """(status, backend); the list includes the 0 that ends it."""
    cdef void *handle = handle_of(backendID)
    cdef void *backend = NULL
    cdef _Numbers properties = _Numbers(auxPropertiesList)
    cdef int32_t status
    with nogil:
        status = c_InitBackend(handle, properties.items, &backend if out else NULL)
    return status, number_of(backend)


def onnxReleaseBackend(backend):
    """status"""
    return ask(c_ReleaseBackend, backend)


def onnxInitEvent(backend, bint out=True):
    """(status, event)"""
    cdef void *handle = handle_of(backend)
    cdef void *event = NULL
    cdef int32_t status
    with nogil:
        status = c_InitEvent(handle, &event if out else NULL)
    return status, number_of(event)


def onnxSignalEvent(event):
    """status"""
    return ask(c_SignalEvent, event)


def onnxGetEventState(event, bint out=True):
    """(status, state)"""
    cdef void *handle = handle_of(event)
    cdef int32_t status, state = 0
    with nogil:
        status = c_GetEventState(handle, &state if out else NULL)
    return status, state


def onnxWaitEvent(event):
    """status: of the run that signalled the event. Other threads of Python go on meanwhile."""
    return ask(c_WaitEvent, event)


def onnxReleaseEvent(event):
    """status"""
    return ask(c_ReleaseEvent, event)


def onnxInitGraph(
    backend,
    auxPropertiesList,
    model,
    weights=None,
    size=None,
    count=None,
    bint out=True,
    uint32_t maxSeqLength=0,
    deferredWeightReader=0,
):
    """(status, graph); size and count go before the lengths of model and weights."""
    cdef void *handle = handle_of(backend)
    cdef void *reader = handle_of(deferredWeightReader)
    cdef void *graph = NULL
    cdef const void *start = NULL
    cdef size_t length = 0
    cdef _Numbers properties = _Numbers(auxPropertiesList)
    cdef _Tensors tensors = _Tensors(weights, count)
    cdef int32_t status
    if model is not None:
        start = PyBytes_AS_STRING(model)
        length = PyBytes_GET_SIZE(model)
    length = length_of(size, length)
    with nogil:
        status = c_InitGraph(
            handle,
            properties.items,
            length,
            start,
            tensors.count,
            tensors.items,
            &graph if out else NULL,
            maxSeqLength,
            reader,
        )
    return status, number_of(graph)


def onnxSetGraphIO(graph, inputs, outputs, inputsCount=None, outputsCount=None):
    """status; the counts go before the lengths of the lists."""
    cdef void *handle = handle_of(graph)
    cdef _Tensors ins = _Tensors(inputs, inputsCount)
    cdef _Tensors outs = _Tensors(outputs, outputsCount)
    cdef int32_t status
    with nogil:
        status = c_SetGraphIO(handle, ins.count, ins.items, outs.count, outs.items)
    return status


def onnxRunGraph(graph, inputFence, outputFence):
    """status; stores the event of the run's end in outputFence.event."""
    cdef void *handle = handle_of(graph)
    cdef onnxMemoryFenceV1 before, after
    cdef int32_t status
    cdef bint has_before = inputFence is not None, has_after = outputFence is not None
    if has_before:
        before.tag, before.type, before.event = inputFence.tag, inputFence.type, handle_of(inputFence.event)
    if has_after:
        after.tag, after.type, after.event = outputFence.tag, outputFence.type, handle_of(outputFence.event)
    with nogil:
        status = c_RunGraph(handle, &before if has_before else NULL, &after if has_after else NULL)
    if status == 0:
        outputFence.event = number_of(after.event)
    return status


def onnxReleaseGraph(graph):
    """status, when the last run of the graph has ended."""
    return ask(c_ReleaseGraph, graph)


# ----------------------------------------------------------------------------------------------- beyond ONNXIFI


def run_timing(event):
    """(status, (cycles, run_ps, queued_ps, host_ps, total_ps)) of the run that signalled an event."""
    cdef npusimRunTiming timing
    cdef int32_t status = event_timing(handle_of(event), &timing)
    return status, (timing.cycles, timing.runTime, timing.queuedTime, timing.hostTime, timing.totalTime)


def inject(str function, int status, uint32_t times=1) -> None:
    """The next `times` right calls of a function of this module end with status; "run" is the run itself; 0: none.

    Raises ValueError for an unknown function, and for a status that it never returns.
    """
    cdef bytes name = function.encode("utf-8")
    cdef const char *raw = name
    cdef int32_t answer
    with nogil:
        answer = fault_inject(raw, status, times)
    if answer == Status.INVALID_NAME:
        raise ValueError(f"function must be one of the fifteen or 'run', not {function!r}")
    if answer != 0:
        raise ValueError(f"{function} never returns status {status:#06x}")


def unplug(device: int) -> None:
    """Take a device away, in every library of this process."""
    tell_cores(device, False)  # first: no new run begins
    engine.unplug(device)


def plug(device: int) -> None:
    """Put it back. Objects made before it went stay unavailable."""
    engine.plug(device)
    tell_cores(device, True)
