"""The table of functions that libneuralnetworks.so calls. It has one function, which passes every call to the
engine."""

from cpython.exc cimport PyErr_SetInterrupt
from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport int32_t, int64_t, uint32_t

from hal.nnapi.capi import engine


cdef extern from "neuralnetworks_bridge.h":
    ctypedef struct npu_table_head:
        uint32_t version
        uint32_t size

    ctypedef struct npu_nnapi_table:
        npu_table_head head
        int64_t (*call)(const char *function, const int64_t *words, int32_t count) noexcept

    uint32_t NPU_NNAPI_VERSION


cdef int64_t call(const char *function, const int64_t *words, int32_t count) noexcept with gil:
    try:
        return engine.call(function.decode("ascii"), tuple([words[i] for i in range(count)]))
    except BaseException:  # an interrupt: raised again in the host's Python after C has returned
        PyErr_SetInterrupt()
        return engine.INTERRUPTED


cdef npu_nnapi_table table
table.head.version = NPU_NNAPI_VERSION
table.head.size = sizeof(npu_nnapi_table)
table.call = call
TABLE = PyCapsule_New(&table, b"hal.nnapi.capi._bridge.TABLE", NULL)
engine.start_logging()
