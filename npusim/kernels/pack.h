/* Packing of pixels and weights into the units that gemm.h multiplies. */
#ifndef NPUSIM_PACK_H
#define NPUSIM_PACK_H

#include "gemm.h"

/* Scratch memory for one kernel call: `size` bytes, aligned to a cache line, or NULL. npu_scratch_free() frees it and
 * accepts NULL. It is not kept between calls: memory kept by a thread would leak when the thread ends, and malloc keeps
 * the pages. */
static npu_byte *npu_scratch(size_t size)
{
    npu_byte *made = malloc(size + 64), *aligned;
    if (!made)
        return NULL;
    aligned = made + (64 - ((uintptr_t)made & 63));
    aligned[-1] = (npu_byte)(aligned - made);
    return aligned;
}

static void npu_scratch_free(npu_byte *scratch)
{
    if (scratch)
        free(scratch - scratch[-1]);
}

/* Pack the channels of one pixel. */
typedef void (*npu_pack_pixels)(npu_byte *out, const npu_byte *x, npu_int n);

static void npu_pixels_32(npu_byte *out, const npu_byte *x, npu_int n) { memcpy(out, x, (size_t)n * 4); }
static void npu_pixels_16(npu_byte *out, const npu_byte *x, npu_int n) { memcpy(out, x, (size_t)n * 2); }
static void npu_pixels_8(npu_byte *out, const npu_byte *x, npu_int n) { memcpy(out, x, (size_t)n); }

static void npu_pixels_f16(npu_byte *out, const npu_byte *x, npu_int n) { npu_load_f16_f32((float *)(void *)out, x, 2, n); }
static void npu_pixels_bf16(npu_byte *out, const npu_byte *x, npu_int n) { npu_load_bf16_f32((float *)(void *)out, x, 2, n); }

static void npu_pixels_flipped(npu_byte *out, const npu_byte *x, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++) out[i] = x[i] ^ 0x80;
}

static void npu_pixels_flipped_16(npu_byte *out, const npu_byte *x, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, x + 2 * i, 2);
        v ^= 0x8000;
        memcpy(out + 2 * i, &v, 2);
    }
}

#define NPU_WIDEN(NAME, T)                                               \
    static void NAME(npu_byte *out, const npu_byte *x, npu_int n)        \
    {                                                                    \
        npu_int i;                                                       \
        NPU_INDEPENDENT for (i = 0; i < n; i++) {                        \
            const int16_t v = (T)x[i];                                   \
            memcpy(out + 2 * i, &v, 2);                                  \
        }                                                                \
    }
NPU_WIDEN(npu_pixels_widen_i8, int8_t)
NPU_WIDEN(npu_pixels_widen_u8, uint8_t)

static npu_pack_pixels npu_pixels_of(int mode, int dtype)
{
    if (mode == NPU_MODE_U8)
        return dtype == NPU_UINT8 ? npu_pixels_8 : npu_pixels_flipped;
    if (mode == NPU_MODE_I16) {
        if (dtype == NPU_UINT16)
            return npu_pixels_flipped_16;
        return dtype == NPU_INT8 ? npu_pixels_widen_i8 : dtype == NPU_UINT8 ? npu_pixels_widen_u8 : npu_pixels_16;
    }
    return dtype == NPU_FLOAT16 ? npu_pixels_f16 : dtype == NPU_BFLOAT16 ? npu_pixels_bf16 : npu_pixels_32;
}

/* Pack `columns` columns of k rows of weights, `stride` bytes apart, minus `zero`, into units of `width` columns.
 * Missing columns and rows are 0. Only bytes have a zero point, and the difference must fit the packed type. */
typedef void (*npu_pack_panel)(npu_byte *out, const npu_byte *w, npu_int stride, npu_int k, npu_int columns, npu_int width,
                               int zero);

static void npu_panel_32(npu_byte *out, const npu_byte *w, npu_int stride, npu_int k, npu_int columns, npu_int width,
                         int zero)
{
    npu_int i;
    (void)zero;
    for (i = 0; i < k; i++, out += 4 * width) {
        if (columns == 32) {
            memcpy(out, w + i * stride, 128);
            continue;
        }
        memcpy(out, w + i * stride, (size_t)columns * 4);
        memset(out + 4 * columns, 0, (size_t)(width - columns) * 4);
    }
}

static void npu_panel_f16(npu_byte *out, const npu_byte *w, npu_int stride, npu_int k, npu_int columns, npu_int width,
                         int zero)
{
    npu_int i;
    (void)zero;
    for (i = 0; i < k; i++, out += 4 * width) {
        npu_load_f16_f32((float *)(void *)out, w + i * stride, 2, columns);
        memset(out + 4 * columns, 0, (size_t)(width - columns) * 4);
    }
}

static void npu_panel_bf16(npu_byte *out, const npu_byte *w, npu_int stride, npu_int k, npu_int columns, npu_int width,
                         int zero)
{
    npu_int i;
    (void)zero;
    for (i = 0; i < k; i++, out += 4 * width) {
        npu_load_bf16_f32((float *)(void *)out, w + i * stride, 2, columns);
        memset(out + 4 * columns, 0, (size_t)(width - columns) * 4);
    }
}

