"""Fault scripts: rejected, or the device fails as they say."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np

from npusim.device.npu import NpuDevice
from npusim.driver import Driver
from npusim.faults import read_script
from tests.support.bare_device import QUICK
from tests.support.driven_jobs import JOB
from tests.support.fuzz.given_files import Kind, altered, other, toml

_ZEROS = np.zeros(64, np.uint8)
WHENS: tuple[dict[str, Any], ...] = (
    {"time": "3 us"}, {"time": "0 ps"}, {"doorbell": 1, "ring": "MEDIUM", "after": "1 ns"}, {"doorbell": 1},
    {"seqno": 1, "stage": "runs"}, {"job": 1, "stage": "ends", "times": 2}, {"read": "STATUS", "nth": 1},
    {"write": "MEDIUM_DOORBELL"}, {"command": 1, "unit": "core0.dma0", "per": "job", "times": 3},
    {"label": "x", "edge": "ends", "nth": 2}, {"interrupt": 1, "after": "2 us"},
)  # fmt: skip
WHATS: tuple[dict[str, Any], ...] = (
    {"flip": "dram", "address": 64, "bit": 3}, {"flip": "sram", "address": 1, "bit": 0, "core": 0},
    {"hang": "core0.dma0", "lasts": "10 us"}, {"hang": "sequencer"}, {"slow": "core0.dma0", "factor": 3},
    {"fail": "core0.dma0", "count": 2}, {"interrupt": "lose"}, {"interrupt": "delay", "delay": "1 us", "count": 2},
    {"stuck": "STATUS", "field": "READY", "value": 0, "lasts": "5 us"}, {"wrong": "ID", "invert": 3},
    {"lose_write": "MEDIUM_DOORBELL"}, {"ecc": "uncorrected", "memory": "dram", "address": 0},
    {"ecc": "corrected", "memory": "sram", "address": 7}, {"throttle": 4, "lasts": "3 us"},
    {"unplug": True, "lasts": "1 us"}, {"reset": "late", "delay": "3 us"}, {"reset": "never"},
)  # fmt: skip


class Scripts(Kind):
    """Faults of every kind at every possible moment."""

    def _script(self, rng: random.Random) -> dict[str, Any]:
        return {
            "fault": [{"when": rng.choice(WHENS), "what": rng.choice(WHATS)} for _ in range(rng.choice((1, 1, 2, 5)))]
        }

    def good(self, rng: random.Random) -> bytes:
        return toml(self._script(rng)).encode()

    def changed(self, rng: random.Random) -> bytes:
        script = self._script(rng)
        if rng.random() < 0.7:
            script = altered(script, rng)
        if rng.random() < 0.02:
            script["fault"] = other(script.get("fault"), rng)
        return toml(script).encode("utf-8", "surrogatepass")

    def use(self, path: Path, rng: random.Random) -> str:
        script = read_script(path)
        device = NpuDevice(QUICK, script)
        try:
            driver = Driver(device.bus)
            loaded = driver.load(JOB)
            job = driver.submit(loaded, {"x0": _ZEROS})
            driver.wait(job, 10**8)
        finally:
            device.close()
        return "a device with faults"


def make() -> Scripts:
    return Scripts()
