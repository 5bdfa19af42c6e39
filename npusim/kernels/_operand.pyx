"""Where an operand lies: what instructions hand to kernels."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetObject

cimport cython


@cython.final
@cython.freelist(16)
cdef class Strided:
    """Elements in a memory: the first one's byte offset, and strides in bytes, outermost first.

    A stride of 0 broadcasts, a negative one runs backwards. ``memory`` is anything with contiguous bytes. Nothing is
    checked here: a kernel that is given dimensions checks that every element lies inside of the memory.
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
        """Bytes from one element to the next along each dimension."""
        return tuple([self.s[i] for i in range(self.rank)])

    @property
    def memory(self):
        """What the bytes belong to."""
        return <object>self.buffer.obj


cdef bint look() noexcept with gil:
    """Let Python handle signals; True if a handler has raised, which is still to be."""
    try:
        PyErr_CheckSignals()
        return False
    except BaseException as error:
        PyErr_SetObject(type(error), error)
        return True


cdef int refuse_place(
    const Operand *out, Strided at, const long long *dims, int rank, long long size, str what,
) except -1:
    """Raise IndexError about an operand with elements outside of its memory."""
    # Python's numbers: these may be of any size.
    spans = [(<object>dims[i] - 1) * <object>out.s[i] for i in range(rank)]
    low = <object>at.offset + sum([span for span in spans if span < 0])
    high = <object>at.offset + <object>size + sum([span for span in spans if span > 0])
    raise IndexError(f"{what}: bytes [{low}, {high}) are outside its memory of {at.buffer.len} bytes")
