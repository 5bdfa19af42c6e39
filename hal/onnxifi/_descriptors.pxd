from libc.stdint cimport uint32_t, uint64_t

from ._interface cimport npu_tensor, onnxTensorDescriptorV1


cdef tuple read_tensors(const npu_tensor *tensors, uint32_t count)
cdef tuple read_numbers(const uint64_t *numbers, uint32_t count)


cdef class Numbers:
    cdef uint64_t *items


cdef class Tensors:
    cdef onnxTensorDescriptorV1 *items
    cdef uint32_t count
    cdef list kept
    cdef int fill(self, onnxTensorDescriptorV1 *to, of) except -1
    cdef const void *packed(self, kind, values) except? NULL
