/* Products of a packed block of pixels and a panel of weights: c[m][o] += sum over k of a[m][k] * b[k][o].
 *
 * All data is in units of 4 bytes. A unit of `a` holds one float, one int32, two int16 or four bytes of consecutive k.
 * The matching unit of `b` holds the same k of one column. An accumulator is one float or int32. A tile kernel keeps up
 * to 14 x 32 accumulators in registers and runs over k in order, with one multiply-add per unit. The order of summation
 * of an output therefore does not depend on the tile.
 *
 * Integer kernels compute modulo 2^32, so `start` corrects an offset of the pixels exactly. */
#ifndef NPUSIM_GEMM_H
#define NPUSIM_GEMM_H

#include "base.h"
#include "convert.h"

/* Contents of a unit. */
enum { NPU_MODE_F32, NPU_MODE_I32, NPU_MODE_I16, NPU_MODE_U8, NPU_MODES };

enum {
    NPU_TILE_ROWS = 14,   /* maximum pixels of a tile */
    NPU_CHUNK = 512,      /* maximum units of k per pass: a panel of 32 columns is 64 KiB */
    NPU_ROW = 528,        /* units between packed pixels: an odd number of cache lines spreads them over cache sets */
    NPU_BLOCK_ROWS = 112, /* pixels packed at once: 224 KiB */
    NPU_BLOCK_COLUMNS = 256
};

/* a: packed pixels, NPU_ROW units apart. b: `step` bytes per k. c: one pointer per pixel. start: added once; may be
 * NULL. */
typedef void (*npu_tile)(const npu_byte *a, const npu_byte *b, npu_int step, npu_int k, npu_byte *const *c,
                         const int32_t *start, int first);

/* One pixel and a whole row of weights, float32: a, b, step, k as above; vectors of columns; c. */
typedef void (*npu_line)(const npu_byte *a, const npu_byte *b, npu_int step, npu_int k, npu_int vectors, npu_byte *c,
                         int first);

/* The kernels of an instruction set: lanes per vector, maximum rows, a line (may be NULL), [mode][vectors - 1][rows]. */
typedef struct {
    int lanes, rows;
    npu_line line;
    npu_tile tile[NPU_MODES][2][NPU_TILE_ROWS + 1];
} npu_gemm;

#define NPU_ROWS_UP_TO_6(X, ...) X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) \
    X(5, __VA_ARGS__) X(6, __VA_ARGS__)
#define NPU_ROWS_UP_TO_14(X, ...) NPU_ROWS_UP_TO_6(X, __VA_ARGS__) X(7, __VA_ARGS__) X(8, __VA_ARGS__) \
    X(9, __VA_ARGS__) X(10, __VA_ARGS__) X(11, __VA_ARGS__) X(12, __VA_ARGS__) X(13, __VA_ARGS__) X(14, __VA_ARGS__)

/* The body of a tile of ROWS pixels and VECTORS vectors. NPU_V, NPU_LOAD, NPU_STORE, NPU_SPLAT, NPU_ZERO and NPU_ADD
 * come from the instruction set, MULADD(accumulator, a, b) from the mode. */
#define NPU_DEFINE_TILE(ROWS, NAME, VECTORS, MULADD)                                                              \
    static void NAME##_##VECTORS##_##ROWS(const npu_byte *a, const npu_byte *b, npu_int step, npu_int k,          \
                                          npu_byte *const *c, const int32_t *start, int first)                    \
    {                                                                                                             \
        const npu_int width = (npu_int)sizeof(NPU_V);                                                             \
        NPU_V sum[ROWS][VECTORS];                                                                                 \
        int m, v;                                                                                                 \
        _Pragma("GCC unroll 16") for (m = 0; m < ROWS; m++)                                                       \
            _Pragma("GCC unroll 4") for (v = 0; v < VECTORS; v++) {                                               \
                sum[m][v] = first ? NPU_ZERO() : NPU_LOAD(c[m] + v * width);                                      \
                if (start)                                                                                        \
                    sum[m][v] = NPU_ADD(sum[m][v], NPU_LOAD((const npu_byte *)start + v * width));                \
            }                                                                                                     \
        for (; k > 0; k--, a += 4, b += step) {                                                                   \
            NPU_V column[VECTORS];                                                                                \
            _Pragma("GCC unroll 4") for (v = 0; v < VECTORS; v++) column[v] = NPU_LOAD(b + v * width);            \
            _Pragma("GCC unroll 16") for (m = 0; m < ROWS; m++) {                                                 \
                const NPU_V pixel = NPU_SPLAT(a + m * (4 * NPU_ROW));                                             \
                _Pragma("GCC unroll 4") for (v = 0; v < VECTORS; v++)                                             \
                    sum[m][v] = MULADD(sum[m][v], pixel, column[v]);                                              \
            }                                                                                                     \
        }                                                                                                         \
        _Pragma("GCC unroll 16") for (m = 0; m < ROWS; m++)                                                       \
            _Pragma("GCC unroll 4") for (v = 0; v < VECTORS; v++) NPU_STORE(c[m] + v * width, sum[m][v]);         \
    }

/* The product of one pixel. A tile of it would read a few columns of each row of weights, far apart in memory. This
 * reads NPU_LINE_ROWS whole rows in parallel, and keeps the accumulators in memory between them. */
enum { NPU_LINE_ROWS = 8 };

