"""Reductions into 8-byte accumulators, and the conversion to results.

Elements are folded one by one in row-major order, without partial sums. A reduction may therefore be split into tiles
and run on any instruction set, with identical bits.
"""

from libc.math cimport sqrt

from npusim.kernels._operand cimport (
    NPU_BLOCK, NPU_BOOL, Strided, Walk, begin, each_row, is_empty, is_float, item_size, join, settle,
    type_name,
)

cdef extern from "convert.h" nogil:
    ctypedef void (*npu_load_f64)(double *out, const unsigned char *p, long long stride, long long n) noexcept
    ctypedef void (*npu_load_i64)(long long *out, const unsigned char *p, long long stride, long long n) noexcept
    ctypedef void (*npu_store_f32)(unsigned char *p, long long stride, const float *values, long long n) noexcept
    ctypedef void (*npu_store_i64)(unsigned char *p, long long stride, const long long *values, long long n) noexcept
    const npu_load_f64[13] npu_loads_f64
    const npu_load_i64[13] npu_loads_i64
    const npu_store_f32[13] npu_stores_f32
    const npu_store_i64[13] npu_stores_i64
    void npu_load_f32_f64(double *out, const unsigned char *p, long long stride, long long n)
    long long npu_truncate(double value, long long low, long long high)
    long long INT64_MIN
    long long INT64_MAX

cdef extern from "accumulate.h" nogil:
    void npu_reduce_f64(int fn, unsigned char *acc, long long stride, const double *x, long long n)
    void npu_reduce_i64(int fn, unsigned char *acc, long long stride, const long long *x, long long n)
    void npu_reduce_start(int fn, int floating, unsigned char *acc, long long stride, long long n)
    double npu_acc_f64(const unsigned char *p)
    long long npu_acc_i64(const unsigned char *p)

cdef enum:
    REDUCE_MEAN = 1
    REDUCE_L2 = 6
    REDUCE_ANY = 8
    REDUCE_ALL = 9


cdef struct Fold:
    int fn, dtype
    bint floating
    long long count


cdef void _start_row(unsigned char **p, const long long *s, long long n, const void *context) noexcept nogil:
    cdef const Fold *f = <const Fold *>context
    npu_reduce_start(f.fn, f.floating, p[0], s[0], n)


cdef void _fold_row(unsigned char **p, const long long *s, long long n, const void *context) noexcept nogil:
    cdef const Fold *f = <const Fold *>context
    cdef double[NPU_BLOCK] x
    cdef long long *w = <long long *>x
    cdef long long i, m
    for i from 0 <= i < n by NPU_BLOCK:
        m = min(n - i, <long long>NPU_BLOCK)
        if f.floating:
            npu_loads_f64[f.dtype](x, p[1] + i * s[1], s[1], m)
            npu_reduce_f64(f.fn, p[0] + i * s[0], s[0], x, m)
        else:
            npu_loads_i64[f.dtype](w, p[1] + i * s[1], s[1], m)
            npu_reduce_i64(f.fn, p[0] + i * s[0], s[0], w, m)


cdef int _check(int fn, int dtype) except -1:
    item_size(dtype)
    if not 0 <= fn <= REDUCE_ALL:
        raise ValueError(f"reduction must be 0..9, got {fn}")
    if dtype == NPU_BOOL and fn < REDUCE_ANY and fn not in (2, 3):
        raise ValueError(f"reduction {fn} is not defined for {type_name(dtype)}")
    return 0


def reduce(int fn, int dtype, Strided acc not None, Strided src not None, dims, bint first):
    """Fold src into 8-byte accumulators (float64 for floats, int64 for integers and bool) in row-major order.

    fn: the codes of ``isa.functions.Reduce``. The strides of acc are 0 on reduced dimensions. ``first``: set the
    accumulators to the neutral element of the function before.
    """
    cdef Walk w, start
    cdef Fold f
    cdef int k
    _check(fn, dtype)
    f.fn, f.dtype, f.floating = fn, dtype, is_float(dtype)
    begin(&w, dims)
    join(&w, acc, 8, "acc", True)
    join(&w, src, item_size(dtype), "src")
    if is_empty(w.n, 4):
        return
    # Each accumulator is initialised once, even if many elements are folded into it.
    start = w
    start.count = 1
    for k in range(4):
        if start.of[0].s[k] == 0:
            start.n[k] = 1
    with nogil:
        if first:
            each_row(&start, _start_row, &f)
        each_row(&w, _fold_row, &f)
    settle()


cdef void _finish_row(unsigned char **p, const long long *s, long long n, const void *context) noexcept nogil:
    cdef const Fold *f = <const Fold *>context
    cdef double x
    cdef float y
    cdef long long i, v
    for i in range(n):
        if f.floating:
            x = npu_acc_f64(p[1] + i * s[1])
            if f.fn == REDUCE_MEAN:
                x = x / f.count
            elif f.fn == REDUCE_L2:
                x = sqrt(x)
            # Every float type is converted via float32, as in the reference. Another number of roundings could change
            # the last bit.
            y = <float>x
            npu_stores_f32[f.dtype](p[0] + i * s[0], 0, &y, 1)
        else:
            v = npu_acc_i64(p[1] + i * s[1])
            if f.fn == REDUCE_MEAN:
                # Towards zero, because these modules are compiled with cdivision. Python would floor.
                v = v // f.count
            elif f.fn == REDUCE_L2:
                v = npu_truncate(sqrt(<double>v), INT64_MIN, INT64_MAX)
            npu_stores_i64[f.dtype](p[0] + i * s[0], 0, &v, 1)


def reduce_finish(int fn, int dtype, Strided dst not None, Strided acc not None, dims, long long count):
    """Convert accumulators to ``dtype``. MEAN divides by ``count`` (integers towards zero), L2 takes the root. Floats
    are rounded to float32 and then to the type. Integers wrap."""
    cdef Walk w
    cdef Fold f
    _check(fn, dtype)
    if fn == REDUCE_MEAN and count < 1:
        raise ValueError(f"reduce_finish: count must be >= 1, got {count}")
    f.fn, f.dtype, f.floating, f.count = fn, dtype, is_float(dtype), count
    begin(&w, dims)
    join(&w, dst, item_size(dtype), "dst", True)
    join(&w, acc, 8, "acc")
    with nogil:
        each_row(&w, _finish_row, &f)
    settle()
