"""Lossless compression of constant weights.

A stream is a sequence of blocks of 512 symbols. A symbol is a byte of the weights, or 2 or 4 bits of packed weights.
Each block uses the cheapest of four codes. Blocks follow each other without gaps. The first bit is the lowest bit of
the first byte; unused bits of the last byte are 0. A block begins with its mode, 2 bits:
    0   plain     the symbols themselves
    1   centred   a symbol, the centre; each symbol is coded as 2 d for its distance d from it, or -2 d - 1 if d < 0
    2   palette   5 bits, the number of entries less 1, and the entries, symbols; each symbol is coded as its index
    3   again     the palette of the last block that defined one

In all modes but plain, the coding parameters follow: 1 bit that enables zero runs, then 3 bits r if it is set, and 3
bits k. A number n is coded as n >> k ones, a zero, and the k low bits of n (Golomb-Rice). After 12 ones it follows in
full, in as many bits as a symbol has. k = 7: all numbers have as many bits as the largest one. With zero runs, the
length of the run of zeros, coded with r (in full: 10 bits), precedes each other number, which is coded less 1.

Weights near a mean thus take about as many bits as their spread needs, weights with few different values take the bits
of their index, and zeros, which are frequent in pruned networks, take a fraction of a bit.
"""

import numpy as np

from libc.string cimport memset

from npusim.kernels._operand cimport Operand, Strided, dense, interrupted, settle

cdef enum:
    BLOCK = 512
    PALETTE = 32
    ESCAPE = 12  # ones that announce a number in full
    RUN_BITS = 10  # of a run in full: up to BLOCK
    FIXED = 7

cdef enum Mode:
    PLAIN
    CENTRED
    OWN_PALETTE
    SAME_PALETTE

cdef enum Verdict:
    SOUND
    SHORT  # it ends before all symbols are decoded
    FAR  # more zeros than the block has symbols left
    STRANGE  # a number that is no symbol, or a palette that was not defined
    LONG  # bytes are left over


cdef struct Entries:
    int size
    unsigned char[PALETTE] of


cdef inline int _symbol(const unsigned char *p, long long at, int bits) noexcept nogil:
    return (p[at * bits >> 3] >> (at * bits & 7)) & ((1 << bits) - 1)


cdef inline int _signed(int symbol, int bits) noexcept nogil:
    cdef int sign = 1 << (bits - 1)
    return (symbol ^ sign) - sign


cdef inline int _distance(int symbol, int centre, int bits) noexcept nogil:
    """The code of a symbol relative to a centre. Distances wrap, so that each number codes one symbol."""
    cdef int d = _signed((symbol - centre) & ((1 << bits) - 1), bits)
    return 2 * d if d >= 0 else -2 * d - 1


cdef inline int _width(int size) noexcept nogil:
    """Bits of the numbers below ``size``."""
    cdef int bits = 0
    while size - 1 >> bits:
        bits += 1
    return bits


# --- compression


cdef struct Code:
    int mode, centre, runs, r, k
    long long bits  # size of the block


cdef struct Sink:
    unsigned char *p  # NULL: bits are counted, not written
    long long at


cdef inline void _put(Sink *to, unsigned int value, int bits) noexcept nogil:
    cdef int room
    if to.p == NULL:
        to.at += bits
        return
    while bits:
        room = min(bits, 8 - <int>(to.at & 7))
        to.p[to.at >> 3] |= <unsigned char>((value & ((1u << room) - 1)) << (to.at & 7))
        value >>= room
        to.at += room
        bits -= room


cdef inline int _rice_bits(int number, int k, int full) noexcept nogil:
    cdef int ones = number >> k
    return ones + 1 + k if ones < ESCAPE else ESCAPE + full


cdef inline void _put_rice(Sink *to, int number, int k, int full) noexcept nogil:
    cdef int ones = number >> k
    if ones < ESCAPE:
        _put(to, (1u << ones) - 1, ones + 1)
        _put(to, <unsigned int>number, k)
    else:
        _put(to, (1u << ESCAPE) - 1, ESCAPE)
        _put(to, <unsigned int>number, full)


