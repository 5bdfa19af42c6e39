"""The instruction set of the kernels, chosen at run time. Results are the same with each.

The environment variable NPUSIM_SIMD names one, as :func:`set_simd` does.
"""

import os

from npusim.errors import UsageError

cdef extern from *:
    """
    #include "base.h"

    static int npu_detect(void)
    {
    #if NPU_X86
        __builtin_cpu_init();
        if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
            return 0;
        if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
            !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
            return 1;
        return __builtin_cpu_supports("avx512vnni") ? 3 : 2;
    #else
        return 0;
    #endif
    }
    """
    int npu_detect() noexcept nogil

_NAMES = ("portable", "avx2", "avx512", "avx512vnni")

# Detected once, when the module is loaded. Each kernel calls level() and picks its functions from a table. No result
# depends on it: sums have one order, and all variants fuse the same multiply-adds.
cdef int _best = npu_detect()
cdef int _level = _best


cdef int level() noexcept nogil:
    """0 portable, 1 AVX2 and FMA, 2 AVX-512 (F, BW, VL, DQ), 3 AVX-512 with VNNI."""
    return _level


def simd():
    """The name of the instruction set in use: portable, avx2, avx512 or avx512vnni."""
    return _NAMES[_level]


def set_simd(str name):
    """Use the named instruction set, or the best one for "auto". For tests and measurements.

    ValueError for a name that is unknown or not supported by this processor.
    """
    global _level
    allowed = ("auto", *_NAMES[:_best + 1])
    if name not in allowed:
        raise ValueError(f"instruction set must be one of {', '.join(allowed)}, got {name!r}")
    _level = _best if name == "auto" else _NAMES.index(name)


if _named := os.environ.get("NPUSIM_SIMD"):
    try:
        set_simd(_named)
    except ValueError as error:
        raise UsageError(f"NPUSIM_SIMD: {error}") from None
