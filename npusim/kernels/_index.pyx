"""Kernels that move items by index lists: gather and scatter.

All indices are checked before anything is written, so a bad index leaves the destination unchanged. Each index is read
and checked again when it is used, because results may have overwritten the list meanwhile.
"""

from libc.string cimport memcpy

from npusim.kernels._operand cimport (
    NPU_BOOL, NPU_PIECE, Operand, Strided, check_item_size, interrupted, is_empty, is_float, item_size, operand,
    settle, take, type_name,
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


cdef inline long long _resolve(npu_load_i64 load, const unsigned char *p, long long axis_size) noexcept nogil:
    """The index at p, counted from the start, or -1 if it is out of range."""
    cdef long long index
    load(&index, p, 0, 1)
    if index < 0:
        index += axis_size
    return index if 0 <= index < axis_size else -1


cdef long long _first_bad(
    npu_load_i64 load, const Operand *index, const long long *n, long long axis_size,
) noexcept nogil:
    """The row-major position of the first index that is out of range, or -1. Broadcast indices are checked once."""
    cdef long long o, j, i, done = 0
    for o in range(n[0] if index.s[0] else 1):
        for j in range(n[1] if index.s[1] else 1):
            for i in range(n[2] if index.s[2] else 1):
                if i % NPU_PIECE == 0 and interrupted(&done, min(n[2] - i, <long long>NPU_PIECE)):
                    return -1
                if _resolve(load, index.p + o * index.s[0] + j * index.s[1] + i * index.s[2], axis_size) < 0:
                    return (o * n[1] + j) * n[2] + i
    return -1


cdef long long _gather(
    npu_load_i64 load, const Operand *d, const Operand *a, const Operand *x, const long long *n, long long axis_size,
    int itemsize,
) noexcept nogil:
    cdef long long o, j, i, at, start, stop, done = 0
    # If one index serves a whole row, the row moves at once.
    cdef long long run = n[2] if x.s[2] == 0 else 1
    cdef long long most = max(run, <long long>NPU_PIECE)
    for o in range(n[0]):
        for j in range(n[1]):
            for start from 0 <= start < n[2] by most:
                stop = min(start + most, n[2])
                if interrupted(&done, stop - start):
                    return -1
                for i from start <= i < stop by run:
                    at = _resolve(load, x.p + o * x.s[0] + j * x.s[1] + i * x.s[2], axis_size)
                    if at < 0:
                        return (o * n[1] + j) * n[2] + i
                    npu_copy_row(
                        d.p + o * d.s[0] + j * d.s[1] + i * d.s[2], d.s[2],
                        a.p + o * a.s[0] + at * a.s[1] + i * a.s[2], a.s[2], run, itemsize,
                    )
    return -1


def gather(
    Strided dst not None, Strided data not None, Strided index not None, int index_dtype, dims, long long axis_size,
    int itemsize,
):
    """dst[o, j, i] = data[o, index[o, j, i], i]. A negative index counts from the end of ``axis_size``.

    Returns -1, or the row-major position of the first index that is out of range. In that case nothing is written,
    unless dst overlaps the indices.
    """
    cdef Operand d, a, x
    cdef long long[3] n
    cdef long long[3] m
    cdef long long bad
    cdef npu_load_i64 load
    cdef long long index_size = _index_size(index_dtype)
    check_item_size(itemsize)
    take(n, dims, 3)
    m[0], m[1], m[2] = n[0], axis_size, n[2]
    operand(&d, dst, n, 3, itemsize, "dst", True)
    operand(&a, data, m, 3, itemsize, "data")
    operand(&x, index, n, 3, index_size, "index")
    load = npu_loads_i64[index_dtype]
    if is_empty(n, 3):
        return -1
    with nogil:
        bad = _first_bad(load, &x, n, axis_size)
        if bad < 0:
            bad = _gather(load, &d, &a, &x, n, axis_size, itemsize)
    settle()
    return bad


cdef void _combine_float(int dtype, int reduction, unsigned char *d, const unsigned char *u) noexcept nogil:
    cdef float a, b
    npu_loads_f32[dtype](&a, d, 0, 1)
    npu_loads_f32[dtype](&b, u, 0, 1)
    if reduction == SCATTER_ADD:
        a = a + b
    elif reduction == SCATTER_MUL:
        a = a * b
    # A NaN on either side wins, as in numpy. A comparison alone would make it depend on the order of operands.
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


cdef long long _scatter(
    npu_load_i64 load, const Operand *d, const Operand *u, const Operand *x, const long long *n, long long axis_size,
    int dtype, int reduction, long long size,
) noexcept nogil:
    cdef long long o, j, i, at, start, stop, done = 0
    cdef unsigned char *to
    cdef const unsigned char *value
    for o in range(n[0]):
        for j in range(n[1]):
            for start from 0 <= start < n[2] by NPU_PIECE:
                stop = min(start + NPU_PIECE, n[2])
                if interrupted(&done, stop - start):
                    return -1
                for i in range(start, stop):
                    at = _resolve(load, x.p + o * x.s[0] + j * x.s[1] + i * x.s[2], axis_size)
                    if at < 0:
                        return (o * n[1] + j) * n[2] + i
                    to = d.p + o * d.s[0] + at * d.s[1] + i * d.s[2]
                    value = u.p + o * u.s[0] + j * u.s[1] + i * u.s[2]
                    if reduction == SCATTER_SET:
                        memcpy(to, value, size)
                    elif is_float(dtype):
                        _combine_float(dtype, reduction, to, value)
                    else:
                        _combine_int(dtype, reduction, to, value)
    return -1


def scatter(
    Strided dst not None, Strided updates not None, Strided index not None, int index_dtype, dims, long long axis_size,
    int dtype, int reduction,
):
    """dst[o, index[o, j, i], i] = or +=, *=, max=, min= updates[o, j, i], in row-major order.

    reduction: 0 set, 1 add, 2 multiply, 3 maximum, 4 minimum. Returns -1 or the position of a bad index, as ``gather``
    does.
    """
    cdef Operand d, u, x
    cdef long long[3] n
    cdef long long[3] m
    cdef long long bad, size = item_size(dtype)
    cdef npu_load_i64 load
    cdef long long index_size = _index_size(index_dtype)
    if not SCATTER_SET <= reduction <= SCATTER_MIN:
        raise ValueError(f"scatter: reduction must be 0..4, got {reduction}")
    take(n, dims, 3)
    m[0], m[1], m[2] = n[0], axis_size, n[2]
    operand(&d, dst, m, 3, size, "dst", True)
    operand(&u, updates, n, 3, size, "updates")
    operand(&x, index, n, 3, index_size, "index")
    load = npu_loads_i64[index_dtype]
    if is_empty(n, 3):
        return -1
    with nogil:
        bad = _first_bad(load, &x, n, axis_size)
        if bad < 0:
            bad = _scatter(load, &d, &u, &x, n, axis_size, dtype, reduction, size)
    settle()
    return bad
