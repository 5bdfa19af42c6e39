"""The same picoseconds in every process, for any hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
from npusim.device.npu import NpuDevice
from npusim.driver import Driver
from npusim.hw.config import load_config
from npusim.isa.base import region
from tests.support.programs.streams import Stream, add, copy

config = load_config("tiny").with_(**{"cores": 2, "dma.channels": 3})
stream = Stream()
last = []
for number in range(60):
    core = number % 2
    done = stream.dma(copy(number * 64, region(1), 1000), *last[-2:], channel=number % 3, core=core)
    last.append(stream.vector(add(0, 0, number * 64, 64), done, core=core))
device = NpuDevice(config)
driver = Driver(device.bus)
result = driver.run(driver.load(stream.program(scratch=4096)), timing_only=True)
print(device.last_job.digest(), result.cycles, device.now_ps, device.last_job.counters)
"""


def test_digest_does_not_depend_on_the_process() -> None:
    root = Path(__file__).parents[2]
    outputs = []
    for seed in ("0", "1", "random"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], cwd=root, env=environment, capture_output=True, text=True, check=True
        )
        outputs.append(done.stdout)
    assert outputs[0]
    assert outputs[0] == outputs[1] == outputs[2]
