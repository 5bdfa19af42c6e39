"""Damaged TFLite models on the way of a user's model: read, imported, compiled, and run on a device."""

from __future__ import annotations

import random
import struct

from npusim.hw.config import load_config
from tests.support.fuzz.model_files import World
from tests.support.tflite_cases import cases

PATIENCE_S = 2.0
"""CPU time limit of a case."""
MOST_BYTES = 300 << 20
"""Host memory limit of a case."""
CONFIG = load_config("tiny").with_(**{"dram.bytes": 32 << 20})
SEEDS = [case.data for _, case in cases()]
NUMBERS = (0, 1, 2, 4, 127, 255, 32767, 65535, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 32) - 8)
"""Numbers that are offsets, lengths, indices and sizes at their limits."""


def small(word: bytes) -> bool:
    """Whether four bytes are a number below 64."""
    return len(word) == 4 and word[0] < 64 and not any(word[1:])


def broken(rng: random.Random) -> bytes:
    """A model with a few changes: cut, bits flipped, numbers replaced, parts moved."""
    data = bytearray(rng.choice(SEEDS))
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(data))
        match rng.randrange(6):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                # Most numbers below 64 are dimensions, options and indices; most others are offsets.
                words = [place for place in range(8, len(data) - 3, 4) if small(data[place : place + 4])]
                at = rng.choice(words or [at - at % 4])
                data[at : at + 4] = struct.pack("<I", rng.choice((rng.randrange(40), rng.choice(NUMBERS))))
            case 2:
                # One more or less: neighbouring tables, indices and lengths.
                data[at] = (data[at] + rng.choice((-1, 1))) % 256
            case 3:
                other = rng.randrange(len(data))
                length = rng.choice((2, 4, 8, 32))
                data[at : at + length] = data[other : other + length]
            case 4:
                data[at] = rng.randrange(256)
            case _:
                if rng.random() < 0.2:
                    del data[max(at, 8) :]
    return bytes(data)


def make() -> World:
    """The entry point of ``run``."""
    return World(CONFIG, broken, PATIENCE_S, MOST_BYTES)
