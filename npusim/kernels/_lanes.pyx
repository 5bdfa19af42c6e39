"""Elementwise kernels: unary, binary and quantised arithmetic, casts."""

from libc.string cimport memcpy

from npusim.kernels._operand cimport (
    NPU_BLOCK, NPU_BOOL, NPU_FLOAT32, NPU_INT32, Strided, Walk, begin, each_row, is_float, item_size, join, settle,
    type_name,
)
from npusim.kernels._simd cimport level

cdef extern from "functions.h" nogil:
    ctypedef void (*npu_load_f32)(float *out, const unsigned char *p, long long stride, long long n) noexcept
    ctypedef void (*npu_load_i64)(long long *out, const unsigned char *p, long long stride, long long n) noexcept
    ctypedef void (*npu_store_f32)(unsigned char *p, long long stride, const float *values, long long n) noexcept
    ctypedef void (*npu_store_i64)(unsigned char *p, long long stride, const long long *values, long long n) noexcept
    ctypedef void (*npu_unary_f32)(float *y, const float *x, long long n, const double *p) noexcept
    ctypedef void (*npu_unary_i64)(long long *y, const long long *x, long long n, const double *p) noexcept
    ctypedef void (*npu_binary_f32)(float *y, const float *a, const float *b, long long n) noexcept
    ctypedef void (*npu_binary_i64)(long long *y, const long long *a, const long long *b, long long n) noexcept
    ctypedef void (*npu_requantize)(
        long long *y, const float *x, const float *scale, const long long *zero, long long n, long long low,
        long long high,
    ) noexcept
    ctypedef void (*npu_dequantize)(
        float *y, const long long *x, const float *scale, const long long *zero, long long n,
    ) noexcept
    const npu_load_f32[13] npu_loads_f32
    const npu_load_i64[13] npu_loads_i64
    const npu_store_f32[13] npu_stores_f32
    const npu_store_i64[13] npu_stores_i64
    const npu_unary_f32[47] npu_unaries_f32_portable, npu_unaries_f32_avx2
    const npu_unary_i64[47] npu_unaries_i64_portable, npu_unaries_i64_avx2
    const npu_binary_f32[25] npu_binaries_f32_portable, npu_binaries_f32_avx2
    const npu_binary_i64[25] npu_binaries_i64_portable, npu_binaries_i64_avx2
    void npu_requantize_portable(
        long long *y, const float *x, const float *scale, const long long *zero, long long n, long long low,
        long long high,
    )
    void npu_requantize_avx2(
        long long *y, const float *x, const float *scale, const long long *zero, long long n, long long low,
        long long high,
    )
    void npu_dequantize_portable(
        float *y, const long long *x, const float *scale, const long long *zero, long long n,
    )
    void npu_dequantize_avx2(float *y, const long long *x, const float *scale, const long long *zero, long long n)
    long long npu_truncate(double value, long long low, long long high)
    long long npu_lowest(int dtype)
    long long npu_highest(int dtype)

cdef extern from "drain.h" nogil:
    ctypedef void (*npu_load_i32)(int *out, const unsigned char *p, long long stride, long long n) noexcept
    ctypedef void (*npu_store_i32)(unsigned char *p, long long stride, const int *values, long long n) noexcept
    ctypedef struct npu_rows:
        void (*dequantize)(float *v, const int *x, int zero, float scale, long long n) noexcept nogil
        void (*divide)(float *v, float scale, long long n) noexcept nogil
        void (*round)(int *y, const float *v, int zero, int low, int high, long long n) noexcept nogil
    const npu_load_i32[13] npu_loads_i32
    const npu_store_i32[13] npu_stores_i32
    const npu_rows *npu_rows_of(int level)

cdef enum:
    UNARY_IDENTITY = 0
    UNARY_NOT = 41
    UNARY_ISNAN = 43
    UNARY_ISINF = 44
    BINARY_MIN = 5
    BINARY_MAX = 6
    BINARY_EQ = 9
    BINARY_GE = 14
    BINARY_AND = 15
    BINARY_XOR = 17
    BINARY_BIT_AND = 18
    BINARY_SHR = 22
    BINARY_PRELU = 23


cdef struct Lanes:
    bint direct  # all operands are float32: rows of unit stride need no scratch
    npu_load_f32 load_f32
    npu_load_i64 load_i64
    npu_store_f32 store_f32
    npu_store_i64 store_i64
    npu_unary_f32 unary_f32
    npu_unary_i64 unary_i64
    npu_binary_f32 binary_f32
    npu_binary_i64 binary_i64
    double[2] p


