/* Row loops. functions.h includes this file once per instruction set, with NPU_NAME adding a suffix to each name. */

#define NPU_UNARY(NAME, T, SETUP, EXPRESSION)                                             \
    static void NPU_NAME(NAME)(T *y, const T *x_, npu_int n, const double *p NPU_UNUSED)  \
    {                                                                                     \
        npu_int i;                                                                        \
        SETUP;                                                                            \
        NPU_INDEPENDENT for (i = 0; i < n; i++) {                                         \
            const T x = x_[i];                                                            \
            y[i] = (T)(EXPRESSION);                                                       \
        }                                                                                 \
    }
#define NPU_F(NAME, EXPRESSION) NPU_UNARY(NAME, float, (void)0, EXPRESSION)
#define NPU_F1(NAME, EXPRESSION) NPU_UNARY(NAME, float, const float p0 = (float)p[0], EXPRESSION)
#define NPU_F2(NAME, EXPRESSION) NPU_UNARY(NAME, float, const float p0 = (float)p[0]; const float p1 = (float)p[1], EXPRESSION)
/* Computed in double, from the float d. */
#define NPU_D(NAME, EXPRESSION)                                                           \
    static void NPU_NAME(NAME)(float *y, const float *x, npu_int n, const double *p)      \
    {                                                                                     \
        const double p0 NPU_UNUSED = p[0], p1 NPU_UNUSED = p[1];                          \
        npu_int i;                                                                        \
        NPU_INDEPENDENT for (i = 0; i < n; i++) {                                         \
            const double d = x[i];                                                        \
            y[i] = (float)(EXPRESSION);                                                   \
        }                                                                                 \
    }

NPU_F(u_identity, x)
NPU_F(u_relu, x < 0 ? 0 : x)
NPU_F2(u_clip, ((x < p0 ? p0 : x) > p1 ? p1 : (x < p0 ? p0 : x)))
NPU_F1(u_leaky_relu, x < 0 ? p0 * x : x)
NPU_D(u_elu, d < 0 ? p0 * npu_expm1(d) : d)
NPU_D(u_selu, p1 * (d < 0 ? p0 * npu_expm1(d) : d))
NPU_D(u_celu, d < 0 ? p0 * npu_expm1(d / p0) : d)
NPU_D(u_softplus, npu_softplus(d))
NPU_F(u_softsign, x / (1 + fabsf(x)))
NPU_D(u_sigmoid, npu_sigmoid(d))
NPU_F2(u_hard_sigmoid, (p0 * x + p1) < 0 ? 0 : (p0 * x + p1) > 1 ? 1 : (p0 * x + p1))
NPU_D(u_hard_swish, d * ((d + 3) < 0 ? 0 : (d + 3) > 6 ? 6 : (d + 3)) / 6)
NPU_D(u_tanh, npu_tanh(d))
NPU_D(u_gelu, 0.5 * d * npu_erfc(-d * 0.70710678118654752440))
NPU_D(u_gelu_tanh, d * npu_sigmoid(1.5957691216057307 * (d + 0.044715 * d * d * d)))
NPU_D(u_mish, d * npu_tanh(npu_softplus(d)))
NPU_F1(u_thresholded_relu, x != x ? x : x > p0 ? x : 0)
NPU_D(u_silu, d * npu_sigmoid(p0 * d))
NPU_D(u_exp, npu_exp(d))
NPU_D(u_log, log(d))
NPU_F(u_sqrt, sqrtf(x))
NPU_D(u_rsqrt, 1 / sqrt(d))
NPU_F(u_reciprocal, 1 / x)
NPU_F(u_neg, -x)
NPU_F(u_abs, fabsf(x))
NPU_F(u_sign, x > 0 ? 1 : x < 0 ? -1 : x)
NPU_F(u_floor, floorf(x))
NPU_F(u_ceil, ceilf(x))
NPU_F(u_round, rintf(x))
NPU_D(u_erf, npu_erf(d))
NPU_D(u_sin, sin(d))
NPU_D(u_cos, cos(d))
NPU_D(u_tan, tan(d))
NPU_D(u_asin, asin(d))
NPU_D(u_acos, acos(d))
NPU_D(u_atan, atan(d))
NPU_D(u_sinh, sinh(d))
NPU_D(u_cosh, cosh(d))
NPU_D(u_asinh, asinh(d))
NPU_D(u_acosh, acosh(d))
NPU_D(u_atanh, atanh(d))
NPU_F(u_isnan, x != x)
NPU_F2(u_isinf, (p0 != 0 && x == INFINITY) || (p1 != 0 && x == -INFINITY))
NPU_F2(u_shrink, x < -p1 ? x + p0 : x > p1 ? x - p0 : x != x ? x : 0)
NPU_F(u_square, x * x)

