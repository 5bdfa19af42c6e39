"""A job simulated in one go equals, to the picosecond, the one simulated event by event."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.device.npu import NpuDevice
from npusim.driver import Driver, Priority
from npusim.errors import DeviceFaultError, JobAbortedError
from npusim.faults import AtCommand, Fail, Fault, Hang
from npusim.hw.config import Config, load_config
from npusim.isa.base import region
from npusim.program import SCRATCH, Program
from npusim.runtime import Session
from npusim.sim import steps
from npusim.sim.fabric import Fabric
from npusim.sim.fast_forward import FastForward
from npusim.sim.machine import Machine
from npusim.sim.steps import HALT, CommandCost, Step, StepDecoder, UnitLayout
from npusim.timeline import Span
from npusim.timing._timeline import TimingRun, timing_run
from npusim.validate.networks import NETWORKS
from npusim.work import Port
from tests.support.graphs.every_kind import CASES
from tests.support.graphs.samples import residual_net
from tests.support.programs.random_streams import CONFIGS, Action, actions, build
from tests.support.programs.streams import Stream, add, copy, fill, round_trip
from tests.support.programs.timed_jobs import TINY, Bench, long_job


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> list[FastForward]:
    """Record the jobs that were simulated in one go."""
    seen: list[FastForward] = []
    begin = FastForward.begin

    def noted(self: FastForward) -> None:
        seen.append(self)
        begin(self)

    monkeypatch.setattr(FastForward, "begin", noted)
    return seen


def never(*_: object) -> None:
    """Never simulate in one go."""


def seen(program: Program, config: Config, jobs: int = 2) -> tuple[Any, ...]:
    """Return everything visible of timing-only jobs."""
    bench = Bench(config, preempt=False)
    loaded = bench.driver.load(program)
    records = bench.finish(*(bench.submit(loaded, Priority.MEDIUM) for _ in range(jobs)))
    link = bench.device.machine.link
    return [dataclasses.asdict(record) for record in records], bench.device.now_ps, link.settle()


def both(program: Program, config: Config, view: Callable[[Program, Config], Any] = seen) -> Iterator[Any]:
    """Yield the result in one go, and event by event."""
    yield view(program, config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Machine, "_fast_forward", never)
        yield view(program, config)


@settings(max_examples=60, deadline=None)
@given(st.lists(actions(), min_size=1, max_size=24), CONFIGS, st.sampled_from(["need", "fair"]), st.integers(0, 9))
def test_nothing_differs_for_any_stream(plan: list[Action], config: Config, arbitration: str, port: int) -> None:
    config = config.with_(**{"interconnect.arbitration": arbitration, "interconnect.core_bytes_per_cycle": port})
    one, other = both(build(plan, config).program(scratch=65536), config)
    assert one == other


def timed(program: Program, config: Config) -> tuple[Any, ...]:
    with Session(config, cache_dir=False) as session:
        result = session.run(program, timing_only=True)
    # Written out, because reports list reasons in the order in which they came.
    return repr(result.timeline), result.total_ps


def test_nothing_differs_for_any_kind(run: list[FastForward]) -> None:
    for name, case in CASES.items():
        with Session(case.config, cache_dir=False) as session:
            program = session.compile(case.graph()[0])
        one, other = both(program, case.config, timed)
        assert one == other, name
    assert len(run) == len(CASES)


@pytest.mark.parametrize(
    ("device", "knobs"),
    [
        ("edge", {}),
        ("edge", {"dma.channels": 4, "interconnect.arbitration": "fair"}),
        pytest.param("edge", {"cores": 2, "queue_depth": 1}, marks=pytest.mark.slow),
        ("edge", {"sram.banks": 2, "dram.bandwidth": "1 GB/s"}),
        ("edge", {"cores": 3, "interconnect.core_bytes_per_cycle": 5}),
        pytest.param("mobile", {}, marks=pytest.mark.slow),
        ("nvdla_small", {}),  # units look ahead
        ("edge", {"dma.in_flight": 4, "vector.setup_hidden": True, "interconnect.separate_code_port": True}),
        ("mobile", {"dma.in_flight": 2, "interconnect.arbitration": "fair"}),
        ("nvdla_small", {"interconnect.separate_write_port": False}),
        ("tpuv1", {}),  # constants have a separate memory
    ],
)
def test_nothing_differs_on_any_device(device: str, knobs: dict[str, object], run: list[FastForward]) -> None:
    config = load_config(device).with_(**knobs)
    with Session(config, cache_dir=False) as session:
        program = session.compile(NETWORKS["squeezenet"].make((1, 64, 64, 3)))
    one, other = both(program, config, timed)
    assert one == other
    assert len(run) == 1


def test_the_clock_has_one_event_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for runner in (None, never):
        with pytest.MonkeyPatch.context() as patch:
            if runner:
                patch.setattr(Machine, "_fast_forward", runner)
            bench = Bench(preempt=False)
            bench.finish(bench.submit(long_job(copies=100), Priority.MEDIUM))
            counts.append(next(bench.device.machine.clock.env._eid))
    assert counts[0] < 10
    assert counts[1] > 200


def test_not_where_a_unit_is_told_to_break(run: list[FastForward]) -> None:
    device = NpuDevice(TINY, [Fault(AtCommand(command=2, unit="core0.dma0"), Hang(hang="core0.dma0"))])
    driver = Driver(device.bus)
    with pytest.raises(DeviceFaultError, match="TIMEOUT"):
        driver.wait(driver.submit(driver.load(long_job()), timing_only=True))
    assert not run


def interrupted(late_ps: int, abort_ps: int | None) -> tuple[Any, ...]:
    """Return everything visible when a long job is preempted by a short one of higher priority, and perhaps aborted."""
    bench = Bench(TINY.with_(queue_depth=3))
    stream = Stream()
    for number in range(40):
        loaded = stream.dma(copy(64 * number, region(1), 512 + 8 * number))
        stream.vector(add(0, 64 * number, 64 * number, 64), loaded, op=number)
    low = bench.submit(stream.program(scratch=4096), Priority.LOW)
    high = bench.submit(long_job(), Priority.HIGH, late_ps)
    jobs = [high, low]
    if abort_ps is not None:
        bench.device.machine.clock.advance(abort_ps)
        if not low.ended:
            bench.driver.abort(low)
    for job in jobs:
        with contextlib.suppress(JobAbortedError):
            bench.driver.wait(job)
    link = bench.device.machine.link
    return [dataclasses.asdict(bench.records[job.seqno]) for job in jobs], bench.device.now_ps, link.settle()


@pytest.mark.parametrize("late_ps", [100, 900_000, 1_234_567, 3_000_000, 9_999_999, 40_000_000])
@pytest.mark.parametrize("abort_ps", [None, 1, 2_000_000, 20_000_000])
def test_a_job_that_gives_way_or_is_aborted_is_stepped_from_where_it_is(
    late_ps: int, abort_ps: int | None, run: list[FastForward]
) -> None:
    one = interrupted(late_ps, abort_ps)
    assert run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Machine, "_fast_forward", never)
        assert interrupted(late_ps, abort_ps) == one


def test_what_breaks_a_unit_meanwhile_breaks_it(run: list[FastForward]) -> None:
    bench = Bench()
    job = bench.submit(long_job(100), Priority.LOW)
    bench.device.machine.clock.advance(2_000_000)
    bench.device.faults.add([Fault(AtCommand(command=1, unit="core0.dma0"), Fail(fail="core0.dma0"))])
    with pytest.raises(DeviceFaultError, match="bus error"):
        bench.finish(job)
    assert bench.records[job.seqno].spans
    bench.finish(bench.submit(round_trip(64), Priority.HIGH))
    assert len(run) == 1


def test_not_where_there_is_arithmetic(run: list[FastForward]) -> None:
    with Session(TINY, cache_dir=False) as session:
        program = session.compile(residual_net(8, 4, 1))
        session.run(program, {"x": session_input(program)})
    assert not run


def session_input(program: Program) -> np.ndarray[Any, Any]:
    (binding,) = program.inputs
    return np.zeros(binding.shape, np.float32)


def decoded(stream: Stream, config: Config = TINY) -> list[Step]:
    return list(StepDecoder(config, UnitLayout(config), Fabric(config)).steps(stream.code(), (0, 1 << 16)).all)


def course(found: list[Step], config: Config = TINY, engines: int | None = None) -> TimingRun | None:
    depths = UnitLayout(config).depths if engines is None else (1,) * engines
    rates, ports = [10**9] * len(Port), [0] * len(Port)
    return timing_run(
        found, depths, config.cores, 0, 1000, 0, False, 4, 1000, 10**9, 4096, rates, ports, -1, True, 0, False
    )


def test_a_job_that_never_ends_is_for_the_stepper() -> None:
    stream = Stream()
    stream.dma(fill(0, 8, 1))
    found = decoded(stream)
    assert course(found) is not None
    found[0].waits = ((found[0].engine, 2),)
    assert course(found) is None


def test_numbers_that_machine_integers_do_not_hold_are_for_the_stepper() -> None:
    stream = Stream()
    stream.dma(copy(0, region(1), 64))
    found = decoded(stream)
    longest = 2**62 - 1
    for fixed_ps in (longest, longest + 1):
        found[0].charge = CommandCost(fixed_ps, fixed_ps)
        assert course(found) is None  # the instructions are fetched before
    found[0].charge = CommandCost(longest - 10**9, longest - 10**9)
    assert course(found) is not None


def test_bytes_times_picoseconds_beyond_64_bits() -> None:
    stream = Stream()
    stream.dma(copy(0, region(1), 64))
    found = decoded(stream)
    ends = []
    for nbytes in (1 << 23, 1 << 24, 1 << 40):
        found[0].charge = CommandCost(1, 1, bus_bytes=nbytes, rate=10**9)
        ends.append(course(found).ends[0] - nbytes * 1000)
    assert ends[0] == ends[1] == ends[2]


@pytest.mark.parametrize(
    ("change", "said"),
    [({"engine": 9}, "is for no unit"), ({"core": 1}, "is for no unit"), ({"waits": ((9, 1),)}, "waits for")],
)
def test_a_step_names_units_that_there_are(change: dict[str, Any], said: str) -> None:
    stream = Stream()
    stream.dma(fill(0, 8, 1))
    found = decoded(stream)
    for name, value in change.items():
        setattr(found[0], name, value)
    with pytest.raises(ValueError, match=said):
        course(found)


# what this process has compiled


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count how often a device decodes and verifies streams."""
    counts = {"decode": 0, "verify": 0}

    def counted(name: str) -> Any:
        work = getattr(steps, name)

        def call(*args: Any) -> Any:
            counts[name] += 1
            return work(*args)

        return call

    for name in counts:
        monkeypatch.setattr(steps, name, counted(name))
    return counts


