/* Operations on rows of accumulators: channel-wise products added to them (depthwise convolution), and their conversion
 * to results. */
#ifndef NPUSIM_DRAIN_H
#define NPUSIM_DRAIN_H

#include "base.h"
#include "convert.h"
#include "pack.h"
#include "transcend.h"

typedef void (*npu_load_i32)(int32_t *out, const npu_byte *p, npu_int stride, npu_int n);
NPU_LOADERS(int32_t, i32)

NPU_UNUSED static const npu_load_i32 npu_loads_i32[NPU_DTYPES] = {
    NULL, npu_load_i8_i32, npu_load_u8_i32, npu_load_i16_i32, npu_load_u16_i32, npu_load_i32_i32};

typedef void (*npu_store_i32)(npu_byte *p, npu_int stride, const int32_t *in, npu_int n);
NPU_STORER(npu_store_8_i32, int32_t, uint8_t, x)
NPU_STORER(npu_store_16_i32, int32_t, uint16_t, x)

NPU_UNUSED static const npu_store_i32 npu_stores_i32[NPU_DTYPES] = {
    NULL, npu_store_8_i32, npu_store_8_i32, npu_store_16_i32, npu_store_16_i32};

#define NPU_LANES "drain_rows.h"

#define NPU_NAME(name) name##_portable
#include NPU_LANES
#undef NPU_NAME

#if NPU_X86
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
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
#define npu_rows_avx2 npu_rows_portable
#endif

#undef NPU_LANES

static const npu_rows *npu_rows_of(int level) { return level ? &npu_rows_avx2 : &npu_rows_portable; }

#endif
