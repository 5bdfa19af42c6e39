"""What the scheduler's book-keeping reads of buffers and views."""


cdef class Buffer:
    cdef public str name
    cdef public int region
    cdef public object nbytes, offset, born, dies, core
    cdef public bint is_rolling, is_met
    cdef object base


cdef class View:
    cdef readonly Buffer buffer
    cdef readonly object offset, dtype
    cdef readonly tuple shape, strides
