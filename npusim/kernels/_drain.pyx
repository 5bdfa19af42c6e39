"""Kernels on accumulators: depthwise convolution into them, and their conversion to results."""

from libc.math cimport INFINITY, ceil, floor, rint
from libc.string cimport memcpy

from npusim.kernels._operand cimport (
    NPU_BLOCK, NPU_FLOAT32, NPU_INT8, NPU_INT16, NPU_INT32, NPU_INT64, NPU_UINT8, NPU_UINT16, Operand, Strided,
    Window, dense, interrupted, is_empty, is_float, item_size, operand, reach, settle, take, take_window, type_name,
    weight_zero,
)
from npusim.kernels._simd cimport level

cdef extern from "drain.h" nogil:
    ctypedef void (*npu_load_f32)(float *out, const unsigned char *p, long long stride, long long n) noexcept nogil
    ctypedef void (*npu_load_i32)(int *out, const unsigned char *p, long long stride, long long n) noexcept nogil
    ctypedef void (*npu_store_f32)(unsigned char *p, long long stride, const float *values, long long n) noexcept nogil
    ctypedef struct npu_rows:
        void (*muladd_f32)(float *acc, const float *x, const float *w, long long n) noexcept nogil
        void (*muladd_i32)(int *acc, const int *x, const int *w, int zero, long long n) noexcept nogil
        void (*value_f32)(float *v, const unsigned char *acc, const unsigned char *bias, long long n) noexcept nogil
        void (*muladd_i64)(long long *acc, const int *x, const int *w, int zero, long long n) noexcept nogil
        void (*mulpixel_i64)(long long *acc, int x, const int *w, long long n) noexcept nogil
        void (*value_i32)(float *v, const unsigned char *acc, const unsigned char *bias, long long n) noexcept nogil
        void (*value_i64)(float *v, const unsigned char *acc, const unsigned char *bias, long long n) noexcept nogil
        void (*scale)(float *v, const unsigned char *scale, long long stride, long long n) noexcept nogil
        void (*shift)(float *v, const unsigned char *shift, long long n) noexcept nogil
        void (*divide)(float *v, float scale, long long n) noexcept nogil
        void (*clamp)(float *v, float low, float high, long long n) noexcept nogil
        void (*round)(int *y, const float *v, int zero, int low, int high, long long n) noexcept nogil
        void (*narrow_8)(unsigned char *y, const int *v, long long n) noexcept nogil
        void (*narrow_16)(unsigned char *y, const int *v, long long n) noexcept nogil
    const npu_load_f32[13] npu_loads_f32
    const npu_load_i32[13] npu_loads_i32
    const npu_store_f32[13] npu_stores_f32
    const npu_rows *npu_rows_of(int level)
    unsigned char *npu_scratch(size_t size)
    void npu_scratch_free(unsigned char *scratch)
    long long npu_truncate(double value, long long low, long long high)
    long long npu_lowest(int dtype)
    long long npu_highest(int dtype)

cdef struct Depthwise:
    const unsigned char *x
    unsigned char *acc
    const unsigned char *w
    long long oh, ow, c, mult, x_size
    Window win
    long long[2] xs
    long long[2] cs
    int x_dtype, zero
    bint floating, first, wide
    const npu_rows *rows