#define NPU_DEFINE_LINE(NAME, MULADD)                                                                             \
    static void NAME##_line(const npu_byte *a, const npu_byte *b, npu_int step, npu_int k, npu_int vectors,       \
                            npu_byte *c, int first)                                                               \
    {                                                                                                             \
        const npu_int width = (npu_int)sizeof(NPU_V);                                                             \
        npu_int v;                                                                                                \
        int i;                                                                                                    \
        for (; k >= NPU_LINE_ROWS; k -= NPU_LINE_ROWS, a += 4 * NPU_LINE_ROWS, b += NPU_LINE_ROWS * step) {       \
            NPU_V pixel[NPU_LINE_ROWS];                                                                           \
            _Pragma("GCC unroll 8") for (i = 0; i < NPU_LINE_ROWS; i++) pixel[i] = NPU_SPLAT(a + 4 * i);          \
            for (v = 0; v < vectors; v++) {                                                                       \
                NPU_V sum = first ? NPU_ZERO() : NPU_LOAD(c + v * width);                                         \
                _Pragma("GCC unroll 8") for (i = 0; i < NPU_LINE_ROWS; i++)                                       \
                    sum = MULADD(sum, pixel[i], NPU_LOAD(b + i * step + v * width));                              \
                NPU_STORE(c + v * width, sum);                                                                    \
            }                                                                                                     \
            first = 0;                                                                                            \
        }                                                                                                         \
        for (; k > 0; k--, a += 4, b += step, first = 0) {                                                        \
            const NPU_V pixel = NPU_SPLAT(a);                                                                     \
            for (v = 0; v < vectors; v++) {                                                                       \
                const NPU_V sum = first ? NPU_ZERO() : NPU_LOAD(c + v * width);                                   \
                NPU_STORE(c + v * width, MULADD(sum, pixel, NPU_LOAD(b + v * width)));                            \
            }                                                                                                     \
        }                                                                                                         \
    }

#define NPU_TILE_NAME(ROWS, NAME, VECTORS, MULADD) NAME##_##VECTORS##_##ROWS,
#define NPU_TILES(UP_TO, NAME, MULADD) UP_TO(NPU_DEFINE_TILE, NAME, 1, MULADD) UP_TO(NPU_DEFINE_TILE, NAME, 2, MULADD)
#define NPU_TABLE(UP_TO, NAME) \
    {{NULL, UP_TO(NPU_TILE_NAME, NAME, 1, )}, {NULL, UP_TO(NPU_TILE_NAME, NAME, 2, )}}

/* Portable kernels: one pixel, 8 or 16 columns. */
static inline uint32_t npu_unit(const npu_byte *p)
{
    uint32_t unit;
    memcpy(&unit, p, sizeof unit);
    return unit;
}

static inline uint32_t npu_portable_f32(uint32_t sum, uint32_t a, uint32_t b)
{
    return npu_bits(fmaf(npu_float(a), npu_float(b), npu_float(sum)));
}

static inline uint32_t npu_portable_i32(uint32_t sum, uint32_t a, uint32_t b) { return sum + a * b; }

static inline uint32_t npu_portable_i16(uint32_t sum, uint32_t a, uint32_t b)
{
    return sum + (uint32_t)((int16_t)a * (int16_t)b) + (uint32_t)((int16_t)(a >> 16) * (int16_t)(b >> 16));
}

#define NPU_PORTABLE_TILE(NAME, COLUMNS, MULADD)                                                                  \
    static void NAME(const npu_byte *a, const npu_byte *b, npu_int step, npu_int k, npu_byte *const *c,           \
                     const int32_t *start, int first)                                                             \
    {                                                                                                             \
        uint32_t sum[COLUMNS];                                                                                    \
        int j;                                                                                                    \
        for (j = 0; j < COLUMNS; j++)                                                                             \
            sum[j] = (first ? 0 : npu_unit(c[0] + 4 * j)) + (start ? (uint32_t)start[j] : 0);                     \
        for (; k > 0; k--, a += 4, b += step)                                                                     \
            for (j = 0; j < COLUMNS; j++)                                                                         \
                sum[j] = MULADD(sum[j], npu_unit(a), npu_unit(b + 4 * j));                                        \
        memcpy(c[0], sum, sizeof sum);                                                                            \
    }

NPU_PORTABLE_TILE(npu_portable_f32_1, 8, npu_portable_f32)
NPU_PORTABLE_TILE(npu_portable_f32_2, 16, npu_portable_f32)
NPU_PORTABLE_TILE(npu_portable_i32_1, 8, npu_portable_i32)
NPU_PORTABLE_TILE(npu_portable_i32_2, 16, npu_portable_i32)
NPU_PORTABLE_TILE(npu_portable_i16_1, 8, npu_portable_i16)
NPU_PORTABLE_TILE(npu_portable_i16_2, 16, npu_portable_i16)

static const npu_gemm npu_gemm_portable = {
    8, 1, NULL,
    {{{NULL, npu_portable_f32_1}, {NULL, npu_portable_f32_2}},
     {{NULL, npu_portable_i32_1}, {NULL, npu_portable_i32_2}},
     {{NULL, npu_portable_i16_1}, {NULL, npu_portable_i16_2}}}};

#if NPU_X86
#include "gemm_x86.h"
#else
#define npu_gemm_avx2 npu_gemm_portable
#define npu_gemm_avx512 npu_gemm_portable
#define npu_gemm_vnni npu_gemm_portable
#endif

static const npu_gemm *npu_gemm_of(int level)
{
    return level == 3 ? &npu_gemm_vnni : level == 2 ? &npu_gemm_avx512 : level == 1 ? &npu_gemm_avx2 : &npu_gemm_portable;
}

#endif
