"""Kernels over one axis of a (outer, r, inner) view: softmax, normalisation, running sums, LRN, arg-reduce, top-k."""

from libc.math cimport log as ln
from libc.math cimport INFINITY, pow, sqrt
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcpy

from npusim.kernels._operand cimport (
    NPU_BOOL, Operand, Strided, interrupted, is_empty, is_float, item_size, operand, settle, take, type_name,
)
from npusim.kernels._simd cimport level

cdef extern from "convert.h" nogil:
    ctypedef void (*npu_load_f64)(double *out, const unsigned char *p, long long stride, long long n) noexcept
    ctypedef void (*npu_load_i64)(long long *out, const unsigned char *p, long long stride, long long n) noexcept
    ctypedef void (*npu_store_f32)(unsigned char *p, long long stride, const float *values, long long n) noexcept
    ctypedef void (*npu_store_i64)(unsigned char *p, long long stride, const long long *values, long long n) noexcept
    const npu_load_f64[13] npu_loads_f64
    const npu_load_i64[13] npu_loads_i64
    const npu_store_f32[13] npu_stores_f32
    const npu_store_i64[13] npu_stores_i64

cdef extern from "drain.h" nogil:
    ctypedef struct npu_rows:
        void (*exponential)(double *y, const double *x, double top, long long n) noexcept nogil
    const npu_rows *npu_rows_of(int level)


cdef struct Params:
    int mode
    double a, b, c
    long long size

ctypedef void (*column_function)(double *y, const double *x, long long n, const Params *p) noexcept nogil


cdef int _float_only(str what, int dtype) except -1:
    item_size(dtype)
    if not is_float(dtype):
        raise ValueError(f"{what}: type must be a float type, got {type_name(dtype)}")
    return 0


cdef bint _each_column(
    int dtype, const Operand *d, const Operand *s, const long long *n, column_function column, const Params *p,
) noexcept nogil:
    """Apply ``column`` to every column of r elements, converted to double and back. False if there is no memory."""
    cdef double *x = <double *>malloc(n[1] * 20)  # per element: two doubles and the resulting float
    cdef double *y = x + n[1]
    cdef float *narrow = <float *>(y + n[1])
    cdef long long o, i, k, done = 0
    if x == NULL:
        return False
    for o in range(n[0]):
        for i in range(n[2]):
            if interrupted(&done, n[1]):
                break
            npu_loads_f64[dtype](x, s.p + o * s.s[0] + i * s.s[2], s.s[1], n[1])
            column(y, x, n[1], p)
            for k in range(n[1]):
                narrow[k] = <float>y[k]
            npu_stores_f32[dtype](d.p + o * d.s[0] + i * d.s[2], d.s[1], narrow, n[1])
    free(x)
    return True


cdef int _run_columns(
    str what, int dtype, Strided dst, Strided src, dims, column_function column, const Params *p,
) except -1:
    cdef Operand d, s
    cdef long long[3] n
    cdef bint done
    _float_only(what, dtype)
    take(n, dims, 3)
    operand(&d, dst, n, 3, item_size(dtype), "dst", True)
    operand(&s, src, n, 3, item_size(dtype), "src")
    if is_empty(n, 3):
        return 0
    with nogil:
        done = _each_column(dtype, &d, &s, n, column, p)
    settle()
    if not done:
        raise MemoryError(f"{what}: no memory for a row of {n[1]}")
    return 0


cdef enum:
    # Elements of a row that share one maximum. This is part of the definition of a softmax sum: a row may be split
    # after each block, and one pass finds both the maximum and the sum.
    SOFTMAX_BLOCK = 128


