"""Each rule of the verifier, with its error text."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace

import pytest

from npusim.dtypes import DType
from npusim.errors import ProgramError
from npusim.isa.base import MAX_ITEMS, Command, Instruction, Unit, Wait, acc, encode, l2, region
from npusim.isa.control import Halt, Residents, resident_bytes
from npusim.isa.dma import Exchange, Expand, Multicast, MulticastExpand
from npusim.isa.matrix import Conv, Depthwise
from npusim.isa.matrix_extras import NOTHING
from npusim.isa.reduction import ArgReduce, Pool
from npusim.isa.scalar import GatherElements, Scatter, TopK
from npusim.isa.verify import Limits, verify
from tests.support.programs.streams import add, copy, exchange, expand, fill, gather, multicast

LIMITS = Limits((256, 1024, 64, 64), 512, 128, 2, 2, ("matrix", "vector", "scalar"))
HALT = Command(0, Unit.CONTROL, 0, (), Halt())


def dma(instruction: Instruction, *waits: Wait, core: int = 0, channel: int = 0) -> Command:
    return Command(core, Unit.DMA + channel, 0, waits, instruction)


def vector(instruction: Instruction, *waits: Wait, core: int = 0) -> Command:
    return Command(core, Unit.VECTOR, 0, waits, instruction)


GOOD = [
    dma(copy(0, region(2), 64)),
    vector(add(64, 0, 0, 64), Wait(0, Unit.DMA, 1)),
    dma(copy(region(3), 64, 64), Wait(0, Unit.VECTOR, 1)),
]


def refused(*commands: Command) -> str:
    with pytest.raises(ProgramError) as caught:
        verify([*commands, HALT], LIMITS)
    return str(caught.value)


def test_a_sound_stream_passes() -> None:
    verify([*GOOD, HALT], LIMITS)
    verify([HALT], LIMITS)


def test_the_last_byte_of_every_memory_may_be_used() -> None:
    verify(
        [
            dma(copy(511, region(3, 63), 1)),
            dma(fill(acc(127), 1, 3)),
            dma(copy(region(1, 1023), region(0, 255), 1)),
            HALT,
        ],
        LIMITS,
    )


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        (expand(0, region(0), 4, 4, 3), "bits must be one of (2, 4, 8), got 3"),
        (expand(0, region(0), 0, 4), "must make bytes of bytes, got 0 of 4"),
        (expand(0, region(0), 4, 0), "must make bytes of bytes, got 4 of 0"),
        (expand(0, 64, 4, 4), "src must be in DRAM, got sram+0x40"),
        (expand(acc(0), region(0), 4, 4), "dst must be in SRAM, got acc+0x0"),
        (expand(region(3), region(0), 4, 4), "dst must be in SRAM, got r3+0x0"),
        (expand(510, region(0), 4, 4), "writes bytes 510..514 of sram+0x1fe: the memory has 512"),
        (expand(0, region(0, 250), 4, 7), "reads bytes 250..257 of r0+0xfa: the memory has 256"),
        (expand(0, region(0), 1 << 63, 4), f"goes through {1 << 63} elements, at most {MAX_ITEMS} are possible"),
        (expand(0, region(0), 1 << 27, 4, 2), f"goes through {1 << 29} elements, at most {MAX_ITEMS} are possible"),
    ],
)
def test_what_a_decoder_makes(instruction: Expand, message: str) -> None:
    limits = dataclasses.replace(LIMITS, decoder=True)
    verify([dma(expand(0, region(0), 512, 256)), HALT], limits)
    with pytest.raises(ProgramError, match=re.escape(f"command 0 (dma.expand): {message}")):
        verify([dma(instruction), HALT], limits)


def test_what_a_decoder_makes_for_several_cores() -> None:
    limits = dataclasses.replace(LIMITS, decoder=True, multicast=True)
    verify([dma(MulticastExpand(0, region(0), 4, 4, 8, 3)), HALT], limits)
    for cores, message in ((0, "cores must name at least one core"), (4, "writes to core 2: the device has 2")):
        with pytest.raises(ProgramError, match=re.escape(f"command 0 (dma.expand_multicast): {message}")):
            verify([dma(MulticastExpand(0, region(0), 4, 4, 8, cores)), HALT], limits)


def test_weights_are_expanded_where_there_is_a_decoder() -> None:
    assert refused(dma(expand(0, region(0), 4, 4))) == "command 0 (dma.expand): the device has no decoder of weights"


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        (multicast(0, region(2), 4, 0), "cores must name at least one core"),
        (multicast(0, region(2), 4, 4), "writes to core 2: the device has 2"),
        (multicast(0, 64, 4, 3), "src must be in DRAM or L2, got sram+0x40"),
        (multicast(acc(0), region(2), 4, 3), "dst must be in SRAM, got acc+0x0"),
        (multicast(region(3), region(2), 4, 3), "dst must be in SRAM, got r3+0x0"),
        (multicast(510, region(2), 4, 3), "writes bytes 510..514 of sram+0x1fe: the memory has 512"),
    ],
)
def test_what_is_written_to_several_cores(instruction: Multicast, message: str) -> None:
    limits = dataclasses.replace(LIMITS, multicast=True)
    verify([dma(multicast(0, region(2), 4, 3)), HALT], limits)
    with pytest.raises(ProgramError, match=re.escape(f"command 0 (dma.multicast): {message}")):
        verify([dma(instruction), HALT], limits)


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        (exchange(0, 64, 4, 0, 0), "cores must name at least one core"),
        (exchange(0, 64, 4, 0, 3), "cores must not name core 0, which is the source"),
        (exchange(0, 64, 4, 0, 8), "writes to core 3: the device has 3"),
        (exchange(0, 64, 4, 3, 1), "reads from core 3: the device has 3"),
        (exchange(0, 64, 4, 255, 1), "reads from core 255: the device has 3"),
        (exchange(0, 64, 4, 0, 1 << 63), "writes to core 63: the device has 3"),
        (exchange(0, acc(0), 4, 0, 2), "src must be in SRAM, got acc+0x0"),
        (exchange(acc(0), 0, 4, 0, 2), "dst must be in SRAM, got acc+0x0"),
        (exchange(0, region(2), 4, 0, 2), "src must be in SRAM, got r2+0x0"),
        (exchange(region(3), 0, 4, 0, 2), "dst must be in SRAM, got r3+0x0"),
        (exchange(510, 0, 4, 0, 2), "writes bytes 510..514 of sram+0x1fe: the memory has 512"),
        (exchange(0, 510, 4, 0, 2), "reads bytes 510..514 of sram+0x1fe: the memory has 512"),
    ],
)
def test_what_passes_from_core_to_core(instruction: Exchange, message: str) -> None:
    limits = dataclasses.replace(LIMITS, cores=3, multicast=True, exchange=True)
    verify([dma(exchange(0, 0, 4, 0, 6)), dma(exchange(508, 508, 4, 2, 1)), HALT], limits)
    with pytest.raises(ProgramError, match=re.escape(f"command 0 (dma.exchange): {message}")):
        verify([dma(instruction), HALT], limits)


def test_who_passes_to_several_cores_needs_multicast() -> None:
    limits = dataclasses.replace(LIMITS, cores=3, exchange=True)
    verify([dma(exchange(0, 0, 4, 0, 4)), HALT], limits)
    with pytest.raises(ProgramError, match="the device's interconnect writes to one core at a time"):
        verify([dma(exchange(0, 0, 4, 0, 6)), HALT], limits)


@pytest.mark.parametrize("instruction", [exchange(0, 0, 4, 0, 2), multicast(0, region(2), 4, 2)])
def test_what_stays_in_another_core_is_not_written_from_here(instruction: Instruction) -> None:
    limits = dataclasses.replace(LIMITS, multicast=True, exchange=True)
    load = Command(1, Unit.DMA, 0, (), copy(0, region(0), 64))
    mark = Command(0, Unit.CONTROL, 0, (), Residents(load.size, 64))
    verify([mark, load, dma(replace(instruction, dst=64)), HALT], limits)
    with pytest.raises(ProgramError, match=re.escape("writes bytes 0..4 of SRAM, which holds residents")):
        verify([mark, load, dma(instruction), HALT], limits)


def test_operands_without_elements_may_be_anywhere() -> None:
    verify([dma(copy(5000, region(9), 0)), HALT], LIMITS)


ZERO3 = (0, 0, 0)
CONV = Conv(
    DType.INT8, DType.INT8, DType.INT32, 0, (8, 8, 4), 64, 0, acc(0), (16, 16, 4), 1, 1, 4, 1, 4, 1, 1, 1, 1, 1, 1, 0,
    0, True, True, 128, ZERO3, NOTHING, NOTHING, 0, 1.0, 0, 0.0, 0.0,
)  # fmt: skip
DEPTHWISE = Depthwise(
    DType.INT8, DType.UINT8, DType.INT32, 0, 4, 4, 64, acc(0), 16, 16, 1, 1, 4, 1, 1, 1, 1, 1, 1, 1, 0, 0, True, True,
    128, 0, 0, NOTHING, NOTHING, 0, 1.0, 0, 0.0, 0.0,
)  # fmt: skip
POOL = Pool(3, DType.INT8, 0, ZERO3, 0, ZERO3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, (0, 0, 0, 0), False)
SCATTER = Scatter(DType.INT8, 0, ZERO3, 0, ZERO3, DType.INT32, 0, ZERO3, (1, 1, 1), 1, 5)
PICK = GatherElements(1, 0, ZERO3, 64, ZERO3, DType.INT32, 128, ZERO3, (1, 1, 1), 1)
TOPK = TopK(DType.INT8, 64, ZERO3, 128, ZERO3, 0, (0, 1, 0), (1, 3, 1), 4, True)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (dma(copy(0, 0, 4), core=2), "command 0 (dma.copy): core 2: the device has 2"),
        (dma(copy(0, 0, 4), channel=2), "command 0 (dma.copy): DMA channel 2: the device has 2"),
        (Command(0, 5, 0, (), copy(0, 0, 4)), "command 0 (dma.copy): unit 5: there is no such unit"),
        (vector(copy(0, 0, 4)), "command 0 (dma.copy): is for unit dma, issued to core0.vector"),
        (dma(add(0, 0, 0, 4)), "command 0 (vector.binary): is for unit vector, issued to core0.dma0"),
        (
            Command(0, Unit.MATRIX, 0, (), add(0, 0, 0, 4)),
            "command 0 (vector.binary): is for unit vector, issued to core0.matrix",
        ),
        (
            vector(add(0, 0, 0, 4), Wait(0, Unit.VECTOR, 1)),
            "command 0 (vector.binary): waits for 1 commands of core0.vector, 0 were issued before it",
        ),
        (
            vector(add(0, 0, 0, 4), Wait(1, Unit.DMA, 3)),
            "command 0 (vector.binary): waits for 3 commands of core1.dma0, 0 were issued before it",
        ),
        (vector(add(0, 0, 0, 4), Wait(3, Unit.DMA, 0)), "command 0 (vector.binary): core 3: the device has 2"),
        (
            dma(multicast(0, region(2), 4, 1)),
            "command 0 (dma.multicast): the device's interconnect writes to one core at a time",
        ),
        (
            dma(exchange(0, 0, 4, 0, 2)),
            "command 0 (dma.exchange): the device's cores have no network between their SRAMs",
        ),
        (dma(copy(510, 0, 4)), "command 0 (dma.copy): writes bytes 510..514 of sram+0x1fe: the memory has 512"),
        (dma(copy(0, 510, 4)), "command 0 (dma.copy): reads bytes 510..514 of sram+0x1fe: the memory has 512"),
        (dma(copy(acc(126), 0, 4)), "command 0 (dma.copy): writes bytes 126..130 of acc+0x7e: the memory has 128"),
        (dma(copy(0, region(2, 62), 4)), "command 0 (dma.copy): reads bytes 62..66 of r2+0x3e: the memory has 64"),
        (dma(copy(region(0), 0, 4)), "command 0 (dma.copy): writes r0+0x0: region 0 is read only"),
        (dma(copy(0, region(4), 4)), "command 0 (dma.copy): region 4: the job has 4"),
        (dma(copy(0, 7 << 48, 4)), f"command 0 (dma.copy): address {7 << 48:#x}: there is no memory space 7"),
        (
            dma(dataclasses.replace(copy(0, 4, 8), src_strides=(0, 0, 0, -1))),
            "command 0 (dma.copy): reads bytes -3..5 of sram+0x4: the memory has 512",
        ),
        (
            dma(dataclasses.replace(copy(500, 0, 8), after=(0, 0, 0, 5))),
            "command 0 (dma.copy): writes bytes 500..513 of sram+0x1f4: the memory has 512",
        ),
        (
            dma(dataclasses.replace(copy(0, 0, 1), itemsize=3)),
            "command 0 (dma.copy): item size must be one of (1, 2, 4, 8), got 3",
        ),
        (
            dma(dataclasses.replace(fill(0, 1, 0), itemsize=0)),
            "command 0 (dma.fill): item size must be one of (1, 2, 4, 8), got 0",
        ),
        (
            dma(dataclasses.replace(gather(0, 0, 0, 1, 1), index_type=DType.FLOAT32)),
            "command 0 (dma.gather): index type must be an integer, got float32",
        ),
        (
            dma(gather(0, 500, 0, 1, 20)),
            "command 0 (dma.gather): reads bytes 500..520 of sram+0x1f4: the memory has 512",
        ),
        (
            Command(0, Unit.MATRIX, 0, (), dataclasses.replace(CONV, kh=0)),
            "command 0 (matrix.conv): matrix.conv: every dimension, stride and dilation must be >= 1",
        ),
        (
            Command(0, Unit.MATRIX, 0, (), dataclasses.replace(CONV, w_type=DType.FLOAT32)),
            "command 0 (matrix.conv): matrix unit cannot multiply int8 by float32",
        ),
        (
            Command(0, Unit.MATRIX, 0, (), dataclasses.replace(CONV, w_zero=-129)),
            "command 0 (matrix.conv): matrix.conv: w_zero of int8 weights must be from -128 to 127, got -129",
        ),
        (
            Command(0, Unit.MATRIX, 0, (), dataclasses.replace(CONV, w_type=DType.UINT8, w_zero=256)),
            "command 0 (matrix.conv): matrix.conv: w_zero of uint8 weights must be from 0 to 255, got 256",
        ),
        (
            Command(0, Unit.MATRIX, 0, (), dataclasses.replace(CONV, w_type=DType.INT16, w_zero=1)),
            "command 0 (matrix.conv): matrix.conv: w_zero of int16 weights must be 0, got 1",
        ),
        (
            Command(0, Unit.MATRIX, 0, (), dataclasses.replace(DEPTHWISE, w_zero=-1)),
            "command 0 (matrix.depthwise): matrix.depthwise: w_zero of uint8 weights must be from 0 to 255, got -1",
        ),
        (
            Command(0, Unit.MATRIX, 0, (), dataclasses.replace(CONV, acc=acc(120))),
            "command 0 (matrix.conv): writes bytes 120..136 of acc+0x78: the memory has 128",
        ),
        (vector(POOL), "command 0 (vector.pool): vector.pool: function must be below 3, got 3"),
        (
            vector(dataclasses.replace(POOL, fn=0, dh=0)),
            "command 0 (vector.pool): vector.pool: kernel, stride and dilation must be >= 1",
        ),
        (
            Command(0, Unit.SCALAR, 0, (), SCATTER),
            "command 0 (scalar.scatter): scalar.scatter: reduction must be below 5, got 5",
        ),
        (
            Command(0, Unit.SCALAR, 0, (), dataclasses.replace(SCATTER, reduction=0, index_type=DType.BOOL)),
            "command 0 (scalar.scatter): index type must be an integer, got bool",
        ),
        (
            Command(0, Unit.SCALAR, 0, (), dataclasses.replace(PICK, itemsize=3)),
            "command 0 (scalar.gather_elements): item size must be one of (1, 2, 4, 8), got 3",
        ),
        (
            Command(0, Unit.SCALAR, 0, (), dataclasses.replace(PICK, index_type=DType.FLOAT16)),
            "command 0 (scalar.gather_elements): index type must be an integer, got float16",
        ),
        (
            vector(ArgReduce(DType.INT8, 0, (0, 0, 0), 0, (0, 1, 0), (1, 3, 1), 2, False)),
            "command 0 (vector.arg_reduce): vector.arg_reduce: function must be 0 (maximum) or 1 (minimum), got 2",
        ),
        (
            Command(0, Unit.SCALAR, 0, (), TOPK),
            "command 0 (scalar.topk): scalar.topk: k must be at most the row length 3, got 4",
        ),
    ],
)
def test_rules(command: Command, message: str) -> None:
    assert refused(command) == message


def test_waits_look_back_only() -> None:
    """A wait for the command itself or a later one would never end."""
    late = dataclasses.replace(GOOD[1], waits=(Wait(0, Unit.DMA, 2),))
    message = "command 1 (vector.binary): waits for 2 commands of core0.dma0, 1 were issued before it"
    assert refused(GOOD[0], late, GOOD[2]) == message


def test_the_stream_ends_in_halt_and_nothing_follows() -> None:
    with pytest.raises(ProgramError, match=r"^the stream does not end in halt$"):
        verify(GOOD, LIMITS)
    with pytest.raises(ProgramError, match=r"^the stream does not end in halt$"):
        verify([], LIMITS)
    assert refused(HALT) == "command 1 (halt): follows halt"


def test_the_first_offender_is_named() -> None:
    assert refused(*GOOD, dma(copy(0, 9999, 4)), dma(copy(9999, 0, 4))).startswith("command 3 (dma.copy): reads")


@pytest.mark.parametrize("unit", [Unit.MATRIX, Unit.VECTOR, Unit.SCALAR])
def test_a_unit_that_the_device_lacks_is_no_unit(unit: Unit) -> None:
    """Neither for commands nor for waits: even a wait for zero commands would wait for a unit that does not exist."""
    works = {Unit.MATRIX: CONV, Unit.VECTOR: add(0, 0, 0, 4), Unit.SCALAR: dataclasses.replace(TOPK, k=1)}
    name = unit.name.lower()
    meagre = dataclasses.replace(LIMITS, units=tuple(other for other in LIMITS.units if other != name))
    uses = Command(1, unit, 0, (), works[unit])
    verify([uses, HALT], LIMITS)
    with pytest.raises(ProgramError) as caught:
        verify([uses, HALT], meagre)
    assert str(caught.value) == f"command 0 ({works[unit].mnemonic}): core1.{name}: the device has no such unit"
    waits = dma(copy(0, 0, 4), Wait(0, unit, 0))
    verify([waits, HALT], LIMITS)
    with pytest.raises(ProgramError, match=f"core0.{name}: the device has no such unit"):
        verify([waits, HALT], meagre)


def mark(*loads: Command, sram_bytes: int = 64, more: int = 0) -> Command:
    size = sum(load.size for load in loads) + more
    return Command(0, Unit.CONTROL, 0, (), Residents(size, sram_bytes))


LOAD = dma(copy(64, region(0), 64))


def test_residents_are_read_and_never_written() -> None:
    body = [dma(copy(region(3), 64, 64)), dma(fill(0, 64, 0)), dma(fill(128, 64, 0)), dma(fill(64, 64, 0), core=1)]
    verify([mark(LOAD), LOAD, *body, HALT], LIMITS)
    verify([mark(sram_bytes=0), *body, HALT], LIMITS)
    for first, size in ((63, 2), (64, 1), (127, 1), (0, 512)):
        said = refused(mark(LOAD), LOAD, *body, dma(fill(first, size, 0)))
        assert said == f"command 6 (dma.fill): writes bytes {first}..{first + size} of SRAM, which holds residents"


def test_residents_come_from_constants_by_dma_into_bytes_of_their_own() -> None:
    for load, said in (
        (dma(copy(64, region(2), 64)), "(dma.copy): reads r2+0x0: residents come from region 0 to SRAM"),
        (dma(copy(64, 0, 64)), "(dma.copy): reads sram+0x0: residents come from region 0 to SRAM"),
        (dma(copy(region(3), region(0), 64)), "(dma.copy): writes r3+0x0: residents come from region 0 to SRAM"),
        (dma(copy(acc(0), region(0), 64)), "(dma.copy): writes acc+0x0: residents come from region 0 to SRAM"),
        (vector(add(64, 0, 0, 64)), "(vector.binary): residents are loaded by DMA alone"),
    ):
        assert refused(mark(load), load) == f"command 1 {said}"
    again = dma(copy(100, region(0), 64))
    said = "command 2 (dma.copy): byte 100 of SRAM is loaded twice as a resident"
    assert refused(mark(LOAD, again, sram_bytes=128), LOAD, again) == said


def test_the_mark_says_what_follows_it() -> None:
    assert refused(LOAD, mark()) == "command 1 (residents): must be the first command"
    said = "command 1 (dma.copy): residents take 64 bytes of SRAM, not 65"
    assert refused(mark(LOAD, sram_bytes=65), LOAD) == said
    assert refused(mark(sram_bytes=1)) == "command 0 (residents): residents take 0 bytes of SRAM, not 1"
    size = LOAD.size
    said = f"command 1 (dma.copy): {size - 1} bytes are left of the commands that load residents, it has {size}"
    assert refused(mark(LOAD, more=-1), LOAD) == said
    assert (
        refused(mark(LOAD, more=1), LOAD)
        == "command 2 (halt): 1 bytes are left of the commands that load residents, it has 12"
    )
    assert refused(mark(LOAD, more=64), LOAD) == "command 2 (halt): residents are loaded by DMA alone"


def test_what_a_stream_keeps_is_in_its_first_command() -> None:
    assert resident_bytes(encode([mark(LOAD), LOAD, HALT])) == 64
    assert resident_bytes(encode([LOAD, HALT])) == resident_bytes(b"") == resident_bytes(b"\xff" * 40) == 0


NEAR = dataclasses.replace(LIMITS, l2_bytes=256, multicast=True)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (dma(copy(0, l2(192), 65)), "reads bytes 192..257 of l2+0xc0: the memory has 256"),
        (dma(fill(l2(255), 2, 1)), "writes bytes 255..257 of l2+0xff: the memory has 256"),
        (dma(multicast(0, l2(200), 57, 0b11)), "reads bytes 200..257 of l2+0xc8: the memory has 256"),
        (vector(add(0, l2(0), 0, 64)), "touches l2+0x0: only DMA reaches L2"),
        (dma(copy(0, l2(0) + (1 << 48), 1)), "address 0x3000000000000: there is no memory space 3"),
    ],
)
def test_the_l2_is_bounded(command: Command, words: str) -> None:
    with pytest.raises(ProgramError, match=re.escape(words)):
        verify([command, HALT], NEAR)


def test_a_device_without_an_l2_refuses_its_addresses() -> None:
    verify([dma(copy(l2(0), 0, 256)), dma(copy(region(1), l2(0), 256)), HALT], NEAR)
    assert "touches l2+0x0: the device has no L2" in refused(dma(copy(0, l2(0), 1)))
