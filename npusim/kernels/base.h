/* Common definitions of the kernel headers: integer types, element type codes, bit casts, and a pragma for loops
 * without dependences between iterations. */
#ifndef NPUSIM_BASE_H
#define NPUSIM_BASE_H

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef long long npu_int;
typedef unsigned char npu_byte;

enum {
    NPU_BOOL, NPU_INT8, NPU_UINT8, NPU_INT16, NPU_UINT16, NPU_INT32, NPU_UINT32, NPU_INT64, NPU_UINT64,
    NPU_FLOAT16, NPU_BFLOAT16, NPU_FLOAT32, NPU_FLOAT64, NPU_DTYPES
};

/* Elements per step through a scratch buffer on the stack. */
enum { NPU_BLOCK = 512 };

/* Operands are either the same view or do not overlap, so iterations are independent even if pointers are equal. */
#if defined(__clang__)
#define NPU_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define NPU_INDEPENDENT _Pragma("GCC ivdep")
#else
#define NPU_INDEPENDENT
#endif

#if defined(__GNUC__) || defined(__clang__)
#define NPU_UNUSED __attribute__((unused))
#else
#define NPU_UNUSED
#endif

#if (defined(__x86_64__) || defined(_M_X64)) && (defined(__GNUC__) || defined(__clang__))
#define NPU_X86 1
#include <immintrin.h>
#else
#define NPU_X86 0
#endif

#if defined(_MSC_VER)
#define NPU_THREAD __declspec(thread)
#else
#define NPU_THREAD __thread
#endif

static inline uint32_t npu_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float npu_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
