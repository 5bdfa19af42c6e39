"""Memory contents over time: places during the times of their operators."""

from __future__ import annotations

import pytest

from npusim.hw.config import load_config
from npusim.occupancy import Occupancy, occupancy
from npusim.program import EVERY, ConstantData, OpEntry, Place, Program
from npusim.timeline import Span, Timeline

TINY = load_config("tiny")
OPS = ("first", "second", "third")


def sram(kind: str, low: int, high: int, first: int, last: int, core: int = EVERY) -> Place:
    return Place("sram", core, kind, "", low, high - low, first, last)


def program(*places: Place) -> Program:
    ops = tuple(OpEntry(name, "conv") for name in OPS)
    nothing = ConstantData(0, [])
    return Program("net", "tiny", "", "", b"", nothing, (512, 256, 64, 32), (), (), ops, 0, (), places=places)


def timeline(*times: tuple[int, int, int], core: int = 0) -> Timeline:
    """Return spans from (operator, start, end)."""
    spans = [Span(f"core{core}.matrix", start, end, op, "x", 0, 0, "compute") for op, start, end in times]
    return Timeline(spans, time_ps=1000)


def memories(made: Program, ran: Timeline) -> dict[str, Occupancy]:
    return {each.memory: each for each in occupancy(made, ran, TINY)}


THREE = timeline((0, 10, 100), (1, 90, 200), (2, 200, 300))


def test_a_place_lasts_from_its_first_operator_to_its_last() -> None:
    found = memories(program(sram("value", 0, 64, 0, 1), sram("tile", 64, 96, 1, 1)), THREE)["core0.sram"]
    assert found.steps == [(10, {"value": 64}), (90, {"value": 64, "tile": 32}), (200, {})]
    assert (found.peak_bytes, found.peak_ps, found.at_peak) == (96, 90, {"value": 64, "tile": 32})
    assert found.capacity_bytes == TINY.sram.bytes


def test_bytes_that_somebody_else_has_taken_count_once() -> None:
    """The second operator starts while the first one still runs: shared bytes belong to the second."""
    found = memories(program(sram("tile", 0, 64, 0, 0), sram("weights", 32, 128, 1, 1)), THREE)["core0.sram"]
    assert found.steps == [(10, {"tile": 64}), (90, {"tile": 32, "weights": 96}), (100, {"weights": 96}), (200, {})]


def test_a_place_within_another_leaves_both_sides() -> None:
    found = memories(program(sram("tile", 0, 100, 0, 0), sram("value", 40, 60, 1, 2)), THREE)["core0.sram"]
    assert found.steps == [(10, {"tile": 100}), (90, {"tile": 80, "value": 20}), (100, {"value": 20}), (300, {})]


def test_one_after_the_other_at_the_same_time() -> None:
    """What ends at the moment at which another begins is removed first."""
    found = memories(program(sram("tile", 0, 64, 1, 1), sram("tile", 0, 64, 2, 2)), THREE)["core0.sram"]
    assert found.steps == [(90, {"tile": 64}), (200, {"tile": 64}), (300, {})]


def test_what_no_operator_used_is_nowhere() -> None:
    found = memories(program(sram("value", 0, 64, 1, 1)), timeline((0, 0, 10)))
    assert set(found) == {"dram"}


def test_operators_without_instructions_begin_with_the_next_one_and_end_with_the_last() -> None:
    ran = timeline((0, 10, 100), (2, 200, 300))
    found = memories(program(sram("value", 0, 64, 0, 1), sram("value", 64, 128, 1, 2)), ran)["core0.sram"]
    assert found.steps == [(10, {"value": 64}), (100, {}), (200, {"value": 64}), (300, {})]


def test_each_core_that_works_has_the_place() -> None:
    ran = timeline((0, 0, 10))
    ran.spans += timeline((0, 5, 20), core=3).spans
    found = memories(program(sram("tile", 0, 64, 0, 0), sram("value", 64, 72, 0, 0, core=3)), ran)
    assert set(found) == {"core0.sram", "core3.sram", "dram"}
    assert found["core0.sram"].at_peak == {"tile": 64}
    assert found["core3.sram"].at_peak == {"tile": 64, "value": 8}


def test_constants_inputs_and_outputs_are_in_dram_all_the_time() -> None:
    found = memories(program(Place("dram", 0, "value", "v", 0, 256, 1, 2)), THREE)["dram"]
    always = {"constants": 512, "inputs and outputs": 96}
    assert found.steps == [(0, always), (90, {"value": 256, **always}), (300, always)]
    assert found.peak_bytes == 256 + 512 + 96
    assert found.capacity_bytes == TINY.dram.bytes


def test_no_more_than_the_memory_has() -> None:
    """A program file may claim anything."""
    found = memories(program(sram("value", 1 << 16, 1 << 40, 0, 0), sram("tile", 1 << 41, 1 << 42, 0, 0)), THREE)
    assert found["core0.sram"].peak_bytes == TINY.sram.bytes - (1 << 16)


def test_a_program_that_says_nothing() -> None:
    assert occupancy(program(), THREE, TINY) == []


@pytest.mark.parametrize("time", [0, 5])
def test_places_that_took_no_time(time: int) -> None:
    assert memories(program(sram("tile", 0, 64, 0, 0)), timeline((0, time, time)))["core0.sram"].peak_bytes == 0
