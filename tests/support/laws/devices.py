"""The devices that laws are measured on: the shipped ones, and random valid ones."""

from __future__ import annotations

import math
from random import Random

from npusim.errors import ConfigError
from npusim.hw.config import Config, load_config

RANDOM = "random"
"""Name that stands for a new random configuration each time."""
BASES = ("edge", "mobile", "server", "gemmini", "nvdla_512", "ethos_u65_256")


def device(name: str, rng: Random) -> Config:
    """Return a shipped device, or a random one."""
    return random_device(rng) if name == RANDOM else load_config(name)


def random_device(rng: Random) -> Config:
    """Return a valid configuration: a shipped one with other sizes, SRAM from 4 KiB up."""
    while True:
        base = load_config(rng.choice(BASES))
        values = {
            "sram.bytes": 1 << rng.randint(12, 22),
            "dma.channels": rng.randint(1, 4),
            "dram.bandwidth": round(1e9 * math.exp(rng.uniform(0, math.log(100)))),
            "vector.lanes": 1 << rng.randint(2, 7),
        }
        if base.matrix.model == "systolic":
            values |= {"matrix.rows": rng.randint(4, 64), "matrix.cols": rng.randint(4, 64)}
        try:
            return base.with_(**values)
        except ConfigError:
            continue
