cdef int level() noexcept nogil