cdef void _try(
    Code *best, int mode, int centre, long long head, const int *counts, int most, const unsigned char *p, int n,
    int base, int bits, int width,
) noexcept nogil:
    """Replace ``best`` by the cheapest coding of numbers with these counts, if that is cheaper. ``most``: the largest
    number. ``head``: bits before the coding parameters. ``base``: the symbol of number 0."""
    cdef int runs, k, v, run, i
    cdef long long each, total, least
    cdef long long[8] zeros
    cdef int r = 0
    for runs in range(2):
        total = head + 4
        if runs:
            if 4 * counts[0] < n:
                break
            for k in range(8):
                zeros[k] = 0
            run = 0
            for i in range(n):
                if p[i] == base:
                    run += 1
                    continue
                for k in range(8):
                    zeros[k] += _rice_bits(run, k, RUN_BITS)
                run = 0
            if run:
                for k in range(8):
                    zeros[k] += _rice_bits(run, k, RUN_BITS)
            r = 0
            for k in range(1, 8):
                if zeros[k] < zeros[r]:
                    r = k
            total += 3 + zeros[r]
        least = total + <long long>(n - (counts[0] if runs else 0)) * width
        if least < best.bits:
            best.mode, best.centre, best.runs, best.r, best.k, best.bits = mode, centre, runs, r, FIXED, least
        for k in range(FIXED):
            each = total
            for v in range(runs, most + 1):
                if counts[v]:
                    each += <long long>counts[v] * _rice_bits(v - runs, k, bits)
                    if each >= best.bits:
                        break
            if each < best.bits:
                best.mode, best.centre, best.runs, best.r, best.k, best.bits = mode, centre, runs, r, k, each


cdef void _try_centre(Code *best, int centre, const int *there, const unsigned char *p, int n, int bits) noexcept nogil:
    cdef int[256] counts
    cdef int symbol, number, most = 0
    memset(counts, 0, sizeof(counts))
    for symbol in range(1 << bits):
        if there[symbol]:
            number = _distance(symbol, centre, bits)
            counts[number] = there[symbol]
            most = max(most, number)
    _try(best, CENTRED, centre, 2 + bits, counts, most, p, n, centre, bits, bits)


cdef void _try_palette(
    Code *best, int mode, const Entries *palette, const int *there, const unsigned char *p, int n, int bits,
) noexcept nogil:
    cdef int[256] counts
    cdef int i, most = 0, found = 0
    memset(counts, 0, sizeof(counts))
    for i in range(palette.size):
        counts[i] = there[palette.of[i]]
        found += counts[i]
        if counts[i]:
            most = i
    if found < n:
        return
    cdef long long head = 2 if mode == SAME_PALETTE else 2 + 5 + palette.size * bits
    _try(best, mode, 0, head, counts, most, p, n, palette.of[0], bits, _width(palette.size))


cdef bint _entries(Entries *palette, const int *there, int bits) noexcept nogil:
    """Collect the occurring symbols, the most frequent first. False if there are more than a palette holds."""
    cdef int symbol, i
    palette.size = 0
    for symbol in range(1 << bits):
        if there[symbol]:
            if palette.size == PALETTE:
                return False
            i = palette.size
            while i and there[palette.of[i - 1]] < there[symbol]:
                palette.of[i] = palette.of[i - 1]
                i -= 1
            palette.of[i] = <unsigned char>symbol
            palette.size += 1
    return True


cdef int _median(const int *there, int n, int bits, int first) noexcept nogil:
    """The median symbol, in an order that begins with ``first``."""
    cdef int i, symbol = first, below = 0
    for i in range(1 << bits):
        symbol = (first + i) & ((1 << bits) - 1)
        below += there[symbol]
        if 2 * below >= n:
            break
    return symbol