cdef void _softmax_total(double *y, const double *x, long long n, double *top, double *total) noexcept nogil:
    """Add blocks of elements to the running maximum and the sum of exp(x - maximum). ``y``: scratch for n elements."""
    cdef long long low = 0, m, i
    cdef double largest, factor
    for low from 0 <= low < n by SOFTMAX_BLOCK:
        m = n - low if n - low < SOFTMAX_BLOCK else SOFTMAX_BLOCK
        largest = x[low]
        # A NaN becomes the maximum, so that it appears in every result.
        for i in range(low + 1, low + m):
            if x[i] > largest or x[i] != x[i]:
                largest = x[i]
        if largest > top[0] or largest != largest:
            # Rescale the previous sum to the new maximum. It is 0 if the old maximum was -inf.
            npu_rows_of(level()).exponential(&factor, top, largest, 1)
            total[0] = total[0] * factor if total[0] != 0 else 0
            top[0] = largest
        if top[0] == -INFINITY:
            continue
        npu_rows_of(level()).exponential(y + low, x + low, top[0], m)
        for i in range(low, low + m):
            total[0] += y[i]


cdef void _softmax_finish(
    double *y, const double *x, long long n, double top, double total, bint log, bint masked,
) noexcept nogil:
    cdef long long i
    if masked and top == -INFINITY:
        for i in range(n):
            y[i] = 0
    elif log:
        total = ln(total)
        for i in range(n):
            y[i] = x[i] - top - total
    else:
        npu_rows_of(level()).exponential(y, x, top, n)
        for i in range(n):
            y[i] = y[i] / total


cdef void _softmax(double *y, const double *x, long long n, const Params *p) noexcept nogil:
    cdef double top = -INFINITY, total = 0
    cdef long long i
    _softmax_total(y, x, n, &top, &total)
    if n > SOFTMAX_BLOCK or p.mode or top == -INFINITY:
        _softmax_finish(y, x, n, top, total, p.mode, p.size)
        return
    # The exponentials have been computed already.
    for i in range(n):
        y[i] = y[i] / total


def softmax(int dtype, Strided dst not None, Strided src not None, dims, bint log, bint masked=False):
    """Softmax, or its logarithm, over the middle axis of dims (outer, r, inner). Computed in double, summed in order of
    r.

    ``masked``: a row that is all -inf gives zeros instead of NaN.
    """
    cdef Params p
    p.mode, p.size = log, masked
    _run_columns("softmax", dtype, dst, src, dims, _softmax, &p)


cdef void _normalize(double *y, const double *x, long long n, const Params *p) noexcept nogil:
    cdef double mean = 0, total = 0
    cdef long long i
    if p.mode == 0:
        for i in range(n):
            mean += x[i]
        mean /= n
    for i in range(n):
        # A second pass over the differences: mean of squares less square of the mean would cancel for large means.
        total += (x[i] - mean) * (x[i] - mean)
    total = sqrt(total / n + p.a)
    for i in range(n):
        y[i] = (x[i] - mean) / total


def normalize(int dtype, Strided dst not None, Strided src not None, dims, int mode, double epsilon):
    """(x - mean) / sqrt(variance + epsilon) over the middle axis; mode 1: x / sqrt(mean square + epsilon)."""
    cdef Params p
    if mode not in (0, 1):
        raise ValueError(f"normalize: mode must be 0 (layer) or 1 (root mean square), got {mode}")
    p.mode, p.a = mode, epsilon
    _run_columns("normalize", dtype, dst, src, dims, _normalize, &p)


cdef void _lrn(double *y, const double *x, long long n, const Params *p) noexcept nogil:
    cdef long long i, k, before = (p.size - 1) // 2
    cdef double total
    for i in range(n):
        total = 0
        for k in range(max(0, i - before), min(n, i - before + p.size)):
            total += x[k] * x[k]
        total = p.c + p.a / p.size * total
        # The common exponent 0.75 by square roots, several times faster than pow and as exact.
        y[i] = x[i] / (sqrt(total) * sqrt(sqrt(total)) if p.b == 0.75 else pow(total, p.b))


def lrn(
    int dtype, Strided dst not None, Strided src not None, dims, long long size, double alpha, double beta,
    double bias,
):
    """x / (bias + alpha / size * sum of squares)^beta, with the sum over ``size`` neighbours on the middle axis."""
    cdef Params p
    if size < 1:
        raise ValueError(f"lrn: size must be >= 1, got {size}")
    p.size, p.a, p.b, p.c = size, alpha, beta, bias
    _run_columns("lrn", dtype, dst, src, dims, _lrn, &p)