def test_what_was_just_compiled_is_timed_without_decoding_and_verifying(gates: dict[str, int]) -> None:
    with Session(TINY, cache_dir=False) as session:
        program = session.compile(residual_net(8, 4, 1))
        first = session.run(program, timing_only=True)
        assert gates == {"decode": 0, "verify": 0}
        # What is executed has passed the gate, once.
        for _ in range(2):
            second = session.run(program, {"x": session_input(program)})
            assert gates == {"decode": 1, "verify": 1}
        assert first.timeline.digest() == second.timeline.digest()


def test_what_comes_from_a_file_or_from_elsewhere_passes_the_gate_once(gates: dict[str, int]) -> None:
    with Session(TINY, cache_dir=False) as session:
        program = session.compile(residual_net(8, 4, 1))
    expected = timed(program, TINY)
    copied = dataclasses.replace(program, emitted=None)
    del program
    with Session(TINY, cache_dir=False) as session:
        for _ in range(2):
            session.run(copied, timing_only=True)
            assert gates == {"decode": 1, "verify": 1}
    assert timed(copied, TINY) == expected


def test_a_program_whose_code_was_changed_is_not_the_one_that_was_compiled(gates: dict[str, int]) -> None:
    with Session(TINY, cache_dir=False) as session:
        program = session.compile(residual_net(8, 4, 1))
        program.code = b"\xff" + program.code[1:]
        with pytest.raises(DeviceFaultError, match="unknown opcode 0xff"):
            session.run(program, timing_only=True)
    assert gates == {"decode": 1, "verify": 1}


