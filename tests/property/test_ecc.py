"""Memory errors at any moment of any job: each job is right or ends with fault ECC at the address of an error, and the
device continues."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.compiler.pipeline import compile_graph
from npusim.device.npu import NpuDevice
from npusim.driver import Driver, DriverJob, Priority
from npusim.errors import DeviceFaultError
from npusim.faults import AtCommand, AtInterrupt, AtJob, AtTime, Ecc, Fault
from npusim.faults.what import MEMORIES
from npusim.hw.config import Config, load_config
from npusim.program import SCRATCH, Program
from npusim.timeline import Timeline
from tests.support.arriving_jobs import Arrival, arrivals, program, storage
from tests.support.graphs.golden import GRAPHS
from tests.support.graphs.samples import product
from tests.support.programs.random_streams import CONFIGS
from tests.support.programs.random_streams import SCRATCH as SCRATCH_BYTES
from tests.support.programs.streams import QUICK_HOST

US = 10**6


@dataclass
class Bench:
    """A device and its jobs: arrival times, priorities, and the right outputs."""

    config: Config
    programs: list[Program]
    jobs: list[tuple[int, Priority, int]]  # program, class, how long after the one before
    inputs: list[dict[str, Any]] = field(default_factory=list)
    seen: list[bytes | DeviceFaultError] = field(default_factory=list)
    records: dict[int, Timeline] = field(default_factory=dict)

    def go(self, faults: list[Fault]) -> NpuDevice:
        """Run all jobs, then one more; ``seen``: the outcome of each."""
        device = NpuDevice(self.config)
        self.records = {}
        device.listener = self.records.__setitem__
        driver = Driver(device.bus)
        driver.enable_preemption()
        loaded = [driver.load(each) for each in self.programs]
        scratch = [each.regions[SCRATCH] for each in loaded]  # of random streams; networks have outputs
        device.faults.add(faults)
        jobs: list[tuple[int, DriverJob]] = []
        for number, priority, after_ps in self.jobs:
            device.machine.clock.advance(after_ps)
            jobs.append((number, driver.submit(loaded[number], self.given(number), priority=priority)))
        self.seen = []

        def finish(number: int, job: DriverJob) -> None:
            try:
                found = driver.wait(job).outputs
            except DeviceFaultError as error:
                self.seen.append(error)
                return
            raw = b"".join(found[name].tobytes() for name in sorted(found))
            self.seen.append(raw or bytes(device.bus.read_memory(scratch[number], SCRATCH_BYTES)))

        for number, job in jobs:
            finish(number, job)
        for left in reversed(range(len(faults) + 1)):  # faults too late for these jobs are found by the next one
            if not left:
                device.faults.clear()
            driver.write(scratch[0], bytes(SCRATCH_BYTES if not self.inputs else 0))
            finish(0, driver.submit(loaded[0], self.given(0)))
        return device

    def given(self, number: int) -> dict[str, Any] | None:
        return self.inputs[number] if self.inputs else None

    def check(self, faults: list[Fault], wanted: list[bytes]) -> int:
        """Check the property and return the number of failed jobs."""
        device = self.go(faults)
        due = {each.what.address for each in faults if isinstance(each.what, Ecc) and each.what.ecc == "uncorrected"}
        numbers = [number for number, _, _ in self.jobs] + [0] * (len(self.seen) - len(self.jobs))
        failed = [each for each in self.seen if isinstance(each, DeviceFaultError)]
        assert all(error.code == "ECC" and error.address in due for error in failed)
        for number, each in zip(numbers, self.seen, strict=True):
            assert isinstance(each, DeviceFaultError) or each == wanted[number]
        assert self.seen[-1] == wanted[0]
        # Each error that cannot be corrected costs one job, the next one included; one that can costs none.
        struck = [each for each in device.faults.happened if each.what == "ecc"]
        assert len(failed) <= len(struck) <= len(faults)
        return len(failed)


def addresses(config: Config, memory: str) -> int:
    memories = {"dram": config.dram.bytes, "sram": config.sram.bytes}
    return memories.get(memory) or (config.matrix.accumulator_bytes if config.matrix else 0)


def error(config: Config, when: Any, uncorrected: bool, memory: str, core: int, place: int) -> Fault:
    size = addresses(config, memory)
    if not size:
        memory, size = "sram", config.sram.bytes
    kind = "uncorrected" if uncorrected else "corrected"
    core = 0 if memory == "dram" else core % config.cores
    return Fault(when, Ecc(ecc=kind, memory=memory, address=place % size, core=core))


def whens(units: list[str]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(
            lambda command, unit, after_ps: AtCommand(command=command, unit=unit, after_ps=after_ps),
            st.integers(1, 40), st.sampled_from(units), st.sampled_from((0, 0, 0, 1, 100_000, 3 * US)),
        ),
        st.builds(lambda job, stage: AtJob(job=job, stage=stage), st.integers(1, 3),
                  st.sampled_from(("begins", "runs", "ends"))),
        st.builds(lambda time: AtTime(time_ps=time), st.integers(20 * US, 80 * US)),
        st.builds(lambda number: AtInterrupt(interrupt=number), st.integers(1, 3)),
    )  # fmt: skip


JOBS = st.lists(arrivals(*Priority), min_size=1, max_size=4)
UNITS = ["core0.dma0", "core0.vector"]


def hold_for_streams(jobs: list[Arrival], config: Config, errors: list[Any]) -> int:
    config = config.with_(**QUICK_HOST)
    bench = Bench(
        config,
        [program(each.plan, config) for each in jobs],
        [(number, each.priority, each.after_ps) for number, each in enumerate(jobs)],
    )
    bench.go([])
    wanted = [each for each in bench.seen if isinstance(each, bytes)]
    assert wanted[-1] == wanted[0]
    return bench.check([error(config, *each) for each in errors], wanted)


ERRORS = st.lists(
    st.tuples(whens(UNITS), st.booleans(), st.sampled_from(MEMORIES), st.integers(0, 1), st.integers(0, 1 << 30)),
    min_size=1, max_size=3,
)  # fmt: skip


@given(JOBS, CONFIGS, ERRORS)
@settings(max_examples=25)
def test_each_job_is_right_or_ends_with_the_fault(jobs: list[Arrival], config: Config, errors: list[Any]) -> None:
    hold_for_streams(jobs, config, errors)


@pytest.mark.slow
@given(JOBS, CONFIGS, ERRORS)
@settings(max_examples=500)
def test_each_job_of_many_is_right_or_ends_with_the_fault(
    jobs: list[Arrival], config: Config, errors: list[Any]
) -> None:
    hold_for_streams(jobs, config, errors)


NETWORKS = {
    "tiny": load_config("tiny").with_(**QUICK_HOST),
    "edge": load_config("edge").with_(**QUICK_HOST),
    "two cores": load_config("edge").with_(**QUICK_HOST, cores=2),
    "four cores": load_config("tiny").with_(**QUICK_HOST, cores=4),
    "residents": load_config("edge_tpu").with_(**QUICK_HOST),
    "many commands": load_config("edge").with_(**QUICK_HOST, **{"sram.bytes": "64 KiB"}),
}
SHARED = {
    "residents": (GRAPHS["quantised"], GRAPHS["quantised"]),
    "many commands": (lambda: product(256, 512, 256), GRAPHS["classifier"]),
}
"""Pairs of networks that share a device; by default a classifier and an attention."""


def networks(device: str) -> tuple[Bench, list[bytes], dict[str, int]]:
    """Return jobs of networks that preempt each other, their results, and the number of commands each unit has done."""
    config = NETWORKS[device]
    graphs = SHARED.get(device, (GRAPHS["classifier"], GRAPHS["attention"]))
    programs = [compile_graph(graph(), config) for graph in graphs]
    inputs = [{item.name: storage(item, seed) for item in each.inputs} for seed, each in enumerate(programs)]
    meets = 60 * US if device == "residents" else 5 * US  # in the midst of the first job
    jobs = [(0, Priority.LOW, 0), (1, Priority.HIGH, meets), (0, Priority.MEDIUM, US), (0, Priority.MEDIUM, 0)]
    bench = Bench(config, programs, jobs, inputs)
    bench.go([])
    wanted = [each for each in bench.seen if isinstance(each, bytes)]
    records = [bench.records[seqno] for seqno in sorted(bench.records)]
    assert records[0].preemptions
    assert any(each.residents_held for each in records) or device != "residents"
    counts: dict[str, int] = {}
    for record in records[:-1]:  # the last one comes after the faults
        for name, unit in record.counters.units.items():
            if name != "sequencer" and unit.instructions:
                counts[name] = counts.get(name, 0) + unit.instructions
    return bench, wanted[:2], counts


def sweep(device: str, commands: int) -> tuple[int, int]:
    """Inject both kinds of errors into all memories at ``commands`` commands. Returns the numbers of cases and of
    failed jobs."""
    bench, wanted, counts = networks(device)
    total = sum(counts.values())
    cases = failed = 0
    for unit, count in counts.items():
        share = max(1, commands * count // total)
        for number in sorted({1 + at * count // share for at in range(share)}):
            for memory in MEMORIES:
                if not addresses(bench.config, memory):
                    continue
                place = zlib.crc32(f"{unit} {number} {memory}".encode())
                when = AtCommand(command=number, unit=unit)
                for uncorrected in (False, True):
                    each = error(bench.config, when, uncorrected, memory, number, place)
                    failed += bench.check([each], wanted)
                    cases += 1
    return cases, failed


@pytest.mark.parametrize("device", ["two cores", "residents"])
def test_networks_are_right_or_end_with_the_fault(device: str) -> None:
    cases, failed = sweep(device, 6)
    assert cases >= 12
    assert failed == cases // 2  # all of those that cannot be corrected, and no other


@pytest.mark.slow
@pytest.mark.parametrize("device", NETWORKS)
def test_networks_at_sixty_commands_are_right_or_end_with_the_fault(device: str) -> None:
    cases, failed = sweep(device, 60)
    assert failed == cases // 2
