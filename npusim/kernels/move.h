/* Move rows and planes of items. Only the size of an item matters. */
#ifndef NPUSIM_MOVE_H
#define NPUSIM_MOVE_H

#include "base.h"

/* Run STATEMENT with T as the unsigned integer type of `size` bytes. */
#define NPU_BY_SIZE(size, STATEMENT)                   \
    switch (size) {                                    \
    case 1: { typedef uint8_t T; STATEMENT; break; }   \
    case 2: { typedef uint16_t T; STATEMENT; break; }  \
    case 4: { typedef uint32_t T; STATEMENT; break; }  \
    default: { typedef uint64_t T; STATEMENT; break; } \
    }

static void npu_copy_row(npu_byte *d, npu_int ds, const npu_byte *a, npu_int as, npu_int n, int size)
{
    npu_int i;
    if (ds == size && as == size) {
        memmove(d, a, (size_t)(n * size)); /* the two may be one region of DRAM under two names */
        return;
    }
    NPU_BY_SIZE(size, for (i = 0; i < n; i++) memcpy(d + i * ds, a + i * as, sizeof(T)))
}

/* Copy a plane whose columns are far apart in the source. Works in blocks, so that each fetched cache line is used
 * fully before it is evicted. */
static void npu_copy_plane(npu_byte *d, npu_int dr, npu_int dc, const npu_byte *a, npu_int ar, npu_int ac, npu_int rows,
                           npu_int columns, int size)
{
    const npu_int step = 16;
    npu_int r0, c0, r, c;
    for (r0 = 0; r0 < rows; r0 += step)
        for (c0 = 0; c0 < columns; c0 += step) {
            npu_int r1 = r0 + step < rows ? r0 + step : rows, c1 = c0 + step < columns ? c0 + step : columns;
            NPU_BY_SIZE(size, for (r = r0; r < r1; r++) for (c = c0; c < c1; c++)
                                  memcpy(d + r * dr + c * dc, a + r * ar + c * ac, sizeof(T)))
        }
}

static void npu_fill_row(npu_byte *d, npu_int ds, npu_int n, int size, unsigned long long pattern)
{
    npu_int i;
    NPU_BY_SIZE(size, {
        const T value = (T)pattern;
        if (ds == size)
            for (i = 0; i < n; i++)
                memcpy(d + i * (npu_int)sizeof(T), &value, sizeof(T));
        else
            for (i = 0; i < n; i++)
                memcpy(d + i * ds, &value, sizeof(T));
    })
}

static void npu_select_row(npu_byte *d, npu_int ds, const npu_byte *c, npu_int cs, const npu_byte *a, npu_int as,
                           const npu_byte *b, npu_int bs, npu_int n, int size)
{
    npu_int i;
    NPU_BY_SIZE(size, for (i = 0; i < n; i++) memmove(d + i * ds, c[i * cs] ? a + i * as : b + i * bs, sizeof(T)))
}

#endif
