"""Anything that software writes to a ring, a table or a stream: the device reports a fault or executes it."""

from __future__ import annotations

import contextlib
from math import prod
from typing import Any, get_args, get_type_hints

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.device.npu import NpuDevice
from npusim.device.registers import BY_NAME, FieldAccess
from npusim.driver import Driver, LoadedProgram
from npusim.errors import DeviceFaultError, ProgramError, QueueFullError
from npusim.hw.config import load_config
from npusim.isa.base import ADDRESS, INSTRUCTIONS, Instruction, acc, decode, region, sram
from npusim.isa.control import Halt
from npusim.isa.dma import Copy
from npusim.isa.repeat import Repeat
from npusim.program import CONSTANTS, FIRST_IO, Program
from npusim.work import ControlWork, DmaWork, MatrixWork
from tests.support.examples import examples
from tests.support.programs.streams import Stream, add, copy, fill, gather, negate, round_trip

TINY = load_config("tiny")
OPERANDS = frozenset({
    "a", "acc", "b", "bias", "condition", "data", "dst", "index", "indices", "out", "scale", "src", "updates", "values",
    "w", "weight", "x", "zero",
})  # fmt: skip
EXPECTED = (None, "RING", "PROGRAM", "ADDRESS", "DATA", "TIMEOUT")  # not INTERNAL, and no DEADLOCK
LARGE = 1 << 14


def victim() -> Program:
    """Return a program that uses several kinds of commands."""
    stream = Stream()
    x = stream.dma(copy(0, region(FIRST_IO), 64))
    filled = stream.dma(fill(0x400, 64, 3))
    total = stream.vector(add(0x800, 0, 0x400, 64), x, filled)
    stream.vector(negate(0x900, 0x800, 64))
    taken = stream.dma(gather(0xA00, region(CONSTANTS), 0x400, 16, 64), total)
    stream.dma(copy(region(FIRST_IO + 1), 0x800, 64), taken)
    return stream.program([64], [64], constants=bytes(range(64)))


VICTIM = victim()


ADDRESSES = st.one_of(
    st.integers(0, TINY.sram.bytes).map(sram),
    st.integers(0, 64).map(lambda block: sram(64 * block)),
    st.integers(0, 4096).map(lambda offset: region(1, offset)),
    st.sampled_from([acc(0), 0xFFFF_FFFF_FFFF_FFFF, 5 << 48]),
)
NUMBERS = {
    "B": st.integers(0, 9), "H": st.integers(0, 9), "I": st.integers(0, 40), "Q": st.integers(0, 255),
    "h": st.integers(-300, 300), "i": st.integers(-300, 300),
    "q": st.sampled_from([0, 1, 2, 4, 8, 16, 64, 256, -1, -4, 12]), "?": st.booleans(),
    "f": st.floats(width=32), "d": st.floats(),
}  # fmt: skip


def outcome(driver: Driver, loaded: LoadedProgram, timing_only: bool = False) -> str | None:
    """Return the fault code of a run, or None."""
    inputs = {binding.name: np.arange(64, dtype=np.uint8) for binding in loaded.program.inputs}
    try:
        driver.run(loaded, inputs, timing_only=timing_only, timeout_ps=10**12)
    except DeviceFaultError as error:
        return error.code
    return None


def values(annotation: Any, name: str) -> st.SearchStrategy[Any]:
    """Draw values for a declared field: addresses if the name says so, small numbers otherwise."""
    code, *convert = get_args(annotation)[1:]
    if convert and convert[0] is not ADDRESS:
        return st.sampled_from(list(convert[0]))
    one = ADDRESSES if code == "Q" and name in OPERANDS else NUMBERS[code[-1]]
    return st.tuples(*[one] * int(code[:-1])) if code[:-1] else one


def instructions(cls: type[Instruction]) -> st.SearchStrategy[Instruction]:
    """Draw any instruction of a class; most are invalid."""
    hints = get_type_hints(cls, include_extras=True)
    return st.tuples(*[values(hints[field.name], field.name) for field in cls.fields]).map(lambda row: cls(*row))


ROUTINES = {opcode for opcode, cls in INSTRUCTIONS.items() if cls.__name__.endswith("Routine")}  # tested where they are
# A repeat needs a block behind it: tests/unit/isa.
COMPUTING = sorted(set(INSTRUCTIONS) - {Halt.opcode, Repeat.opcode} - ROUTINES)


@given(st.sampled_from(COMPUTING).flatmap(lambda opcode: instructions(INSTRUCTIONS[opcode])))
@settings(max_examples=examples(150))
def test_any_instruction_computes_or_is_refused(instruction: Instruction) -> None:
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    stream = Stream()
    stream.put(instruction.unit, instruction)
    program = stream.program(scratch=4096)
    assert outcome(driver, driver.load(program), timing_only=is_large(program.code)) in EXPECTED


