/* Conversion between rows of any element type and rows of float, double or int64.
 *
 * Floats widen exactly. On the way back they are rounded to nearest even, and integers wrap. A bool is 0 or 1. Rows in
 * memory have a stride in bytes and no alignment. */
#ifndef NPUSIM_CONVERT_H
#define NPUSIM_CONVERT_H

#include "base.h"

typedef void (*npu_load_f32)(float *out, const npu_byte *p, npu_int stride, npu_int n);
typedef void (*npu_load_f64)(double *out, const npu_byte *p, npu_int stride, npu_int n);
typedef void (*npu_load_i64)(npu_int *out, const npu_byte *p, npu_int stride, npu_int n);
typedef void (*npu_store_f32)(npu_byte *p, npu_int stride, const float *in, npu_int n);
typedef void (*npu_store_i64)(npu_byte *p, npu_int stride, const npu_int *in, npu_int n);

static inline float npu_half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
    uint32_t special = 0x7f800000u | (magnitude << 13);
    /* The exponent of a half is 112 less than that of a float. The product is exact, also for subnormals. */
    uint32_t scaled = npu_bits(npu_float(magnitude << 13) * 0x1p112f);
    return npu_float(sign | (magnitude >= 0x7c00 ? special : scaled));
}

static inline uint16_t npu_float_to_half(float value)
{
    uint32_t bits = npu_bits(value), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    /* Adding 0.5 leaves the subnormal half in the low bits of the sum. The addition itself does the rounding. */
    uint32_t small = npu_bits(npu_float(magnitude) + 0.5f) - 0x3f000000;
    uint32_t normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    uint32_t nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    uint32_t half = magnitude < 0x38800000 ? small : normal;
    half = magnitude >= 0x477ff000 ? 0x7c00 : half;
    half = magnitude > 0x7f800000 ? nan : half;
    return (uint16_t)(sign | half);
}

static inline float npu_brain_to_float(uint16_t brain) { return npu_float((uint32_t)brain << 16); }

static inline uint16_t npu_float_to_brain(float value)
{
    uint32_t bits = npu_bits(value);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
}

#define NPU_LOADER(NAME, STORED, WIDE, EXPRESSION)                                              \
    NPU_UNUSED static void NAME(WIDE *out, const npu_byte *p, npu_int stride, npu_int n)        \
    {                                                                                           \
        npu_int i;                                                                              \
        STORED v;                                                                               \
        if (stride == (npu_int)sizeof(STORED)) {                                                \
            NPU_INDEPENDENT for (i = 0; i < n; i++) {                                           \
                memcpy(&v, p + i * (npu_int)sizeof(STORED), sizeof v);                          \
                out[i] = (WIDE)(EXPRESSION);                                                    \
            }                                                                                   \
        } else {                                                                                \
            for (i = 0; i < n; i++) {                                                           \
                memcpy(&v, p + i * stride, sizeof v);                                           \
                out[i] = (WIDE)(EXPRESSION);                                                    \
            }                                                                                   \
        }                                                                                       \
    }

#define NPU_STORER(NAME, WIDE, STORED, EXPRESSION)                                              \
    NPU_UNUSED static void NAME(npu_byte *p, npu_int stride, const WIDE *in, npu_int n)         \
    {                                                                                           \
        npu_int i;                                                                              \
        STORED v;                                                                               \
        if (stride == (npu_int)sizeof(STORED)) {                                                \
            NPU_INDEPENDENT for (i = 0; i < n; i++) {                                           \
                WIDE x = in[i];                                                                 \
                v = (STORED)(EXPRESSION);                                                       \
                memcpy(p + i * (npu_int)sizeof(STORED), &v, sizeof v);                          \
            }                                                                                   \
        } else {                                                                                \
            for (i = 0; i < n; i++) {                                                           \
                WIDE x = in[i];                                                                 \
                v = (STORED)(EXPRESSION);                                                       \
                memcpy(p + i * stride, &v, sizeof v);                                           \
            }                                                                                   \
        }                                                                                       \
    }

