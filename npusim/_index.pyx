"""Kernels that move items by index lists: gather, gather_elements and scatter."""

from libc.string cimport memcpy

from npusim._operand cimport (
    NPU_BOOL, Operand, is_empty, is_float, item_size, operand, take, type_name,
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

cdef extern from "move.h" nogil:
    void npu_copy_row(unsigned char *d, long long ds, const unsigned char *a, long long s, long long n, int size)

cdef enum:
    SCATTER_SET = 0
    SCATTER_ADD = 1
    SCATTER_MUL = 2
    SCATTER_MAX = 3
    SCATTER_MIN = 4


cdef long long _index_size(int dtype) except -1:
    if is_float(dtype) or dtype == NPU_BOOL:
        raise ValueError(f"index type must be an integer, got {type_name(dtype)}")
    return item_size(dtype)


cdef int _check_size(int size) except -1:
    if size not in (1, 2, 4, 8):
        raise ValueError(f"item size must be 1, 2, 4 or 8 bytes, got {size}")
    return size


cdef inline long long _resolve(npu_load_i64 load, const unsigned char *p, long long axis_size) noexcept nogil:
    """The index at p, counted from the start; -1 if it is out of range."""
    cdef long long index
    load(&index, p, 0, 1)
    if index < 0:
        index += axis_size
    return index if 0 <= index < axis_size else -1


cdef long long _first_bad(
    npu_load_i64 load, const Operand *index, const long long *n, long long axis_size,
) noexcept nogil:
    """The row-major position of the first index that is out of range, or -1."""
    cdef long long o, j, i
    for o in range(n[0]):
        for j in range(n[1]):
            for i in range(n[2]):
                if _resolve(load, index.p + o * index.s[0] + j * index.s[1] + i * index.s[2], axis_size) < 0:
                    return (o * n[1] + j) * n[2] + i
    return -1


def gather(
    unsigned char[::1] dst, long long dst_off, dst_strides, const unsigned char[::1] data, long long data_off,
    data_strides, const unsigned char[::1] idx, long long idx_off, long long idx_stride, int idx_dtype, dims,
    long long axis_size, int itemsize,
):
    """dst[o, j, i] = data[o, idx[j], i] for dims (outer, indices, inner); a negative index counts from the end.

    Returns -1, or the position of the first index that is out of range; then nothing is written.
    """
    cdef Operand d, a, x
    cdef long long[3] n
    cdef long long[3] m
    cdef long long o, j, at, bad
    cdef npu_load_i64 load
    cdef long long idx_size = _index_size(idx_dtype)
    _check_size(itemsize)
    take(n, dims, 3)
    m[0], m[1], m[2] = n[0], axis_size, n[2]
    operand(&d, dst, dst_off, dst_strides, n, 3, itemsize, "dst")
    operand(&a, data, data_off, data_strides, m, 3, itemsize, "data")
    m[0], m[2] = 1, 1
    m[1] = n[1]
    operand(&x, idx, idx_off, (0, idx_stride, 0), m, 3, idx_size, "idx")
    load = npu_loads_i64[idx_dtype]
    if is_empty(n, 3):
        return -1
    with nogil:
        bad = _first_bad(load, &x, m, axis_size)
        if bad < 0:
            for o in range(n[0]):
                for j in range(n[1]):
                    at = _resolve(load, x.p + j * idx_stride, axis_size)
                    npu_copy_row(
                        d.p + o * d.s[0] + j * d.s[1], d.s[2], a.p + o * a.s[0] + at * a.s[1], a.s[2], n[2], itemsize,
                    )
    return bad


def gather_elements(
    unsigned char[::1] dst, long long dst_off, dst_strides, const unsigned char[::1] data, long long data_off,
    data_strides, const unsigned char[::1] idx, long long idx_off, idx_strides, int idx_dtype, dims,
    long long axis_size, int itemsize,
):
    """dst[o, j, i] = data[o, idx[o, j, i], i]; returns -1, or the row-major position of the first bad index."""
    cdef Operand d, a, x
    cdef long long[3] n
    cdef long long[3] m
    cdef long long o, j, i, at, bad
    cdef npu_load_i64 load
    cdef long long idx_size = _index_size(idx_dtype)
    _check_size(itemsize)
    take(n, dims, 3)
    m[0], m[1], m[2] = n[0], axis_size, n[2]
    operand(&d, dst, dst_off, dst_strides, n, 3, itemsize, "dst")
    operand(&a, data, data_off, data_strides, m, 3, itemsize, "data")
    operand(&x, idx, idx_off, idx_strides, n, 3, idx_size, "idx")
    load = npu_loads_i64[idx_dtype]
    if is_empty(n, 3):
        return -1
    with nogil:
        bad = _first_bad(load, &x, n, axis_size)
        if bad < 0:
            for o in range(n[0]):
                for j in range(n[1]):
                    for i in range(n[2]):
                        at = _resolve(load, x.p + o * x.s[0] + j * x.s[1] + i * x.s[2], axis_size)
                        memcpy(
                            d.p + o * d.s[0] + j * d.s[1] + i * d.s[2], a.p + o * a.s[0] + at * a.s[1] + i * a.s[2],
                            itemsize,
                        )
    return bad


cdef void _combine_float(int dtype, int reduction, unsigned char *d, const unsigned char *u) noexcept nogil:
    cdef float a, b
    npu_loads_f32[dtype](&a, d, 0, 1)
    npu_loads_f32[dtype](&b, u, 0, 1)
    if reduction == SCATTER_ADD:
        a = a + b
    elif reduction == SCATTER_MUL:
        a = a * b
    elif a == a and (b != b or (b > a if reduction == SCATTER_MAX else b < a)):
        a = b
    npu_stores_f32[dtype](d, 0, &a, 1)


cdef void _combine_int(int dtype, int reduction, unsigned char *d, const unsigned char *u) noexcept nogil:
    cdef long long a, b
    npu_loads_i64[dtype](&a, d, 0, 1)
    npu_loads_i64[dtype](&b, u, 0, 1)
    if reduction == SCATTER_ADD:
        a = <long long>(<unsigned long long>a + <unsigned long long>b)
    elif reduction == SCATTER_MUL:
        a = <long long>(<unsigned long long>a * <unsigned long long>b)
    elif b > a if reduction == SCATTER_MAX else b < a:
        a = b
    npu_stores_i64[dtype](d, 0, &a, 1)


def scatter(
    unsigned char[::1] dst, long long dst_off, dst_strides,
    const unsigned char[::1] upd, long long upd_off, upd_strides,
    const unsigned char[::1] idx, long long idx_off, idx_strides, int idx_dtype, dims, long long axis_size, int dtype,
    int reduction,
):
    """dst[o, idx[o, j, i], i] = or +=, *=, max=, min= upd[o, j, i] in row-major order.

    reduction: 0 set, 1 add, 2 multiply, 3 maximum, 4 minimum. Returns -1, or the row-major position of the first index
    that is out of range; then nothing is written.
    """
    cdef Operand d, u, x
    cdef long long[3] n
    cdef long long[3] m
    cdef long long o, j, i, bad, size = item_size(dtype)
    cdef unsigned char *to
    cdef const unsigned char *value
    cdef npu_load_i64 load
    cdef long long idx_size = _index_size(idx_dtype)
    if not SCATTER_SET <= reduction <= SCATTER_MIN:
        raise ValueError(f"scatter: reduction must be 0..4, got {reduction}")
    take(n, dims, 3)
    m[0], m[1], m[2] = n[0], axis_size, n[2]
    operand(&d, dst, dst_off, dst_strides, m, 3, size, "dst")
    operand(&u, upd, upd_off, upd_strides, n, 3, size, "upd")
    operand(&x, idx, idx_off, idx_strides, n, 3, idx_size, "idx")
    load = npu_loads_i64[idx_dtype]
    if is_empty(n, 3):
        return -1
    with nogil:
        bad = _first_bad(load, &x, n, axis_size)
        if bad < 0:
            for o in range(n[0]):
                for j in range(n[1]):
                    for i in range(n[2]):
                        value = u.p + o * u.s[0] + j * u.s[1] + i * u.s[2]
                        to = d.p + o * d.s[0] + i * d.s[2] + d.s[1] * _resolve(
                            load, x.p + o * x.s[0] + j * x.s[1] + i * x.s[2], axis_size)
                        if reduction == SCATTER_SET:
                            memcpy(to, value, size)
                        elif is_float(dtype):
                            _combine_float(dtype, reduction, to, value)
                        else:
                            _combine_int(dtype, reduction, to, value)
    return bad
