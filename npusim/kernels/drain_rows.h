/* Row loops. drain.h includes this file once per instruction set, with NPU_NAME adding a suffix to each name. */

#ifndef NPUSIM_DRAIN_ROWS_ONCE
#define NPUSIM_DRAIN_ROWS_ONCE
typedef struct {
    void (*muladd_f32)(float *sum, const float *x, const float *w, npu_int n);
    void (*muladd_i32)(int32_t *sum, const int32_t *x, const int32_t *w, int32_t zero, npu_int n);
    void (*muladd_i64)(npu_int *sum, const int32_t *x, const int32_t *w, int32_t zero, npu_int n);
    void (*mulpixel_i64)(npu_int *sum, int32_t x, const int32_t *w, npu_int n);
    void (*value_f32)(float *v, const npu_byte *acc, const npu_byte *bias, npu_int n);
    void (*value_i32)(float *v, const npu_byte *acc, const npu_byte *bias, npu_int n);
    void (*value_i64)(float *v, const npu_byte *acc, const npu_byte *bias, npu_int n);
    void (*dequantize)(float *v, const int32_t *x, int32_t zero, float scale, npu_int n);
    void (*scale)(float *v, const npu_byte *scale, npu_int stride, npu_int n);
    void (*shift)(float *v, const npu_byte *shift, npu_int n);
    void (*divide)(float *v, float scale, npu_int n);
    void (*clamp)(float *v, float low, float high, npu_int n);
    void (*round)(int32_t *y, const float *v, int32_t zero, int32_t low, int32_t high, npu_int n);
    void (*exponential)(double *y, const double *x, double top, npu_int n);
    void (*narrow_8)(npu_byte *y, const int32_t *v, npu_int n);
    void (*narrow_16)(npu_byte *y, const int32_t *v, npu_int n);
} npu_rows;
#endif

static void NPU_NAME(npu_muladd_f32)(float *sum, const float *x, const float *w, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++) sum[i] = fmaf(x[i], w[i], sum[i]);
}

static void NPU_NAME(npu_muladd_i32)(int32_t *sum, const int32_t *x, const int32_t *w, int32_t zero, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++)
        sum[i] = (int32_t)((uint32_t)sum[i] + ((uint32_t)x[i] - (uint32_t)zero) * (uint32_t)w[i]);
}

/* 64-bit sums, for pixels of up to 16 bits. The difference between a pixel and its zero point has at most 18 bits. */
static void NPU_NAME(npu_muladd_i64)(npu_int *sum, const int32_t *x, const int32_t *w, int32_t zero, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++) sum[i] += (npu_int)(x[i] - zero) * w[i];
}

static void NPU_NAME(npu_mulpixel_i64)(npu_int *sum, int32_t x, const int32_t *w, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++) sum[i] += (npu_int)x * w[i];
}

/* acc + bias as floats; bias may be NULL. */
static void NPU_NAME(npu_value_f32)(float *v, const npu_byte *acc, const npu_byte *bias, npu_int n)
{
    npu_int i;
    float a, b;
    if (!bias) {
        memcpy(v, acc, (size_t)n * 4);
        return;
    }
    NPU_INDEPENDENT for (i = 0; i < n; i++) {
        memcpy(&a, acc + 4 * i, 4);
        memcpy(&b, bias + 4 * i, 4);
        v[i] = a + b;
    }
}

static void NPU_NAME(npu_value_i32)(float *v, const npu_byte *acc, const npu_byte *bias, npu_int n)
{
    npu_int i;
    uint32_t a, b = 0;
    if (!bias) {
        NPU_INDEPENDENT for (i = 0; i < n; i++) {
            memcpy(&a, acc + 4 * i, 4);
            v[i] = (float)(int32_t)a;
        }
        return;
    }
    NPU_INDEPENDENT for (i = 0; i < n; i++) {
        memcpy(&a, acc + 4 * i, 4);
        memcpy(&b, bias + 4 * i, 4);
        v[i] = (float)(int32_t)(a + b);
    }
}