#define NPU_LOADERS(WIDE, SUFFIX)                                          \
    NPU_LOADER(npu_load_bool_##SUFFIX, uint8_t, WIDE, v != 0)              \
    NPU_LOADER(npu_load_i8_##SUFFIX, int8_t, WIDE, v)                      \
    NPU_LOADER(npu_load_u8_##SUFFIX, uint8_t, WIDE, v)                     \
    NPU_LOADER(npu_load_i16_##SUFFIX, int16_t, WIDE, v)                    \
    NPU_LOADER(npu_load_u16_##SUFFIX, uint16_t, WIDE, v)                   \
    NPU_LOADER(npu_load_i32_##SUFFIX, int32_t, WIDE, v)                    \
    NPU_LOADER(npu_load_i64_##SUFFIX, npu_int, WIDE, v)

#define NPU_FLOAT_LOADERS(WIDE, SUFFIX)                                    \
    NPU_LOADER(npu_load_f16_##SUFFIX, uint16_t, WIDE, npu_half_to_float(v)) \
    NPU_LOADER(npu_load_bf16_##SUFFIX, uint16_t, WIDE, npu_brain_to_float(v)) \
    NPU_LOADER(npu_load_f32_##SUFFIX, float, WIDE, v)

NPU_LOADERS(float, f32)
NPU_LOADERS(double, f64)
NPU_LOADERS(npu_int, i64)
NPU_FLOAT_LOADERS(float, f32)
NPU_FLOAT_LOADERS(double, f64)

NPU_STORER(npu_store_bool_f32, float, uint8_t, x != 0)
NPU_STORER(npu_store_f16_f32, float, uint16_t, npu_float_to_half(x))
NPU_STORER(npu_store_bf16_f32, float, uint16_t, npu_float_to_brain(x))
NPU_STORER(npu_store_f32_f32, float, float, x)

NPU_STORER(npu_store_bool_i64, npu_int, uint8_t, x != 0)
NPU_STORER(npu_store_8_i64, npu_int, uint8_t, x)
NPU_STORER(npu_store_16_i64, npu_int, uint16_t, x)
NPU_STORER(npu_store_32_i64, npu_int, uint32_t, x)
NPU_STORER(npu_store_64_i64, npu_int, uint64_t, x)

/* Tables indexed by element type. NULL: the type is not supported, or it belongs to another class (float, integer). */
NPU_UNUSED static const npu_load_f32 npu_loads_f32[NPU_DTYPES] = {
    npu_load_bool_f32, npu_load_i8_f32, npu_load_u8_f32, npu_load_i16_f32, npu_load_u16_f32, npu_load_i32_f32, NULL,
    npu_load_i64_f32, NULL, npu_load_f16_f32, npu_load_bf16_f32, npu_load_f32_f32, NULL};
NPU_UNUSED static const npu_load_f64 npu_loads_f64[NPU_DTYPES] = {
    npu_load_bool_f64, npu_load_i8_f64, npu_load_u8_f64, npu_load_i16_f64, npu_load_u16_f64, npu_load_i32_f64, NULL,
    npu_load_i64_f64, NULL, npu_load_f16_f64, npu_load_bf16_f64, npu_load_f32_f64, NULL};
NPU_UNUSED static const npu_load_i64 npu_loads_i64[NPU_DTYPES] = {
    npu_load_bool_i64, npu_load_i8_i64, npu_load_u8_i64, npu_load_i16_i64, npu_load_u16_i64, npu_load_i32_i64, NULL,
    npu_load_i64_i64, NULL, NULL, NULL, NULL, NULL};
NPU_UNUSED static const npu_store_f32 npu_stores_f32[NPU_DTYPES] = {
    npu_store_bool_f32, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    npu_store_f16_f32, npu_store_bf16_f32, npu_store_f32_f32, NULL};
NPU_UNUSED static const npu_store_i64 npu_stores_i64[NPU_DTYPES] = {
    npu_store_bool_i64, npu_store_8_i64, npu_store_8_i64, npu_store_16_i64, npu_store_16_i64, npu_store_32_i64, NULL,
    npu_store_64_i64, NULL, NULL, NULL, NULL, NULL};

/* Limits of an integer type. */
static inline npu_int npu_lowest(int dtype)
{
    switch (dtype) {
    case NPU_INT8: return INT8_MIN;
    case NPU_INT16: return INT16_MIN;
    case NPU_INT32: return INT32_MIN;
    case NPU_INT64: return INT64_MIN;
    default: return 0;
    }
}

static inline npu_int npu_highest(int dtype)
{
    switch (dtype) {
    case NPU_BOOL: return 1;
    case NPU_INT8: return INT8_MAX;
    case NPU_UINT8: return UINT8_MAX;
    case NPU_INT16: return INT16_MAX;
    case NPU_UINT16: return UINT16_MAX;
    case NPU_INT32: return INT32_MAX;
    default: return INT64_MAX;
    }
}

/* Round towards zero and saturate to [low, high]. NaN gives 0, or `low` if that is positive. */
static inline npu_int npu_truncate(double value, npu_int low, npu_int high)
{
    npu_int whole;
    if (value != value)
        return low > 0 ? low : 0;
    if (value >= 0x1p63)
        return high;
    if (value < -0x1p63)
        return low;
    whole = (npu_int)value;
    return whole < low ? low : whole > high ? high : whole;
}

#endif
