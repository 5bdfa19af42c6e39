"""A small program with a known result, and ten bugs for it.

y0 = 3 * x0 + x1 in uint8, 4096 elements, through SRAM: x0 at 0, x1 at 0x1000, twice x0 at 0x2000, three times x0 at
0x3000, the sum at 0x4000. Commands 0 and 1 load, 2 to 4 add, 5 stores, 6 halts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.isa.base import Command, Unit, Wait, region
from npusim.isa.functions import Binary
from npusim.program import FIRST_IO, Program
from tests.support.programs.streams import Stream, add, copy, gather

SIZE = 0x1000
X0, X1, Y0 = (region(FIRST_IO + number) for number in range(3))
DMA, VECTOR = Unit.DMA, Unit.VECTOR


def stream() -> Stream:
    """Return the correct stream."""
    made = Stream()
    first = made.dma(copy(0, X0, SIZE))
    second = made.dma(copy(0x1000, X1, SIZE), op=0)
    twice = made.vector(add(0x2000, 0, 0, SIZE), first, op=1)
    thrice = made.vector(add(0x3000, 0x2000, 0, SIZE), twice, op=1)
    total = made.vector(add(0x4000, 0x3000, 0x1000, SIZE), thrice, second, op=1)
    made.dma(copy(Y0, 0x4000, SIZE), total, op=1)
    return made


def answer(x0: npt.NDArray[np.uint8], x1: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the correct result."""
    return 3 * x0 + x1


class Bug(NamedTuple):
    """``plant`` changes the commands; ``script``: debugger commands that find it; ``found``: texts that must then be
    shown, in this order, including the planted command."""

    plant: Callable[[list[Command]], None]
    script: str
    found: tuple[str, ...]


def _change(number: int, **fields: Any) -> Callable[[list[Command]], None]:
    def plant(commands: list[Command]) -> None:
        command, changed = commands[number], dict(fields)
        waits = changed.pop("waits", command.waits)
        made = dataclasses.replace(command.instruction, **changed)
        commands[number] = dataclasses.replace(command, instruction=made, waits=waits)

    return plant


def _swap(commands: list[Command]) -> None:
    """Move the command that multiplies by three before the one whose result it needs."""
    twice, thrice = commands[2], commands[3]
    commands[2] = dataclasses.replace(thrice, waits=twice.waits)
    commands[3] = dataclasses.replace(twice, waits=thrice.waits)


BUGS: dict[str, Bug] = {
    "the store goes to a wrong address": Bug(
        _change(5, dst=X1),
        "watch tensor y0\nwatch tensor x1 write\ncontinue\nlist\n",
        ("write of tensor x1: core0.dma0 command 5 dma.copy", ">      5 core0.dma0"),
    ),
    "a load reads from a wrong address": Bug(
        _change(1, src=X0),
        "watch sram 0x1000 0x1000 write\ncontinue\nprint memory sram 0x1000 16\nprint tensor x1 4\nlist\n",
        (
            "write of core0.sram 0x1000..0x2000: core0.dma0 command 1", "0x1000  00 01 02 03",
            "x1 uint8[4096]: 100 101", ">      1",
        ),
    ),
    "an addition starts before its operand is there": Bug(
        _change(2, waits=()),
        "break instruction 2\ncontinue\nprint memory sram 0 16\nprint unit core0.dma0\nlist\n",
        ("begins: core0.vector command 2", "0x0  00 00 00 00", "core0.dma0", ">      2 core0.vector"),
    ),
    "a loop bound is one too small": Bug(
        _change(4, dims=(1, 1, 1, SIZE - 1)),
        "watch sram 0x4000 0x1000 write\ncontinue\nprint memory sram 0x4ff0 16\nlist\n",
        ("0x4000..0x5000: core0.vector command 4", "58 5c 00\n", ">      4", "dims=[1,1,1,4095]"),
    ),
    "a result lands on an operand that is still needed": Bug(
        _change(3, dst=0x1000),
        "watch sram 0x1000 0x1000 value\ncontinue\ncontinue\nlist\n",
        ("has changed", "core0.dma0 command 1", "has changed", "core0.vector command 3 vector.binary", ">      3"),
    ),
    "a wait is for more than there will ever be": Bug(
        _change(4, waits=(Wait(0, VECTOR, 2), Wait(0, DMA, 3))),
        "continue\nlist 4\n",
        ("fault PROGRAM", "command 4 (vector.binary): waits for 3 commands of core0.dma0", ">      4 core0.vector"),
    ),
    "an operand has a wrong stride": Bug(
        _change(4, b_strides=(0, 0, 0, 0)),
        "watch sram 0x4000 0x1000 value\ncontinue\nprint memory sram 0x4000 8\nlist\n",
        ("core0.vector command 4", "0x4000  64 67 6a 6d", ">      4", "b_strides=[0,0,0,0]"),
    ),
    "a wrong function": Bug(
        _change(3, fn=Binary.SUB),
        "watch sram 0x3000 0x1000 write\ncontinue\nprint memory sram 0x2000 8\nprint memory sram 0x3000 8\nlist\n",
        ("core0.vector command 3", "0x2000  00 02 04 06", "0x3000  00 01 02 03", ">      3", "fn=SUB"),
    ),
    "two commands are in the wrong order": Bug(
        _swap,
        "watch sram 0x2000 0x1000 access\ncontinue\nprint memory sram 0x2000 8\ncontinue\n",
        (
            "read of core0.sram 0x2000..0x3000: core0.vector command 2", "0x2000  00 00 00 00",
            "write of core0.sram 0x2000..0x3000: core0.vector command 3",
        ),
    ),
    "the store does not wait for the sum": Bug(
        _change(5, waits=()),
        "watch tensor y0 access\ncontinue\nprint unit core0.vector\nlist\nback 1\nwhere\n",
        (
            "of tensor y0: core0.dma0 command 5", "core0.vector   runs since", ">      5 core0.dma0",
            "back by 1 instruction",
        ),
    ),
}  # fmt: skip
"""The bugs by what is wrong."""


def faulty() -> Program:
    """Return a gather whose index is x0's first element, which is outside of its axis unless it is 0."""
    made = Stream()
    loaded = made.dma(copy(0, X0, SIZE))
    made.dma(gather(0x1000, 0x2000, 0, 1, 1), loaded)
    return made.program([SIZE, SIZE], [SIZE])


def planted(bug: Bug | None) -> Program:
    """Return the program with a bug; None: the correct program."""
    made = stream()
    if bug is not None:
        bug.plant(made.commands)
    return made.program([SIZE, SIZE], [SIZE])
