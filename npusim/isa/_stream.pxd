from libc.stdint cimport int64_t


cdef object asked(instruction)


cdef class Sizes:
    cdef dict by_kind

    cdef int64_t of(self, instruction) except -1


cdef class Remembered:
    cdef object ask
    cdef dict by_id, by_work

    cdef object of(self, work)
