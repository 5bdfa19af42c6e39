/* Fold rows into 8-byte accumulators that are `stride` bytes apart. Stride 0 folds all elements into one accumulator,
 * in order. */
#ifndef NPUSIM_ACCUMULATE_H
#define NPUSIM_ACCUMULATE_H

#include "base.h"

enum {
    NPU_SUM, NPU_MEAN, NPU_MAX, NPU_MIN, NPU_PROD, NPU_L1, NPU_L2, NPU_SUM_SQUARE, NPU_ANY, NPU_ALL
};

static inline double npu_acc_f64(const npu_byte *p)
{
    double value;
    memcpy(&value, p, 8);
    return value;
}

static inline npu_int npu_acc_i64(const npu_byte *p)
{
    npu_int value;
    memcpy(&value, p, 8);
    return value;
}

#define NPU_FOLD(READ, T, EXPRESSION)              \
    if (stride == 0) {                             \
        T s = READ(acc);                           \
        for (i = 0; i < n; i++) {                  \
            const T v = x[i];                      \
            s = (T)(EXPRESSION);                   \
        }                                          \
        memcpy(acc, &s, 8);                        \
    } else {                                       \
        for (i = 0; i < n; i++) {                  \
            const T v = x[i];                      \
            T s = READ(acc + i * stride);          \
            s = (T)(EXPRESSION);                   \
            memcpy(acc + i * stride, &s, 8);       \
        }                                          \
    }                                              \
    break

static void npu_reduce_f64(int fn, npu_byte *acc, npu_int stride, const double *x, npu_int n)
{
    npu_int i;
    switch (fn) {
    case NPU_SUM: case NPU_MEAN: NPU_FOLD(npu_acc_f64, double, s + v);
    case NPU_MAX: NPU_FOLD(npu_acc_f64, double, s != s ? s : v != v ? v : v > s ? v : s);
    case NPU_MIN: NPU_FOLD(npu_acc_f64, double, s != s ? s : v != v ? v : v < s ? v : s);
    case NPU_PROD: NPU_FOLD(npu_acc_f64, double, s * v);
    case NPU_L1: NPU_FOLD(npu_acc_f64, double, s + fabs(v));
    case NPU_L2: case NPU_SUM_SQUARE: NPU_FOLD(npu_acc_f64, double, s + v * v);
    case NPU_ANY: NPU_FOLD(npu_acc_f64, double, s != 0 || v != 0);
    default: NPU_FOLD(npu_acc_f64, double, s != 0 && v != 0);
    }
}

static void npu_reduce_i64(int fn, npu_byte *acc, npu_int stride, const npu_int *x, npu_int n)
{
    npu_int i;
    switch (fn) {
    case NPU_SUM: case NPU_MEAN: NPU_FOLD(npu_acc_i64, npu_int, (uint64_t)s + (uint64_t)v);
    case NPU_MAX: NPU_FOLD(npu_acc_i64, npu_int, v > s ? v : s);
    case NPU_MIN: NPU_FOLD(npu_acc_i64, npu_int, v < s ? v : s);
    case NPU_PROD: NPU_FOLD(npu_acc_i64, npu_int, (uint64_t)s * (uint64_t)v);
    case NPU_L1: NPU_FOLD(npu_acc_i64, npu_int, (uint64_t)s + (v < 0 ? 0 - (uint64_t)v : (uint64_t)v));
    case NPU_L2: case NPU_SUM_SQUARE: NPU_FOLD(npu_acc_i64, npu_int, (uint64_t)s + (uint64_t)v * (uint64_t)v);
    case NPU_ANY: NPU_FOLD(npu_acc_i64, npu_int, s != 0 || v != 0);
    default: NPU_FOLD(npu_acc_i64, npu_int, s != 0 && v != 0);
    }
}

/* Set accumulators to the neutral element of the function. */
static void npu_reduce_start(int fn, int floating, npu_byte *acc, npu_int stride, npu_int n)
{
    const double f = fn == NPU_MAX ? -INFINITY : fn == NPU_MIN ? INFINITY : fn == NPU_PROD || fn == NPU_ALL;
    const npu_int w = fn == NPU_MAX ? INT64_MIN : fn == NPU_MIN ? INT64_MAX : fn == NPU_PROD || fn == NPU_ALL;
    npu_int i;
    for (i = 0; i < n; i++)
        memcpy(acc + i * stride, floating ? (const void *)&f : (const void *)&w, 8);
}

#undef NPU_FOLD

#endif
