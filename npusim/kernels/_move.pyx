"""Kernels that move bytes unchanged: copy, fill and select."""

from npusim.kernels._operand cimport (
    NPU_PIECE, Operand, Strided, Walk, begin, check_item_size, each_row, interrupted, is_empty, join, merge, settle,
)

cdef extern from "move.h" nogil:
    void npu_copy_row(unsigned char *d, long long ds, const unsigned char *a, long long s, long long n, int size)
    void npu_copy_plane(
        unsigned char *d, long long dr, long long dc, const unsigned char *a, long long sr, long long sc,
        long long rows, long long columns, int size,
    )
    void npu_fill_row(unsigned char *d, long long ds, long long n, int size, unsigned long long pattern)
    void npu_select_row(
        unsigned char *d, long long ds, const unsigned char *c, long long cs, const unsigned char *a, long long sa,
        const unsigned char *b, long long sb, long long n, int size,
    )


cdef enum:
    PLANE = 16  # rows that npu_copy_plane takes at once


cdef void _copy_row(unsigned char **p, const long long *s, long long n, const void *size) noexcept nogil:
    npu_copy_row(p[0], s[0], p[1], s[1], n, (<const int *>size)[0])


cdef void _planes(const Walk *w, int itemsize) noexcept nogil:
    cdef const Operand *d = &w.of[0]
    cdef const Operand *a = &w.of[1]
    cdef long long i0, i1, i2, done = 0, rows = max(PLANE, NPU_PIECE // w.n[3] // PLANE * PLANE)
    for i0 in range(w.n[0]):
        for i1 in range(w.n[1]):
            for i2 from 0 <= i2 < w.n[2] by rows:
                if interrupted(&done, rows * w.n[3]):
                    return
                npu_copy_plane(
                    d.p + i0 * d.s[0] + i1 * d.s[1] + i2 * d.s[2], d.s[2], d.s[3],
                    a.p + i0 * a.s[0] + i1 * a.s[1] + i2 * a.s[2], a.s[2], a.s[3],
                    min(rows, w.n[2] - i2), w.n[3], itemsize,
                )


def copy(Strided dst not None, Strided src not None, dims, int itemsize):
    """dst = src in four dimensions, for items of 1, 2, 4 or 8 bytes. Strides are in bytes. The operands must not
    overlap."""
    cdef Walk w
    cdef bint whole
    check_item_size(itemsize)
    begin(&w, dims)
    join(&w, dst, itemsize, "dst", True)
    join(&w, src, itemsize, "src")
    if is_empty(w.n, 4):
        return
    with nogil:
        # Rows are merged to be as long as possible, because the call per row costs more than copying a short row.
        merge(&w)
        # A transposition is copied in planes. Row by row, each item would need its own cache line.
        if w.of[1].s[3] != itemsize and w.of[1].s[2] == itemsize and w.n[3] > 1 and w.n[2] > 1:
            _planes(&w, itemsize)
        else:
            # Contiguous rows are copied by one memmove, so they may overlap.
            whole = w.of[0].s[3] == itemsize and w.of[1].s[3] == itemsize
            each_row(&w, _copy_row, &itemsize, w.n[3] if whole else NPU_PIECE)
    settle()


cdef struct Filling:
    int size
    unsigned long long pattern


cdef void _fill_row(unsigned char **p, const long long *s, long long n, const void *context) noexcept nogil:
    cdef const Filling *f = <const Filling *>context
    npu_fill_row(p[0], s[0], n, f.size, f.pattern)


def fill(Strided dst not None, dims, int itemsize, unsigned long long pattern):
    """Set every item to the low ``itemsize`` bytes of ``pattern``."""
    cdef Walk w
    cdef Filling f
    f.size, f.pattern = check_item_size(itemsize), pattern
    begin(&w, dims)
    join(&w, dst, itemsize, "dst", True)
    with nogil:
        each_row(&w, _fill_row, &f)
    settle()


cdef void _select_row(unsigned char **p, const long long *s, long long n, const void *size) noexcept nogil:
    npu_select_row(p[0], s[0], p[1], s[1], p[2], s[2], p[3], s[3], n, (<const int *>size)[0])


def select(int itemsize, Strided dst not None, Strided cond not None, Strided a not None, Strided b not None, dims):
    """dst = cond ? a : b, where cond is bool and the others are items of ``itemsize`` bytes."""
    cdef Walk w
    check_item_size(itemsize)
    begin(&w, dims)
    join(&w, dst, itemsize, "dst", True)
    join(&w, cond, 1, "cond")
    join(&w, a, itemsize, "a")
    join(&w, b, itemsize, "b")
    with nogil:
        each_row(&w, _select_row, &itemsize)
    settle()