def is_large(code: bytes) -> bool:
    """Return whether executing a stream would take the host long: valid, but not suited for a test."""
    try:
        for command in decode(code):
            work = command.instruction.work()
            if isinstance(work, ControlWork):
                continue
            if isinstance(work, MatrixWork):
                size = work.macs
            elif isinstance(command.instruction, Copy):
                size = prod(command.instruction.padded)
            else:
                size = work.bytes if isinstance(work, DmaWork) else work.elements
            if size > LARGE:
                return True
    except (ProgramError, OverflowError):
        return False
    return False


def spoil(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    spoilt = bytearray(data)
    for position, value in changes:
        spoilt[position % len(data)] = value
    return bytes(spoilt)


CHANGES = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=4)


@given(CHANGES)
@settings(max_examples=examples(100))
def test_spoilt_streams(changes: list[tuple[int, int]]) -> None:
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    loaded = driver.load(VICTIM)
    good = driver.load(round_trip(64))
    code = spoil(VICTIM.code, changes)
    device.bus.write_memory(loaded.code, code)
    values = np.arange(64, dtype=np.uint8)
    assert outcome(driver, loaded, timing_only=is_large(code)) in EXPECTED
    assert np.array_equal(driver.run(good, {"x0": values}).outputs["y0"], values)


@given(CHANGES)
@settings(max_examples=60)
def test_spoilt_region_tables(changes: list[tuple[int, int]]) -> None:
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    loaded = driver.load(VICTIM)
    table = device.bus.read_memory(loaded.slot.table, 16 * len(loaded.regions))
    device.bus.write_memory(loaded.slot.table, spoil(bytes(table), changes))
    assert outcome(driver, loaded) in EXPECTED


@given(st.binary(max_size=300))
@settings(max_examples=100)
def test_noise_is_no_program(noise: bytes) -> None:
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    loaded = driver.load(Stream().program(code=noise))
    assert outcome(driver, loaded) == "PROGRAM"


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 0x1000), st.integers(0, (1 << 32) - 1)), max_size=40))
@settings(max_examples=80)
def test_any_register_traffic(traffic: list[tuple[bool, int, int]]) -> None:
    """Random accesses, including the doorbell; then a driver takes over the device."""
    device = NpuDevice(TINY)
    for is_write, offset, value in traffic:
        offset &= ~3
        if is_write:
            device.bus.write(0, offset, 4, value)
        else:
            device.bus.read(0, offset, 4)
    device.bus.write(0, 0x134, 4, 1)
    driver = Driver(device.bus)
    values = np.arange(64, dtype=np.uint8)
    assert np.array_equal(driver.run(driver.load(round_trip(64)), {"x0": values}).outputs["y0"], values)


NAMES = sorted(
    name
    for name, register in BY_NAME.items()
    if register.access is not FieldAccess.RO and not name.endswith(("_BASE_HI", "INT_STATUS", "INT_MASK"))
)
MEDDLING = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(NAMES), st.one_of(st.integers(0, 12), st.integers(0, (1 << 32) - 1))),
        st.tuples(st.just("submit"), st.integers(0, 2)),
        st.tuples(st.just("wait"), st.integers(0, 20).map(lambda number: number * 1_000_003)),
    ),
    min_size=5,
    max_size=40,
)


@given(MEDDLING)
@settings(max_examples=examples(60))
def test_whoever_meddles_with_jobs_of_all_classes(acts: list[tuple[str, int]]) -> None:
    """Preemption, aborts, CONTINUE and resets at any moment in any order: the device never raises, and recovers."""
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    driver.enable_preemption()
    loaded = [driver.load(VICTIM) for _ in range(3)]
    x = {"x0": np.zeros(64, np.uint8)}
    for act, value in acts:
        if act == "submit":
            with contextlib.suppress(QueueFullError):
                driver.submit(loaded[value], x, priority=value)
        elif act == "wait":
            device.machine.clock.advance(value)
        else:
            device.bus.write(0, BY_NAME[act].offset, 4, value & BY_NAME[act].mask)
    device.machine.clock.advance(10**9)
    fresh = Driver(device.bus)
    fresh.enable_preemption()
    values = np.arange(64, dtype=np.uint8)
    good = fresh.load(round_trip(64))
    seqnos = [fresh.submit(good, {"x0": values + ring}, priority=ring) for ring in range(3)]
    for ring, seqno in enumerate(seqnos):
        assert np.array_equal(fresh.wait(seqno).outputs["y0"], values + ring)
