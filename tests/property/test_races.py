"""Every conflict of two units over a byte is ordered by waits in every program: no result depends on timing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.hw.config import Config
from npusim.isa.base import Command, Unit, Wait, decode, region
from npusim.isa.control import Halt
from npusim.isa.verify import Limits
from npusim.ops.build import GraphBuilder
from tests.support.graphs.execution import compiled
from tests.support.graphs.random_graphs import QUIET, graphs, graphs_with
from tests.support.graphs.random_operators import STEPS
from tests.support.graphs.random_values import RandomGraph
from tests.support.programs.race_detector import find_races, limits_of
from tests.support.programs.streams import add, copy
from tests.support.random_devices import TINY, Device, devices

LIMITS = Limits((64, 256, 256, 256), 1024, 0, 2, 2, ("matrix", "vector", "scalar"))


def check(case: RandomGraph, config: Config) -> None:
    program = compiled(case.graph, config)
    if program is not None:
        races = find_races(list(decode(program.code)), limits_of(program, config))
        assert not races, f"{len(races)} races, the first: {races[0]}"


@settings(max_examples=50, suppress_health_check=QUIET)
@given(graphs(), devices())
def test_programs_have_no_races(case: RandomGraph, device: Device) -> None:
    check(case, device.config)


ROWS: list[tuple[str, dict[str, Any]]] = [
    ("softmax", {"axis": 1, "log": False}),
    ("cast", {"to": DType.FLOAT16}),
    ("cast", {"to": DType.FLOAT32}),
    ("cumsum", {"axis": 1, "exclusive": False, "reverse": True}),
    ("cumsum", {"axis": 0, "exclusive": False, "reverse": True}),
    ("lrn", {"axis": 1, "size": 3, "alpha": 0.01, "beta": 0.75, "bias": 1.0}),
]
"""Operators that do not fuse with each other: each creates a buffer in the memory of an older one.

Rows of half the size are placed differently: a core's part of the new buffer overlaps another core's part of the old
one.
"""


@settings(max_examples=25, suppress_health_check=QUIET)
@given(
    st.lists(st.sampled_from(ROWS), min_size=3, max_size=8), st.sampled_from([(48, 40), (7, 90), (130, 9)]),
    st.integers(2, 3), st.integers(1, 3), st.sampled_from([4096, 6144, 8192]),
)  # fmt: skip
def test_bytes_pass_from_buffer_to_buffer_in_order(
    rows: list[tuple[str, dict[str, Any]]], shape: tuple[int, int], cores: int, channels: int, sram: int
) -> None:
    """Several cores, many tiles: one core may be a whole operator ahead of another that still reads the older value."""
    build = GraphBuilder("chain")
    value = build.input("x", shape, DType.FLOAT32)
    for kind, attrs in rows:
        value = build.add(kind, [value], attrs)
    config = TINY.with_(**{"cores": cores, "dma.channels": channels, "sram.bytes": sram})
    program = compile_graph(build.finish([value]), config)
    races = find_races(list(decode(program.code)), limits_of(program, config))
    assert not races, f"{len(races)} races, the first: {races[0]}"


@pytest.mark.slow
@settings(max_examples=500, suppress_health_check=QUIET)
@given(graphs(most_steps=10), devices())
def test_long_programs_have_no_races(case: RandomGraph, device: Device) -> None:
    check(case, device.config)


@pytest.mark.slow
@pytest.mark.parametrize("kind", STEPS)
@settings(max_examples=20, suppress_health_check=QUIET)
@given(data=st.data())
def test_no_kind_has_races(kind: str, data: st.DataObject) -> None:
    check(data.draw(graphs_with(kind)), data.draw(devices()).config)


def stream(*commands: Command) -> list[Command]:
    return [*commands, Command(0, Unit.CONTROL, 0, (), Halt())]


LOAD = Command(0, Unit.DMA, 0, (), copy(0, region(2), 64))
USE = Command(0, Unit.VECTOR, 0, (Wait(0, Unit.DMA, 1),), add(128, 0, 0, 64))
STORE = Command(0, Unit.DMA + 1, 0, (Wait(0, Unit.VECTOR, 1),), copy(region(3), 128, 64))


def test_the_detector_accepts_what_waits_order() -> None:
    assert not find_races(stream(LOAD, USE, STORE), LIMITS)


def test_the_detector_follows_waits_through_other_units() -> None:
    """The overwriting load waits for the store, which waited for the reader."""
    again = Command(1, Unit.DMA, 0, (Wait(0, Unit.DMA + 1, 1),), copy(region(2), region(1), 64))
    assert not find_races(stream(LOAD, USE, STORE, again), LIMITS)


@pytest.mark.parametrize("number", [1, 2])
def test_the_detector_finds_a_missing_wait(number: int) -> None:
    commands = [LOAD, USE, STORE]
    commands[number] = dataclasses.replace(commands[number], waits=())
    races = find_races(stream(*commands), LIMITS)
    assert next((race.first, race.second) for race in races) == (number - 1, number)


def test_the_detector_finds_a_write_under_a_reader() -> None:
    late = Command(0, Unit.DMA + 1, 0, (Wait(0, Unit.DMA, 1),), copy(0, region(1), 32))
    races = find_races(stream(LOAD, USE, late), LIMITS)
    assert [(race.first, race.second) for race in races] == [(1, 2)]


def test_the_detector_knows_that_interleaved_elements_are_apart() -> None:
    even = dataclasses.replace(copy(region(3), region(2), 32), dst_strides=(0, 0, 0, 2))
    odd = dataclasses.replace(even, dst=region(3, 1))
    apart = stream(Command(0, Unit.DMA, 0, (), even), Command(0, Unit.DMA + 1, 0, (), odd))
    assert not find_races(apart, LIMITS)
    same = stream(Command(0, Unit.DMA, 0, (), even), Command(0, Unit.DMA + 1, 0, (), even))
    assert find_races(same, LIMITS)


def test_cores_have_memories_of_their_own() -> None:
    commands = stream(LOAD, Command(1, Unit.DMA, 0, (), copy(0, region(2), 64)))
    assert not find_races(commands, LIMITS)


@settings(max_examples=15, suppress_health_check=QUIET)
@given(graphs(), devices())
def test_without_waits_there_are_races(case: RandomGraph, device: Device) -> None:
    """Removing all waits of the compiler is detected."""
    program = compiled(case.graph, device.config)
    if program is None:
        return
    commands = list(decode(program.code))
    if any(command.waits for command in commands):
        bare = [dataclasses.replace(command, waits=()) for command in commands]
        assert find_races(bare, limits_of(program, device.config))
