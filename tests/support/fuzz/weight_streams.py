"""Weight streams as an attacker would write them: real ones with changes, and invented ones."""

from __future__ import annotations

import random
import time
from collections import Counter

import numpy as np
import numpy.typing as npt

from npusim import _core
from tests.support.oracle import weight_stream

MOST = 3000
"""Source bytes of a stream: some blocks of 512 symbols, the last one incomplete."""
HUGE = (2**31 - 1, 2**31, 2**32, 2**40, 2**59, 2**60, 2**61, 2**62, 2**63 - 1)
PATIENCE_S = 5.0
_GUARD = 16


def weights(rng: random.Random, size: int) -> bytes:
    """Return bytes that make the encoder use all of its codes and change the code from block to block."""
    made = bytearray()
    numbers = np.random.default_rng(rng.getrandbits(32))
    few = numbers.integers(0, 256, rng.choice((1, 2, 3, 7, 16, 32, 33)))
    while len(made) < size:
        count = rng.choice((1, 100, 256, 512, 1024))
        kind = rng.randrange(4)
        if kind == 0:
            part = numbers.integers(0, 256, count)
        elif kind == 1:
            part = numbers.normal(rng.choice((0, 128, 255)), rng.choice((0.3, 2, 20)), count).round().astype(np.int64)
        elif kind == 2:
            part = few[numbers.integers(0, few.size, count)]
        else:
            part = numbers.integers(0, 256, count) * (numbers.random(count) < rng.choice((0.01, 0.1, 0.4)))
        made += (part & 255).astype(np.uint8).tobytes()
    return bytes(made[:size])


def _changed(stream: bytes, rng: random.Random) -> bytes:
    """Return the stream with flipped bits, or with bytes removed, duplicated or inserted."""
    out = bytearray(stream)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at, kind = rng.randrange(len(out) + 1), rng.randrange(6)
        if kind < 2 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del out[at:]
        elif kind == 3:
            del out[at : at + rng.choice((1, 2, 8, 64))]
        elif kind == 4:
            out[at:at] = rng.choice((b"\0", b"\xff", bytes(64), b"\xff" * 64, rng.randbytes(9), bytes(out[:at])))
        else:
            out[at : at + 8] = rng.randbytes(8)
    return bytes(out)


def changed_stream(rng: random.Random) -> bytes:
    """Return a stream, usually a changed one."""
    return _one(rng)[0] or b"\0"


def _one(rng: random.Random) -> tuple[bytes, int, int]:
    """Return (stream, claimed expanded bytes, bits), which usually do not match."""
    bits = rng.choice((2, 4, 8))
    if rng.random() < 0.2:
        return rng.randbytes(rng.randrange(1, 400)), rng.randrange(1, MOST), bits
    data = weights(rng, rng.randrange(1, MOST))
    stream, nbytes = _core.compress(np.frombuffer(data, np.uint8), bits).tobytes(), len(data)
    if rng.random() < 0.85:
        stream = _changed(stream, rng)
    if rng.random() < 0.2:
        nbytes = max(0, nbytes + rng.choice((-512, -8, -1, 1, 8, 512, -nbytes, nbytes)))
    return stream, nbytes, rng.choice((2, 4, 8)) if rng.random() < 0.1 else bits


class World:
    """Compares the kernel with the reader of the oracle; both must give the same for any stream."""

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()

    def case(self, rng: random.Random) -> list[str]:
        stream, nbytes, bits = _one(rng)
        began = time.process_time()
        problems = self._refused(stream, nbytes, bits, rng) if rng.random() < 0.05 else []
        problems += self._read(stream, nbytes, bits)
        took = time.process_time() - began
        problems += [f"took {took:.1f} s"] if took > PATIENCE_S else []
        return [f"{problem}: {nbytes} bytes of {bits} bits of {stream.hex()}" for problem in problems]

    def _read(self, stream: bytes, nbytes: int, bits: int) -> list[str]:
        # Copy to a buffer of the exact size, so that AddressSanitizer knows its end.
        source: npt.NDArray[np.uint8] = np.frombuffer(stream, np.uint8).copy()
        out = np.full(nbytes + 2 * _GUARD, 0xA5, np.uint8)
        wrong, there = _core.expand(_core.Strided(out, _GUARD), _core.Strided(source, 0), nbytes, source.size, bits)
        wanted, said = weight_stream.read(stream, nbytes, bits)
        self.tally[wrong.rstrip(" 0123456789") if "left over" not in wrong else "bytes are left over"] += 1
        found = out[_GUARD : _GUARD + there].tobytes()
        problems = [] if (found, wrong) == (wanted, said) else [f"{wrong!r} behind {there}, not {said!r}"]
        if not (out[:_GUARD] == 0xA5).all() or not (out[_GUARD + there :] == 0xA5).all():
            problems.append("writes where nothing is to be")
        return problems

    def _refused(self, stream: bytes, nbytes: int, bits: int, rng: random.Random) -> list[str]:
        """Try sizes that no memory has, and positions outside of it."""
        source, out = np.frombuffer(stream, np.uint8), np.zeros(nbytes + 1, np.uint8)
        huge, at = rng.choice(HUGE), rng.choice((0, 0, 1, 2**62, -1))
        sizes = rng.choice(((huge, len(stream)), (nbytes, huge), (-1, len(stream)), (nbytes, -huge), (huge, huge)))
        try:
            _core.expand(_core.Strided(out, at), _core.Strided(source, at), *sizes, bits)
        except (IndexError, ValueError):
            self.tally["refused"] += 1
            return []
        return [f"sizes {sizes} at {at} are taken"]


def make() -> World:
    return World()
