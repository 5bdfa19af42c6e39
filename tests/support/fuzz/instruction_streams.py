"""Instructions with overlapping operands, extreme strides and counts: rejected, or executed within bounds."""

from __future__ import annotations

import dataclasses
import random
import time
from collections import Counter
from typing import Any

import numpy as np

from npusim._core import Strided
from npusim.errors import ProgramError
from npusim.isa.base import (
    INSTRUCTIONS,
    Command,
    Instruction,
    Unit,
    acc,
    decode,
    encode,
    l2,
    offset_of,
    region,
    space_of,
)
from npusim.isa.control import Halt
from npusim.isa.verify import Limits, verify
from tests.support.fuzz.weight_streams import changed_stream
from tests.support.programs.any_instruction import Executable, address_fields, field_codes

SIZE = 2048
CORES = 4
LIMITS = Limits(
    (SIZE, SIZE, SIZE), SIZE, SIZE, CORES, 1, ("matrix", "vector", "scalar"), True, True, True, SIZE
)  # fmt: skip
_ACC, _L2 = space_of(acc(0)), space_of(l2(0))
_OUTSIDE = (*(region(number) for number in range(3)), l2(0))
CLASSES = [cls for cls in INSTRUCTIONS.values() if cls.unit is not Unit.CONTROL and cls.tail is None]
BITS = {"B": 8, "H": 16, "I": 32, "Q": 64, "h": 15, "i": 31}
COUNTS = (0, 1, 2, 3, 7, 64, 1000, 2**15, 2**16 - 1, 2**31, 2**32 - 1)
STRIDES = (0, 1, 2, 4, 8, -1, -8, 2**62, -(2**63), SIZE)
PATIENCE_S = 5.0


class _Memory:
    """One array for each memory of each core, with bytes that give small and large indices.

    Memory outside the cores may contain weight streams instead, changed like those of
    :mod:`tests.support.fuzz.weight_streams`.
    """

    def __init__(self, rng: random.Random) -> None:
        numbers = np.random.default_rng(rng.getrandbits(32))
        values = np.array([0, 1, 2, 255, 128], np.uint8)
        self._outside = {space_of(base): numbers.choice(values, SIZE) for base in _OUTSIDE}
        self._inside = [{space: numbers.choice(values, SIZE) for space in (0, _ACC)} for _ in range(CORES)]
        for area in self._outside.values():
            if rng.random() < 0.5:
                area[:] = np.resize(np.frombuffer(changed_stream(rng), np.uint8), SIZE)

    def at(self, core: int, address: int, strides: tuple[int, ...] = ()) -> Strided:
        space = space_of(address)
        area = self._outside[space] if space in self._outside else self._inside[core][space]
        return Strided(area, offset_of(address), strides)


def _address(name: str, dma: bool, rng: random.Random) -> int:
    """Return an address: SRAM for compute operands and most results; DMA sources are often outside the cores."""
    base = 0
    if dma and (name in ("src", "data") or rng.random() < 0.2):
        base = rng.choice([0, 0, 0, acc(0), *_OUTSIDE])
    return base + rng.choice([0, 0, 8, 64, 256, 1024, SIZE - 8])


def _field(value: Any, code: str, wild: float, rng: random.Random) -> Any:
    if rng.random() >= wild:
        return value
    if code == "q":
        return rng.choice(STRIDES)
    if code == "Q":  # a size, a mask or a pattern
        return rng.choice([1, 2, 64, 1024, SIZE, 2**62, 2**64 - 1])
    return rng.choice(COUNTS) % 2 ** BITS[code] if code in BITS and rng.random() < 0.1 else value


def mutated(instruction: Instruction, rng: random.Random) -> Instruction:
    """Return the instruction with other addresses, some other strides, and a few other counts."""
    changes: dict[str, Any] = {}
    dma, wild = instruction.unit is Unit.DMA, rng.choice((0.05, 0.3, 0.9))
    for name, (code, count, enumeration) in field_codes(type(instruction)).items():
        value = getattr(instruction, name)
        if name in address_fields(type(instruction)):
            changes[name] = _address(name, dma, rng)
        elif enumeration is None and count:
            changes[name] = tuple(_field(item, code, wild, rng) for item in value)
        elif enumeration is None:
            changes[name] = _field(value, code, wild, rng)
    return dataclasses.replace(instruction, **changes)


class World:
    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()

    def case(self, rng: random.Random) -> list[str]:
        cls = rng.choice(CLASSES)
        instruction = mutated(Executable(cls, rng.getrandbits(32)).make(), rng)
        stream = encode([Command(0, cls.unit, 0, (), instruction), Command(0, Unit.CONTROL, 0, (), Halt())])
        began = time.process_time()
        try:
            verify(decode(stream), LIMITS)
            instruction.execute(_Memory(rng), 0)
            self.tally[cls.mnemonic] += 1
        except (ProgramError, ValueError):  # both become faults on the device
            self.tally["refused"] += 1
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            return [f"{instruction}: {error!r}"]
        return [f"{instruction}: took too long"] if time.process_time() - began > PATIENCE_S else []


def make() -> World:
    return World()
