"""Prices of transfers and products for other compiled modules."""

from cpython cimport array

cdef extern from *:
    """
    // Every figure is at most this, so that a few of them add up within 64 bits.
    #define NPUSIM_LIMIT 1000000000000000000LL
    """
    const long long LIMIT "NPUSIM_LIMIT"


cdef struct Price:
    long long[5] key
    long long[3] value
    int known  # ASKED if the answer is still pending


cdef class Prices:
    cdef object prices
    cdef array.array wanted
    cdef long long column
    cdef Price *slots
    cdef Py_ssize_t room, count

    cdef Price *find(self, long long *key) noexcept
    cdef int grow(self) except -1
    cdef int ask(self, long long *key, bint moves, long long *value) except -1


cdef int number_of(str way) except -1
cdef Py_ssize_t missed() noexcept