cdef void _cumsum(double *y, const double *x, long long n, const Params *p) noexcept nogil:
    cdef double total = 0
    cdef long long k, i
    for k in range(n):
        i = n - 1 - k if p.size else k
        if p.mode:
            y[i] = total
            total += x[i]
        else:
            total += x[i]
            y[i] = total


cdef bint _cumsum_int(
    int dtype, const Operand *d, const Operand *s, const long long *n, bint exclusive, bint reverse,
) noexcept nogil:
    cdef long long *x = <long long *>malloc(n[1] * 8)
    cdef unsigned long long total
    cdef long long o, i, j, k, value, done = 0
    if x == NULL:
        return False
    for o in range(n[0]):
        for i in range(n[2]):
            if interrupted(&done, n[1]):
                break
            npu_loads_i64[dtype](x, s.p + o * s.s[0] + i * s.s[2], s.s[1], n[1])
            total = 0
            for k in range(n[1]):
                j = n[1] - 1 - k if reverse else k
                value = x[j]
                x[j] = <long long>(total if exclusive else total + <unsigned long long>value)
                # Unsigned, because signed overflow is undefined in C, and sums wrap by definition.
                total += <unsigned long long>value
            npu_stores_i64[dtype](d.p + o * d.s[0] + i * d.s[2], d.s[1], x, n[1])
    free(x)
    return True


def cumsum(int dtype, Strided dst not None, Strided src not None, dims, bint exclusive, bint reverse):
    """Cumulative sums over the middle axis. Floats are summed in double, integers wrap."""
    cdef Params p
    cdef Operand d, s
    cdef long long[3] n
    cdef bint done
    cdef long long size = item_size(dtype)
    if is_float(dtype):
        p.mode, p.size = exclusive, reverse
        _run_columns("cumsum", dtype, dst, src, dims, _cumsum, &p)
        return
    if dtype == NPU_BOOL:
        raise ValueError("cumsum: type must be a number, got bool")
    take(n, dims, 3)
    operand(&d, dst, n, 3, size, "dst", True)
    operand(&s, src, n, 3, size, "src")
    if is_empty(n, 3):
        return
    with nogil:
        done = _cumsum_int(dtype, &d, &s, n, exclusive, reverse)
    settle()
    if not done:
        raise MemoryError(f"cumsum: no memory for a row of {n[1]}")


cdef struct Entry:
    unsigned long long key
    long long index


cdef inline unsigned long long _float_key(double value) noexcept nogil:
    """An integer that sorts like the number. Zeros are equal, NaN is the largest."""
    cdef unsigned long long bits
    if value != value:
        return <unsigned long long>-1
    value += 0.0  # -0 becomes 0
    memcpy(&bits, &value, 8)
    # The bits of positive numbers sort like the numbers, those of negative numbers in reverse.
    return ~bits if bits >> 63 else bits | (<unsigned long long>1 << 63)


cdef void _keys(
    Entry *out, void *values, int dtype, const unsigned char *p, long long stride, long long n,
) noexcept nogil:
    """The sort keys of n elements. ``values``: scratch of 8 bytes per element."""
    cdef double *f = <double *>values
    cdef long long *w = <long long *>values
    cdef long long i
    if is_float(dtype):
        npu_loads_f64[dtype](f, p, stride, n)
    else:
        npu_loads_i64[dtype](w, p, stride, n)
    for i in range(n):
        out[i].index = i
        out[i].key = _float_key(f[i]) if is_float(dtype) else <unsigned long long>w[i] ^ (<unsigned long long>1 << 63)


cdef int _compare(const void *a, const void *b) noexcept nogil:
    cdef const Entry *x = <const Entry *>a
    cdef const Entry *y = <const Entry *>b
    if x.key != y.key:
        return -1 if x.key < y.key else 1
    # qsort is not stable. The index makes the order total, and equal on every libc.
    return -1 if x.index < y.index else 1


