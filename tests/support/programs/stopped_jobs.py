"""Several jobs of one network, some of which preempt others, on a device whose clock the test controls.

``python -m tests.support.programs.stopped_jobs END_PS FILE...`` restores each checkpoint on a new device, advances it
to a time, and prints the result as JSON. It shows what a process that never saw the program reports.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Sequence
from typing import Any

from npusim.demo import network
from npusim.device.checkpoint import Checkpoint
from npusim.device.npu import NpuDevice
from npusim.driver import Driver, Priority
from npusim.dtypes import to_storage
from npusim.hw.config import Config, load_config
from npusim.program import Program
from npusim.runtime import Session
from npusim.sim.pages import memories, pages_of, written
from npusim.timeline import Timeline
from tests.support.graphs.golden import GRAPHS
from tests.support.programs.streams import QUICK_HOST

NETWORKS = {
    "demo": "tiny", "residual": "edge", "attention": "server", "classifier": "tiny", "lookups": "edge",
}  # fmt: skip
"""Networks, each with a device."""
KNOBS: dict[str, dict[str, object]] = {
    "residual": {"dma.in_flight": 4, "vector.setup_hidden": True, "interconnect.separate_code_port": True},
}
"""Additional features of some devices."""
AFTER_PS = 20 * 10**9
"""Longer than all jobs of a course take."""


def prepared(name: str) -> tuple[Config, Program, dict[str, Any]]:
    """Return device, program and random inputs of one of NETWORKS."""
    from npusim.cli.tensors import random_inputs

    config = load_config(NETWORKS[name]).with_(**QUICK_HOST, **KNOBS.get(name, {}))
    graph = network() if name == "demo" else GRAPHS[name]()
    with Session(config, cache_dir=False) as session:
        program = session.compile(graph)
    return config, program, {key: to_storage(array) for key, array in random_inputs(program.inputs, 1).items()}


class Course:
    """A device with four jobs: the second and third preempt the running one, the last one is timing-only."""

    def __init__(self, name: str) -> None:
        self.config, self.program, self.inputs = prepared(name)
        self.length_ps = self._alone()

    def _alone(self) -> int:
        device = NpuDevice(self.config)
        job = Driver(device.bus)
        before = device.now_ps
        job.run(job.load(self.program), self.inputs)
        return device.now_ps - before

    def begin(self) -> tuple[NpuDevice, dict[int, Timeline]]:
        """Return a new device with all jobs submitted, and the dict that receives their timelines."""
        device = NpuDevice(self.config)
        timelines: dict[int, Timeline] = {}
        device.listener = timelines.__setitem__
        driver = Driver(device.bus)
        driver.enable_preemption()
        loaded = driver.load(self.program, slots=4)
        driver.submit(loaded, self.inputs, priority=Priority.LOW)
        driver.submit(loaded, self.inputs, priority=Priority.LOW)
        device.run_until(device.now_ps + self.length_ps // 3)
        driver.submit(loaded, self.inputs, priority=Priority.MEDIUM)
        device.run_until(device.now_ps + self.length_ps // 4)
        driver.submit(loaded, priority=Priority.HIGH, timing_only=True)
        return device, timelines

    @staticmethod
    def moments(begin_ps: int, timelines: dict[int, Timeline], count: int, seed: int) -> list[int]:
        """Return ``count`` random times within a finished course while there was work."""
        end = max(each.started_ps + each.time_ps for each in timelines.values())
        return sorted(random.Random(seed).sample(range(begin_ps, end), count))


def seen(device: NpuDevice, timelines: dict[int, Timeline]) -> dict[str, Any]:
    """Return everything that software and tools can see of a device and of finished jobs."""
    digest = hashlib.sha256()
    for name, array in memories(device.machine.memory).items():
        runs = written(array)
        digest.update(f"{name} {runs}".encode())
        for part in pages_of(array, runs):
            digest.update(part)
    return {
        "memory": digest.hexdigest(),
        "registers": dict(device.registers.values),
        "messages": device.messages,
        "jobs": {str(seqno): _job(timeline) for seqno, timeline in timelines.items()},
    }


def _job(timeline: Timeline) -> list[Any]:
    counters = timeline.counters
    units = hashlib.sha256(repr(sorted((name, repr(unit)) for name, unit in counters.units.items())).encode())
    return [
        timeline.digest(), timeline.started_ps, timeline.time_ps, timeline.cycles, timeline.preemptions,
        timeline.suspended_ps, counters.dram_read_bytes, counters.dram_busy_ps, units.hexdigest(),
    ]  # fmt: skip


def continued(file: str, end_ps: int) -> dict[str, Any]:
    """Return the result of continuing a device from a file."""
    checkpoint = Checkpoint.read(file)
    device = NpuDevice(checkpoint.config())
    timelines: dict[int, Timeline] = {}
    device.listener = timelines.__setitem__
    device.restore(checkpoint)
    device.run_until(end_ps)
    found = seen(device, timelines)
    device.close()
    return found


def main(arguments: Sequence[str]) -> None:
    end_ps, *files = arguments
    sys.stdout.write(json.dumps({file: continued(file, int(end_ps)) for file in files}))


if __name__ == "__main__":
    main(sys.argv[1:])
