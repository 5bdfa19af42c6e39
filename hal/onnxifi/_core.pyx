"""The 15 functions for Python, based on the C core of the libraries (hal/abi/onnxifi_*.c).

Handles are ints and 0 is NULL; out=False passes NULL for the result.
"""

import atexit

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free

from ._descriptors cimport Numbers, Tensors
from ._interface cimport c_bool, npu_onnxifi_engine, npusimRunTiming, onnxMemoryFenceV1, onnxTensorDescriptorV1
from ._table cimport TABLE

from .status import Status

cdef extern from "embed.h":
    void npu_embed_close() nogil

cdef extern from "onnxifi_module.h":
    void onnxifi_module_adopt(const npu_onnxifi_engine *table)

cdef extern from "onnxifi_ext.h":
    int32_t c_GetBackendIDs "onnxGetBackendIDs"(void **, size_t *) nogil
    int32_t c_ReleaseBackendID "onnxReleaseBackendID"(void *) nogil
    int32_t c_GetBackendInfo "onnxGetBackendInfo"(void *, int32_t, void *, size_t *) nogil
    int32_t c_GetBackendCompatibility "onnxGetBackendCompatibility"(void *, size_t, const void *) nogil
    int32_t c_InitBackend "onnxInitBackend"(void *, const uint64_t *, void **) nogil
    int32_t c_ReleaseBackend "onnxReleaseBackend"(void *) nogil
    int32_t c_InitEvent "onnxInitEvent"(void *, void **) nogil
    int32_t c_SignalEvent "onnxSignalEvent"(void *) nogil
    int32_t c_GetEventState "onnxGetEventState"(void *, int32_t *) nogil
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
    void *event_wait_begin(void *event) nogil
    int32_t event_wait_slice(void *event, uint32_t milliseconds, c_bool *over) nogil
    void object_release(void *event) nogil
    int32_t event_timing(void *event, npusimRunTiming *timing) nogil

cdef enum:
    WAIT_MS = 50


def _close() -> None:
    with nogil:
        npu_embed_close()


onnxifi_module_adopt(&TABLE)
atexit.register(_close)


cdef void *handle_of(handle) except? NULL:
    return <void *><uintptr_t>handle


cdef object number_of(void *handle):
    return <uintptr_t>handle


ctypedef int32_t (*OfOneHandle)(void *) noexcept nogil


cdef ask(OfOneHandle function, number):
    """Call a function whose only parameter is a handle, and return its status."""
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
    """status; model None is NULL, size replaces the model's length."""
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
    """Return the size that the caller wants. Raises ValueError if it exceeds the given bytes."""
    if wanted is None:
        return given
    if given and wanted > given:
        raise ValueError(f"size must be at most the {given} bytes of the model, not {wanted}")
    return wanted


def onnxInitBackend(backendID, auxPropertiesList=None, bint out=True):
    """(status, backend); the list includes the final 0."""
    cdef void *handle = handle_of(backendID)
    cdef void *backend = NULL
    cdef Numbers properties = Numbers(auxPropertiesList)
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
    """status of the run that signalled the event. Other Python threads run meanwhile.

    Signal handlers, such as that of KeyboardInterrupt, run within WAIT_MS. An exception from one ends the wait.
    """
    cdef void *handle = handle_of(event)
    cdef void *kept
    cdef int32_t status
    cdef c_bool over = False
    with nogil:
        kept = event_wait_begin(handle)
    if kept == NULL:
        return <int>Status.INVALID_EVENT
    try:
        while True:
            with nogil:
                status = event_wait_slice(kept, WAIT_MS, &over)
            if over:
                return status
            PyErr_CheckSignals()
    finally:
        with nogil:
            object_release(kept)


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
    """(status, graph); size and count replace the lengths of model and weights."""
    cdef void *handle = handle_of(backend)
    cdef void *reader = handle_of(deferredWeightReader)
    cdef void *graph = NULL
    cdef const void *start = NULL
    cdef size_t length = 0
    cdef Numbers properties = Numbers(auxPropertiesList)
    cdef Tensors tensors = Tensors(weights, count)
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
    """status; the counts replace the lengths of the lists."""
    cdef void *handle = handle_of(graph)
    cdef Tensors ins = Tensors(inputs, inputsCount)
    cdef Tensors outs = Tensors(outputs, outputsCount)
    cdef int32_t status
    with nogil:
        status = c_SetGraphIO(handle, ins.count, ins.items, outs.count, outs.items)
    return status


def onnxRunGraph(graph, inputFence, outputFence):
    """status; stores the event that signals the end of the run in outputFence.event."""
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
    """status; waits for the graph's last run."""
    return ask(c_ReleaseGraph, graph)


# ----------------------------------------------------------------------------------------------- beyond ONNXIFI


def run_timing(event):
    """(status, (cycles, run_ps, queued_ps, host_ps, total_ps)) of the run that signalled an event."""
    cdef npusimRunTiming timing
    cdef int32_t status = event_timing(handle_of(event), &timing)
    return status, (timing.cycles, timing.runTime, timing.queuedTime, timing.hostTime, timing.totalTime)


def inject(str function, int status, uint32_t times=1) -> None:
    """Let the next `times` valid calls of a function end with status; "run" stands for the run itself; 0: none.

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
