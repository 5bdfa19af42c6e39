"""Fixed-point arithmetic on Python integers, one number at a time, as the reference for integer operators."""

from __future__ import annotations

import math

INT16 = (-(1 << 15), (1 << 15) - 1)
INT32 = (-(1 << 31), (1 << 31) - 1)


def clamp(value: int, bounds: tuple[int, int]) -> int:
    return min(max(value, bounds[0]), bounds[1])


def quotient(a: int, b: int) -> int:
    """Return a / b rounded towards zero."""
    return -(-a // b) if a < 0 else a // b


def high(a: int, b: int, bits: int = 16) -> int:
    """Return twice the rounded high half of a product: a * b / 2**(bits - 1), saturated."""
    bounds = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    product = a * b
    nudge = 1 << (bits - 2) if product >= 0 else 1 - (1 << (bits - 2))
    return clamp(quotient(product + nudge, 1 << (bits - 1)), bounds)


def divide(value: int, exponent: int) -> int:
    """Return value / 2**exponent with halves rounded away from zero."""
    magnitude = (abs(value) + ((1 << exponent) >> 1)) >> exponent
    return -magnitude if value < 0 else magnitude


def rescale(value: int, factor: float) -> int:
    """Multiply by a real factor as a 31-bit multiplier and a shift do it."""
    if not factor:
        return 0
    fraction, shift = math.frexp(factor)
    number = int(fraction * (1 << 31) + 0.5)
    if number == 1 << 31:
        number, shift = number >> 1, shift + 1
    return divide(high(value << max(shift, 0), number, 32), max(-shift, 0))


def saturated_left(value: int, bits: int, bounds: tuple[int, int] = INT16) -> int:
    return clamp(value << bits, bounds)


def constant(value: float, integer_bits: int = 0) -> int:
    """Return a 16-bit constant, rounded from the 32-bit one."""
    return divide(math.floor(value * 2 ** (31 - integer_bits) + 0.5), 16)


def exp(a: int, integer_bits: int) -> int:
    """Return exp of a number <= 0."""
    fraction = 15 - integer_bits
    if a == 0:
        return INT16[1]
    if integer_bits > 5 and a < -32 * 2**fraction:
        return 0
    quarter = 1 << (fraction - 2)
    within = a % quarter - quarter
    x = (within << integer_bits) + (1 << 12)
    x2 = high(x, x)
    x3, x4 = high(x2, x), high(x2, x2)
    series = divide(high(divide(x4, 2) + x3, constant(1 / 3)) + x2, 1)
    center = constant(math.exp(-1 / 8))
    result = clamp(center + high(center, x + series), INT16)
    for power in range(-2, 5):
        if integer_bits > power and (within - a) & (1 << (fraction + power)):
            result = high(result, constant(math.exp(-(2.0**power))))
    return result


def twice_reciprocal(a: int) -> int:
    """Return 2 / (1 + a) for a in [0, 1], with 2 integer bits."""
    half = (a + INT16[1] + 1) // 2
    x = constant(48 / 17, 2) + high(half, constant(-32 / 17, 2))
    for _ in range(3):
        x += saturated_left(high(x, (1 << 13) - high(half, x)), 2)
    return x


def logistic(a: int) -> int:
    """Return the logistic function of a number with 3 integer bits."""
    if a == 0:
        return 1 << 14
    positive = saturated_left(twice_reciprocal(exp(-abs(a), 3)), 1)
    return positive if a > 0 else INT16[1] - positive


def tanh(a: int, integer_bits: int) -> int:
    if a == 0:
        return 0
    positive = saturated_left(twice_reciprocal(exp(-abs(a), integer_bits + 1)) - (1 << 13), 2)
    return positive if a > 0 else -positive


def inverse_root(value: int) -> tuple[int, int]:
    """Return (m, s) with 1 / sqrt(value) = m / 2**(31 + s)."""
    if value <= 1:
        return INT32[1], 0
    shift = 11
    while value >= 1 << 29:
        value, shift = value // 4, shift + 1
    while value < 1 << 27:
        value, shift = value * 4, shift - 1
    number, x = value >> 1, 1 << 28
    half = divide(number, 1)
    for _ in range(5):
        cube = saturated_left(high(high(x, x, 32), x, 32), 6, INT32)
        x = saturated_left(high(3 << 27, x, 32) - high(half, cube, 32), 3, INT32)
    return high(x, int(math.sqrt(2) / 2 * (1 << 31) + 0.5), 32) << max(-shift, 0), max(shift, 0)


def layer_norm(row: list[int], weights: list[int], bias: list[int], scale: float) -> list[int]:
    count = len(row)
    mean = quotient(sum(row) * 1024, count)
    variance = quotient(sum(x * x for x in row) * ((1 << 20) // count) - mean * mean, 1 << 20)
    number, shift = inverse_root(variance)
    results = []
    for x, w, b in zip(row, weights, bias, strict=True):
        total = divide(high(1024 * x - mean, number, 32), shift) * w + b
        level = quotient(total + (512 if total > 0 else -512), 1024)
        results.append(clamp(rescale(level, scale * 4096), INT16))
    return results