cdef int _load(Lanes *c, int dtype, int out_dtype) except -1:
    """Set the loads and stores of ``c``; ``out_dtype`` is ``dtype`` or bool."""
    c.load_f32, c.load_i64 = npu_loads_f32[dtype], npu_loads_i64[dtype]
    c.store_f32, c.store_i64 = npu_stores_f32[out_dtype], npu_stores_i64[out_dtype]
    c.direct = dtype == NPU_FLOAT32 and out_dtype == NPU_FLOAT32
    return 0


# The compiled functions take contiguous rows of float32. Operands stored in this way are used in place. All others are
# copied through blocks on the stack that fit the first-level cache. A result depends only on its own element, so
# neither blocks nor alignment change it.
cdef inline bint _aligned(const unsigned char *p) noexcept nogil:
    return (<size_t>p & 3) == 0


cdef void _unary_float_row(unsigned char **p, const long long *s, long long n, const void *context) noexcept nogil:
    cdef const Lanes *c = <const Lanes *>context
    cdef float[NPU_BLOCK] x
    cdef float[NPU_BLOCK] y
    cdef long long i, m
    if c.direct and s[0] == 4 and s[1] == 4 and _aligned(p[0]) and _aligned(p[1]):
        c.unary_f32(<float *>p[0], <const float *>p[1], n, c.p)
        return
    for i from 0 <= i < n by NPU_BLOCK:
        m = min(n - i, <long long>NPU_BLOCK)
        c.load_f32(x, p[1] + i * s[1], s[1], m)
        c.unary_f32(y, x, m, c.p)
        c.store_f32(p[0] + i * s[0], s[0], y, m)


cdef void _unary_int_row(unsigned char **p, const long long *s, long long n, const void *context) noexcept nogil:
    cdef const Lanes *c = <const Lanes *>context
    cdef long long[NPU_BLOCK] x
    cdef long long[NPU_BLOCK] y
    cdef long long i, m
    for i from 0 <= i < n by NPU_BLOCK:
        m = min(n - i, <long long>NPU_BLOCK)
        c.load_i64(x, p[1] + i * s[1], s[1], m)
        c.unary_i64(y, x, m, c.p)
        c.store_i64(p[0] + i * s[0], s[0], y, m)


def unary(int fn, int dtype, Strided dst not None, Strided src not None, dims, double p0=0, double p1=0):
    """dst = fn(src), with the codes of ``isa.functions.Unary``. ISNAN and ISINF write bool.

    ValueError for a type that the kernels or the function do not support.
    """
    cdef Walk w
    cdef Lanes c
    cdef long long size = item_size(dtype)
    cdef int out_dtype = NPU_BOOL if fn in (UNARY_ISNAN, UNARY_ISINF) else dtype
    if not 0 <= fn < 47:
        raise ValueError(f"unary function must be 0..46, got {fn}")
    _load(&c, dtype, out_dtype)
    c.unary_f32 = npu_unaries_f32_avx2[fn] if level() else npu_unaries_f32_portable[fn]
    c.unary_i64 = npu_unaries_i64_avx2[fn] if level() else npu_unaries_i64_portable[fn]
    c.p[0], c.p[1] = p0, p1
    if (
        (c.unary_f32 == NULL if is_float(dtype) else c.unary_i64 == NULL)
        or (dtype == NPU_BOOL and fn not in (UNARY_IDENTITY, UNARY_NOT)) or (fn == UNARY_NOT and dtype != NPU_BOOL)
    ):
        raise ValueError(f"unary function {fn} is not defined for {type_name(dtype)}")
    begin(&w, dims)
    join(&w, dst, item_size(out_dtype), "dst", True)
    join(&w, src, size, "src")
    with nogil:
        each_row(&w, _unary_float_row if is_float(dtype) else _unary_int_row, &c)
    settle()


cdef void _binary_float_row(unsigned char **p, const long long *s, long long n, const void *context) noexcept nogil:
    cdef const Lanes *c = <const Lanes *>context
    cdef float[NPU_BLOCK] a
    cdef float[NPU_BLOCK] b
    cdef float[NPU_BLOCK] y
    cdef const float *pa
    cdef const float *pb
    cdef bint da = c.direct and s[1] == 4 and _aligned(p[1])
    cdef bint db = c.direct and s[2] == 4 and _aligned(p[2])
    cdef bint dy = c.direct and s[0] == 4 and _aligned(p[0])
    cdef long long i, m
    for i from 0 <= i < n by NPU_BLOCK:
        m = min(n - i, <long long>NPU_BLOCK)
        pa = <const float *>(p[1] + i * 4) if da else a
        pb = <const float *>(p[2] + i * 4) if db else b
        if not da and (s[1] or i == 0):  # a broadcast element fills its block once
            c.load_f32(a, p[1] + i * s[1], s[1], m)
        if not db and (s[2] or i == 0):
            c.load_f32(b, p[2] + i * s[2], s[2], m)
        c.binary_f32(<float *>(p[0] + i * 4) if dy else y, pa, pb, m)
        if not dy:
            c.store_f32(p[0] + i * s[0], s[0], y, m)


