"""Tensor descriptors and property lists, from C for the engine and from Python for C."""

import struct

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from ._interface cimport npu_tensor, onnxTensorDescriptorV1

from .descriptor import Descriptor
from .status import OnnxifiError, Status

cdef enum:
    MOST_PARAMETERS = 1 << 20


# ---------------------------------------------------------------------------------------------------------- from C


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


# ------------------------------------------------------------------------------------------------------ from Python


@cython.auto_pickle(False)
cdef class Numbers:
    """A list of uint64 for C, or NULL."""

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
cdef class Tensors:
    """Descriptors for C, from objects with the fields of onnxTensorDescriptorV1; None is NULL."""

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
        shape = Numbers(of.shape)
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
