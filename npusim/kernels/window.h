/* Pooling and resampling: rows of channels are combined tap by tap into a row of sums. */
#ifndef NPUSIM_WINDOW_H
#define NPUSIM_WINDOW_H

#include "base.h"

static void npu_max_f32(float *sum, const float *x, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++) {
        const float s = sum[i], v = x[i];
        sum[i] = v > s || v != v ? v : s;
    }
}

static void npu_max_i64(npu_int *sum, const npu_int *x, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++) sum[i] = x[i] > sum[i] ? x[i] : sum[i];
}

static void npu_sum_f32(float *sum, const float *x, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++) sum[i] += x[i];
}

static void npu_sum_i64(npu_int *sum, const npu_int *x, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++) sum[i] = (npu_int)((uint64_t)sum[i] + (uint64_t)x[i]);
}

static void npu_sum_squares(float *sum, const float *x, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++) sum[i] += x[i] * x[i];
}

static void npu_weighted(float *sum, const float *x, float weight, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++) sum[i] += weight * x[i];
}

static void npu_divide(float *sum, float count, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++) sum[i] /= count;
}

static void npu_root(float *sum, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++) sum[i] = sqrtf(sum[i]);
}

#endif
