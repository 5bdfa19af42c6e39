# Operands of kernels. Python passes a Strided. operand() checks once that all of its elements are within its memory,
# and makes an Operand, which the loops trust. each_row() walks over the rows of up to four operands.
#
# Data that determines an address after that check, such as an index from a table, is read once into a local variable,
# compared with its limit and used from there. The table may overlap the results, so a second read could differ.
#
# Loops that may be long count their work. interrupted() tells them when to end, and settle() then raises the exception.
# Results are undefined after that.
#
# Loops run without the interpreter's lock. That is safe because a Strided holds its buffer, the caller holds the
# Strided, and no loop touches a Python object. The bytes may change during a loop, but not their location.

cdef extern from "base.h" nogil:
    enum:
        NPU_BLOCK
        NPU_BOOL
        NPU_INT8
        NPU_UINT8
        NPU_INT16
        NPU_UINT16
        NPU_INT32
        NPU_UINT32
        NPU_INT64
        NPU_UINT64
        NPU_FLOAT16
        NPU_BFLOAT16
        NPU_FLOAT32
        NPU_FLOAT64


cdef extern from "interrupt.h" nogil:
    enum:
        NPU_LOOK
        NPU_PIECE
    bint npu_interrupted
    bint npu_due()


cdef bint look() noexcept with gil


cdef inline bint pause() noexcept nogil:
    global npu_interrupted
    if not npu_interrupted:
        npu_interrupted = npu_due() and look()
    return npu_interrupted


cdef inline bint interrupted(long long *done, long long work) noexcept nogil:
    """Count the work of a loop, in elements. True once a signal handler has raised an exception."""
    done[0] += work
    if done[0] < NPU_LOOK:
        return False
    if pause():
        return True
    done[0] = 0
    return False


cdef inline int settle() except -1:
    """Raise the exception that ended the loops, if any."""
    global npu_interrupted
    if not npu_interrupted:
        return 0
    npu_interrupted = False
    return -1


cdef class Strided:
    cdef Py_buffer buffer
    cdef readonly long long offset
    cdef long long[4] s
    cdef int rank


cdef struct Operand:
    unsigned char *p  # NULL if there are no elements
    long long s[4]


cdef struct Walk:
    int count
    long long n[4]
    Operand of[4]


cdef struct Window:
    long long kh, kw, sh, sw, dh, dw  # kernel, strides, dilations


ctypedef void (*row_function)(unsigned char **p, const long long *s, long long n, const void *context) noexcept nogil


cdef inline str type_name(int dtype):
    names = (
        "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
        "float16", "bfloat16", "float32", "float64",
    )
    return names[dtype] if 0 <= dtype < 13 else f"type code {dtype}"


cdef inline long long item_size(int dtype) except -1:
    """Bytes of an element. ValueError for a type that kernels do not support."""
    if dtype == NPU_BOOL or dtype == NPU_INT8 or dtype == NPU_UINT8:
        return 1
    if dtype == NPU_INT16 or dtype == NPU_UINT16 or dtype == NPU_FLOAT16 or dtype == NPU_BFLOAT16:
        return 2
    if dtype == NPU_INT32 or dtype == NPU_FLOAT32:
        return 4
    if dtype == NPU_INT64:
        return 8
    raise ValueError(f"kernels do not compute with {type_name(dtype)}")


cdef inline int check_item_size(int size) except -1:
    if size not in (1, 2, 4, 8):
        raise ValueError(f"item size must be 1, 2, 4 or 8 bytes, got {size}")
    return size


cdef inline bint is_float(int dtype) noexcept nogil:
    return dtype >= NPU_FLOAT16


cdef inline int weight_zero(int dtype, long long zero) except? -1:
    """Check the zero point of weights: a value of their type, or 0 if they are not bytes."""
    cdef long long low = -128 if dtype == NPU_INT8 else 0
    cdef long long high = 127 if dtype == NPU_INT8 else 255 if dtype == NPU_UINT8 else 0
    if not low <= zero <= high:
        raise ValueError(f"w_zero of {type_name(dtype)} weights must be from {low} to {high}, got {zero}")
    return <int>zero


cdef inline int take(long long *out, object values, int rank) except -1:
    """Copy ``rank`` integers. ValueError for another number of them."""
    cdef int i
    if len(values) != rank:
        raise ValueError(f"expected {rank} integers, got {len(values)}")
    for i in range(rank):
        out[i] = values[i]
    return 0


cdef inline int take_window(Window *w, object values, str what) except -1:
    """Read (kernel rows, columns, strides, dilations). ValueError if one is below 1."""
    cdef long long[6] v
    take(v, values, 6)
    w.kh, w.kw, w.sh, w.sw, w.dh, w.dw = v[0], v[1], v[2], v[3], v[4], v[5]
    if min(w.kh, w.kw, w.sh, w.sw, w.dh, w.dw) < 1:
        raise ValueError(f"{what}: kernel, strides and dilations must be >= 1, got {values}")
    return 0


cdef inline long long reach(long long results, long long taps, long long stride, long long dilation) noexcept nogil:
    """The number of elements along an axis that the windows of ``results`` results cover."""
    return (results - 1) * stride + (taps - 1) * dilation + 1 if results else 0


cdef int refuse_place(
    const Operand *out, Strided at, const long long *dims, int rank, long long size, str what,
) except -1