cdef long long _arg_column(Entry *e, long long n, bint minimum, bint floating, bint last) noexcept nogil:
    """The index of the largest or smallest entry. Keys are inverted for a minimum, except that NaN stays the
    largest."""
    cdef long long i, best = 0
    if minimum:
        for i in range(n):
            if not floating or e[i].key != <unsigned long long>-1:
                e[i].key = ~e[i].key
    for i in range(1, n):
        if e[i].key > e[best].key or (last and e[i].key == e[best].key):
            best = i
    return best


def arg_reduce(int fn, int dtype, Strided dst not None, Strided src not None, dims, bint select_last):
    """The int64 index of the largest (fn 0) or smallest (fn 1) element of the middle axis. NaN wins. Ties go to the
    first, or to the last if ``select_last``. dst has strides (outer, r, inner); that of r is not used."""
    cdef Operand d, s
    cdef long long[3] n
    cdef long long[3] m
    cdef long long o, i, best, done = 0, size = item_size(dtype)
    cdef Entry *entries = NULL
    if fn not in (0, 1):
        raise ValueError(f"arg_reduce: function must be 0 (max) or 1 (min), got {fn}")
    take(n, dims, 3)
    m[0], m[1], m[2] = n[0], 1, n[2]
    operand(&d, dst, m, 3, 8, "dst", True)
    operand(&s, src, n, 3, size, "src")
    if is_empty(m, 3):
        return
    if n[1] == 0:
        raise ValueError("arg_reduce: the axis is empty")
    with nogil:
        entries = <Entry *>malloc(n[1] * (sizeof(Entry) + 8))
        if entries != NULL:
            for o in range(n[0]):
                for i in range(n[2]):
                    if interrupted(&done, n[1]):
                        break
                    _keys(entries, entries + n[1], dtype, s.p + o * s.s[0] + i * s.s[2], s.s[1], n[1])
                    best = _arg_column(entries, n[1], fn == 1, is_float(dtype), select_last)
                    memcpy(d.p + o * d.s[0] + i * d.s[2], &best, 8)
            free(entries)
    settle()
    if entries == NULL:
        raise MemoryError(f"arg_reduce: no memory for a row of {n[1]}")


def topk(
    int dtype, Strided values not None, Strided indices not None, Strided src not None, dims, long long k, bint largest,
):
    """The k largest, or smallest, elements of the middle axis in order. Ties go to the lower index; NaN is the largest.

    ``values`` and ``indices`` (int64) are (outer, k, inner).
    """
    cdef Operand v, x, s
    cdef long long[3] n
    cdef long long[3] m
    cdef long long o, i, j, done = 0, size = item_size(dtype)
    cdef Entry *e = NULL
    cdef const unsigned char *column
    take(n, dims, 3)
    m[0], m[1], m[2] = n[0], k, n[2]
    if not 0 <= k <= n[1]:
        raise ValueError(f"topk: k must be 0..{n[1]}, got {k}")
    operand(&v, values, m, 3, size, "values", True)
    operand(&x, indices, m, 3, 8, "indices", True)
    operand(&s, src, n, 3, size, "src")
    if is_empty(m, 3):
        return
    with nogil:
        e = <Entry *>malloc(n[1] * (sizeof(Entry) + 8))
        if e != NULL:
            for o in range(n[0]):
                for i in range(n[2]):
                    if interrupted(&done, n[1]):
                        break
                    column = s.p + o * s.s[0] + i * s.s[2]
                    _keys(e, e + n[1], dtype, column, s.s[1], n[1])
                    if largest:
                        for j in range(n[1]):
                            e[j].key = ~e[j].key
                    qsort(e, n[1], sizeof(Entry), _compare)
                    for j in range(k):
                        memcpy(v.p + o * v.s[0] + j * v.s[1] + i * v.s[2], column + e[j].index * s.s[1], size)
                        memcpy(x.p + o * x.s[0] + j * x.s[1] + i * x.s[2], &e[j].index, 8)
            free(e)
    settle()
    if e == NULL:
        raise MemoryError(f"topk: no memory for a row of {n[1]}")