#define NPU_I(NAME, EXPRESSION) NPU_UNARY(NAME, npu_int, (void)0, EXPRESSION)
NPU_I(i_identity, x)
NPU_I(i_relu, x < 0 ? 0 : x)
NPU_UNARY(i_clip, npu_int,
          const npu_int low = npu_truncate(ceil(p[0]), INT64_MIN, INT64_MAX);
          const npu_int high = npu_truncate(floor(p[1]), INT64_MIN, INT64_MAX),
          (x < low ? low : x) > high ? high : (x < low ? low : x))
NPU_I(i_neg, 0 - (uint64_t)x)
NPU_I(i_abs, x < 0 ? 0 - (uint64_t)x : (uint64_t)x)
NPU_I(i_sign, (x > 0) - (x < 0))
NPU_I(i_not, x == 0)
NPU_I(i_bitwise_not, ~x)
NPU_I(i_square, npu_wrap_mul(x, x))

static const npu_unary_f32 NPU_NAME(npu_unaries_f32)[NPU_UNARIES] = {
    NPU_NAME(u_identity), NPU_NAME(u_relu), NPU_NAME(u_clip), NPU_NAME(u_leaky_relu), NPU_NAME(u_elu),
    NPU_NAME(u_selu), NPU_NAME(u_celu), NPU_NAME(u_softplus), NPU_NAME(u_softsign), NPU_NAME(u_sigmoid),
    NPU_NAME(u_hard_sigmoid), NPU_NAME(u_hard_swish), NPU_NAME(u_tanh), NPU_NAME(u_gelu), NPU_NAME(u_gelu_tanh),
    NPU_NAME(u_mish), NPU_NAME(u_thresholded_relu), NPU_NAME(u_silu), NPU_NAME(u_exp), NPU_NAME(u_log),
    NPU_NAME(u_sqrt), NPU_NAME(u_rsqrt), NPU_NAME(u_reciprocal), NPU_NAME(u_neg), NPU_NAME(u_abs),
    NPU_NAME(u_sign), NPU_NAME(u_floor), NPU_NAME(u_ceil), NPU_NAME(u_round), NPU_NAME(u_erf),
    NPU_NAME(u_sin), NPU_NAME(u_cos), NPU_NAME(u_tan), NPU_NAME(u_asin), NPU_NAME(u_acos),
    NPU_NAME(u_atan), NPU_NAME(u_sinh), NPU_NAME(u_cosh), NPU_NAME(u_asinh), NPU_NAME(u_acosh),
    NPU_NAME(u_atanh), NULL, NULL, NPU_NAME(u_isnan), NPU_NAME(u_isinf),
    NPU_NAME(u_shrink), NPU_NAME(u_square)};
static const npu_unary_i64 NPU_NAME(npu_unaries_i64)[NPU_UNARIES] = {
    [0] = NPU_NAME(i_identity), [1] = NPU_NAME(i_relu), [2] = NPU_NAME(i_clip), [23] = NPU_NAME(i_neg),
    [24] = NPU_NAME(i_abs), [25] = NPU_NAME(i_sign), [41] = NPU_NAME(i_not), [42] = NPU_NAME(i_bitwise_not),
    [46] = NPU_NAME(i_square)};

#define NPU_BINARY(NAME, T, EXPRESSION)                                                \
    static void NPU_NAME(NAME)(T *y, const T *a_, const T *b_, npu_int n)              \
    {                                                                                  \
        npu_int i;                                                                     \
        NPU_INDEPENDENT for (i = 0; i < n; i++) {                                      \
            const T a = a_[i], b = b_[i];                                              \
            y[i] = (T)(EXPRESSION);                                                    \
        }                                                                              \
    }
#define NPU_FF(NAME, EXPRESSION) NPU_BINARY(NAME, float, EXPRESSION)
#define NPU_II(NAME, EXPRESSION) NPU_BINARY(NAME, npu_int, EXPRESSION)

NPU_FF(f_add, a + b)
NPU_FF(f_sub, a - b)
NPU_FF(f_mul, a * b)
NPU_FF(f_div, a / b)
NPU_FF(f_pow, pow(a, b))
NPU_FF(f_min, a != a ? a : b != b ? b : b < a ? b : a)
NPU_FF(f_max, a != a ? a : b != b ? b : b > a ? b : a)
NPU_FF(f_mod, npu_float_mod(a, b))
NPU_FF(f_fmod, fmodf(a, b))
NPU_FF(f_eq, a == b)
NPU_FF(f_ne, a != b)
NPU_FF(f_lt, a < b)
NPU_FF(f_le, a <= b)
NPU_FF(f_gt, a > b)
NPU_FF(f_ge, a >= b)
NPU_FF(f_prelu, a < 0 ? a * b : a)
NPU_FF(f_squared_difference, (a - b) * (a - b))

