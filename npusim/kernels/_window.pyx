"""Kernels that combine neighbouring pixels: pooling and resampling."""

from libc.math cimport rintf
from libc.string cimport memcpy

from npusim.kernels._operand cimport (
    NPU_BLOCK, NPU_BOOL, Operand, Strided, Window, dense, interrupted, is_empty, is_float, item_size, operand, settle,
    take, take_window, type_name,
)

cdef extern from "convert.h" nogil:
    ctypedef void (*npu_load_f32)(float *out, const unsigned char *p, long long stride, long long n) noexcept
    ctypedef void (*npu_load_i64)(long long *out, const unsigned char *p, long long stride, long long n) noexcept
    ctypedef void (*npu_store_f32)(unsigned char *p, long long stride, const float *values, long long n) noexcept
    ctypedef void (*npu_store_i64)(unsigned char *p, long long stride, const long long *values, long long n) noexcept
    const npu_load_f32[13] npu_loads_f32
    const npu_load_i64[13] npu_loads_i64
    const npu_store_f32[13] npu_stores_f32
    const npu_store_i64[13] npu_stores_i64
    long long npu_truncate(double value, long long low, long long high)
    long long npu_lowest(int dtype)
    long long npu_highest(int dtype)

cdef extern from "move.h" nogil:
    void npu_copy_row(unsigned char *d, long long ds, const unsigned char *a, long long s, long long n, int size)

cdef extern from "window.h" nogil:
    void npu_max_f32(float *total, const float *x, long long n)
    void npu_max_i64(long long *total, const long long *x, long long n)
    void npu_sum_f32(float *total, const float *x, long long n)
    void npu_sum_i64(long long *total, const long long *x, long long n)
    void npu_sum_squares(float *total, const float *x, long long n)
    void npu_weighted(float *total, const float *x, float weight, long long n)
    void npu_divide(float *total, float count, long long n)
    void npu_root(float *total, long long n)

cdef extern from "base.h" nogil:
    float INFINITY

cdef enum:
    POOL_MAX = 0
    POOL_AVERAGE = 1
    POOL_L2 = 2


cdef struct Pool:
    int fn, dtype
    bint include_pad
    Operand dst, src
    Window win
    long long ih, iw, c, oh, ow, pt, pl, pb, pr
    npu_load_f32 load_f32
    npu_load_i64 load_i64
    npu_store_f32 store_f32
    npu_store_i64 store_i64