cdef void _binary_int_row(unsigned char **p, const long long *s, long long n, const void *context) noexcept nogil:
    cdef const Lanes *c = <const Lanes *>context
    cdef long long[NPU_BLOCK] a
    cdef long long[NPU_BLOCK] b
    cdef long long[NPU_BLOCK] y
    cdef long long i, m
    for i from 0 <= i < n by NPU_BLOCK:
        m = min(n - i, <long long>NPU_BLOCK)
        c.load_i64(a, p[1] + i * s[1], s[1], m)
        c.load_i64(b, p[2] + i * s[2], s[2], m)
        c.binary_i64(y, a, b, m)
        c.store_i64(p[0] + i * s[0], s[0], y, m)


cdef int _check_binary(int fn, int dtype) except -1:
    cdef bint compares = BINARY_EQ <= fn <= BINARY_GE
    cdef bint logical = BINARY_AND <= fn <= BINARY_XOR
    cdef bint bitwise = BINARY_BIT_AND <= fn <= BINARY_SHR
    if not 0 <= fn < 25:
        raise ValueError(f"binary function must be 0..24, got {fn}")
    if dtype == NPU_BOOL:
        known = compares or logical or fn in (BINARY_MIN, BINARY_MAX)
    elif is_float(dtype):
        known = not (logical or bitwise)
    else:
        known = not logical
    if not known:
        raise ValueError(f"binary function {fn} is not defined for {type_name(dtype)}")
    return 0


def binary(int fn, int dtype, Strided dst not None, Strided a not None, Strided b not None, dims):
    """dst = fn(a, b), with the codes of ``isa.functions.Binary``. Comparisons write bool, other functions write
    ``dtype``.

    Integers wrap. Integer division truncates, and division by zero gives 0. ValueError for a type that is not
    supported.
    """
    cdef Walk w
    cdef Lanes c
    cdef long long size = item_size(dtype)
    cdef int out_dtype = NPU_BOOL if BINARY_EQ <= fn <= BINARY_GE else dtype
    _check_binary(fn, dtype)
    _load(&c, dtype, out_dtype)
    c.binary_f32 = npu_binaries_f32_avx2[fn] if level() else npu_binaries_f32_portable[fn]
    c.binary_i64 = npu_binaries_i64_avx2[fn] if level() else npu_binaries_i64_portable[fn]
    begin(&w, dims)
    join(&w, dst, item_size(out_dtype), "dst", True)
    join(&w, a, size, "a")
    join(&w, b, size, "b")
    with nogil:
        each_row(&w, _binary_float_row if is_float(dtype) else _binary_int_row, &c)
    settle()


cdef struct Casting:
    npu_load_f32 load_f32
    npu_load_i64 load_i64
    npu_store_f32 store_f32
    npu_store_i64 store_i64
    long long low
    long long high


cdef void _float_to_float_row(unsigned char **p, const long long *s, long long n, const void *context) noexcept nogil:
    cdef const Casting *c = <const Casting *>context
    cdef float[NPU_BLOCK] x
    cdef long long i, m
    for i from 0 <= i < n by NPU_BLOCK:
        m = min(n - i, <long long>NPU_BLOCK)
        c.load_f32(x, p[1] + i * s[1], s[1], m)
        c.store_f32(p[0] + i * s[0], s[0], x, m)


cdef void _int_to_int_row(unsigned char **p, const long long *s, long long n, const void *context) noexcept nogil:
    cdef const Casting *c = <const Casting *>context
    cdef long long[NPU_BLOCK] x
    cdef long long i, m
    for i from 0 <= i < n by NPU_BLOCK:
        m = min(n - i, <long long>NPU_BLOCK)
        c.load_i64(x, p[1] + i * s[1], s[1], m)
        c.store_i64(p[0] + i * s[0], s[0], x, m)