cdef enum:
    # Functions of ``npusim.isa.row_parts.Part``.
    SOFTMAX_TOTAL
    SOFTMAX_QUOTIENT
    SOFTMAX_LOG
    SOFTMAX_MASKED
    SUM
    CENTRED_SQUARES
    SQUARES
    NORMALIZE
    RMS_NORMALIZE
    RUNNING_SUM
    RUNNING_PRODUCT
    ARG_MAX
    ARG_MIN
    PARTS


cdef struct Part:
    int fn, dtype
    bint first, last, exclusive, reverse, select_last
    long long count, at
    double epsilon


cdef void _part_of_floats(double *y, const double *x, long long n, double *state, const Part *p) noexcept nogil:
    """Process one part of a row of floats. ``state``: the two numbers carried between parts."""
    cdef long long i, k
    cdef double mean, root, old
    if p.first:
        state[0], state[1] = 0, 0
        if p.fn == SOFTMAX_TOTAL:
            state[0] = -INFINITY
        if p.fn == RUNNING_PRODUCT:
            state[0] = 1
    if p.fn == SOFTMAX_TOTAL:
        _softmax_total(y, x, n, &state[0], &state[1])
    elif SOFTMAX_QUOTIENT <= p.fn <= SOFTMAX_MASKED:
        _softmax_finish(y, x, n, state[0], state[1], p.fn == SOFTMAX_LOG, p.fn == SOFTMAX_MASKED)
    elif p.fn == SUM:
        for i in range(n):
            state[0] += x[i]
    elif p.fn == CENTRED_SQUARES:
        mean = state[0] / p.count
        for i in range(n):
            state[1] += (x[i] - mean) * (x[i] - mean)
    elif p.fn == SQUARES:
        for i in range(n):
            state[1] += x[i] * x[i]
    elif p.fn == NORMALIZE or p.fn == RMS_NORMALIZE:
        mean = state[0] / p.count if p.fn == NORMALIZE else 0
        root = sqrt(state[1] / p.count + p.epsilon)
        for i in range(n):
            y[i] = (x[i] - mean) / root
    else:
        for k in range(n):
            i = n - 1 - k if p.reverse else k
            old = state[0]
            state[0] = old + x[i] if p.fn == RUNNING_SUM else old * x[i]
            y[i] = old if p.exclusive else state[0]


cdef void _part_of_integers(long long *x, long long n, unsigned long long *state, const Part *p) noexcept nogil:
    """Running sums or products, in place. They wrap."""
    cdef long long i, k
    cdef unsigned long long old
    if p.first:
        state[0] = p.fn == RUNNING_PRODUCT
    for k in range(n):
        i = n - 1 - k if p.reverse else k
        old = state[0]
        state[0] = old + <unsigned long long>x[i] if p.fn == RUNNING_SUM else old * <unsigned long long>x[i]
        x[i] = <long long>(old if p.exclusive else state[0])


cdef void _part_of_arguments(
    Entry *e, long long n, Entry *best, unsigned char *dst, const Part *p,
) noexcept nogil:
    cdef long long found = _arg_column(e, n, p.fn == ARG_MIN, is_float(p.dtype), p.select_last)
    # Keys of a minimum are inverted, so the largest wins in either case.
    if p.first or e[found].key > best.key or (p.select_last and e[found].key == best.key):
        best.key, best.index = e[found].key, p.at + found
    if p.last:
        memcpy(dst, &best.index, 8)


