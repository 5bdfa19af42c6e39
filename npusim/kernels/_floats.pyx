"""The floating-point environment that results are defined in: what a process has set for itself stays outside."""

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
    """``with DefaultFloats():`` computes as IEEE 754 has it by default, and gives the thread its own mode back.

    Rounding is to nearest, denormals are numbers, nothing traps. Libraries that are linked with -ffast-math flush
    denormals in the thread that loads them, and threads begin with the mode of whoever makes them.
    """

    cdef fenv_t before

    def __enter__(self):
        fegetenv(&self.before)
        fesetenv(FE_DFL_ENV)

    def __exit__(self, *error):
        fesetenv(&self.before)
