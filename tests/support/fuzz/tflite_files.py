"""Damaged TFLite models on the way of a user's model: read, imported, compiled, and run on a device."""

from __future__ import annotations

import random
import resource
import struct
import time
from collections import Counter

import numpy as np

from npusim.errors import DeviceFaultError, NpusimError
from npusim.hw.config import load_config
from npusim.runtime import Session
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


class World:
    """Cases on one session."""

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()
        self._session = Session(CONFIG, cache_dir=False)

    def case(self, rng: random.Random) -> list[str]:
        """Run one case; returns what is wrong with its end."""
        model = broken(rng)
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        problems = []
        end = "ran to its end"
        try:
            self._run(model)
        except NpusimError as error:
            end = type(error).__name__
            if isinstance(error, DeviceFaultError):
                end = f"fault {error.code}"
                problems += [] if error.code == "DATA" else [str(error)]
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            end = "not an error of npusim"
            problems.append(repr(error))
        took = time.process_time() - began
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        problems += [f"took {took:.1f} s"] if took > PATIENCE_S else []
        problems += [f"took {more >> 20} MiB"] if more > MOST_BYTES else []
        self.tally[end] += 1
        self.tally["over 1 s"] += took > 1
        return [problem.replace("\n", " ") for problem in problems]

    def _run(self, model: bytes) -> None:
        program = self._session.compile(model)
        try:
            fits = sum(program.region_bytes) <= CONFIG.dram.bytes
            inputs = {item.name: np.zeros(item.shape, item.dtype.storage) for item in program.inputs} if fits else {}
            self._session.run(program, inputs, timing_only=not fits)
        finally:
            self._session.unload(program)


def make() -> World:
    """The entry point of ``run``."""
    return World()
