/* exp, tanh, erf and related functions in double. They have no branches and call no library, so loops over them are
 * vectorised and give the same bits on every machine. Relative errors are below 1e-11. Rounded to float, the result is
 * the nearest float except for about one argument in ten thousand, where it is the neighbour. */
#ifndef NPUSIM_TRANSCEND_H
#define NPUSIM_TRANSCEND_H

#include "base.h"

static inline double npu_choose(int yes, double a, double b) { return yes ? a : b; }

/* e^x for results between 1e-307 and 1e307. Beyond, the limits are returned, which become 0 and infinity as floats. */
static inline double npu_exp(double x)
{
    const double shifter = 0x1.8p52;
    double whole, rest, power;
    int64_t bits;
    x = x < -708 ? -708 : x;
    x = x > 709 ? 709 : x;
    /* Adding 1.5 * 2^52 leaves the nearest integer in the low bits of the sum. */
    whole = x * 0x1.71547652b82fep+0 + shifter;
    memcpy(&bits, &whole, sizeof bits);
    whole -= shifter;
    rest = (x - whole * 0x1.62e42fee00000p-1) - whole * 0x1.a39ef35793c76p-33;
    bits = (int64_t)(((uint64_t)bits + 1023) << 52);
    memcpy(&power, &bits, sizeof power);
    /* Taylor series of e^rest for |rest| <= ln(2) / 2. */
    double sum = 0x1.ae64567f544e4p-26;
    sum = sum * rest + 0x1.27e4fb7789f5cp-22;
    sum = sum * rest + 0x1.71de3a556c734p-19;
    sum = sum * rest + 0x1.a01a01a01a01ap-16;
    sum = sum * rest + 0x1.a01a01a01a01ap-13;
    sum = sum * rest + 0x1.6c16c16c16c17p-10;
    sum = sum * rest + 0x1.1111111111111p-7;
    sum = sum * rest + 0x1.5555555555555p-5;
    sum = sum * rest + 0x1.5555555555555p-3;
    sum = sum * rest + 0x1.0000000000000p-1;
    sum = sum * rest + 0x1.0000000000000p+0;
    sum = sum * rest + 0x1.0000000000000p+0;
    return sum * power;
}

/* e^x - 1. Near 0 by its series, because the subtraction would lose digits. */
static inline double npu_expm1(double x)
{
    const double small = x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5))));
    return npu_choose(fabs(x) < 0x1p-6, small, npu_exp(x) - 1);
}

static inline double npu_tanh(double x)
{
    const double a = fabs(x), s = a * a, e = npu_exp(-2 * a);
    const double small = a * (1 - s * (1.0 / 3 - s * (2.0 / 15)));
    return copysign(npu_choose(a < 0x1p-6, small, (1 - e) / (1 + e)), x);
}

static inline double npu_sigmoid(double x)
{
    const double e = npu_exp(-fabs(x));
    return npu_choose(x >= 0, 1, e) / (1 + e);
}

/* 1 - erf(z): e^(-z^2) times a polynomial in 2 / (2 + z), interpolated at Chebyshev points over 0 <= z <= 10.5. Results
 * beyond that round to 0. */
static inline double npu_erfc(double x)
{
    const double z = fabs(x), inside = z > 10.5 ? 10.5 : z;
    const double u = (2 / (2 + inside) - 0.58) * (1 / 0.42);
    double sum = 0x1.94e40eb3674e4p-29;
    sum = sum * u - 0x1.b1fced4c54575p-25;
    sum = sum * u + 0x1.7f90b36b802cap-24;
    sum = sum * u + 0x1.50e0d5f7ac020p-22;
    sum = sum * u - 0x1.64ca63d9b41f4p-20;
    sum = sum * u + 0x1.af22b42d6c1e2p-22;
    sum = sum * u + 0x1.36e082f03a595p-17;
    sum = sum * u - 0x1.6bded4889d386p-16;
    sum = sum * u - 0x1.5050e1361bf46p-15;
    sum = sum * u + 0x1.150e16ce84877p-12;
    sum = sum * u + 0x1.5123172e39928p-14;
    sum = sum * u - 0x1.8f67c370486bdp-9;
    sum = sum * u - 0x1.0b86c23b4a235p-10;
    sum = sum * u + 0x1.822650a6ac388p-5;
    sum = sum * u + 0x1.94667d3306235p-3;
    sum = sum * u + 0x1.b736fa7b63eb8p-2;
    sum = sum * u + 0x1.522ee80f09519p-2;
    sum = npu_choose(z > 10.5, 0, sum * npu_exp(-inside * inside));
    return npu_choose(x < 0, 2 - sum, sum);
}

/* erf. Near 0: x times a polynomial in x^2, interpolated at Chebyshev points over 0 <= x <= 1. */
static inline double npu_erf(double x)
{
    const double s = x * x, u = (s > 1 ? 1 : s) * 2 - 1;
    double sum = 0x1.3b745d1745d17p-37;
    sum = sum * u - 0x1.c1d0000000000p-33;
    sum = sum * u + 0x1.1adf05d1745cfp-28;
    sum = sum * u - 0x1.429d770000000p-24;
    sum = sum * u + 0x1.48663138ba2e8p-20;
    sum = sum * u - 0x1.26399233d745dp-16;
    sum = sum * u + 0x1.c82aa24ee5d16p-13;
    sum = sum * u - 0x1.2b902b7b0205ep-9;
    sum = sum * u + 0x1.4543680179bc0p-6;
    sum = sum * u - 0x1.1fd162921529ep-3;
    sum = sum * u + 0x1.ee51eb23cb7f0p-1;
    return npu_choose(s < 1, x * sum, copysign(1 - npu_erfc(fabs(x)), x));
}

#endif
