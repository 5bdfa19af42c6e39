"""Checkpoints whose checksum is right and whose state is made up: refused, or a device that goes on."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import zlib
from pathlib import Path
from typing import Any

from npusim.debug.view import look
from npusim.device.checkpoint import FORMAT_VERSION, Checkpoint
from npusim.device.npu import NpuDevice
from npusim.driver import Driver
from npusim.isa.base import ISA_VERSION
from npusim.timeline import FaultCode
from tests.support.fuzz.given_files import Kind, altered, places
from tests.support.programs.planted_bugs import planted
from tests.support.programs.stopped_jobs import AFTER_PS, Course
from tests.support.programs.streams import QUICK_HOST

MOST_EVENTS = 3000
_MOMENTS = 12
_SEAL = struct.Struct("<IIQQQQ")


def sealed(state: bytes, packed: bytes, size: int) -> bytes:
    """A file with a right checksum."""
    parts = [zlib.compress(state, 1), packed]
    numbers = (FORMAT_VERSION, ISA_VERSION, len(parts[0]), len(state), len(packed), size)
    seal = _SEAL.pack(*numbers)
    return b"NPUCKPT\x1a" + seal + hashlib.sha256(seal + parts[0] + packed).digest() + parts[0] + packed


class Checkpoints(Kind):
    """Moments of several jobs that park each other, and of a small one on a device with more to it."""

    plain = 0.05

    def __init__(self) -> None:
        super().__init__()
        self._devices: dict[str, NpuDevice] = {}
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
            loaded = driver.load(planted(None))
            inputs = {item.name: bytes(item.nbytes) for item in loaded.program.inputs}
            driver.submit(loaded, {name: _array(data) for name, data in inputs.items()})
            device.run_until(device.now_ps + after_ps)
            self._add(device)

    def _add(self, device: NpuDevice) -> None:
        checkpoint = device.checkpoint()
        path = self.folder / "sample"
        checkpoint.write(path)
        read = Checkpoint.read(path)
        state = json.loads(json.dumps(read.state))
        inner = [place for place in places(state) if place[0] not in ("config", "registers")]
        outer = [place for place in places(state) if place[0] in ("config", "registers")]
        # Most of it is the description and the registers, which say least.
        self._samples.append((state, bytes(read.pages.packed), read.pages.size, inner * 4 + outer))  # type: ignore[union-attr]
        device.close()

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
        key = config.fingerprint()
        known = key in self._devices
        device = self._devices[key] if known else NpuDevice(config)
        if not known and len(self._devices) < 4:
            self._devices[key] = device
        faults: list[int] = []
        device.listener = lambda fence, timeline: faults.append(timeline.fault.code if timeline.fault else 0)
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


def _array(data: bytes) -> Any:
    import numpy as np

    return np.frombuffer(data, np.uint8)


def make() -> Checkpoints:
    return Checkpoints()