NPU_II(i_add, (uint64_t)a + (uint64_t)b)
NPU_II(i_sub, (uint64_t)a - (uint64_t)b)
NPU_II(i_mul, npu_wrap_mul(a, b))
NPU_II(i_div, npu_int_div(a, b))
NPU_II(i_pow, npu_int_pow(a, b))
NPU_II(i_min, b < a ? b : a)
NPU_II(i_max, b > a ? b : a)
NPU_II(i_mod, npu_int_mod(a, b))
NPU_II(i_fmod, npu_int_fmod(a, b))
NPU_II(i_eq, a == b)
NPU_II(i_ne, a != b)
NPU_II(i_lt, a < b)
NPU_II(i_le, a <= b)
NPU_II(i_gt, a > b)
NPU_II(i_ge, a >= b)
NPU_II(i_and, a & b)
NPU_II(i_or, a | b)
NPU_II(i_xor, a ^ b)
NPU_II(i_shl, npu_shift_left(a, b))
NPU_II(i_shr, npu_shift_right(a, b))
NPU_II(i_prelu, a < 0 ? npu_wrap_mul(a, b) : a)
NPU_II(i_squared_difference, npu_wrap_mul((npu_int)((uint64_t)a - (uint64_t)b), (npu_int)((uint64_t)a - (uint64_t)b)))

static const npu_binary_f32 NPU_NAME(npu_binaries_f32)[NPU_BINARIES] = {
    NPU_NAME(f_add), NPU_NAME(f_sub), NPU_NAME(f_mul), NPU_NAME(f_div), NPU_NAME(f_pow), NPU_NAME(f_min),
    NPU_NAME(f_max), NPU_NAME(f_mod), NPU_NAME(f_fmod), NPU_NAME(f_eq), NPU_NAME(f_ne), NPU_NAME(f_lt),
    NPU_NAME(f_le), NPU_NAME(f_gt), NPU_NAME(f_ge), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NPU_NAME(f_prelu), NPU_NAME(f_squared_difference)};
static const npu_binary_i64 NPU_NAME(npu_binaries_i64)[NPU_BINARIES] = {
    NPU_NAME(i_add), NPU_NAME(i_sub), NPU_NAME(i_mul), NPU_NAME(i_div), NPU_NAME(i_pow), NPU_NAME(i_min),
    NPU_NAME(i_max), NPU_NAME(i_mod), NPU_NAME(i_fmod), NPU_NAME(i_eq), NPU_NAME(i_ne), NPU_NAME(i_lt),
    NPU_NAME(i_le), NPU_NAME(i_gt), NPU_NAME(i_ge), NPU_NAME(i_and), NPU_NAME(i_or), NPU_NAME(i_xor),
    NPU_NAME(i_and), NPU_NAME(i_or), NPU_NAME(i_xor), NPU_NAME(i_shl), NPU_NAME(i_shr), NPU_NAME(i_prelu),
    NPU_NAME(i_squared_difference)};

/* y = clamp(rint(x / scale) + zero, low, high); NaN counts as 0. If the range is within 16 bits, the quotient is first
 * limited to 30 bits. This cannot change the result, because zero points of such types have at most 16 bits. */
static void NPU_NAME(npu_requantize)(npu_int *y, const float *x, const float *scale, const npu_int *zero, npu_int n,
                                     npu_int low, npu_int high)
{
    npu_int i;
    if (high > UINT16_MAX) {
        for (i = 0; i < n; i++) {
            npu_int q = npu_truncate(rintf(x[i] / scale[i]), -((npu_int)1 << 40), (npu_int)1 << 40) + zero[i];
            y[i] = q < low ? low : q > high ? high : q;
        }
        return;
    }
    NPU_INDEPENDENT for (i = 0; i < n; i++) {
        float q = rintf(x[i] / scale[i]);
        npu_int v;
        q = q == q ? q : 0;
        q = q < -0x1p30f ? -0x1p30f : q;
        q = q > 0x1p30f ? 0x1p30f : q;
        v = (int32_t)q + zero[i];
        v = v < low ? low : v;
        y[i] = v > high ? high : v;
    }
}

/* y = float(x - zero) * scale */
static void NPU_NAME(npu_dequantize)(float *y, const npu_int *x, const float *scale, const npu_int *zero, npu_int n)
{
    npu_int i;
    NPU_INDEPENDENT for (i = 0; i < n; i++)
        y[i] = (float)(x[i] - zero[i]) * scale[i];
}

#undef NPU_UNARY
#undef NPU_F
#undef NPU_F1
#undef NPU_F2
#undef NPU_D
#undef NPU_I
#undef NPU_BINARY
#undef NPU_FF
#undef NPU_II
