"""Breakpoints, watchpoints, steps and reverse execution, to the picosecond."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npusim.debug import Bench, Debugger, JobRequest, Stop, look, read_trace
from npusim.device.npu import NpuDevice
from npusim.driver import Driver, Priority
from npusim.errors import CheckpointError, UsageError
from npusim.hw.config import load_config
from npusim.runtime import Session
from npusim.sim.watch import Watcher
from npusim.timeline import Timeline
from tests.support.programs.planted_bugs import SIZE, answer, faulty, planted
from tests.support.programs.streams import QUICK_HOST

TINY = load_config("tiny").with_(**QUICK_HOST)
X0, X1 = np.arange(SIZE).astype(np.uint8), np.arange(100, 100 + SIZE).astype(np.uint8)
INPUTS = {"x0": X0, "x1": X1}


def _bench() -> Bench:
    return Bench(TINY, preemption=False)


def _course() -> Timeline:
    """Return the timeline of the job without a debugger."""
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    driver.run(driver.load(planted(None)), INPUTS)
    assert device.last_job is not None
    return device.last_job


COURSE = _course()
VECTOR_PS = next(span.start_ps for span in COURSE.spans if span.unit == "core0.vector")
"""Start of the first addition."""


def _started(bench: Bench) -> int:
    """Submit the job; return the time at which the device took it."""
    arrival = bench.submit(JobRequest(planted(None), inputs=INPUTS))
    assert arrival.arrived_ps is not None
    bench.device.run_until(lambda: bench.device.machine.current is not None)
    return COURSE.started_ps


def test_run_until_a_time_stands_there_and_the_event_of_that_time_has_run() -> None:
    first = COURSE.spans[0]
    for before, done in ((1, 0), (0, 1)):
        bench = _bench()
        bench.submit(JobRequest(planted(None), inputs=INPUTS))
        bench.device.run_until(COURSE.started_ps + first.end_ps - before)
        view = look(bench.device)
        assert sum(unit["completed"] for unit in view["jobs"][0]["units"]) == done
        assert view["now_ps"] == COURSE.started_ps + first.end_ps - before


def test_run_until_an_event_and_no_longer() -> None:
    bench = _bench()
    _started(bench)
    device = bench.device
    assert device.run_until(lambda: look(device)["jobs"][0]["units"][1]["state"] == "runs")
    assert device.now_ps == COURSE.started_ps + next(
        span.start_ps for span in COURSE.spans if span.unit == "core0.vector"
    )
    assert not device.run_until(lambda: False, limit_ps=1000)
    with pytest.raises(UsageError, match="time must not go back"):
        device.run_until(device.now_ps - 1)


def test_steps_by_instruction_layer_and_cycle() -> None:
    bench = _bench()
    _started(bench)
    device, begin = bench.device, COURSE.started_ps
    for span in COURSE.spans[:3]:
        assert device.step()
        assert device.now_ps == begin + span.end_ps
    before = device.now_ps
    device.step("cycle", 7)
    assert device.now_ps == before + 7 * device.machine.cycle_ps
    assert not device.step("layer", limit_ps=10**9), "both layers have begun"
    with pytest.raises(UsageError, match="step: must be one of instruction, layer, cycle"):
        device.step("line")


def test_a_layer_begins_at_its_first_instruction() -> None:
    bench = _bench()
    bench.load(planted(None))
    bench.debugger.break_layer("second")
    bench.submit(JobRequest(bench.debugger.programs[0], inputs=INPUTS))
    stop = bench.run_until()
    first = min(span.start_ps for span in COURSE.spans if span.op == 1)
    assert (stop.kind, stop.layer, stop.command, stop.at_ps) == ("layer", "second", 2, COURSE.started_ps + first)
    assert bench.run_until().kind == "end", "once in a job"
    with pytest.raises(UsageError, match="layer must be one of the program's, such as first, second"):
        bench.debugger.break_layer("third")


@pytest.mark.parametrize("access", ["read", "write", "access", "value"])
def test_a_watchpoint_tells_reads_from_writes(access: str) -> None:
    bench = _bench()
    bench.debugger.watch("sram", 0x2000, 16, access)  # command 2 writes it, command 3 reads it
    bench.submit(JobRequest(planted(None), inputs=INPUTS))
    stops = []
    while (stop := bench.run_until()).kind == "watch":
        stops.append(stop.command)
    assert stops == {"read": [3], "write": [2], "access": [2, 3], "value": [2]}[access]


def test_a_watchpoint_on_dram_sees_software_and_the_device() -> None:
    bench = _bench()
    loaded = bench.load(planted(None))
    address = loaded.idle[0].own[4]
    found: list[Stop] = []
    debugger = Debugger(bench.device, on_stop=found.append, history=False)
    debugger.watch("dram", address, SIZE, "access")
    bench.driver.write(address, b"\7" * 4)
    bench.driver.read(address, 4)
    bench.driver.read(address + SIZE, 4)
    assert [stop.text.partition(" dram")[0] for stop in found] == ["software has written", "software reads"]


def test_registers_seqnos_addresses_and_interrupts() -> None:
    bench = _bench()
    debugger = bench.debugger
    found: list[Stop] = []
    debugger.on_stop = found.append
    debugger.break_register("MEDIUM_DOORBELL", 1)
    debugger.break_register("MEDIUM_DOORBELL", 2)
    arrival = bench.submit(JobRequest(planted(None), inputs=INPUTS))
    assert [stop.kind for stop in found] == ["register"]
    debugger.break_seqno(arrival.job.seqno)
    debugger.break_interrupt()
    assert bench.run_until().text == "job with seqno 1 gets the machine"
    job = bench.device.machine.current.job
    offset = sum(command.size for command in list(_commands())[:4])
    debugger.break_address(job.code + offset)
    assert bench.run_until().command == 4
    assert "has ended after" in bench.run_until().text
    debugger.delete()
    with pytest.raises(UsageError, match="there is no breakpoint 9"):
        debugger.delete(9)
    for wrong in (lambda: debugger.break_register("NONE"), lambda: debugger.break_instruction("add"),
                  lambda: debugger.watch("dram", 1 << 60), lambda: debugger.watch("sram", 0, core=1)):  # fmt: skip
        with pytest.raises(UsageError):
            wrong()


def _commands() -> list[object]:
    from npusim.isa import decode

    return list(decode(planted(None).code))


def test_a_blocking_call_stops_in_its_midst_and_goes_on() -> None:
    with Session(TINY, cache_dir=False) as session:
        program = planted(None)
        program.config_name, program.config_fingerprint = TINY.name, TINY.fingerprint()
        wanted = session.run(program, INPUTS)
        seen: list[tuple[int, str]] = []

        def prompt(stop: Stop) -> None:
            view = look(session.device)
            seen.append((stop.at_ps - view["jobs"][0]["started_ps"], stop.unit))
            with pytest.raises(CheckpointError, match="during an event"):
                session.device.checkpoint()
            with pytest.raises(CheckpointError, match="during an event"):
                session.device.run_until(stop.at_ps + 1)

        debugger = Debugger(session.device, program, on_stop=prompt)
        debugger.break_instruction(2)
        result = session.run(program, INPUTS)
        debugger.delete()
        again = session.run(program, INPUTS)
    assert seen == [(VECTOR_PS, "core0.vector")]
    assert wanted.timeline.digest() == result.timeline.digest() == again.timeline.digest()
    np.testing.assert_array_equal(result.outputs["y0"], answer(X0, X1))


def test_nothing_armed_nobody_watches() -> None:
    bench = Bench(TINY, history=False)
    number = bench.debugger.break_interrupt().number
    bench.debugger.delete(number)
    assert bench.device.machine.watchers == bench.device.machine.step_watchers == []


# Back


def test_back_is_where_it_was() -> None:
    bench = _bench()
    _started(bench)
    views = [look(bench.device)]
    for _ in COURSE.spans[:5]:
        bench.debugger.step()
        views.append(look(bench.device))
    for wanted in views[-2:0:-1]:
        bench.debugger.back()
        assert look(bench.device) == wanted
    assert bench.debugger.back().text == "the beginning of the history"
    for wanted in views[1:]:
        bench.debugger.step()
        assert look(bench.device) == wanted
    assert bench.debugger.back("instruction", 3).at_ps == views[2]["now_ps"]
    bench.finish()
    np.testing.assert_array_equal(bench.arrivals[0].outputs["y0"], answer(X0, X1))
    assert bench.arrivals[0].timeline.digest() == COURSE.digest()


def test_back_by_cycles_and_stops_and_not_beyond_software() -> None:
    bench = _bench()
    _started(bench)
    debugger, device = bench.debugger, bench.device
    debugger.step("instruction", 2)
    place = look(device)
    debugger.step("cycle", 50)
    assert debugger.back("stop").at_ps == place["now_ps"]
    assert look(device) == place
    debugger.back("cycle", 3)
    assert device.now_ps == place["now_ps"] - 3 * device.machine.cycle_ps
    bench.driver.read(0, 4)
    device.bus.read(0, 0, 4)
    with pytest.raises(UsageError, match="there is no history"):
        debugger.back()
    with pytest.raises(UsageError, match="there is no history"):
        Debugger(device, history=False).back()


def test_breakpoints_work_again_after_going_back() -> None:
    bench = _bench()
    debugger = bench.debugger
    debugger.watch("sram", 0x4000, 4)
    bench.submit(JobRequest(planted(None), inputs=INPUTS))
    first = bench.run_until()
    debugger.back("instruction", 2)
    assert bench.run_until() == first


# Arrivals


@pytest.mark.parametrize("after_ps", [0, 1])
def test_run_until_a_time_during_the_submission_of_a_job(after_ps: int) -> None:
    """The host takes time to submit a job. A time within it is reached when the submission ends."""
    bench = Bench("tiny")
    first = bench.submit(JobRequest(planted(None), bench.device.now_ps + 50_000_000, inputs=INPUTS))
    stop = bench.run_until(first.at_ps + after_ps)
    assert (stop.kind, first.arrived_ps) == ("time", first.at_ps)
    assert bench.device.now_ps > first.at_ps + after_ps
    with pytest.raises(UsageError, match="time_ps must be >= "):
        bench.run_until(first.at_ps)


def test_jobs_arrive_at_their_times() -> None:
    bench = Bench(TINY)
    program = planted(None)
    bench.load(program)
    begin = bench.device.now_ps
    requests = [
        JobRequest(program, begin + 3_000_000, INPUTS, Priority.LOW),
        JobRequest(program, begin + 1_000_000, INPUTS, Priority.MEDIUM),
        JobRequest(program, begin + 3_500_000, INPUTS, Priority.HIGH),
    ]
    arrivals = [bench.submit(request) for request in requests]
    bench.finish()
    assert [arrival.arrived_ps for arrival in arrivals] == [request.at_ps for request in requests]
    for arrival in arrivals:
        np.testing.assert_array_equal(arrival.outputs["y0"], answer(X0, X1))
    low, medium, high = (arrival.timeline for arrival in arrivals)
    # The highest preempts the middle one; the lowest, which arrived before it, must wait for both.
    assert medium.started_ps < high.started_ps < medium.started_ps + medium.time_ps <= low.started_ps
    assert (low.preemptions, medium.preemptions, high.preemptions) == (0, 1, 0)
    with pytest.raises(UsageError, match="at_ps must be >= "):
        bench.submit(JobRequest(program, begin))


def test_a_job_that_fails_has_its_error() -> None:
    bench = _bench()
    arrival = bench.submit(JobRequest(faulty(), inputs={**INPUTS, "x0": X1}))
    stop = bench.run_until()
    assert stop.kind == "end"
    assert "fault DATA" in stop.text
    bench.finish()
    assert "outside the axis" in str(arrival.error)


def test_a_trace_of_requests(tmp_path: Path) -> None:
    program, trace = planted(None), tmp_path / "trace"
    trace.write_text('{"at": "2 us", "program": "a", "priority": "high"}\n\n{"at": 5, "program": "a"}\n')
    first, second = read_trace(trace, {"a": program}, 100)
    assert (first.at_ps, first.priority, second.at_ps) == (2_000_100, Priority.HIGH, 105)
    times = ['{"at": -1, "program": "a"}', '{"at": "1 B", "program": "a"}', '{"at": 1.5, "program": "a"}']
    names = ['{"at": 1, "program": "b"}', '{"at": 1, "program": ["a"]}', '{"at": 1, "program": "a", "priority": "top"}']
    for line in ("{", "[]", '{"at": 1}', *times, *names):
        trace.write_text(f"\n{line}\n")
        with pytest.raises(UsageError, match=r"trace:2: "):
            read_trace(trace, {"a": program})


def test_a_watcher_that_is_told_of_no_steps_leaves_jobs_alone() -> None:
    bench = Bench(TINY, history=False)
    bench.debugger.break_seqno()
    assert not any(isinstance(each, Watcher) for each in bench.device.machine.step_watchers)