cdef void _float_to_int_row(unsigned char **p, const long long *s, long long n, const void *context) noexcept nogil:
    cdef const Casting *c = <const Casting *>context
    cdef float[NPU_BLOCK] x
    cdef long long[NPU_BLOCK] y
    cdef long long i, j, m
    for i from 0 <= i < n by NPU_BLOCK:
        m = min(n - i, <long long>NPU_BLOCK)
        c.load_f32(x, p[1] + i * s[1], s[1], m)
        for j in range(m):
            y[j] = npu_truncate(x[j], c.low, c.high)
        c.store_i64(p[0] + i * s[0], s[0], y, m)


def cast(int dst_dtype, Strided dst not None, int src_dtype, Strided src not None, dims):
    """dst = src, converted. To floats: rounded to nearest even, integers via float32. Float to integer: truncated and
    saturated, NaN as 0. Integer to integer: wrapped. To bool: != 0."""
    cdef Walk w
    cdef Casting c
    cdef long long dst_size = item_size(dst_dtype), src_size = item_size(src_dtype)
    cdef bint whole = not is_float(src_dtype) and not is_float(dst_dtype)
    cdef bint narrow = is_float(src_dtype) and not is_float(dst_dtype) and dst_dtype != NPU_BOOL
    c.load_f32, c.load_i64 = npu_loads_f32[src_dtype], npu_loads_i64[src_dtype]
    c.store_f32, c.store_i64 = npu_stores_f32[dst_dtype], npu_stores_i64[dst_dtype]
    c.low, c.high = npu_lowest(dst_dtype), npu_highest(dst_dtype)
    begin(&w, dims)
    join(&w, dst, dst_size, "dst", True)
    join(&w, src, src_size, "src")
    with nogil:
        each_row(&w, _int_to_int_row if whole else _float_to_int_row if narrow else _float_to_float_row, &c)
    settle()


cdef struct Scaling:
    npu_load_f32 load_f32
    npu_load_i64 load_i64
    npu_load_i64 load_zero
    npu_store_f32 store_f32
    npu_store_i64 store_i64
    npu_requantize requantize
    npu_dequantize dequantize
    npu_load_i32 load_i32
    npu_store_i32 store_i32
    const npu_rows *rows
    long long low
    long long high


cdef void _quantize_evenly(unsigned char **p, const long long *s, long long n, const Scaling *c) noexcept nogil:
    """Quantise a row with one scale and one zero point to 8 or 16 bits."""
    cdef float[NPU_BLOCK] x
    cdef int[NPU_BLOCK] y
    cdef float scale
    cdef int zero
    cdef long long i, m
    memcpy(&scale, p[2], 4)
    memcpy(&zero, p[3], 4)
    for i from 0 <= i < n by NPU_BLOCK:
        m = min(n - i, <long long>NPU_BLOCK)
        c.load_f32(x, p[1] + i * s[1], s[1], m)
        c.rows.divide(x, scale, m)
        # Zero points of these types have at most 16 bits, so the limit does not change saturated results.
        c.rows.round(y, x, max(-(1 << 28), min(zero, 1 << 28)), <int>c.low, <int>c.high, m)
        c.store_i32(p[0] + i * s[0], s[0], y, m)


cdef void _dequantize_evenly(unsigned char **p, const long long *s, long long n, const Scaling *c) noexcept nogil:
    """Dequantise a row of 8 or 16 bits with one scale and one zero point within 16 bits."""
    cdef int[NPU_BLOCK] x
    cdef float[NPU_BLOCK] y
    cdef float scale
    cdef int zero
    cdef long long i, m
    memcpy(&scale, p[2], 4)
    memcpy(&zero, p[3], 4)
    for i from 0 <= i < n by NPU_BLOCK:
        m = min(n - i, <long long>NPU_BLOCK)
        c.load_i32(x, p[1] + i * s[1], s[1], m)
        c.rows.dequantize(y, x, zero, scale, m)
        c.store_f32(p[0] + i * s[0], s[0], y, m)


cdef void _quantize_row(unsigned char **p, const long long *s, long long n, const void *context) noexcept nogil:
    cdef const Scaling *c = <const Scaling *>context
    cdef float[NPU_BLOCK] x
    cdef float[NPU_BLOCK] scale
    cdef long long[NPU_BLOCK] zero
    cdef long long[NPU_BLOCK] y
    cdef long long i, m
    if s[2] == 0 and s[3] == 0 and c.store_i32 != NULL:
        _quantize_evenly(p, s, n, c)
        return
    for i from 0 <= i < n by NPU_BLOCK:
        m = min(n - i, <long long>NPU_BLOCK)
        c.load_f32(x, p[1] + i * s[1], s[1], m)
        npu_loads_f32[NPU_FLOAT32](scale, p[2] + i * s[2], s[2], m)
        c.load_zero(zero, p[3] + i * s[3], s[3], m)
        c.requantize(y, x, scale, zero, m, c.low, c.high)
        c.store_i64(p[0] + i * s[0], s[0], y, m)


