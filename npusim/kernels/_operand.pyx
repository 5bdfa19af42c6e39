"""The location of an operand in memory, as instructions pass it to kernels."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetObject

cimport cython


@cython.final
@cython.freelist(16)
cdef class Strided:
    """Elements in a memory: the byte offset of the first one, and strides in bytes, outermost first.

    A stride of 0 broadcasts, a negative one runs backwards. ``memory`` is any contiguous buffer. Nothing is checked
    here: kernels know the dimensions and check that every element is within the memory.
    """

    def __cinit__(self, memory, long long offset, tuple strides=()):
        cdef int i
        if len(strides) > 4:
            raise ValueError(f"operands have at most 4 strides, got {len(strides)}")
        PyObject_GetBuffer(memory, &self.buffer, PyBUF_SIMPLE)
        self.offset = offset
        self.rank = <int>len(strides)
        for i in range(self.rank):
            self.s[i] = strides[i]

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)

    @property
    def strides(self):
        """Bytes between elements along each dimension."""
        return tuple([self.s[i] for i in range(self.rank)])

    @property
    def memory(self):
        """The object that owns the bytes."""
        return <object>self.buffer.obj


cdef bint look() noexcept with gil:
    """Let Python handle signals. True if a handler raised an exception, which ``settle`` raises again."""
    try:
        PyErr_CheckSignals()
        return False
    except BaseException as error:
        PyErr_SetObject(type(error), error)
        return True


cdef int refuse_place(
    const Operand *out, Strided at, const long long *dims, int rank, long long size, str what,
) except -1:
    """Raise IndexError for an operand with elements outside its memory."""
    # Python integers, because these numbers may have any size.
    spans = [(<object>dims[i] - 1) * <object>out.s[i] for i in range(rank)]
    low = <object>at.offset + sum([span for span in spans if span < 0])
    high = <object>at.offset + <object>size + sum([span for span in spans if span > 0])
    raise IndexError(f"{what}: bytes [{low}, {high}) are outside its memory of {at.buffer.len} bytes")
