"""Kernels for search, hashing and random numbers: sorted keys, FarmHash fingerprints, Philox, multinomial samples."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from npusim.kernels._operand cimport interrupted, settle

cdef extern from "transcend.h" nogil:
    double npu_exp(double x)

# The constants of FarmHash's 64-bit fingerprint (farmhashna::Hash64).
cdef uint64_t K0 = 0xC3A5C85C97CB3127
cdef uint64_t K1 = 0xB492B66FBE98F273
cdef uint64_t K2 = 0x9AE16A3B2F90404F

cdef struct Pair:
    uint64_t low
    uint64_t high


cdef inline uint64_t _word(const unsigned char *p) noexcept nogil:
    """Eight bytes, little-endian."""
    cdef uint64_t value = 0
    cdef int i
    for i in range(8):
        value |= <uint64_t>p[i] << (8 * i)
    return value


cdef inline uint64_t _half(const unsigned char *p) noexcept nogil:
    """Four bytes, little-endian."""
    return <uint64_t>p[0] | <uint64_t>p[1] << 8 | <uint64_t>p[2] << 16 | <uint64_t>p[3] << 24


cdef inline uint64_t _turn(uint64_t value, int by) noexcept nogil:
    return value >> by | value << (64 - by)


cdef inline uint64_t _fold(uint64_t value) noexcept nogil:
    return value ^ (value >> 47)


cdef inline uint64_t _mix(uint64_t a, uint64_t b, uint64_t factor) noexcept nogil:
    """Combine two words into one."""
    return _fold((b ^ _fold((a ^ b) * factor)) * factor) * factor


cdef inline uint64_t _short(const unsigned char *p, uint64_t n) noexcept nogil:
    """The fingerprint of up to 16 bytes."""
    cdef uint64_t factor = K2 + 2 * n, a, b
    if n >= 8:
        a, b = _word(p) + K2, _word(p + n - 8)
        return _mix(_turn(b, 37) * factor + a, (_turn(a, 25) + b) * factor, factor)
    if n >= 4:
        return _mix(n + (_half(p) << 3), _half(p + n - 4), factor)
    if n > 0:
        a = <uint32_t>(p[0] + (<uint32_t>p[n >> 1] << 8))
        b = <uint32_t>(<uint32_t>n + (<uint32_t>p[n - 1] << 2))
        return _fold(a * K2 ^ b * K0) * K2
    return K2


cdef inline uint64_t _middle(const unsigned char *p, uint64_t n) noexcept nogil:
    """The fingerprint of 17 to 64 bytes."""
    cdef uint64_t factor = K2 + 2 * n
    cdef uint64_t a = _word(p) * (K1 if n <= 32 else K2), b = _word(p + 8)
    cdef uint64_t c = _word(p + n - 8) * factor, d = _word(p + n - 16) * K2
    cdef uint64_t y = _turn(a + b, 43) + _turn(c, 30) + d, z = a + _turn(b + K2, 18) + c, e, f
    if n <= 32:
        return _mix(y, z, factor)
    z = _mix(y, z, factor)
    e, f = _word(p + 16) * factor, _word(p + 24)
    y = (y + _word(p + n - 32)) * factor
    z = (z + _word(p + n - 24)) * factor
    return _mix(_turn(e + f, 43) + _turn(y, 30) + z, e + _turn(f + a, 18) + y, factor)


cdef inline Pair _block(const unsigned char *p, uint64_t a, uint64_t b) noexcept nogil:
    """Hash 32 bytes and two seeds into two words."""
    cdef Pair result
    cdef uint64_t last = _word(p + 24), start
    a += _word(p)
    b = _turn(b + a + last, 21)
    start = a
    a += _word(p + 8) + _word(p + 16)
    b += _turn(a, 44)
    result.low, result.high = a + last, b + start
    return result


cdef uint64_t _long(const unsigned char *p, uint64_t n) noexcept nogil:
    """The fingerprint of more than 64 bytes: blocks of 64, then the last 64 again with another factor."""
    cdef uint64_t x = 81, y = 81 * K1 + 113, z = _fold(y * K2 + 113) * K2, factor, rest = (n - 1) & 63
    cdef Pair v, w
    cdef const unsigned char *end = p + (n - 1 - rest)
    v.low = v.high = w.low = w.high = 0
    x = x * K2 + _word(p)
    while p != end:
        x = _turn(x + y + v.low + _word(p + 8), 37) * K1
        y = _turn(y + v.high + _word(p + 48), 42) * K1
        x ^= w.high
        y += v.low + _word(p + 40)
        z = _turn(z + w.low, 33) * K1
        v = _block(p, v.high * K1, x + w.low)
        w = _block(p + 32, z + w.high, y + _word(p + 16))
        x, z = z, x
        p += 64
    factor = K1 + ((z & 0xFF) << 1)
    p = end + rest - 63
    w.low += rest
    v.low += w.low
    w.low += v.low
    x = _turn(x + y + v.low + _word(p + 8), 37) * factor
    y = _turn(y + v.high + _word(p + 48), 42) * factor
    x ^= w.high * 9
    y += v.low * 9 + _word(p + 40)
    z = _turn(z + w.low, 33) * factor
    v = _block(p, v.high * factor, x + w.low)
    w = _block(p + 32, z + w.high, y + _word(p + 16))
    x, z = z, x
    return _mix(_mix(v.low, w.low, factor) + _fold(y) * K0 + z, _mix(v.high, w.high, factor) + x, factor)


cdef uint64_t _fingerprint(const unsigned char *p, uint64_t n) noexcept nogil:
    if n <= 16:
        return _short(p, n)
    return _middle(p, n) if n <= 64 else _long(p, n)


def fingerprint64(const unsigned char[::1] data):
    """FarmHash's 64-bit fingerprint of ``data``."""
    return _fingerprint(&data[0] if data.shape[0] else NULL, data.shape[0])


