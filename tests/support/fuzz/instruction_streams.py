"""Instructions whose operands lie over each other, with extreme strides and counts: refused, or executed in bounds."""

from __future__ import annotations

import dataclasses
import random
import time
from typing import Any

import numpy as np

from npusim._core import Strided
from npusim.errors import ProgramError
from npusim.isa.base import INSTRUCTIONS, Command, Instruction, Unit, decode, encode, offset_of, space_of
from npusim.isa.control import Halt
from npusim.isa.verify import Limits, verify
from tests.support.programs.any_instruction import Executable, field_codes

SIZE = 2048
LIMITS = Limits((SIZE, SIZE, SIZE), SIZE, SIZE, 1, 1, ("matrix", "vector", "scalar"))
CLASSES = [cls for cls in INSTRUCTIONS.values() if cls.unit is not Unit.CONTROL and cls.tail is None]
BITS = {"B": 8, "H": 16, "I": 32, "Q": 64, "h": 15, "i": 31}
COUNTS = (0, 1, 2, 3, 7, 64, 1000, 2**15, 2**16 - 1, 2**31, 2**32 - 1)
STRIDES = (0, 1, 2, 4, 8, -1, -8, 2**62, -(2**63), SIZE)
PATIENCE_S = 5.0


class _Memory:
    """Every space an array of its own, of bytes that make small indices and large ones."""

    def __init__(self, rng: np.random.Generator) -> None:
        values = np.array([0, 1, 2, 255, 128], np.uint8)
        self._spaces = {space: rng.choice(values, SIZE) for space in (0, 1, 16, 17, 18)}

    def at(self, core: int, address: int, strides: tuple[int, ...] = ()) -> Strided:
        return Strided(self._spaces[space_of(address)], offset_of(address), strides)


def _field(value: Any, name: str, code: str, dma: bool, rng: random.Random) -> Any:
    if code == "Q" and name != "pattern":
        space = rng.choice([0, 0, 0, 1, 17, 18]) if dma else 0
        return rng.choice([0, 0, 8, 64, 256, 1024, SIZE - 8]) + (space << 48)
    if code == "q":
        return rng.choice([value, *STRIDES])
    return rng.choice(COUNTS) % 2 ** BITS[code] if code in BITS and rng.random() < 0.1 else value


def mutated(instruction: Instruction, rng: random.Random) -> Instruction:
    """With other addresses and strides, and here and there another count."""
    changes: dict[str, Any] = {}
    dma = instruction.unit is Unit.DMA
    for name, (code, count, enumeration) in field_codes(type(instruction)).items():
        value = getattr(instruction, name)
        if enumeration is None and count:
            changes[name] = tuple(_field(item, name, code, dma, rng) for item in value)
        elif enumeration is None:
            changes[name] = _field(value, name, code, dma, rng)
    return dataclasses.replace(instruction, **changes)


class World:
    def case(self, rng: random.Random) -> list[str]:
        cls = rng.choice(CLASSES)
        instruction = mutated(Executable(cls, rng.getrandbits(32)).make(), rng)
        stream = encode([Command(0, cls.unit, 0, (), instruction), Command(0, Unit.CONTROL, 0, (), Halt())])
        began = time.monotonic()
        try:
            verify(decode(stream), LIMITS)
            instruction.execute(_Memory(np.random.default_rng(rng.getrandbits(32))), 0)
        except (ProgramError, ValueError):  # the device makes a fault of either
            pass
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            return [f"{instruction}: {error!r}"]
        return [f"{instruction}: took too long"] if time.monotonic() - began > PATIENCE_S else []


def make() -> World:
    return World()
