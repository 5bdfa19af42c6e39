"""Weights on their way to the matrix unit: unpacking of narrow types, and dequantisation."""

from libc.string cimport memcpy

from npusim.kernels._operand cimport (
    NPU_BFLOAT16, NPU_FLOAT16, NPU_FLOAT32, NPU_INT8, NPU_UINT8, Operand, Strided, dense, interrupted, is_empty,
    item_size, settle, take, type_name,
)

cdef extern from "drain.h" nogil:
    ctypedef void (*npu_store_f32)(unsigned char *p, long long stride, const float *values, long long n) noexcept nogil
    const npu_store_f32[13] npu_stores_f32


cdef inline int _weight(const unsigned char *row, long long at, int bits, bint signed) noexcept nogil:
    """Element ``at`` of packed elements of ``bits`` bits, low bits first. ``row``: the first byte."""
    cdef int sign = 1 << (bits - 1), value = (row[at * bits >> 3] >> (at * bits & 7)) & ((1 << bits) - 1)
    # Flipping the sign bit and subtracting its weight extends the sign, whatever the number of bits.
    return (value ^ sign) - sign if signed else value


def weights(
    int w_dtype, int bits, int out_dtype, Strided w not None, Strided out not None, dims, Strided scale, Strided zero,
    long long block, long long skip,
):
    """Unpack weights of ``bits`` bits and, if there is a scale, dequantise them.

    dims: (batch, k, oc). w: dense [k][oc] of int8 or uint8, packed in ``bits`` bits each, at stride (batch) in bytes.
    out: dense [batch][k][oc]. Without ``scale``: the integers as ``w_dtype``. With it: (w - zero) * scale in float32,
    rounded to ``out_dtype``, a float type. scale (float32) and zero (``w_dtype``, one byte each; None is 0) are dense
    rows of oc at strides (batch). The first of them serves ``block - skip`` rows of weights, each other one ``block``
    rows.
    """
    cdef Operand a, o, s, z
    cdef long long[3] n
    cdef long long[2] m
    cdef long long b, k, j, size = item_size(out_dtype), rows, at, done = 0
    cdef bint signed = w_dtype == NPU_INT8, scaled = scale is not None
    cdef float[1] value
    cdef float factor = 0
    cdef int q, less
    cdef unsigned char *p
    if w_dtype not in (NPU_INT8, NPU_UINT8) or bits not in (2, 4, 8):
        raise ValueError(f"weights: must be int8 or uint8 in 2, 4 or 8 bits, got {type_name(w_dtype)} in {bits}")
    if not (out_dtype in (NPU_FLOAT16, NPU_BFLOAT16, NPU_FLOAT32) if scaled else out_dtype == w_dtype):
        raise ValueError(f"weights: {type_name(w_dtype)} do not become {type_name(out_dtype)} that way")
    if block < 1 or not 0 <= skip < block:
        raise ValueError(f"weights: block must be >= 1 and above skip, got {block} and {skip}")
    take(n, dims, 3)
    m[0], m[1] = n[0], (n[1] * n[2] * bits + 7) // 8
    dense(&a, w, m, 2, 1, "w")
    m[1] = n[1] * n[2]
    dense(&o, out, m, 2, size, "out", True)
    rows = (n[1] + skip + block - 1) // block
    m[1] = rows * n[2]
    s.p, z.p = NULL, NULL
    if scaled:
        dense(&s, scale, m, 2, 4, "scale")
    if zero is not None:
        dense(&z, zero, m, 2, 1, "zero")
    if is_empty(n, 3):
        return
    with nogil:
        for b in range(n[0]):
            for k in range(n[1]):
                if interrupted(&done, n[2]):
                    break
                p = o.p + b * o.s[0] + k * n[2] * size
                at = (k + skip) // block * n[2]
                for j in range(n[2]):
                    q = _weight(a.p + b * a.s[0], k * n[2] + j, bits, signed)
                    if not scaled:
                        p[j] = <unsigned char>q
                        continue
                    less = 0
                    if z.p != NULL:
                        less = z.p[b * z.s[0] + at + j]
                        if signed:
                            less = (less ^ 128) - 128
                    memcpy(&factor, s.p + b * s.s[0] + 4 * (at + j), 4)
                    value[0] = <float>(q - less) * factor
                    npu_stores_f32[out_dtype](p + j * size, size, value, 1)
    settle()
