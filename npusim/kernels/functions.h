/* Elementwise functions on contiguous rows of float or int64, indexed by function code.
 *
 * Float functions that are one IEEE operation are computed in float. The others are computed in double and rounded to
 * float once: common ones by transcend.h, rare ones by the C library, whose error in the last bit of a double rarely
 * affects the float. */
#ifndef NPUSIM_FUNCTIONS_H
#define NPUSIM_FUNCTIONS_H

#include "base.h"
#include "convert.h"
#include "transcend.h"

enum { NPU_UNARIES = 47, NPU_BINARIES = 25 };

typedef void (*npu_unary_f32)(float *y, const float *x, npu_int n, const double *p);
typedef void (*npu_unary_i64)(npu_int *y, const npu_int *x, npu_int n, const double *p);
typedef void (*npu_binary_f32)(float *y, const float *a, const float *b, npu_int n);
typedef void (*npu_binary_i64)(npu_int *y, const npu_int *a, const npu_int *b, npu_int n);
typedef void (*npu_requantize)(npu_int *y, const float *x, const float *scale, const npu_int *zero, npu_int n,
                               npu_int low, npu_int high);
typedef void (*npu_dequantize)(float *y, const npu_int *x, const float *scale, const npu_int *zero, npu_int n);

static inline double npu_softplus(double x) { return (x > 0 ? x : x < 0 ? 0 : x) + log1p(exp(-fabs(x))); }

static inline float npu_float_mod(float a, float b)
{
    float r = fmodf(a, b);
    if (r != 0 && (r < 0) != (b < 0))
        return r + b;
    return r == 0 ? copysignf(0, b) : r;
}

static inline npu_int npu_wrap_mul(npu_int a, npu_int b) { return (npu_int)((uint64_t)a * (uint64_t)b); }

static inline npu_int npu_int_div(npu_int a, npu_int b)
{
    return b == 0 ? 0 : b == -1 ? (npu_int)(0 - (uint64_t)a) : a / b;
}

static inline npu_int npu_int_fmod(npu_int a, npu_int b) { return b == 0 || b == -1 ? 0 : a % b; }

static inline npu_int npu_int_mod(npu_int a, npu_int b)
{
    npu_int r = npu_int_fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static inline npu_int npu_int_pow(npu_int base, npu_int exponent)
{
    npu_int result = 1;
    if (exponent < 0)
        return base == 1 ? 1 : base == -1 ? (exponent & 1 ? -1 : 1) : 0;
    for (; exponent; exponent >>= 1) {
        if (exponent & 1)
            result = npu_wrap_mul(result, base);
        base = npu_wrap_mul(base, base);
    }
    return result;
}

static inline npu_int npu_shift_left(npu_int a, npu_int b) { return b < 0 || b > 63 ? 0 : (npu_int)((uint64_t)a << b); }

static inline npu_int npu_shift_right(npu_int a, npu_int b) { return b < 0 || b > 63 ? (a < 0 ? -1 : 0) : a >> b; }

#define NPU_LANES "functions_rows.h"

#define NPU_NAME(name) name##_portable
#include NPU_LANES
#undef NPU_NAME

#if NPU_X86
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif
#define NPU_NAME(name) name##_avx2
#include NPU_LANES
#undef NPU_NAME
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
#define npu_unaries_f32_avx2 npu_unaries_f32_portable
#define npu_unaries_i64_avx2 npu_unaries_i64_portable
#define npu_binaries_f32_avx2 npu_binaries_f32_portable
#define npu_binaries_i64_avx2 npu_binaries_i64_portable
#define npu_requantize_avx2 npu_requantize_portable
#define npu_dequantize_avx2 npu_dequantize_portable
#endif

#undef NPU_LANES

#endif