/* The bias of a 64-bit sum has 32 bits. */
static void NPU_NAME(npu_value_i64)(float *v, const npu_byte *acc, const npu_byte *bias, npu_int n)
{
    npu_int i, a;
    int32_t b = 0;
    for (i = 0; i < n; i++) {
        memcpy(&a, acc + 8 * i, 8);
        if (bias)
            memcpy(&b, bias + 4 * i, 4);
        v[i] = (float)(npu_int)((uint64_t)a + (uint64_t)(npu_int)b);
    }
}

static void NPU_NAME(npu_dequantize_row)(float *v, const int32_t *x, int32_t zero, float scale, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++) v[i] = (float)(x[i] - zero) * scale;
}

static void NPU_NAME(npu_scale_row)(float *v, const npu_byte *scale, npu_int stride, npu_int n)
{
    npu_int i;
    float s;
    if (stride == 4) {
        NPU_INDEPENDENT for (i = 0; i < n; i++) {
            memcpy(&s, scale + 4 * i, 4);
            v[i] *= s;
        }
    } else {
        for (i = 0; i < n; i++) {
            memcpy(&s, scale + stride * i, 4);
            v[i] *= s;
        }
    }
}

static void NPU_NAME(npu_shift_row)(float *v, const npu_byte *shift, npu_int n)
{
    npu_int i;
    float s;
    NPU_INDEPENDENT for (i = 0; i < n; i++) {
        memcpy(&s, shift + 4 * i, 4);
        v[i] += s;
    }
}

static void NPU_NAME(npu_divide_row)(float *v, float scale, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++) v[i] /= scale;
}

static void NPU_NAME(npu_clamp_row)(float *v, float low, float high, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++) {
        float x = v[i];
        /* Both comparisons are false for NaN, so NaN stays. */
        x = x < low ? low : x;
        v[i] = x > high ? high : x;
    }
}

/* clamp(rint(v) + zero, low, high) for ranges and zero points within 16 bits. NaN gives 0 before the zero point. */
static void NPU_NAME(npu_round_row)(int32_t *y, const float *v, int32_t zero, int32_t low, int32_t high, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++) {
        float q = rintf(v[i]);
        int32_t r;
        q = q == q ? q : 0;
        /* Conversions beyond int32 are undefined in C. 2^29 leaves room for the zero point. */
        q = q < -0x1p29f ? -0x1p29f : q;
        q = q > 0x1p29f ? 0x1p29f : q;
        r = (int32_t)q + zero;
        r = r < low ? low : r;
        y[i] = r > high ? high : r;
    }
}

/* y = e^(x - top) */
static void NPU_NAME(npu_exponential_row)(double *y, const double *x, double top, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++) y[i] = npu_exp(x[i] - top);
}

static void NPU_NAME(npu_narrow_8)(npu_byte *y, const int32_t *v, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++) y[i] = (npu_byte)v[i];
}

static void NPU_NAME(npu_narrow_16)(npu_byte *y, const int32_t *v, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++) {
        const uint16_t u = (uint16_t)v[i];
        memcpy(y + 2 * i, &u, 2);
    }
}

static const npu_rows NPU_NAME(npu_rows) = {
    NPU_NAME(npu_muladd_f32), NPU_NAME(npu_muladd_i32), NPU_NAME(npu_muladd_i64), NPU_NAME(npu_mulpixel_i64),
    NPU_NAME(npu_value_f32), NPU_NAME(npu_value_i32), NPU_NAME(npu_value_i64), NPU_NAME(npu_dequantize_row),
    NPU_NAME(npu_scale_row), NPU_NAME(npu_shift_row), NPU_NAME(npu_divide_row), NPU_NAME(npu_clamp_row),
    NPU_NAME(npu_round_row), NPU_NAME(npu_exponential_row), NPU_NAME(npu_narrow_8), NPU_NAME(npu_narrow_16)};
