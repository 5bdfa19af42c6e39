"""A bit-by-bit decoder of weight streams, written from their description in ``npusim.kernels._codec``."""

from __future__ import annotations

BLOCK = 512
ESCAPE, RUN_BITS, FIXED = 12, 10, 7
SOUND, SHORT, FAR, STRANGE = (
    "", "it ends too early", "it counts more zeros than there is room for", "it has a number that is no weight",
)  # fmt: skip


class _RefusedError(Exception):
    pass


class _Bits:
    """The bits of a stream. Zeros follow its end, so that a block is read completely before it is found to be
    truncated."""

    def __init__(self, stream: bytes) -> None:
        self.all = int.from_bytes(stream, "little")
        self.at = 0

    def take(self, count: int) -> int:
        value = self.all >> self.at & ((1 << count) - 1)
        self.at += count
        return value

    def rice(self, k: int, full: int) -> int:
        ones = 0
        while ones < ESCAPE and self.take(1):
            ones += 1
        return self.take(full) if ones == ESCAPE else ones << k | self.take(k)


def _centred(centre: int, bits: int) -> list[int]:
    """Return all numbers in symbol order: the centre, the one below it, the one above it, and so on."""
    distances = (number // 2 if number % 2 == 0 else -(number + 1) // 2 for number in range(1 << bits))
    return [(centre + distance) % (1 << bits) for distance in distances]


def _block(of: _Bits, count: int, bits: int, last: list[int]) -> list[int]:
    mode = of.take(2)
    if mode == 0:
        return [of.take(bits) for _ in range(count)]
    if mode == 1:
        table, width = _centred(of.take(bits), bits), bits
    else:
        if mode == 2:
            entries = of.take(5) + 1
            last[:] = [of.take(bits) for _ in range(entries)]
        if not last:
            raise _RefusedError(STRANGE)
        table, width = last, (len(last) - 1).bit_length()
    counted = of.take(1)
    r = of.take(3) if counted else 0
    k = of.take(3)
    made: list[int] = []
    while len(made) < count:
        if counted:
            zeros = of.rice(r, RUN_BITS)
            if zeros > count - len(made):
                raise _RefusedError(FAR)
            made += [table[0]] * zeros
            if len(made) == count:
                break
        number = counted + (of.take(width) if k == FIXED else of.rice(k, bits))
        if number >= len(table):
            raise _RefusedError(STRANGE)
        made.append(table[number])
    return made


def read(stream: bytes, nbytes: int, bits: int) -> tuple[bytes, str]:
    """Return (the bytes before the first error, the error or "")."""
    of, made = _Bits(stream), bytearray()
    last: list[int] = []
    each = 8 // bits
    while len(made) < nbytes:
        count = min(BLOCK, (nbytes - len(made)) * each)
        said = SOUND
        try:
            symbols = _block(of, count, bits, last)
        except _RefusedError as refused:
            said = str(refused)
        if of.at > 8 * len(stream):
            said = SHORT
        if said:
            return bytes(made), said
        for first in range(0, count, each):
            made.append(sum(symbol << place * bits for place, symbol in enumerate(symbols[first : first + each])))
    left = len(stream) - (of.at + 7) // 8
    return bytes(made), f"its last {left} bytes are left over" if left else SOUND
