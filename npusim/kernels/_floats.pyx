"""The floating-point environment in which results are defined, whatever mode the process has set."""

cimport cython

cdef extern from "<fenv.h>" nogil:
    ctypedef struct fenv_t:
        pass
    const fenv_t *FE_DFL_ENV
    int fegetenv(fenv_t *)
    int fesetenv(const fenv_t *)


@cython.final
@cython.freelist(4)
cdef class DefaultFloats:
    """``with DefaultFloats():`` computes in the default mode of IEEE 754 and restores the mode of the thread
    afterwards.

    Rounding is to nearest, denormals are kept, nothing traps. This is needed because libraries linked with -ffast-math
    flush denormals in the thread that loads them, and new threads inherit the mode of their creator.
    """

    cdef fenv_t before

    def __enter__(self):
        fegetenv(&self.before)
        fesetenv(FE_DFL_ENV)

    def __exit__(self, *error):
        fesetenv(&self.before)