cdef inline int place(
    Operand *out, Strided at, const long long *dims, int rank, long long size, str what, bint write,
) except -1:
    """Point ``out``, whose strides are set, at an operand. IndexError if any element is outside its memory."""
    cdef long long room = at.buffer.len, low = 0, high = size, steps
    cdef bint inside = 0 <= at.offset <= room
    cdef int i
    out.p = NULL
    if write and at.buffer.readonly:
        raise ValueError(f"{what}: its memory is read-only")
    for i in range(rank):
        if dims[i] < 0:
            raise ValueError(f"{what}: dimensions must be >= 0, got {dims[i]}")
        if dims[i] == 0:
            return 0
        # The stride of a single element has no meaning, but loops may still step by it. All other strides are smaller
        # than the memory.
        if dims[i] == 1 and not -room <= out.s[i] <= room:
            out.s[i] = 0
        # Avoids overflow: no product or sum exceeds a few times the size of the memory.
        steps = dims[i] - 1
        if not -room <= out.s[i] <= room or (out.s[i] and steps > room // abs(out.s[i])):
            inside = False
        elif out.s[i] < 0:
            low += steps * out.s[i]
        else:
            high += steps * out.s[i]
    if not inside or low + at.offset < 0 or high + at.offset > room:
        refuse_place(out, at, dims, rank, size, what)
    out.p = <unsigned char *>at.buffer.buf + at.offset
    return 0


cdef inline int operand(
    Operand *out, Strided at, const long long *dims, int rank, long long size, str what, bint write=False,
) except -1:
    """An operand with a stride for each dimension."""
    cdef int i
    if at.rank != rank:
        raise ValueError(f"{what}: expected {rank} strides, got {at.rank}")
    for i in range(rank):
        out.s[i] = at.s[i]
    return place(out, at, dims, rank, size, what, write)


cdef inline int dense(
    Operand *out, Strided at, const long long *dims, int rank, long long size, str what, bint write=False,
) except -1:
    """An operand whose innermost elements are contiguous, with a stride for each other dimension."""
    cdef int i
    if at.rank != rank - 1:
        raise ValueError(f"{what}: expected {rank - 1} strides, got {at.rank}")
    for i in range(rank - 1):
        out.s[i] = at.s[i]
    out.s[rank - 1] = size
    return place(out, at, dims, rank, size, what, write)


cdef inline int begin(Walk *w, object dims) except -1:
    """Start a walk over four dimensions, without operands."""
    w.count = 0
    return take(w.n, dims, 4)


cdef inline int join(Walk *w, Strided at, long long size, str what, bint write=False) except -1:
    """Add an operand to the walk: of[count]."""
    operand(&w.of[w.count], at, w.n, 4, size, what, write)
    w.count += 1
    return 0


cdef inline bint is_empty(const long long *dims, int rank) noexcept nogil:
    cdef int i
    for i in range(rank):
        if dims[i] == 0:
            return True
    return False


cdef inline bint mergeable(const Walk *w, int outer, int inner) noexcept nogil:
    cdef int k
    for k in range(w.count):
        if w.of[k].s[outer] != w.of[k].s[inner] * w.n[inner]:
            return False
    return True


cdef inline void shift(Walk *w, int source, int target) noexcept nogil:
    cdef int k
    w.n[target] = w.n[source]
    for k in range(w.count):
        w.of[k].s[target] = w.of[k].s[source]


cdef inline void merge(Walk *w) noexcept nogil:
    """Drop dimensions of 1 and merge adjacent dimensions that are contiguous for every operand, to make rows longer."""
    cdef int last = 3, i
    # Neither changes the order of elements, so a sum over a merged row is the same sum.
    for i in range(2, -1, -1):
        if w.n[i] == 1:
            continue
        if w.n[last] == 1:
            shift(w, i, last)
        elif mergeable(w, i, last):
            w.n[last] *= w.n[i]
        else:
            last -= 1
            shift(w, i, last)
    for i in range(last):
        w.n[i] = 1


cdef inline void each_row(Walk *w, row_function row, const void *context, long long most=NPU_PIECE) noexcept nogil:
    """Call ``row`` for every innermost row, in pieces of at most ``most`` elements. Outer dimensions are in order."""
    cdef unsigned char *p[4]
    cdef long long s[4]
    cdef long long i0, i1, i2, i3, start, stop, first, rows, done = 0
    cdef int k
    if is_empty(w.n, 4):
        return
    merge(w)
    for k in range(w.count):
        s[k] = w.of[k].s[3]
    # Short rows are counted in groups, so that counting costs nothing.
    first, rows = min(w.n[3], most), max(1, NPU_LOOK // w.n[3])
    for i0 in range(w.n[0]):
        for i1 in range(w.n[1]):
            for start from 0 <= start < w.n[2] by rows:
                stop = min(start + rows, w.n[2])
                if interrupted(&done, (stop - start) * first):
                    return
                for i2 in range(start, stop):
                    for k in range(w.count):
                        p[k] = w.of[k].p + i0 * w.of[k].s[0] + i1 * w.of[k].s[1] + i2 * w.of[k].s[2]
                    row(p, s, first, context)
                # Long rows are counted one by one.
                for i3 from most <= i3 < w.n[3] by most:
                    if interrupted(&done, most):
                        return
                    for k in range(w.count):
                        p[k] += most * s[k]
                    row(p, s, min(w.n[3] - i3, most), context)