cdef bint _each_part(
    const Operand *d, const Operand *s, const Operand *t, const long long *n, const Part *p,
) noexcept nogil:
    """Process every row. False if there is no memory."""
    cdef unsigned char *scratch = <unsigned char *>malloc(n[1] * (sizeof(Entry) + 8))
    cdef double *x = <double *>scratch
    cdef double *y = x + n[1]
    cdef float *narrow = <float *>(y + n[1])
    cdef unsigned char *state
    cdef unsigned char *to
    cdef const unsigned char *at
    cdef long long o, i, k, done = 0
    cdef double[2] numbers
    cdef unsigned long long[2] integers
    cdef Entry best
    if scratch == NULL:
        return False
    for o in range(n[0]):
        for i in range(n[2]):
            if interrupted(&done, n[1]):
                break
            state = t.p + o * t.s[0] + i * t.s[1]
            at, to = s.p + o * s.s[0] + i * s.s[2], d.p + o * d.s[0] + i * d.s[2]
            if p.fn >= ARG_MAX:
                memcpy(&best, state, sizeof(Entry))
                _keys(<Entry *>scratch, scratch + n[1] * sizeof(Entry), p.dtype, at, s.s[1], n[1])
                _part_of_arguments(<Entry *>scratch, n[1], &best, to, p)
                memcpy(state, &best, sizeof(Entry))
            elif is_float(p.dtype):
                memcpy(numbers, state, 16)
                npu_loads_f64[p.dtype](x, at, s.s[1], n[1])
                _part_of_floats(y, x, n[1], numbers, p)
                memcpy(state, numbers, 16)
                if SOFTMAX_QUOTIENT <= p.fn <= SOFTMAX_MASKED or p.fn >= NORMALIZE:
                    for k in range(n[1]):
                        narrow[k] = <float>y[k]
                    npu_stores_f32[p.dtype](to, d.s[1], narrow, n[1])
            else:
                memcpy(integers, state, 16)
                npu_loads_i64[p.dtype](<long long *>x, at, s.s[1], n[1])
                _part_of_integers(<long long *>x, n[1], integers, p)
                memcpy(state, integers, 16)
                npu_stores_i64[p.dtype](to, d.s[1], <long long *>x, n[1])
    free(scratch)
    return True


def row_part(
    int fn, int dtype, Strided dst not None, Strided src not None, Strided state not None, dims, bint first, bint last,
    long long count, long long at, double epsilon, bint exclusive, bint reverse, bint select_last,
):
    """Process a part of each row of (outer, r, inner). ``state``: 16 bytes per row, strides (outer, inner).

    ``fn``, ``count``, ``at``: see ``npusim.isa.row_parts.RowPart``. Parts that only collect state do not write dst. For
    an argument function, dst has strides (outer, r, inner); that of r is not used.
    """
    cdef Operand d, s, t
    cdef long long[3] n
    cdef long long[3] m
    cdef long long[2] rows
    cdef Part p
    cdef bint done
    if not 0 <= fn < PARTS:
        raise ValueError(f"row_part: function must be 0..{PARTS - 1}, got {fn}")
    if fn < RUNNING_SUM:
        _float_only("row_part", dtype)
    elif fn < ARG_MAX and dtype == NPU_BOOL:
        raise ValueError("row_part: type must be a number, got bool")
    take(n, dims, 3)
    m[0], m[1], m[2] = n[0], n[1], n[2]
    if fn >= ARG_MAX:
        m[1] = 1 if last else 0
    elif fn == SOFTMAX_TOTAL or fn == SUM or fn == CENTRED_SQUARES or fn == SQUARES:
        m[1] = 0
    rows[0], rows[1] = n[0], n[2]
    operand(&d, dst, m, 3, 8 if fn >= ARG_MAX else item_size(dtype), "dst", True)
    operand(&s, src, n, 3, item_size(dtype), "src")
    operand(&t, state, rows, 2, 16, "state", True)
    if is_empty(n, 3):
        return
    p.fn, p.dtype, p.first, p.last, p.exclusive, p.reverse = fn, dtype, first, last, exclusive, reverse
    p.select_last, p.count, p.at, p.epsilon = select_last, count, at, epsilon
    with nogil:
        done = _each_part(&d, &s, &t, n, &p)
    settle()
    if not done:
        raise MemoryError(f"row_part: no memory for a part of {n[1]}")