cdef inline long long _below(long long start, long long step, long long taps, long long limit) noexcept nogil:
    """The number of positions start, start + step, ... (``taps`` of them) below ``limit``."""
    return 0 if start >= limit else min(taps, (limit - start + step - 1) // step)


cdef inline long long _reached(
    long long start, long long step, long long taps, long long low, long long high,
) noexcept nogil:
    """The number of taps within [low, high)."""
    return _below(start, step, taps, high) - _below(start, step, taps, low)


cdef inline const unsigned char *_pixel(const Pool *t, long long y, long long x, long long c) noexcept nogil:
    """The address of a valid pixel. A window may begin outside the source, where no address may be formed."""
    return t.src.p + y * t.src.s[0] + x * t.src.s[1] + c * t.src.s[2]


cdef void _pool_floats(
    const Pool *t, unsigned char *out, long long y, long long x, long long c, long long r0, long long r1, long long q0,
    long long q1, long long count, long long n,
) noexcept nogil:
    cdef float[NPU_BLOCK] total
    cdef float[NPU_BLOCK] taken
    cdef long long r, q, i
    # Channels are innermost because they are contiguous. The taps of each channel are summed in order.
    for i in range(n):
        total[i] = -INFINITY if t.fn == POOL_MAX else 0
    for r in range(r0, r1):
        for q in range(q0, q1):
            t.load_f32(taken, _pixel(t, y + r * t.win.dh, x + q * t.win.dw, c), t.src.s[2], n)
            if t.fn == POOL_MAX:
                npu_max_f32(total, taken, n)
            elif t.fn == POOL_AVERAGE:
                npu_sum_f32(total, taken, n)
            else:
                npu_sum_squares(total, taken, n)
    if t.fn == POOL_AVERAGE and count:
        npu_divide(total, <float>count, n)
    elif t.fn == POOL_L2:
        npu_root(total, n)
    t.store_f32(out, t.dst.s[2], total, n)


cdef void _pool_ints(
    const Pool *t, unsigned char *out, long long y, long long x, long long c, long long r0, long long r1, long long q0,
    long long q1, long long count, long long n,
) noexcept nogil:
    cdef long long[NPU_BLOCK] total
    cdef long long[NPU_BLOCK] taken
    cdef long long r, q, i, low = npu_lowest(t.dtype), high = npu_highest(t.dtype)
    for i in range(n):
        total[i] = low if t.fn == POOL_MAX else 0
    for r in range(r0, r1):
        for q in range(q0, q1):
            t.load_i64(taken, _pixel(t, y + r * t.win.dh, x + q * t.win.dw, c), t.src.s[2], n)
            if t.fn == POOL_MAX:
                npu_max_i64(total, taken, n)
            else:
                npu_sum_i64(total, taken, n)
    if t.fn == POOL_AVERAGE and count:
        for i in range(n):
            total[i] = npu_truncate(rintf(<float>total[i] / <float>count), low, high)
    t.store_i64(out, t.dst.s[2], total, n)


cdef void _pool_pixel(const Pool *t, long long i, long long j) noexcept nogil:
    cdef long long y = i * t.win.sh - t.pt, x = j * t.win.sw - t.pl, c, n, count
    cdef long long r0 = _below(y, t.win.dh, t.win.kh, 0), r1 = _below(y, t.win.dh, t.win.kh, t.ih)
    cdef long long q0 = _below(x, t.win.dw, t.win.kw, 0), q1 = _below(x, t.win.dw, t.win.kw, t.iw)
    cdef unsigned char *out = t.dst.p + i * t.dst.s[0] + j * t.dst.s[1]
    count = (r1 - r0) * (q1 - q0)
    if t.include_pad:
        count = _reached(y, t.win.dh, t.win.kh, -t.pt, t.ih + t.pb)
        count *= _reached(x, t.win.dw, t.win.kw, -t.pl, t.iw + t.pr)
    for c from 0 <= c < t.c by NPU_BLOCK:
        n = min(t.c - c, <long long>NPU_BLOCK)
        if is_float(t.dtype):
            _pool_floats(t, out + c * t.dst.s[2], y, x, c, r0, r1, q0, q1, count, n)
        else:
            _pool_ints(t, out + c * t.dst.s[2], y, x, c, r0, r1, q0, q1, count, n)


def pool(
    int fn, int dtype, Strided dst not None, Strided src not None, dims, extent, window, pads, bint count_include_pad,
):
    """Pool the valid pixels of src. fn: 0 maximum, 1 average, 2 root of the sum of squares.

    dims: (oh, ow, c) of dst. extent: (ih, iw) of src. Strides are (row, column, channel) in bytes. window: (kh, kw, sh,
    sw, dh, dw). pads: (top, left, bottom, right) pixels of padding around src. Padding is never part of a maximum; an
    average counts it as zeros if ``count_include_pad``. Integer averages are rounded to nearest even. A window with
    only padding gives the lowest value of the type, or 0.
    """
    cdef Pool t
    cdef long long i, j, taps, done = 0
    cdef long long[3] n
    cdef long long[4] pad
    cdef long long[2] size
    cdef long long itemsize = item_size(dtype)
    if fn not in (POOL_MAX, POOL_AVERAGE, POOL_L2):
        raise ValueError(f"pool: function must be 0 (max), 1 (average) or 2 (l2), got {fn}")
    if dtype == NPU_BOOL or (fn == POOL_L2 and not is_float(dtype)):
        raise ValueError(f"pool: function {fn} is not defined for {type_name(dtype)}")
    t.fn, t.dtype, t.include_pad = fn, dtype, count_include_pad
    take(n, dims, 3)
    take(size, extent, 2)
    take(pad, pads, 4)
    take_window(&t.win, window, "pool")
    t.oh, t.ow, t.c, t.ih, t.iw = n[0], n[1], n[2], size[0], size[1]
    t.pt, t.pl, t.pb, t.pr = pad[0], pad[1], pad[2], pad[3]
    t.load_f32, t.load_i64 = npu_loads_f32[dtype], npu_loads_i64[dtype]
    t.store_f32, t.store_i64 = npu_stores_f32[dtype], npu_stores_i64[dtype]
    operand(&t.dst, dst, n, 3, itemsize, "dst", True)
    n[0], n[1] = t.ih, t.iw
    operand(&t.src, src, n, 3, itemsize, "src")
    if t.oh == 0 or t.ow == 0 or t.c == 0:
        return
    taps = min(t.win.kh, t.ih) * min(t.win.kw, t.iw)
    with nogil:
        for i in range(t.oh):
            for j in range(t.ow):
                if interrupted(&done, t.c * taps):
                    break
                _pool_pixel(&t, i, j)
    settle()


cdef struct Resample:
    int dtype
    Operand dst, src
    long long[3] n
    const unsigned char *index
    const unsigned char *weight
    long long taps, size, axis_size


cdef inline long long _index(const Resample *t, long long k) noexcept nogil:
    """Entry k of the table. It may be negative, and is at least ``axis_size`` if it is out of range."""
    cdef int index
    memcpy(&index, t.index + 4 * k, 4)
    return index


cdef long long _resample_row(
    const Resample *t, unsigned char *out, long long x, long long j, long long start, long long n,
) noexcept nogil:
    """Inner elements start .. start + n of result j, from data x bytes into src. Taps are summed in order, in float32.

    Returns -1, or the position of a bad index.
    """
    cdef float[NPU_BLOCK] total
    cdef float[NPU_BLOCK] taken
    cdef long long[NPU_BLOCK] whole
    cdef long long k, i, index
    cdef float weight
    for i in range(n):
        total[i] = 0
    for k in range(j * t.taps, (j + 1) * t.taps):
        index = _index(t, k)
        memcpy(&weight, t.weight + 4 * k, 4)
        if index >= t.axis_size:
            return k
        if index >= 0:
            npu_loads_f32[t.dtype](taken, t.src.p + x + index * t.src.s[1] + start * t.src.s[2], t.src.s[2], n)
            npu_weighted(total, taken, weight, n)
    if is_float(t.dtype):
        npu_stores_f32[t.dtype](out + start * t.dst.s[2], t.dst.s[2], total, n)
    else:
        for i in range(n):
            whole[i] = npu_truncate(rintf(total[i]), npu_lowest(t.dtype), npu_highest(t.dtype))
        npu_stores_i64[t.dtype](out + start * t.dst.s[2], t.dst.s[2], whole, n)
    return -1


cdef long long _resample(const Resample *t) noexcept nogil:
    """Returns -1, or the position of an index that is out of range when it is used."""
    cdef long long o, j, start, index, bad, x, done = 0
    cdef unsigned char *out
    cdef float weight
    for o in range(t.n[0]):
        x = o * t.src.s[0]  # an offset: an empty source has no address
        for j in range(t.n[1]):
            out = t.dst.p + o * t.dst.s[0] + j * t.dst.s[1]
            index = _index(t, j * t.taps)
            memcpy(&weight, t.weight + 4 * j * t.taps, 4)
            if t.taps == 1 and weight == 1 and 0 <= index < t.axis_size:
                if interrupted(&done, t.n[2]):
                    return -1
                npu_copy_row(out, t.dst.s[2], t.src.p + x + index * t.src.s[1], t.src.s[2], t.n[2], <int>t.size)
                continue
            for start from 0 <= start < t.n[2] by NPU_BLOCK:
                if interrupted(&done, t.taps * NPU_BLOCK):
                    return -1
                bad = _resample_row(t, out, x, j, start, min(t.n[2] - start, <long long>NPU_BLOCK))
                if bad >= 0:
                    return bad
    return -1


cdef long long _first_bad(const Resample *t) noexcept nogil:
    cdef long long k
    for k in range(t.n[1] * t.taps):
        if _index(t, k) >= t.axis_size:
            return k
    return -1


cdef int _place_tables(Resample *t, Strided index, Strided weight) except -1:
    cdef Operand o
    cdef long long count = t.n[1] * t.taps
    dense(&o, index, &count, 1, 4, "index")
    t.index = o.p
    dense(&o, weight, &count, 1, 4, "weight")
    t.weight = o.p
    return 0


cdef void _swap(long long *values) noexcept nogil:
    values[0], values[2] = values[2], values[0]


def resample(
    int dtype, Strided dst not None, Strided src not None, dims, long long axis_size, Strided index not None,
    Strided weight not None, long long taps,
):
    """dst[o, j, i] = sum over t of weight[j, t] * src[o, index[j, t], i] in float32, in order of t.

    dims: (outer, results, inner). index (int32) and weight (float32) are dense [results][taps]. A negative index
    contributes nothing. Integers are rounded to nearest even and saturated. One tap of weight 1 copies exactly. Returns
    -1, or the position in ``index`` of the first entry that is not below ``axis_size``. In that case nothing is
    written, unless dst overlaps the indices.
    """
    cdef Resample t
    cdef long long[3] m
    cdef long long bad
    t.dtype, t.taps, t.size, t.axis_size = dtype, taps, item_size(dtype), axis_size
    if taps < 1 or dtype == NPU_BOOL and taps > 1:
        raise ValueError(f"resample: taps must be >= 1, and 1 for bool, got {taps} for {type_name(dtype)}")
    take(t.n, dims, 3)
    m[0], m[1], m[2] = t.n[0], axis_size, t.n[2]
    operand(&t.dst, dst, t.n, 3, t.size, "dst", True)
    operand(&t.src, src, m, 3, t.size, "src")
    _place_tables(&t, index, weight)
    if is_empty(t.n, 3):
        return -1
    with nogil:
        bad = _first_bad(&t)
        if bad < 0:
            if t.n[2] < t.n[0]:  # the longer side forms the rows
                _swap(t.n)
                _swap(t.dst.s)
                _swap(t.src.s)
            bad = _resample(&t)
    settle()
    return bad
