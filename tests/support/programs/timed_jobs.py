"""A bench for jobs that arrive at given times on the tiny device, and the resulting times."""

from __future__ import annotations

from npusim.device.npu import NpuDevice
from npusim.driver import Driver, DriverJob, LoadedProgram, Priority
from npusim.hw.config import Config, load_config
from npusim.isa.base import region
from npusim.program import Program
from npusim.timeline import Span, Timeline
from tests.support.programs.streams import QUICK_HOST, Stream, copy

NS = 1000
TINY = load_config("tiny").with_(**QUICK_HOST)
LATENCY = 100 * NS
CONTEXT_BYTES = TINY.sram.bytes + (TINY.matrix.accumulator_bytes if TINY.matrix else 0)
SUBMIT_PS = 2
"""Time of two bulk copies, of completion record and ring entry, on the fastest configurable host."""
MOVE = LATENCY + CONTEXT_BYTES * NS // 8
"""Time to save or restore a context: the latency, then the bytes at 8 per ns (the channel's width and the DRAM's
rate)."""


def long_job(copies: int = 4, size: int = 4096) -> Program:
    """Return sequential copies from scratch to SRAM on one channel: ``size`` bytes each, in a known time."""
    stream = Stream()
    for _ in range(copies):
        stream.dma(copy(0, region(1), size))
    return stream.program(scratch=size)


class Bench:
    """A device to submit jobs to at given times, with the records of finished jobs."""

    def __init__(self, config: Config = TINY, preempt: bool = True) -> None:
        self.device = NpuDevice(config)
        self.driver = Driver(self.device.bus)
        self.records: dict[int, Timeline] = {}
        self.device.listener = self.records.__setitem__
        if preempt:
            self.driver.enable_preemption()

    def submit(self, program: Program | LoadedProgram, priority: Priority, wait_ps: int = SUBMIT_PS) -> DriverJob:
        """Ring the doorbell of a job ``wait_ps`` from now."""
        loaded = self.driver.load(program) if isinstance(program, Program) else program
        self.device.machine.clock.advance(wait_ps - SUBMIT_PS)
        return self.driver.submit(loaded, priority=priority, timing_only=True)

    def finish(self, *jobs: DriverJob) -> list[Timeline]:
        for job in jobs:
            self.driver.wait(job)
        return [self.records[job.seqno] for job in jobs]


def alone(program: Program, config: Config = TINY) -> Timeline:
    bench = Bench(config, preempt=False)
    return bench.finish(bench.submit(program, Priority.MEDIUM))[0]


def moves(record: Timeline) -> list[Span]:
    return [span for span in record.spans if span.unit == "sequencer"]


def balanced(record: Timeline) -> bool:
    """Return whether the times of each unit add up to the job's time."""
    units = record.counters.units.values()
    return all(unit.busy_ps + unit.idle_ps + sum(unit.stalls.values()) == record.time_ps for unit in units)
