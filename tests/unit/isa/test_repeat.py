"""Repeated blocks: what they execute, and each rule of the verifier about them."""

from __future__ import annotations

import re
from itertools import accumulate

import numpy as np
import pytest

from npusim.errors import ProgramError
from npusim.hw.config import load_config
from npusim.isa.base import Command, Instruction, Unit, Wait, decode, encode, region
from npusim.isa.control import Halt
from npusim.isa.interpret import interpret
from npusim.isa.repeat import MOST_REPEATED, Repeat, Strides, expanded
from npusim.isa.verify import Limits, verify
from npusim.sim.memory import DeviceMemory, JobMemory
from tests.support.programs.streams import add, copy, gather

LIMITS = Limits((256, 1024, 64, 64), 512, 128, 2, 2, ("matrix", "vector", "scalar"))
HALT = Command(0, Unit.CONTROL, 0, (), Halt())
DST, SRC = 0, 2
"""Numbers of the address fields of a copy."""


def dma(instruction: Instruction, *waits: Wait) -> Command:
    return Command(0, Unit.DMA, 0, waits, instruction)


def vector(instruction: Instruction, *waits: Wait) -> Command:
    return Command(0, Unit.VECTOR, 0, waits, instruction)


def repeat(times: int, commands: int, *strides: tuple[int, int, int]) -> Command:
    return Command(0, Unit.CONTROL, 0, (), Repeat(times, commands, Strides(strides)))


def refused(*commands: Command) -> str:
    with pytest.raises(ProgramError) as caught:
        verify([*commands, HALT], LIMITS)
    return str(caught.value)


def test_a_block_is_executed_with_addresses_and_waits_that_advance() -> None:
    first = dma(copy(0, region(1), 16))
    block = [dma(copy(16, region(1, 16), 16), Wait(0, Unit.VECTOR, 1)), vector(add(64, 0, 16, 4), Wait(0, Unit.DMA, 2))]
    stream = [first, vector(add(64, 0, 0, 4)), repeat(3, 2, (0, DST, 16), (0, SRC, 32)), *block, HALT]
    verify(stream, LIMITS)
    made = list(expanded(decode(encode(stream))))
    assert [one.instruction for one in made[2:8:2]] == [copy(16 + 16 * i, region(1, 16 + 32 * i), 16) for i in range(3)]
    assert [one.waits for one in made[2:8]] == [
        waits for i in range(3) for waits in ((Wait(0, Unit.VECTOR, 1 + i),), (Wait(0, Unit.DMA, 2 + i),))
    ]
    # The stream without Repeat is one that the verifier accepts, too, and gives the same memory.
    verify(made, LIMITS)
    found = []
    for commands in (stream, made):
        memory = DeviceMemory(load_config("tiny"))
        memory.dram[:1024] = np.arange(1024) % 251
        interpret(commands, JobMemory(memory, [(0, 256), (256, 1024), (2048, 64), (4096, 64)]))
        found.append(memory.sram[0][:512].tobytes())
    assert found[0] == found[1]


def test_the_last_iteration_may_touch_the_last_byte_and_not_the_next() -> None:
    load = dma(copy(0, region(2), 16))
    verify([repeat(4, 1, (0, SRC, 16)), load, HALT], LIMITS)
    assert refused(repeat(5, 1, (0, SRC, 16)), load) == (
        "command 1 (dma.copy): reads bytes 0..80 of r2+0x0: the memory has 64"
    )
    verify([repeat(4, 1, (0, DST, -16)), dma(copy(48, region(2), 16)), HALT], LIMITS)
    assert "dst leaves space 0 in iteration 3" in refused(repeat(4, 1, (0, DST, -16)), dma(copy(47, region(2), 15)))


def test_waits_hold_in_every_iteration() -> None:
    load = dma(copy(0, region(2), 16), Wait(0, Unit.VECTOR, 1))
    assert "waits for 1 commands of core0.vector, 0 were issued" in refused(repeat(2, 1), load)
    # A wait for a unit without commands in the block is the same in all iterations.
    verify([vector(add(64, 0, 0, 4)), repeat(9, 1), load, vector(add(64, 0, 0, 4), Wait(0, Unit.DMA, 9)), HALT], LIMITS)
    after = vector(add(64, 0, 0, 4), Wait(0, Unit.DMA, 10))
    assert "waits for 10 commands of core0.dma0, 9 were issued" in refused(
        vector(add(64, 0, 0, 4)), repeat(9, 1), load, after
    )


def test_blocks_that_cannot_be_repeated_are_refused() -> None:
    load = dma(copy(0, region(2), 16))
    for commands, said in (
        ((repeat(0, 1), load), "command 0 (repeat): must repeat at least 1 command once, got 1 commands 0 times"),
        ((repeat(2, 0),), "command 0 (repeat): must repeat at least 1 command once, got 0 commands 2 times"),
        ((repeat(2, 3), load), "command 0 (repeat): repeats 3 commands, 2 follow it"),
        ((repeat(2, 2), load), "command 0 (repeat): repeats a command of the sequencer (halt)"),
        ((repeat(2, 2), repeat(2, 1), load), "command 0 (repeat): repeats a command of the sequencer (repeat)"),
        ((repeat(2, 1, (1, 0, 4)), load), "command 0 (repeat): advances field 0 of command 1, which is no address"),
        ((repeat(2, 1, (0, 1, 4)), load), "command 0 (repeat): advances field 1 of command 0, which is no address"),
        ((repeat(2, 1, (0, 0, 4), (0, 0, 8)), load), "command 0 (repeat): advances field 0 of command 0 twice"),
        ((repeat(2**32 - 1, 1), load), f"adds {2**32 - 2} commands, at most {MOST_REPEATED} are possible"),
        ((repeat(2, 1, (0, 0, 2**62)), load), "dma.copy: dst leaves space 0 in iteration 1"),
    ):
        assert said in refused(*commands)
    half = [repeat(MOST_REPEATED // 2 + 2, 1), load]
    assert f"at most {MOST_REPEATED} are possible" in refused(*half, *half)


def test_outputs_that_meet_operands_in_some_iteration_are_refused() -> None:
    """The bytes of all iterations are compared, because data decides on addresses."""
    one = dma(gather(128, 0, 64, 2, 16))
    verify([one, HALT], LIMITS)
    names = [field.name for field in one.instruction.fields]
    far = [repeat(2, 1, (0, names.index("dst"), 4)), one]
    verify([*far, HALT], LIMITS)
    verify([repeat(8, 1, (0, names.index("dst"), -8)), one, HALT], LIMITS)
    assert "overlap" in refused(repeat(9, 1, (0, names.index("dst"), -8)), one)


@pytest.mark.parametrize(
    "raw", [b"1", b"\0\0\0\1" + b"\1" * 8, b"\0" * 12, b"\0\0\1\0" + b"\1" * 8 + b"\0" * 4 + b"\1" * 8]
)
def test_strides_have_one_encoding(raw: bytes) -> None:
    with pytest.raises(ProgramError, match=re.escape("strides")):
        Strides.from_bytes(raw)


def test_the_sizes_of_an_iteration_are_those_of_its_commands() -> None:
    block = [dma(copy(0, region(2), 16)), vector(add(64, 0, 0, 4))]
    made = list(expanded([repeat(3, 2, (0, DST, 16)), *block, HALT]))
    sizes = [command.size for command in made]
    assert sizes[:6] == [command.size for command in block] * 3
    assert list(accumulate(sizes))[-1] == len(encode(made))