#define NPU_PAIR_PANEL(NAME, T)                                                                                    \
    static void NAME(npu_byte *out, const npu_byte *w, npu_int stride, npu_int k, npu_int columns, npu_int width,  \
                     int zero)                                                                                     \
    {                                                                                                              \
        npu_int i, j;                                                                                              \
        for (i = 0; i < k; i += 2, out += 4 * width, w += 2 * stride) {                                            \
            const npu_byte *next = i + 1 < k ? w + stride : w;                                                     \
            const uint32_t keep = i + 1 < k ? 0xffff0000u : 0;                                                     \
            NPU_INDEPENDENT for (j = 0; j < columns; j++) {                                                        \
                T low, high;                                                                                       \
                uint32_t unit;                                                                                     \
                memcpy(&low, w + j * (npu_int)sizeof(T), sizeof(T));                                               \
                memcpy(&high, next + j * (npu_int)sizeof(T), sizeof(T));                                           \
                unit = ((uint32_t)(low - zero) & 0xffff) | (((uint32_t)(high - zero) << 16) & keep);               \
                memcpy(out + 4 * j, &unit, 4);                                                                     \
            }                                                                                                      \
            memset(out + 4 * columns, 0, (size_t)(width - columns) * 4);                                           \
        }                                                                                                          \
    }
NPU_PAIR_PANEL(npu_panel_i16_i8, int8_t)
NPU_PAIR_PANEL(npu_panel_i16_u8, uint8_t)
NPU_PAIR_PANEL(npu_panel_i16_i16, int16_t)

#if NPU_X86
/* Pack four rows of 16 bytes column by column. */
static inline void npu_quads_16(npu_byte *out, const npu_byte *w, npu_int stride, int zero)
{
    const __m128i less = _mm_set1_epi8((char)zero);
    const __m128i r0 = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)(const void *)w), less);
    const __m128i r1 = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)(const void *)(w + stride)), less);
    const __m128i r2 = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)(const void *)(w + 2 * stride)), less);
    const __m128i r3 = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)(const void *)(w + 3 * stride)), less);
    const __m128i a = _mm_unpacklo_epi8(r0, r1), b = _mm_unpackhi_epi8(r0, r1);
    const __m128i c = _mm_unpacklo_epi8(r2, r3), d = _mm_unpackhi_epi8(r2, r3);
    __m128i *o = (__m128i *)(void *)out;
    _mm_storeu_si128(o, _mm_unpacklo_epi16(a, c));
    _mm_storeu_si128(o + 1, _mm_unpackhi_epi16(a, c));
    _mm_storeu_si128(o + 2, _mm_unpacklo_epi16(b, d));
    _mm_storeu_si128(o + 3, _mm_unpackhi_epi16(b, d));
}
#endif

static void npu_panel_u8(npu_byte *out, const npu_byte *w, npu_int stride, npu_int k, npu_int columns, npu_int width,
                             int zero)
{
    npu_int i, j, t;
    for (i = 0; i < k; i += 4, out += 4 * width, w += 4 * stride) {
        j = 0;
#if NPU_X86
        if (i + 4 <= k)
            for (; j + 16 <= columns; j += 16)
                npu_quads_16(out + 4 * j, w + j, stride, zero);
#endif
        for (; j < columns; j++)
            for (t = 0; t < 4; t++)
                out[4 * j + t] = i + t < k ? (npu_byte)(w[j + t * stride] - zero) : 0;
        memset(out + 4 * columns, 0, (size_t)(width - columns) * 4);
    }
}

static npu_pack_panel npu_panel_of(int mode, int dtype)
{
    if (mode == NPU_MODE_U8)
        return npu_panel_u8;
    if (mode == NPU_MODE_I16)
        return dtype == NPU_INT8 ? npu_panel_i16_i8 : dtype == NPU_UINT8 ? npu_panel_i16_u8 : npu_panel_i16_i16;
    return dtype == NPU_FLOAT16 ? npu_panel_f16 : dtype == NPU_BFLOAT16 ? npu_panel_bf16 : npu_panel_32;
}

/* A unit of pixels that are all 1, by mode. The product of a row of them and a panel is the sum of each column. */
static uint32_t npu_ones(int mode) { return mode == NPU_MODE_U8 ? 0x01010101u : mode == NPU_MODE_I16 ? 0x00010001u : 1u; }

/* sums[j] = -offset * sums[j], modulo 2^32. */
static void npu_offset(int32_t *sums, npu_int n, uint32_t offset)
{
    npu_int i;
    for (i = 0; i < n; i++)
        sums[i] = (int32_t)(0 - offset * (uint32_t)sums[i]);
}

/* Subtract `zero` times the sum of (a - offset) from the sums of one pixel, whose k bytes are at `a`. Modulo 2^32. */
static void npu_less_zero(npu_byte *sums, npu_int n, const npu_byte *a, npu_int k, uint32_t offset, uint32_t zero)
{
    uint32_t total = 0, share;
    npu_int i;
    for (i = 0; i < k; i++)
        total += a[i];
    share = zero * (offset * (uint32_t)k - total);
    NPU_INDEPENDENT for (i = 0; i < n; i++) {
        const uint32_t sum = npu_unit(sums + 4 * i) + share;
        memcpy(sums + 4 * i, &sum, 4);
    }
}

#endif