def test_a_program_with_less_memory_than_it_was_compiled_for_passes_the_gate(gates: dict[str, int]) -> None:
    config = TINY.with_(**{"sram.bytes": "16 KiB"})
    with Session(config, cache_dir=False) as session:
        program = session.compile(residual_net(32, 16, 1))
        assert program.region_bytes[SCRATCH] > 64
        program.region_bytes = (program.region_bytes[0], 64, *program.region_bytes[2:])
        with pytest.raises(DeviceFaultError, match=r"r1\+.*: the memory has 64"):
            session.run(program, timing_only=True)
    assert gates == {"decode": 1, "verify": 1}


def told(step: Step) -> tuple[Any, ...]:
    """Return everything in a step that affects times."""
    names = [field.name for field in dataclasses.fields(Step) if field.name != "instruction"]
    return (*(getattr(step, name) for name in names), step.kind)


def test_the_compilers_commands_cost_what_their_code_costs() -> None:
    for name, case in CASES.items():
        config = case.config
        decoder = StepDecoder(config, UnitLayout(config), Fabric(config))
        with Session(config, cache_dir=False) as session:
            program = session.compile(case.graph()[0])
        known, read = (
            decoder.known(program.code, program.region_bytes),
            decoder.steps(program.code, program.region_bytes),
        )
        assert known is not None, name
        assert [told(step) for step in known.all] == [told(step) for step in read.all], name
        assert (known.prologue, known.prologue_bytes) == (read.prologue, read.prologue_bytes)
        assert known.all[-1].engine == HALT


def test_what_a_session_ran_goes_with_it() -> None:
    """Freed at once without the garbage collector, because a search creates thousands of steps for each design."""

    def alive() -> int:  # by type: some objects of other tests fail on isinstance
        return sum(type(each) in (Step, Span) for each in gc.get_objects())

    gc.collect()
    before = alive()
    gc.disable()
    try:
        with Session(TINY, cache_dir=False) as session:
            result = session.run(session.compile(residual_net(16, 8)), timing_only=True)
        assert alive() > before + 10
        assert len(result.timeline.spans) > 10
        del result
        assert alive() == before
    finally:
        gc.enable()