cdef void _block(Sink *to, const unsigned char *p, int n, int bits, Entries *last) noexcept nogil:
    """Code ``n`` symbols, one per byte."""
    cdef int[256] there
    cdef int[3] centres
    cdef int i, number, run = 0
    cdef Entries own
    cdef Code code
    cdef bint few
    memset(there, 0, sizeof(there))
    for i in range(n):
        there[p[i]] += 1
    code.mode, code.bits, code.runs, code.k, code.r, code.centre = PLAIN, 2 + <long long>n * bits, 0, 0, 0, 0
    # Candidates for the centre: the most frequent symbol, and the medians of the unsigned and the signed order.
    centres[0] = 0
    for i in range(1 << bits):
        if there[i] > there[centres[0]]:
            centres[0] = i
    centres[1], centres[2] = _median(there, n, bits, 1 << (bits - 1)), _median(there, n, bits, 0)
    for i in range(3):
        if i == 0 or (centres[i] != centres[0] and (i == 1 or centres[i] != centres[1])):
            _try_centre(&code, centres[i], there, p, n, bits)
    few = _entries(&own, there, bits)
    if few:
        _try_palette(&code, OWN_PALETTE, &own, there, p, n, bits)
    if last.size:
        _try_palette(&code, SAME_PALETTE, last, there, p, n, bits)
    if to.p == NULL:
        to.at += code.bits
        if code.mode == OWN_PALETTE:
            last[0] = own
        return
    _put(to, code.mode, 2)
    if code.mode == PLAIN:
        for i in range(n):
            _put(to, p[i], bits)
        return
    cdef int[256] numbers
    if code.mode == CENTRED:
        _put(to, code.centre, bits)
        for i in range(1 << bits):
            numbers[i] = _distance(i, code.centre, bits)
    else:
        if code.mode == OWN_PALETTE:
            last[0] = own
            _put(to, own.size - 1, 5)
            for i in range(own.size):
                _put(to, own.of[i], bits)
        for i in range(last.size):
            numbers[last.of[i]] = i
    _put(to, code.runs, 1)
    if code.runs:
        _put(to, code.r, 3)
    _put(to, code.k, 3)
    for i in range(n):
        number = numbers[p[i]]
        if code.runs:
            if not number:
                run += 1
                continue
            _put_rice(to, run, code.r, RUN_BITS)
            run = 0
        if code.k == FIXED:
            _put(to, number - code.runs, bits if code.mode == CENTRED else _width(last.size))
        else:
            _put_rice(to, number - code.runs, code.k, bits)
    if run:
        _put_rice(to, run, code.r, RUN_BITS)


cdef _check_bits(int bits):
    if bits not in (2, 4, 8):
        raise ValueError(f"symbols have 2, 4 or 8 bits, got {bits}")