cdef void _spread(int *x, const int *values, long long start, long long n, long long mult) noexcept nogil:
    """x[i] = values[(start + i) // mult - start // mult]. Both have units of 4 bytes."""
    cdef long long i, base = start // mult
    for i in range(n):
        x[i] = values[(start + i) // mult - base]


cdef void _depthwise_pixel(
    const Depthwise *t, const unsigned char *x, unsigned char *acc, long long start, long long n,
) noexcept nogil:
    """Output channels start .. start + n of one pixel, taps in order."""
    cdef int[NPU_BLOCK] total
    cdef int[NPU_BLOCK] wide
    cdef int[NPU_BLOCK] spread
    cdef int *taken = wide
    cdef const unsigned char *at
    cdef const unsigned char *w
    cdef long long r, q, i, c0 = start // t.mult, count = (start + n - 1) // t.mult - c0 + 1
    if t.first:
        for i in range(n):
            total[i] = 0
    else:
        memcpy(total, acc + start * 4, n * 4)
    # A block of channels keeps its sums on the stack for all taps, so each accumulator is read and written once.
    for r in range(t.win.kh):
        for q in range(t.win.kw):
            at = x + r * t.win.dh * t.xs[0] + q * t.win.dw * t.xs[1] + c0 * t.x_size
            w = t.w + ((r * t.win.kw + q) * t.c * t.mult + start) * 4
            if t.floating:
                npu_loads_f32[t.x_dtype](<float *>wide, at, t.x_size, count)
            else:
                npu_loads_i32[t.x_dtype](wide, at, t.x_size, count)
            if t.mult > 1:
                _spread(spread, wide, start, n, t.mult)
                taken = spread
            if t.floating:
                t.rows.muladd_f32(<float *>total, <const float *>taken, <const float *>w, n)
            else:
                t.rows.muladd_i32(total, taken, <const int *>w, t.zero, n)
    memcpy(acc + start * 4, total, n * 4)


cdef void _wide_pixel(
    const Depthwise *t, const unsigned char *x, unsigned char *acc, long long start, long long n,
) noexcept nogil:
    """As ``_depthwise_pixel``, with 64-bit sums."""
    cdef long long[NPU_BLOCK] total
    cdef int[NPU_BLOCK] wide
    cdef int[NPU_BLOCK] spread
    cdef int *taken = wide
    cdef long long r, q, i, c0 = start // t.mult, count = (start + n - 1) // t.mult - c0 + 1
    if t.first:
        for i in range(n):
            total[i] = 0
    else:
        memcpy(total, acc + start * 8, n * 8)
    for r in range(t.win.kh):
        for q in range(t.win.kw):
            npu_loads_i32[t.x_dtype](
                wide, x + r * t.win.dh * t.xs[0] + q * t.win.dw * t.xs[1] + c0 * t.x_size, t.x_size, count
            )
            if t.mult > 1:
                _spread(spread, wide, start, n, t.mult)
                taken = spread
            t.rows.muladd_i64(
                total, taken, <const int *>(t.w + ((r * t.win.kw + q) * t.c * t.mult + start) * 4), t.zero, n
            )
    memcpy(acc + start * 8, total, n * 8)


cdef void _depthwise(const Depthwise *t) noexcept nogil:
    cdef long long i, j, start, done = 0, channels = t.c * t.mult, taps = t.win.kh * t.win.kw
    for i in range(t.oh):
        for j in range(t.ow):
            for start from 0 <= start < channels by NPU_BLOCK:
                if interrupted(&done, taps * min(channels - start, <long long>NPU_BLOCK)):
                    return
                (_wide_pixel if t.wide else _depthwise_pixel)(
                    t, t.x + i * t.win.sh * t.xs[0] + j * t.win.sw * t.xs[1], t.acc + i * t.cs[0] + j * t.cs[1], start,
                    min(channels - start, <long long>NPU_BLOCK),
                )


cdef void _centre(int *w, int zero, long long n) noexcept nogil:
    """Subtract the zero point from widened weights."""
    cdef long long i
    if zero:
        for i in range(n):
            w[i] -= zero


cdef int _check_pair(int x_dtype, int w_dtype, bint wide) except -1:
    cdef bint small = (
        x_dtype in (NPU_INT8, NPU_UINT8, NPU_INT16, NPU_UINT16) and w_dtype in (NPU_INT8, NPU_UINT8, NPU_INT16)
    )
    item_size(x_dtype)
    item_size(w_dtype)
    if wide and not small:
        raise ValueError(f"kernels sum {type_name(x_dtype)} by {type_name(w_dtype)} in no int64")
    if not (small or (is_float(x_dtype) and is_float(w_dtype)) or (x_dtype == NPU_INT32 and w_dtype == NPU_INT32)):
        raise ValueError(f"kernels do not multiply {type_name(x_dtype)} by {type_name(w_dtype)}")
    return 0


cdef int _place(Depthwise *t, Strided x, Strided acc) except -1:
    """Check that every window and all accumulators are within their memories."""
    cdef Operand o
    cdef long long[3] n
    n[0], n[1] = reach(t.oh, t.win.kh, t.win.sh, t.win.dh), reach(t.ow, t.win.kw, t.win.sw, t.win.dw)
    n[2] = t.c
    dense(&o, x, n, 3, t.x_size, "x")
    t.x, t.xs[0], t.xs[1] = o.p, o.s[0], o.s[1]
    n[0], n[1], n[2] = t.oh, t.ow, t.c * t.mult
    dense(&o, acc, n, 3, 8 if t.wide else 4, "acc", True)
    t.acc, t.cs[0], t.cs[1] = o.p, o.s[0], o.s[1]
    return 0


def depthwise(
    int x_dtype, int w_dtype, Strided x not None, Strided w not None, Strided acc not None, dims, window,
    long long x_zero, bint first, long long w_zero=0, bint wide=False,
):
    """Add a depthwise convolution tile to accumulators, or set them if ``first``.

    dims: (oh, ow, c, mult); window: (kh, kw, sh, sw, dh, dw). Output channel o = ci * mult + m is input channel ci by
    filter o. w is dense [kh][kw][c * mult]. Strides are (row, pixel) in bytes. Taps are summed in the order of w.
    Accumulator types, zero points and arithmetic are those of ``conv``.
    """
    cdef Depthwise t
    cdef Operand weights
    cdef long long[4] n
    cdef long long count
    cdef unsigned char *panel
    cdef int zero
    _check_pair(x_dtype, w_dtype, wide)
    zero = weight_zero(w_dtype, w_zero)
    take(n, dims, 4)
    take_window(&t.win, window, "depthwise")
    t.oh, t.ow, t.c, t.mult = n[0], n[1], n[2], n[3]
    if t.mult < 1:
        raise ValueError(f"depthwise: mult must be >= 1, got {t.mult}")
    t.x_dtype, t.x_size, t.zero, t.first, t.floating = x_dtype, item_size(x_dtype), x_zero, first, is_float(x_dtype)
    t.wide = wide
    _place(&t, x, acc)
    count = t.win.kh * t.win.kw * t.c * t.mult
    dense(&weights, w, &count, 1, item_size(w_dtype), "w")
    if is_empty(n, 3):
        return
    t.rows = npu_rows_of(level())
    with nogil:
        # Weights are widened once, because every pixel reads them. Pixels are widened as they are read.
        panel = npu_scratch(count * 4)
        if panel != NULL:
            if t.floating:
                npu_loads_f32[w_dtype](<float *>panel, weights.p, weights.s[0], count)
            else:
                npu_loads_i32[w_dtype](<int *>panel, weights.p, weights.s[0], count)
                _centre(<int *>panel, zero, count)
            t.w = panel
            _depthwise(&t)
            npu_scratch_free(panel)
    settle()
    if panel == NULL:
        raise MemoryError(f"depthwise: no memory for {count} weights")


cdef struct Wide:
    const unsigned char *x
    unsigned char *acc
    const int *w
    long long oh, ow, oc, ic, block, x_size
    Window win
    long long[3] xs
    long long[3] cs
    int x_dtype, zero
    bint first
    const npu_rows *rows


cdef void _wide_columns(
    const Wide *t, const unsigned char *x, unsigned char *acc, long long start, long long n,
) noexcept nogil:
    """Output channels start .. start + n of one pixel, in the order of the weights: blocks of channels, taps,
    channels."""
    cdef long long[NPU_BLOCK] total
    cdef int[NPU_BLOCK] pixel
    cdef long long c, r, q, at, i, m, k = 0
    if t.first:
        for i in range(n):
            total[i] = 0
    else:
        memcpy(total, acc + start * 8, n * 8)
    for c from 0 <= c < t.ic by t.block:
        for r in range(t.win.kh):
            for q in range(t.win.kw):
                for at from c <= at < min(c + t.block, t.ic) by NPU_BLOCK:
                    m = min(min(c + t.block, t.ic) - at, <long long>NPU_BLOCK)
                    npu_loads_i32[t.x_dtype](
                        pixel, x + r * t.win.dh * t.xs[1] + q * t.win.dw * t.xs[2] + at * t.x_size, t.x_size, m
                    )
                    for i in range(m):
                        t.rows.mulpixel_i64(total, pixel[i] - t.zero, t.w + (k + i) * t.oc + start, n)
                    k += m
    memcpy(acc + start * 8, total, n * 8)


cdef bint _wide_image(const Wide *t, long long *done) noexcept nogil:
    """All pixels of one item. False if a signal interrupted the loop."""
    cdef long long i, j, start, n, taps = t.ic * t.win.kh * t.win.kw
    for i in range(t.oh):
        for j in range(t.ow):
            for start from 0 <= start < t.oc by NPU_BLOCK:
                n = min(t.oc - start, <long long>NPU_BLOCK)
                if interrupted(done, taps * n // 4):
                    return False
                _wide_columns(
                    t, t.x + i * t.win.sh * t.xs[1] + j * t.win.sw * t.xs[2], t.acc + i * t.cs[1] + j * t.cs[2],
                    start, n,
                )
    return True


def conv_wide(
    int x_dtype, int w_dtype, Strided x not None, Strided w not None, Strided acc not None, dims, window,
    long long block, long long x_zero, bint first, long long w_zero=0,
):
    """The function of ``conv`` with int64 accumulators, for integers of 8 and 16 bits, including uint16 pixels."""
    cdef Wide t
    cdef Operand weights, o
    cdef long long[5] n
    cdef long long[4] m
    cdef long long b, count, done = 0
    cdef int *panel
    cdef int zero = weight_zero(w_dtype, w_zero)
    _check_pair(x_dtype, w_dtype, True)
    take(n, dims, 5)
    take_window(&t.win, window, "conv_wide")
    t.oh, t.ow, t.oc, t.ic, t.block = n[1], n[2], n[3], n[4], block
    if t.ic < 1 or block < 1:
        raise ValueError(f"conv_wide: ic and block must be >= 1, got {t.ic} and {block}")
    t.x_dtype, t.x_size, t.zero, t.first = x_dtype, item_size(x_dtype), x_zero, first
    m[0], m[1], m[2] = n[0], reach(t.oh, t.win.kh, t.win.sh, t.win.dh), reach(t.ow, t.win.kw, t.win.sw, t.win.dw)
    m[3] = t.ic
    dense(&o, x, m, 4, t.x_size, "x")
    t.x, t.xs[0], t.xs[1], t.xs[2] = o.p, o.s[0], o.s[1], o.s[2]
    m[1], m[2], m[3] = t.oh, t.ow, t.oc
    dense(&o, acc, m, 4, 8, "acc", True)
    t.acc, t.cs[0], t.cs[1], t.cs[2] = o.p, o.s[0], o.s[1], o.s[2]
    count = t.ic * t.win.kh * t.win.kw * t.oc
    m[1] = count
    dense(&weights, w, m, 2, item_size(w_dtype), "w")
    if is_empty(n, 4):
        return
    t.rows = npu_rows_of(level())
    with nogil:
        panel = <int *>npu_scratch(count * 4)
        if panel != NULL:
            t.w = panel
            for b in range(n[0]):
                if b == 0 or weights.s[0]:
                    npu_loads_i32[w_dtype](panel, weights.p + b * weights.s[0], weights.s[1], count)
                    _centre(panel, zero, count)
                if not _wide_image(&t, &done):
                    break
                t.x, t.acc = t.x + t.xs[0], t.acc + t.cs[0]
            npu_scratch_free(<unsigned char *>panel)
    settle()
    if panel == NULL:
        raise MemoryError(f"conv_wide: no memory for {count} weights")


cdef struct Finish:
    const npu_rows *rows
    npu_store_f32 store
    const unsigned char *bias
    const unsigned char *scale
    const unsigned char *shift
    long long scale_stride, low, high, out_size, acc_size
    int zero
    float float_low, float_high, out_scale
    bint float_acc, float_out


cdef void _finish_int32(
    const Finish *f, unsigned char *dst, const unsigned char *acc, long long start, long long n,
) noexcept nogil:
    """To int32: exact if there is no scale, otherwise rounded and saturated."""
    cdef float[NPU_BLOCK] v
    cdef long long i, value
    cdef int a, b = 0, y
    cdef long long wide
    # A float32 has 24 bits of precision, so unscaled values stay integers.
    cdef bint scaled = f.float_acc or f.scale != NULL or f.shift != NULL or f.out_scale != 1
    if scaled:
        _values(f, v, acc, start, n)
    for i in range(n):
        if scaled:
            # The bounds exceed int32, so that the zero point is added before the value is clamped to the type.
            value = npu_truncate(rint(v[i]), -(<long long>1 << 40), <long long>1 << 40) + f.zero
        else:
            if f.acc_size == 8:
                memcpy(&wide, acc + 8 * i, 8)
                a = <int><unsigned int>wide
            else:
                memcpy(&a, acc + 4 * i, 4)
            if f.bias != NULL:
                memcpy(&b, f.bias + 4 * (start + i), 4)
            value = <long long><int>(<unsigned int>a + <unsigned int>b) + f.zero
        y = <int>min(max(value, f.low), f.high)
        memcpy(dst + 4 * i, &y, 4)


cdef void _finish_int64(
    const Finish *f, unsigned char *dst, const unsigned char *acc, long long start, long long n,
) noexcept nogil:
    """Sums plus bias, unchanged."""
    cdef long long i, a
    cdef int b = 0
    for i in range(n):
        memcpy(&a, acc + 8 * i, 8)
        if f.bias != NULL:
            memcpy(&b, f.bias + 4 * (start + i), 4)
        a = <long long>(<unsigned long long>a + <unsigned long long><long long>b)
        memcpy(dst + 8 * i, &a, 8)


cdef inline void _values(
    const Finish *f, float *v, const unsigned char *acc, long long start, long long n,
) noexcept nogil:
    """(acc + bias) * scale + shift in float32; for integer results also / out_scale."""
    cdef const unsigned char *bias = NULL
    if f.bias != NULL:
        bias = f.bias + 4 * start
    if f.float_acc:
        f.rows.value_f32(v, acc, bias, n)
    elif f.acc_size == 8:
        f.rows.value_i64(v, acc, bias, n)
    else:
        f.rows.value_i32(v, acc, bias, n)
    if f.scale != NULL:
        f.rows.scale(v, f.scale + f.scale_stride * start, f.scale_stride, n)
    if f.shift != NULL:
        f.rows.shift(v, f.shift + 4 * start, n)
    if f.out_scale != 1 and not f.float_out:
        f.rows.divide(v, f.out_scale, n)


cdef void _finish_row(const Finish *f, unsigned char *dst, const unsigned char *acc, long long n) noexcept nogil:
    cdef float[NPU_BLOCK] v
    cdef int[NPU_BLOCK] y
    cdef long long i, m
    cdef unsigned char *out
    for i from 0 <= i < n by NPU_BLOCK:
        m = min(n - i, <long long>NPU_BLOCK)
        out = dst + i * f.out_size
        if f.out_size == 8:
            _finish_int64(f, out, acc + 8 * i, i, m)
            continue
        if f.out_size == 4 and not f.float_out:
            _finish_int32(f, out, acc + f.acc_size * i, i, m)
            continue
        _values(f, v, acc + f.acc_size * i, i, m)
        if f.float_out:
            f.rows.clamp(v, f.float_low, f.float_high, m)
            f.store(out, f.out_size, v, m)
            continue
        f.rows.round(y, v, f.zero, <int>f.low, <int>f.high, m)
        if f.out_size == 1:
            f.rows.narrow_8(out, y, m)
        else:
            f.rows.narrow_16(out, y, m)


cdef int _plan_finish(Finish *f, int acc_dtype, int out_dtype, long long out_zero, double lo, double hi) except -1:
    """Check the types and set all fields that do not depend on memory."""
    f.out_size = item_size(out_dtype)
    if acc_dtype not in (NPU_FLOAT32, NPU_INT32, NPU_INT64):
        raise ValueError(f"finish: accumulators must be float32, int32 or int64, got {type_name(acc_dtype)}")
    plain = lo == -INFINITY and hi == INFINITY and out_zero == 0
    if out_dtype == NPU_INT64 and (acc_dtype != NPU_INT64 or not plain):
        raise ValueError(f"finish: only int64 sums that nothing changes leave as int64, got {type_name(acc_dtype)}")
    if not is_float(out_dtype) and out_dtype not in (
        NPU_INT8, NPU_UINT8, NPU_INT16, NPU_UINT16, NPU_INT32, NPU_INT64,
    ):
        raise ValueError(
            f"finish: result must be float, int8, uint8, int16, uint16 or int32, got {type_name(out_dtype)}"
        )
    f.acc_size = item_size(acc_dtype)
    if not -(1 << 16) <= out_zero <= 1 << 16:
        raise ValueError(f"finish: out_zero must be within 16 bits, got {out_zero}")
    f.float_acc, f.float_out = acc_dtype == NPU_FLOAT32, is_float(out_dtype)
    f.zero, f.float_low, f.float_high = out_zero, lo, hi
    f.low, f.high = npu_lowest(out_dtype), npu_highest(out_dtype)
    if not f.float_out:
        f.low = max(f.low, npu_truncate(ceil(lo), f.low, f.high))
        f.high = max(f.low, npu_truncate(floor(hi), f.low, f.high))
    f.store = npu_stores_f32[out_dtype]
    f.rows = npu_rows_of(level())
    return 0


def finish(
    int acc_dtype, int out_dtype, Strided dst not None, Strided acc not None, dims, Strided bias, Strided scale,
    long long out_zero, double lo, double hi, float out_scale=1.0, Strided shift=None,
):
    """dst = (acc + bias) * scale + shift. For integer results also / out_scale, rint, + out_zero. Clamped to [lo, hi]
    and the type.

    dims: (batch, oh, ow, oc). Strides of dst and acc are (batch, row, pixel) in bytes; channels are contiguous. bias:
    the accumulators' type, or int32 for int64; contiguous channels at stride (batch). scale: float32 at strides (batch,
    channel). shift: float32, laid out as bias. Each may be None. int32 + bias wraps. Integers to int32 without scales
    are exact: the low 32 bits of an int64. NaN stays NaN in floats and becomes 0 in integers.
    """
    cdef Finish f
    cdef Operand a, d, b, s, h
    cdef long long[4] n
    cdef long long[2] m
    cdef long long i0, i1, i2, done = 0
    if not out_scale > 0:
        raise ValueError(f"finish: out_scale must be above 0, got {out_scale}")
    _plan_finish(&f, acc_dtype, out_dtype, out_zero, lo, hi)
    f.out_scale = out_scale
    take(n, dims, 4)
    m[0], m[1] = n[0], n[3]
    b.p, b.s[0], s.p, s.s[0], s.s[1], h.p, h.s[0] = NULL, 0, NULL, 0, 0, NULL, 0
    dense(&a, acc, n, 4, f.acc_size, "acc")
    dense(&d, dst, n, 4, f.out_size, "dst", True)
    if bias is not None:
        dense(&b, bias, m, 2, 4, "bias")
    if scale is not None:
        operand(&s, scale, m, 2, 4, "scale")
    if shift is not None:
        dense(&h, shift, m, 2, 4, "shift")
    f.bias, f.scale, f.shift, f.scale_stride = b.p, s.p, h.p, s.s[1]
    if f.out_size == 8 and (s.p != NULL or h.p != NULL or out_scale != 1):
        raise ValueError("finish: int64 sums leave without a scale and a shift")
    if is_empty(n, 4):
        return
    with nogil:
        for i0 in range(n[0]):
            for i1 in range(n[1]):
                for i2 in range(n[2]):
                    if interrupted(&done, n[3]):
                        break
                    _finish_row(
                        &f, d.p + i0 * d.s[0] + i1 * d.s[1] + i2 * d.s[2],
                        a.p + i0 * a.s[0] + i1 * a.s[1] + i2 * a.s[2], n[3],
                    )
            if f.bias != NULL:
                f.bias += b.s[0]
            if f.scale != NULL:
                f.scale += s.s[0]
            if f.shift != NULL:
                f.shift += h.s[0]
    settle()
