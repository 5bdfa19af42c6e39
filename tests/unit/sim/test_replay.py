"""A replayed job equals, to the bit and the picosecond, the one that goes through every event."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.driver import Priority
from npusim.errors import DeviceFaultError
from npusim.faults import AtCommand, Fail, Fault
from npusim.hw.config import Config
from npusim.isa.base import region
from npusim.program import FIRST_IO, Program
from npusim.sim.machine import Machine
from npusim.sim.replayer import Replayer
from tests.support.programs.random_streams import Action, actions, build
from tests.support.programs.streams import Stream, add, copy, gather, round_trip
from tests.support.programs.timed_jobs import NS, TINY, Bench

TWO_CORES = TINY.with_(**{"cores": 2, "dma.channels": 2})


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Replayer]:
    """Record the jobs that were replayed."""
    seen: list[Replayer] = []
    begin = Replayer.begin

    def noted(self: Replayer) -> Any:
        seen.append(self)
        return begin(self)

    monkeypatch.setattr(Replayer, "begin", noted)
    return seen


def never(self: Machine, job: object, tape: object) -> bool:
    return False


def history(bench: Bench) -> list[dict[str, Any]]:
    return [dataclasses.asdict(bench.records[seqno]) for seqno in sorted(bench.records)]


def results(program: Program, inputs: list[np.ndarray[Any, Any]], config: Config) -> tuple[Any, ...]:
    """Return everything visible of a program that runs with one input after another."""
    bench = Bench(config, preempt=False)
    loaded = bench.driver.load(program)
    outputs = [bench.driver.run(loaded, {"x0": x} if program.inputs else {}) for x in inputs]
    machine = bench.device.machine
    memories = [memory.tobytes() for memory in (*machine.memory.sram, *machine.memory.acc)]
    values = [{name: array.tobytes() for name, array in output.outputs.items()} for output in outputs]
    return values, history(bench), memories, bench.device.now_ps, machine.link.settle()


@settings(max_examples=30, deadline=None)
@given(st.lists(actions(), min_size=1, max_size=12), st.sampled_from([TINY, TWO_CORES]))
def test_nothing_differs(plan: list[Action], config: Config) -> None:
    program = build(plan, config).program(scratch=65536)
    nothing = np.zeros(0, np.uint8)
    by_tape = results(program, [nothing] * 3, config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Machine, "_foreseeable", never)
        assert results(program, [nothing] * 3, config) == by_tape


def test_later_jobs_are_played_and_compute_with_their_own_inputs(played: list[Replayer]) -> None:
    rng = np.random.default_rng(1)
    inputs = [rng.integers(0, 256, 1000, np.uint8) for _ in range(4)]
    values, records, *_ = results(round_trip(), inputs, TINY)
    assert [value["y0"] for value in values] == [x.tobytes() for x in inputs]
    assert len(played) == 3
    assert len({record["time_ps"] for record in records}) == 1


def test_records_share_nothing_that_changes() -> None:
    bench = Bench(preempt=False)
    loaded = bench.driver.load(round_trip())
    first, second, third = bench.finish(*(bench.submit(loaded, Priority.LOW) for _ in range(3)))
    expected = dataclasses.asdict(third)
    for record in (first, second):
        record.spans.clear()
        record.counters.units["core0.dma0"].stalls["x"] = 1
    (fourth,) = bench.finish(bench.submit(loaded, Priority.LOW))
    assert dataclasses.asdict(fourth) | {"started_ps": 0} == expected | {"started_ps": 0}


def bad_index_program() -> Program:
    """Return a gather of bytes by indices in the input, after an addition that must happen once."""
    stream = Stream()
    index = stream.dma(copy(0, region(FIRST_IO), 8))
    data = stream.dma(copy(64, region(1), 16))
    total = stream.vector(add(64, 64, 64, 16), data)
    stored = stream.dma(copy(region(1), 64, 16), total)
    taken = stream.dma(gather(128, 64, 0, 2, 16), index, stored)
    stream.dma(copy(region(FIRST_IO + 1), 128, 2), taken)
    return stream.program([8], [2], scratch=16)


@pytest.mark.parametrize("before", [1, 2, 3])
def test_a_fault_of_the_data_comes_where_it_always_comes(
    played: list[Replayer], monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    good, bad = np.array([1, 2], np.int32).view(np.uint8), np.array([1, 99], np.int32).view(np.uint8)

    def course() -> tuple[Any, ...]:
        bench = Bench(preempt=False)
        loaded = bench.driver.load(bad_index_program())
        scratch = loaded.regions[1]
        bench.driver.write(scratch, bytes(range(1, 17)))
        for _ in range(before):
            bench.driver.run(loaded, {"x0": good})
        with pytest.raises(DeviceFaultError) as caught:
            bench.driver.run(loaded, {"x0": bad})
        after = bench.driver.run(loaded, {"x0": good})
        memory = bytes(bench.driver.read(scratch, 16))
        return str(caught.value), history(bench), after.outputs["y0"].tobytes(), memory, bench.device.now_ps

    by_tape = course()
    assert len(played) == before + 1
    # Doubled by each job, once.
    assert by_tape[3] == bytes((4 << before) * value % 256 for value in range(1, 17))
    monkeypatch.setattr(Machine, "_foreseeable", never)
    assert course() == by_tape


@given(st.integers(0, 3000), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_job_that_is_disturbed_is_not_played(after_ns: int, aborted: bool) -> None:
    """A job of higher priority, or an abort, at any time after the doorbell of a recorded job."""

    def course() -> tuple[Any, ...]:
        bench = Bench()
        low, high = bench.driver.load(round_trip(4000)), bench.driver.load(round_trip(64))
        bench.finish(bench.submit(low, Priority.LOW), bench.submit(high, Priority.HIGH))
        seqno = bench.submit(low, Priority.LOW)
        bench.device.machine.clock.advance(after_ns * NS)
        if aborted:
            bench.driver.abort(seqno)
        else:
            bench.submit(high, Priority.HIGH)
        bench.driver.poll(10**9)
        bench.driver.poll(10**9)
        return history(bench), bench.device.now_ps

    by_tape = course()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Machine, "_foreseeable", never)
        assert course() == by_tape


def test_units_that_are_told_to_break_do(played: list[Replayer]) -> None:
    bench = Bench(preempt=False)
    loaded = bench.driver.load(round_trip())
    bench.driver.run(loaded, timing_only=True)
    bench.device.faults.add([Fault(AtCommand(command=2, unit="core0.dma0"), Fail(fail="core0.dma0"))])
    with pytest.raises(DeviceFaultError, match="bus error"):
        bench.driver.run(loaded, timing_only=True)
    bench.device.faults.clear()
    bench.driver.run(loaded, timing_only=True)
    assert len(played) == 1