def lsh_bits(
    const float[:, ::1] seeds, const unsigned char[:, ::1] items, const float[::1] weights, unsigned char[:, ::1] bits,
):
    """bits[i, j] = 1 if the weighted sum of the items' fingerprints, as signed numbers, is positive.

    A fingerprint covers the four bytes of seeds[i, j], followed by the bytes of the item.
    """
    cdef long long i, j, k, done = 0, n = items.shape[1]
    cdef double total
    cdef unsigned char *key
    if weights.shape[0] != items.shape[0] or bits.shape[0] != seeds.shape[0] or bits.shape[1] != seeds.shape[1]:
        raise ValueError("lsh_bits: shapes do not fit each other")
    key = <unsigned char *>malloc(4 + n)
    if key == NULL:
        raise MemoryError(f"lsh_bits: no memory for an item of {n} bytes")
    with nogil:
        for i in range(seeds.shape[0]):
            for j in range(seeds.shape[1]):
                total = 0
                memcpy(key, &seeds[i, j], 4)
                for k in range(items.shape[0]):
                    if interrupted(&done, n):
                        break
                    if n:
                        memcpy(key + 4, &items[k, 0], n)
                    total += weights[k] * <double><int64_t>_fingerprint(key, 4 + n)
                bits[i, j] = total > 0
    free(key)
    settle()


def search_keys(const int[::1] lookups, const int[::1] keys, int[::1] places, unsigned char[::1] hits):
    """Look up each of ``lookups`` in the sorted ``keys``. hits: 1 if found; places: its index, or 0."""
    cdef long long i, low, high, at, done = 0
    if places.shape[0] != lookups.shape[0] or hits.shape[0] != lookups.shape[0]:
        raise ValueError("search_keys: shapes do not fit each other")
    with nogil:
        for i in range(lookups.shape[0]):
            if interrupted(&done, 1):
                break
            low, high = 0, keys.shape[0]
            while low < high:
                at = (low + high) // 2
                if keys[at] < lookups[i]:
                    low = at + 1
                else:
                    high = at
            hits[i] = low < keys.shape[0] and keys[low] == lookups[i]
            places[i] = <int>low if hits[i] else 0
    settle()


cdef void _philox(uint32_t *c, uint32_t key0, uint32_t key1) noexcept nogil:
    """Philox 4x32 with ten rounds: replaces the counter by four random words."""
    cdef uint64_t a, b
    cdef uint32_t c1, c3
    cdef int _round
    for _round in range(10):
        a = <uint64_t>0xD2511F53U * c[0]
        b = <uint64_t>0xCD9E8D57U * c[2]
        c1, c3 = c[1], c[3]
        c[0] = <uint32_t>(b >> 32) ^ c1 ^ key0
        c[1] = <uint32_t>b
        c[2] = <uint32_t>(a >> 32) ^ c3 ^ key1
        c[3] = <uint32_t>a
        key0 += 0x9E3779B9U
        key1 += 0xBB67AE85U


def philox(const unsigned int[::1] counter, unsigned int key0, unsigned int key1, unsigned int[::1] out):
    """Four random words for a counter of four words and a key of two. ValueError for other lengths."""
    cdef int i
    cdef uint32_t[4] c
    if counter.shape[0] != 4 or out.shape[0] != 4:
        raise ValueError("philox: the counter and the result have four words")
    for i in range(4):
        c[i] = counter[i]
    _philox(c, key0, key1)
    for i in range(4):
        out[i] = c[i]


cdef double _uniform(uint64_t number, uint32_t key0, uint32_t key1) noexcept nogil:
    """Draw ``number`` of the stream of a key: a double in [0, 1) with 53 random bits."""
    cdef uint32_t[4] c
    cdef int half = 2 * <int>(number & 1)
    c[0], c[1], c[2], c[3] = <uint32_t>(number >> 1), <uint32_t>(number >> 33), 0, 0
    _philox(c, key0, key1)
    return <double>((<uint64_t>c[half] << 32 | c[half + 1]) >> 11) * 2.0 ** -53


def multinomial(const float[:, ::1] logits, unsigned int key0, unsigned int key1, int[:, ::1] out):
    """out[b, i] = a class, drawn with probability e^logits[b, class] / their sum from the random stream of the key."""
    cdef long long b, i, c, low, high, at, done = 0, classes = logits.shape[1]
    cdef double *sums
    cdef double wanted
    cdef float top
    if out.shape[0] != logits.shape[0] or classes < 1:
        raise ValueError("multinomial: shapes do not fit each other")
    sums = <double *>malloc(classes * sizeof(double))
    if sums == NULL:
        raise MemoryError(f"multinomial: no memory for {classes} classes")
    with nogil:
        for b in range(logits.shape[0]):
            top = logits[b, 0]
            for c in range(1, classes):
                top = max(top, logits[b, c])
            for c in range(classes):
                sums[c] = (sums[c - 1] if c else 0) + npu_exp(<double>logits[b, c] - top)
            for i in range(out.shape[1]):
                if interrupted(&done, 1):
                    break
                wanted = _uniform(b * out.shape[1] + i, key0, key1) * sums[classes - 1]
                low, high = 0, classes - 1
                while low < high:
                    at = (low + high) // 2
                    if sums[at] > wanted:
                        high = at
                    else:
                        low = at + 1
                out[b, i] = <int>low
    free(sums)
    settle()
