"""Mapped files that another process may truncate while they are used."""

import fcntl
import os

from cpython.buffer cimport PyBuffer_FillInfo
from libc.errno cimport errno
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_WRITE, mmap, munmap
from posix.stat cimport fstat, struct_stat
from posix.unistd cimport close

from npusim.errors import FileCutError


cdef extern from "mapped.h":
    ctypedef struct npu_mapped:
        pass

    npu_mapped *npu_guard(void *data, size_t length, int protection)
    void npu_release(npu_mapped *entry)
    int npu_is_cut(npu_mapped *entry)


cdef class MappedFile:
    """``length`` bytes of a file from ``offset`` on, a multiple of the page size: a buffer that its views keep alive.

    Reading a byte that was truncated gives zero. From then on the mapping is ``cut``, is detached from the file, and
    ``check`` fails. ``sealed``: the kernel prevents truncation, so nothing is watched. Otherwise the process gets a
    handler for SIGBUS, which forwards signals with other causes.
    """

    cdef int _descriptor
    cdef void *_data
    cdef size_t _length
    cdef bint _readonly
    cdef npu_mapped *_entry
    cdef object __weakref__

    def __cinit__(self, int descriptor, size_t length, int protection, long long offset, bint sealed):
        self._descriptor = -1
        self._data = MAP_FAILED
        self._length = length
        self._readonly = not protection & PROT_WRITE
        self._descriptor = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
        self._data = mmap(NULL, length, protection, MAP_SHARED, descriptor, offset)
        if self._data == MAP_FAILED:
            raise OSError(errno, os.strerror(errno))
        if not sealed:
            self._entry = npu_guard(self._data, length, protection)
            if self._entry == NULL:
                raise MemoryError("no memory to watch a mapped file")

    def __dealloc__(self):
        if self._entry != NULL:
            npu_release(self._entry)
        if self._data != MAP_FAILED:
            with nogil:
                munmap(self._data, self._length)
        if self._descriptor >= 0:
            close(self._descriptor)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self._data, <Py_ssize_t>self._length, self._readonly, flags)

    @property
    def cut(self):
        """Whether bytes were read that did not exist."""
        return self._entry != NULL and npu_is_cut(self._entry) != 0

    def check(self, long long end=0):
        """Raise FileCutError if bytes were read that did not exist, or if the file now has less than ``end`` bytes."""
        cdef struct_stat status
        if self._entry != NULL and npu_is_cut(self._entry):
            raise FileCutError("a mapped file was cut while it was used")
        if end and fstat(self._descriptor, &status):
            raise OSError(errno, os.strerror(errno))
        if end and status.st_size < end:
            raise FileCutError(f"a mapped file was cut: it has {status.st_size} bytes now, {end} are needed")