cdef void _dequantize_row(unsigned char **p, const long long *s, long long n, const void *context) noexcept nogil:
    cdef const Scaling *c = <const Scaling *>context
    cdef long long[NPU_BLOCK] x
    cdef long long[NPU_BLOCK] zero
    cdef float[NPU_BLOCK] scale
    cdef float[NPU_BLOCK] y
    cdef long long i, m
    cdef int one
    memcpy(&one, p[3], 4)
    if s[2] == 0 and s[3] == 0 and c.load_i32 != NULL and -(1 << 16) <= one <= 1 << 16:
        _dequantize_evenly(p, s, n, c)
        return
    for i from 0 <= i < n by NPU_BLOCK:
        m = min(n - i, <long long>NPU_BLOCK)
        c.load_i64(x, p[1] + i * s[1], s[1], m)
        npu_loads_f32[NPU_FLOAT32](scale, p[2] + i * s[2], s[2], m)
        c.load_zero(zero, p[3] + i * s[3], s[3], m)
        c.dequantize(y, x, scale, zero, m)
        c.store_f32(p[0] + i * s[0], s[0], y, m)


cdef int _scaling(Scaling *c, int dst_dtype, int src_dtype) except -1:
    c.load_f32, c.load_i64, c.load_zero = npu_loads_f32[src_dtype], npu_loads_i64[src_dtype], npu_loads_i64[NPU_INT32]
    c.store_f32, c.store_i64 = npu_stores_f32[dst_dtype], npu_stores_i64[dst_dtype]
    c.requantize = npu_requantize_avx2 if level() else npu_requantize_portable
    c.dequantize = npu_dequantize_avx2 if level() else npu_dequantize_portable
    c.load_i32 = npu_loads_i32[src_dtype] if src_dtype != NPU_INT32 else NULL
    c.store_i32, c.rows = npu_stores_i32[dst_dtype], npu_rows_of(level())
    c.low, c.high = npu_lowest(dst_dtype), npu_highest(dst_dtype)
    return 0


def quantize(
    int dst_dtype, Strided dst not None, int src_dtype, Strided src not None, Strided scale not None,
    Strided zero not None, dims,
):
    """dst = clamp(rint(src / scale) + zero), for a float or int32 source. scale is float32, zero int32. NaN counts as
    0."""
    cdef Walk w
    cdef Scaling c
    cdef long long dst_size = item_size(dst_dtype), src_size = item_size(src_dtype)
    if not (is_float(src_dtype) or src_dtype == NPU_INT32):
        raise ValueError(f"quantize: source must be a float type or int32, got {type_name(src_dtype)}")
    if is_float(dst_dtype) or dst_dtype == NPU_BOOL:
        raise ValueError(f"quantize: result must be an integer type, got {type_name(dst_dtype)}")
    _scaling(&c, dst_dtype, src_dtype)
    begin(&w, dims)
    join(&w, dst, dst_size, "dst", True)
    join(&w, src, src_size, "src")
    join(&w, scale, 4, "scale")
    join(&w, zero, 4, "zero")
    with nogil:
        each_row(&w, _quantize_row, &c)
    settle()


def dequantize(
    int dst_dtype, Strided dst not None, int src_dtype, Strided src not None, Strided scale not None,
    Strided zero not None, dims,
):
    """dst = float32(src - zero) * scale, for an integer source. scale is float32, zero int32."""
    cdef Walk w
    cdef Scaling c
    cdef long long dst_size = item_size(dst_dtype), src_size = item_size(src_dtype)
    if is_float(src_dtype) or src_dtype == NPU_BOOL:
        raise ValueError(f"dequantize: source must be an integer type, got {type_name(src_dtype)}")
    if not is_float(dst_dtype):
        raise ValueError(f"dequantize: result must be a float type, got {type_name(dst_dtype)}")
    _scaling(&c, dst_dtype, src_dtype)
    begin(&w, dims)
    join(&w, dst, dst_size, "dst", True)
    join(&w, src, src_size, "src")
    join(&w, scale, 4, "scale")
    join(&w, zero, 4, "zero")
    with nogil:
        each_row(&w, _dequantize_row, &c)
    settle()
