"""Watchers of a device are notified of everything and change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npusim.device.bus import BAR_MEMORY
from npusim.driver import Priority
from npusim.runtime import Session
from npusim.sim.watch import Watcher
from tests.support.graphs.samples import residual_net
from tests.support.programs.timed_jobs import NS, Bench, long_job


class Notes(Watcher):
    """Records its notifications with their times."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.told: list[tuple[Any, ...]] = []

    def note(self, *what: Any) -> None:
        self.told.append((self.device.now_ps, *what))

    def job_begins(self, job: Any) -> None:
        self.note("begins", job.entry.seqno)

    def dispatched(self, unit: str, step: Any, at_ps: int) -> None:
        assert at_ps >= self.device.now_ps
        self.note("dispatched", unit)

    def step_begins(self, unit: str, step: Any) -> None:
        self.note("+" + unit, step.begin)

    def step_ends(self, unit: str, step: Any) -> None:
        self.note("-" + unit, step.begin)

    def job_ends(self, job: Any, timeline: Any) -> None:
        self.note("ends", job.entry.seqno, timeline.time_ps)

    def register_read(self, register: str, value: int) -> None:
        self.note("read", register, value)

    def register_written(self, register: str, value: int) -> None:
        self.note("write", register, value)

    def memory_read(self, address: int, size: int) -> None:
        self.note("memory read", address, size)

    def memory_written(self, address: int, size: int) -> None:
        self.note("memory write", address, size)

    def interrupt(self, vector: int) -> None:
        self.note("interrupt", vector)

    def of(self, *kinds: str) -> list[tuple[Any, ...]]:
        return [each for each in self.told if each[1] in kinds]


@pytest.mark.parametrize("timing_only", [False, True])
def test_steps_are_told_at_the_times_of_the_timeline_and_nothing_changes(timing_only: bool) -> None:
    session, graph = Session("tiny", cache_dir=False), residual_net()
    program = session.compile(graph)
    inputs = {each.name: np.ones(each.shape, each.dtype.storage) for each in program.inputs}
    plain = [session.run(program, inputs, timing_only=timing_only) for _ in range(2)][-1]
    notes = Notes(session.device)
    session.device.watch(notes)
    watched = session.run(program, inputs, timing_only=timing_only)
    assert watched.timeline.spans == plain.timeline.spans
    assert watched.cycles == plain.cycles
    (begun,) = notes.of("begins")
    start = session.device.last_job.started_ps  # type: ignore[union-attr]
    told = sorted((at - start, kind) for at, kind, *_ in notes.told if kind[0] in "+-")
    spans = watched.timeline.spans
    assert told == sorted([(s.start_ps, "+" + s.unit) for s in spans] + [(s.end_ps, "-" + s.unit) for s in spans])
    assert notes.of("ends") == [(start + watched.timeline.time_ps, "ends", begun[2], watched.timeline.time_ps)]
    session.device.unwatch(notes)
    before = len(notes.told)
    assert session.run(program, inputs, timing_only=timing_only).cycles == plain.cycles
    assert len(notes.told) == before
    session.close()


def test_a_job_under_way_is_told_from_there_on() -> None:
    alone = Bench(preempt=False)
    record = alone.finish(alone.submit(long_job(), Priority.MEDIUM))[0]
    bench = Bench(preempt=False)
    job = bench.submit(long_job(), Priority.MEDIUM)
    first, second = record.spans[0], record.spans[1]
    bench.device.machine.clock.advance(first.end_ps + NS)
    notes = Notes(bench.device)
    bench.device.watch(notes)
    assert bench.finish(job) == [record]
    assert [each[0] - record.started_ps for each in notes.told if each[1] == "-core0.dma0"] == [
        span.end_ps for span in record.spans[1:]
    ]
    assert second.end_ps > first.end_ps


def test_a_parked_job_is_told_when_it_goes_on() -> None:
    bench = Bench()
    low = bench.submit(long_job(4), Priority.LOW, 2000 * NS)
    high = bench.submit(long_job(2), Priority.HIGH, 1000 * NS)
    notes = Notes(bench.device)
    bench.device.watch(notes)
    records = bench.finish(low, high)
    assert records[0].preemptions == 1
    ends = [each[0] for each in notes.told if each[1] == "-core0.dma0"]
    expected = [
        record.started_ps + span.end_ps for record in records for span in record.spans if span.unit == "core0.dma0"
    ]
    assert ends == sorted(at for at in expected if at in set(ends))
    assert len(ends) >= 4


def test_accesses_and_interrupts() -> None:
    bench = Bench(preempt=False)
    notes = Notes(bench.device)
    bench.device.watch(notes)
    bus = bench.device.bus
    bus.write(0, 0x04C, 4, 3)
    bus.read(0, 0x044, 4)
    bus.read(0, 0x044, 2)  # reaches no register
    bus.write(BAR_MEMORY, 64, 8, 1)
    bus.read(BAR_MEMORY, 64, 4)
    bus.write_memory(128, bytes(16))
    bus.fill_memory(256, 8, lambda array: array.fill(1))
    bus.read_memory(128, 5)
    bus.read_memory(1 << 60, 5)  # is not there
    assert [each[1:] for each in notes.told] == [
        ("write", "INT_MASK", 3), ("read", "STATUS", 1), ("memory write", 64, 8), ("memory read", 64, 4),
        ("memory write", 128, 16), ("memory write", 256, 8), ("memory read", 128, 5),
    ]  # fmt: skip
    notes.told.clear()
    (record,) = bench.finish(bench.submit(long_job(), Priority.MEDIUM))
    (interrupt,) = notes.of("interrupt")
    assert interrupt[0] == record.started_ps + record.time_ps


def test_who_does_not_ask_for_steps_leaves_jobs_as_they_go() -> None:
    class Ends(Notes):
        steps = False

    bench = Bench(preempt=False)
    notes = Ends(bench.device)
    bench.device.watch(notes)
    (record,) = bench.finish(bench.submit(long_job(), Priority.MEDIUM))
    kinds = {each[1] for each in notes.told}
    assert kinds == {"begins", "ends", "interrupt", "memory read", "memory write", "write"}
    (ended,) = notes.of("ends")
    assert ended[3] == record.time_ps
    bench.device.unwatch(notes)
    with pytest.raises(ValueError, match="not in list"):
        bench.device.unwatch(notes)
