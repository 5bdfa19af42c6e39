# Operands of kernels: a base pointer with strides in bytes, checked once against the memory they lie in, and a walk
# over the rows of up to four of them.

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


cdef struct Operand:
    unsigned char *p
    long long s[4]


cdef struct Walk:
    int count
    long long n[4]
    Operand of[4]


ctypedef void (*row_function)(unsigned char **p, const long long *s, long long n, const void *context) noexcept nogil


cdef inline str type_name(int dtype):
    names = (
        "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
        "float16", "bfloat16", "float32", "float64",
    )
    return names[dtype] if 0 <= dtype < 13 else f"type code {dtype}"


cdef inline long long item_size(int dtype) except -1:
    """Bytes of an element of a type that the kernels support; ValueError naming any other."""
    if dtype == NPU_BOOL or dtype == NPU_INT8 or dtype == NPU_UINT8:
        return 1
    if dtype == NPU_INT16 or dtype == NPU_UINT16 or dtype == NPU_FLOAT16 or dtype == NPU_BFLOAT16:
        return 2
    if dtype == NPU_INT32 or dtype == NPU_FLOAT32:
        return 4
    if dtype == NPU_INT64:
        return 8
    raise ValueError(f"kernels do not compute with {type_name(dtype)}")


cdef inline bint is_float(int dtype) noexcept nogil:
    return dtype >= NPU_FLOAT16


cdef inline int weight_zero(int dtype, long long zero) except? -1:
    """The zero point of weights: a value of their type, and 0 where they are not bytes."""
    cdef long long low = -128 if dtype == NPU_INT8 else 0
    cdef long long high = 127 if dtype == NPU_INT8 else 255 if dtype == NPU_UINT8 else 0
    if not low <= zero <= high:
        raise ValueError(f"w_zero of {type_name(dtype)} weights must be from {low} to {high}, got {zero}")
    return <int>zero


cdef inline int take(long long *out, object values, int rank) except -1:
    """Copy ``rank`` integers."""
    cdef int i
    if len(values) != rank:
        raise ValueError(f"expected {rank} integers, got {len(values)}")
    for i in range(rank):
        out[i] = values[i]
    return 0


cdef inline int place(
    Operand *out, const unsigned char[::1] memory, long long offset, const long long *dims, int rank, long long size,
    str what,
) except -1:
    """Point ``out`` (its strides are set) at memory[offset]; IndexError if any element lies outside the memory."""
    cdef long long low = offset, high = offset + size, reach
    cdef int i
    out.p = NULL
    for i in range(rank):
        if dims[i] < 0:
            raise ValueError(f"{what}: dimensions must be >= 0, got {dims[i]}")
        if dims[i] == 0:
            return 0
        reach = (dims[i] - 1) * out.s[i]
        if reach < 0:
            low += reach
        else:
            high += reach
    if low < 0 or high > memory.shape[0]:
        raise IndexError(f"{what}: bytes [{low}, {high}) are outside its memory of {memory.shape[0]} bytes")
    out.p = <unsigned char *>&memory[0] + offset
    return 0


cdef inline int operand(
    Operand *out, const unsigned char[::1] memory, long long offset, object strides, const long long *dims, int rank,
    long long size, str what,
) except -1:
    """An operand from the tuple of its strides."""
    take(out.s, strides, rank)
    return place(out, memory, offset, dims, rank, size, what)


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
    """Drop dimensions of 1 and fold adjacent ones that are one for every operand, so that rows get long."""
    cdef int last = 3, i
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


cdef inline void each_row(Walk *w, row_function row, const void *context) noexcept nogil:
    """Call ``row`` for every innermost row, outer dimensions in order."""
    cdef unsigned char *p[4]
    cdef long long s[4]
    cdef long long i0, i1, i2
    cdef int k
    if is_empty(w.n, 4):
        return
    merge(w)
    for k in range(w.count):
        s[k] = w.of[k].s[3]
    for i0 in range(w.n[0]):
        for i1 in range(w.n[1]):
            for i2 in range(w.n[2]):
                for k in range(w.count):
                    p[k] = w.of[k].p + i0 * w.of[k].s[0] + i1 * w.of[k].s[1] + i2 * w.of[k].s[2]
                row(p, s, w.n[3], context)