cdef long long _code(const unsigned char[::1] data, int bits, unsigned char *out) except -1:
    """Bytes of the stream of all symbols. It is written if ``out`` is not NULL."""
    cdef long long count = data.shape[0] * (8 // bits), first, done = 0
    cdef int i, n
    cdef unsigned char[BLOCK] symbols
    cdef Entries last
    cdef Sink to
    to.p, to.at, last.size = out, 0, 0
    with nogil:
        for first from 0 <= first < count by BLOCK:
            n = <int>min(BLOCK, count - first)
            if interrupted(&done, n):
                break
            for i in range(n):
                symbols[i] = <unsigned char>_symbol(&data[0], first + i, bits)
            _block(&to, symbols, n, bits, &last)
    settle()
    return (to.at + 7) >> 3


def compressed_size(const unsigned char[::1] data, int bits):
    """Bytes of the result of :func:`compress`."""
    _check_bits(bits)
    return _code(data, bits, NULL)


def compress(const unsigned char[::1] data, int bits):
    """Compress bytes as symbols of 2, 4 or 8 bits, low bits first. Returns an array of uint8. ValueError for other
    ``bits``."""
    _check_bits(bits)
    # No block is longer than its symbols and the two bits of its mode.
    cdef long long most = data.shape[0] + (data.shape[0] * (8 // bits) // BLOCK + 1) * 2 // 8 + 1
    out = np.zeros(most, np.uint8)
    cdef unsigned char[::1] to = out
    return out[: _code(data, bits, &to[0])].copy()


# --- decompression


cdef struct Source:
    const unsigned char *p
    long long size
    long long at  # bits; beyond the end, zeros are read


cdef inline unsigned long long _ahead(const Source *of) noexcept nogil:
    """The next bits, at least 57."""
    cdef long long first = of.at >> 3
    cdef unsigned long long word = 0
    cdef int i
    if first + 8 <= of.size:
        for i in range(8):
            word |= <unsigned long long>of.p[first + i] << 8 * i
    else:
        for i in range(8):
            if first + i < of.size:
                word |= <unsigned long long>of.p[first + i] << 8 * i
    return word >> (of.at & 7)


cdef inline int _take(Source *of, int bits) noexcept nogil:
    cdef int value = <int>(_ahead(of) & ((1u << bits) - 1))
    of.at += bits
    return value


cdef inline int _take_rice(Source *of, int k, int full) noexcept nogil:
    cdef unsigned long long word = _ahead(of)
    cdef int ones = 0
    while word & 1 and ones < ESCAPE:
        word >>= 1
        ones += 1
    if ones == ESCAPE:
        of.at += ESCAPE + full
        return <int>(word & ((1u << full) - 1))
    of.at += ones + 1 + k
    return (ones << k) | <int>(word >> 1 & ((1u << k) - 1))


cdef Verdict _expand_block(Source *of, unsigned char *out, int n, int bits, Entries *last) noexcept nogil:
    """Decode ``n`` symbols, one per byte."""
    cdef int mode = _take(of, 2), i = 0, number, size, runs, r = 0, k, width, run
    cdef int mask = (1 << bits) - 1
    cdef unsigned char[256] symbols
    if mode == PLAIN:
        for i in range(n):
            out[i] = <unsigned char>_take(of, bits)
        return SOUND
    if mode == CENTRED:
        number, size, width = _take(of, bits), mask + 1, bits
        for i in range(size):
            symbols[i] = <unsigned char>((number + (i >> 1 if not i & 1 else -(i + 1 >> 1))) & mask)
    else:
        if mode == OWN_PALETTE:
            last.size = _take(of, 5) + 1
            for i in range(last.size):
                last.of[i] = <unsigned char>_take(of, bits)
        if not last.size:
            return STRANGE
        size, width = last.size, _width(last.size)
        for i in range(size):
            symbols[i] = last.of[i]
    runs = _take(of, 1)
    if runs:
        r = _take(of, 3)
    k = _take(of, 3)
    i = 0
    while i < n:
        if runs:
            run = _take_rice(of, r, RUN_BITS)
            if run > n - i:
                return FAR
            memset(out + i, symbols[0], run)
            i += run
            if i == n:
                break
        number = runs + (_take(of, width) if k == FIXED else _take_rice(of, k, bits))
        if number >= size:
            return STRANGE
        out[i] = symbols[number]
        i += 1
    return SOUND


def expand(Strided out not None, Strided stream not None, long long nbytes, long long size, int bits):
    """Write the ``nbytes`` bytes that a stream of ``size`` bytes decodes to.

    Returns (a description of the error or "", bytes decoded before it).
    """
    cdef Operand o, s
    cdef long long[1] n
    cdef long long count, first = 0, done = 0, at
    cdef unsigned char[BLOCK] symbols
    cdef Entries last
    cdef Source of
    cdef Verdict verdict = SOUND
    cdef int many, i, j
    _check_bits(bits)
    n[0] = nbytes
    dense(&o, out, n, 1, 1, "out", True)
    n[0] = size
    dense(&s, stream, n, 1, 1, "stream")
    of.p, of.size, of.at, last.size = s.p, size, 0, 0
    count = nbytes * (8 // bits)
    with nogil:
        while first < count:
            many = <int>min(BLOCK, count - first)
            if interrupted(&done, many):
                break
            verdict = _expand_block(&of, symbols, many, bits, &last)
            if of.at > 8 * size:  # zeros beyond the end have been read as data
                verdict = SHORT
            if verdict != SOUND:
                break
            at = first * bits >> 3
            if bits == 8:
                for i in range(many):
                    o.p[at + i] = symbols[i]
            else:
                for i in range(many * bits >> 3):
                    o.p[at + i] = 0
                    for j in range(8 // bits):
                        o.p[at + i] |= <unsigned char>(symbols[i * (8 // bits) + j] << j * bits)
            first += many
    settle()
    if verdict == SOUND and (of.at + 7) >> 3 < size:
        verdict = LONG
    said = (
        "", "it ends too early", "it counts more zeros than there is room for", "it has a number that is no weight",
        f"its last {size - ((of.at + 7) >> 3)} bytes are left over",
    )[<int>verdict]
    return said, first * bits >> 3
