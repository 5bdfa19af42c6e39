"""Checkpoints with a valid checksum and invented state: rejected, or restored to a device that continues."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from npusim.debug.bench import Bench, JobRequest
from npusim.debug.view import look
from npusim.device.checkpoint import FORMAT_VERSION, Checkpoint, PackedPages
from npusim.device.npu import NpuDevice
from npusim.driver import Driver, Priority
from npusim.isa.base import ISA_VERSION
from npusim.timeline import FaultCode
from tests.support.bare_device import QUICK
from tests.support.fuzz.given_files import Kind, altered, places
from tests.support.programs.planted_bugs import planted
from tests.support.programs.stopped_jobs import AFTER_PS, Course
from tests.support.programs.streams import QUICK_HOST

MOST_EVENTS = 3000
_MOMENTS = 12
_SEAL = struct.Struct("<IIQQQQ")


def sealed(state: bytes, packed: bytes, size: int) -> bytes:
    """Return a checkpoint file with a valid checksum."""
    parts = [zlib.compress(state, 1), packed]
    numbers = (FORMAT_VERSION, ISA_VERSION, len(parts[0]), len(state), len(packed), size)
    seal = _SEAL.pack(*numbers)
    return b"NPUCKPT\x1a" + seal + hashlib.sha256(seal + parts[0] + packed).digest() + parts[0] + packed


class Checkpoints(Kind):
    """Checkpoints of several jobs that preempt each other, and of a small job on a device with more features."""

    plain = 0.05

    def __init__(self) -> None:
        super().__init__()
        self._devices: dict[str, NpuDevice] = {}
        self._program = planted(None)
        self._inputs = {item.name: np.zeros(item.shape, np.uint8) for item in self._program.inputs}
        self._samples: list[tuple[dict[str, Any], bytes, int, list[tuple[Any, ...]]]] = []
        course = Course("demo")
        device, timelines = course.begin()
        begin = device.now_ps
        device.run_until(begin + AFTER_PS)
        for moment in course.moments(begin, timelines, _MOMENTS, seed=5):
            device, _ = course.begin()
            device.run_until(moment)
            self._add(device)
        config = course.config.with_(
            **QUICK_HOST, **{"pci.vectors": 4, "pci.moderation": True, "vector.setup_hidden": True}
        )
        for after_ps in range(1_000_000, 3_600_000, 400_000):
            device = NpuDevice(config)
            driver = Driver(device.bus)
            driver.submit(driver.load(self._program), self._inputs)
            device.run_until(device.now_ps + after_ps)
            self._add(device)

        for after_ps in range(500_000, 3_000_000, 800_000):
            with Bench(QUICK) as bench:
                for priority in (Priority.MEDIUM, Priority.HIGH):
                    bench.submit(JobRequest(self._program, None, self._inputs, priority))
                bench.run_until(bench.device.now_ps + after_ps)
                self._keep(bench.checkpoint())

    def _add(self, device: NpuDevice) -> None:
        self._keep(device.checkpoint())
        device.close()

    def _keep(self, checkpoint: Checkpoint) -> None:
        path = self.folder / "sample"
        checkpoint.write(path)
        read = Checkpoint.read(path)
        state = json.loads(json.dumps(read.state))
        inner = [place for place in places(state) if place[0] not in ("config", "registers")]
        outer = [place for place in places(state) if place[0] in ("config", "registers")]
        # Weight the inner values: most of the state is the configuration and the registers, which matter least.
        assert isinstance(read.pages, PackedPages)
        self._samples.append((state, bytes(read.pages.packed), read.pages.size, inner * 4 + outer))

    def good(self, rng: random.Random) -> bytes:
        state, packed, size, _ = rng.choice(self._samples)
        return sealed(json.dumps(state).encode(), packed, size)

    def changed(self, rng: random.Random) -> bytes:
        state, packed, size, where = rng.choice(self._samples)
        if rng.random() < 0.02:
            size = rng.choice((0, size - 1, size + 1, size * 2, 1 << 33, (1 << 64) - 1))
        return sealed(json.dumps(altered(state, rng, where)).encode(), packed, size)

    def use(self, path: Path, rng: random.Random) -> str:
        checkpoint = Checkpoint.read(path)
        config = checkpoint.config()
        if "software" in checkpoint.state:
            with Bench.resumed(checkpoint, self._program) as bench:
                bench.run_until(bench.device.now_ps + 10**8)
                bench.submit(JobRequest(self._program, None, self._inputs))
                bench.run_until(bench.device.now_ps + 10**8)
            return "a driver goes on"
        key = config.fingerprint()
        known = key in self._devices
        device = self._devices[key] if known else NpuDevice(config)
        if not known and len(self._devices) < 4:
            self._devices[key] = device
        faults: list[int] = []
        device.listener = lambda seqno, timeline: faults.append(timeline.fault.code if timeline.fault else 0)
        device.restore(checkpoint)
        if rng.random() < 0.1:
            look(device)
            device.checkpoint()
        events = 0

        def enough() -> bool:
            nonlocal events
            events += 1
            return events > MOST_EVENTS

        device.run_until(enough)
        if FaultCode.INTERNAL in faults:
            raise AssertionError("a fault INTERNAL")
        return "goes on"


def make() -> Checkpoints:
    return Checkpoints()
