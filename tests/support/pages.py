"""Runs and studies for pages: a real one, one with only hostile names, and one of a given size."""

from __future__ import annotations

import dataclasses
import random
from functools import cache
from typing import Any

from npusim.demo import network
from npusim.hw.config import load_config
from npusim.program import OpEntry
from npusim.runtime import Result, Session

HOSTILE = (
    "</script><img src=x onerror=window.hit=1>",
    "<!--<script>window.hit=2</script>",
    '"><svg onload=window.hit=3>',
    "${window.hit=4}`'\\u003cscript\\u003e",
    "\u202egnp.exe\x00\x1b[31m\ud800\u2028",
)
"""Names that a page must display without interpreting them."""


@cache
def demo_run() -> Result:
    """Run the demo's network of eight layers on ``edge``."""
    with Session(load_config("edge"), cache_dir=False) as session:
        return session.run(session.compile(network()), timing_only=True)


def hostile_run() -> Result:
    """The same with hostile names of the layers, their kinds, the model and the device."""
    run = demo_run()
    entries = [OpEntry(f"{HOSTILE[n % len(HOSTILE)]}{n}", HOSTILE[n % 3]) for n in range(len(run.program.ops))]
    program = dataclasses.replace(run.program, ops=entries, name=HOSTILE[0])
    device = dataclasses.replace(run.device, name=HOSTILE[1], description=HOSTILE[2])
    return dataclasses.replace(run, program=program, device=device, _ops=[], _memory=None, _energy=None)


def study_rows(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Return designs with five knobs as plain mappings. Latency falls and area grows with the array."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        size, bandwidth = draw.choice((16, 32, 64)), draw.choice(("900 MB/s", "8 GB/s", "16 GB/s"))
        knobs = {"matrix.rows": size, "matrix.cols": draw.choice((16, 32)), "dram.bandwidth": bandwidth}
        knobs |= {"dma.channels": draw.choice((1, 2, 4)), "sram.bytes": draw.choice(("256 KiB", "1 MiB"))}
        work = size * int(knobs["matrix.cols"])
        figures = {
            "latency": round(1e12 / work + (1e9 if bandwidth == "900 MB/s" else 0) + draw.randrange(10**6)),
            "area": 900 * work + draw.randrange(1000),
            "energy": None if number % 7 == 0 else 3 * 10**9 + number,
        }
        feasible = number % 11 != 10
        rows.append(
            {
                "id": number,
                "knobs": knobs,
                "figures": figures,
                "tier": "simulated" if number % 9 == 0 else "estimated",
                "feasible": feasible,
                "reason": None if feasible else "area: 9 mm2 is more than 8 mm2",
                "config": "\n".join(f"{name} = {value!r}" for name, value in {"name": "edge", **knobs}.items()),
            }
        )
    return rows


def hostile_rows() -> list[dict[str, Any]]:
    """Return designs in which each text is hostile."""
    return [
        {
            "id": f"{HOSTILE[n % 4]}{n}",
            "knobs": {f"{HOSTILE[0]}a": HOSTILE[n % 3], "b": n},
            "figures": {"latency": 10**9 + n, f"{HOSTILE[1]}m": 5 - n},
            "units": {f"{HOSTILE[1]}m": HOSTILE[2]},
            "tier": HOSTILE[n % 2],
            "feasible": n % 3 != 2,
            "reason": HOSTILE[n % 4],
            "config": "\n".join(HOSTILE),
        }
        for n in range(8)
    ]


def compared() -> dict[str, Any]:
    """Return the JSON of ``npusim compare`` for two runs of four layers; one layer is in the first run only."""
    us = 10**6
    rows = {
        "conv": (10, 15, [("core0.dma0", "dram", 6), ("core0.matrix", "compute", -1)]),
        "pool": (5, 2, [("core0.vector", "compute", -3)]),
        "head": (0, 3, [("core0.dma0", "dram", 3)]),
        "gone": (1, 0, [("core0.matrix", "compute", -1)]),
    }
    layers = [
        {
            "name": name,
            "kind": "conv",
            "in": "both" if first and second else "first" if first else "second",
            "time_ps": [first * us, second * us],
            "delta_ps": (second - first) * us,
            "parts": [{"unit": unit, "cause": cause, "delta_ps": spent * us} for unit, cause, spent in parts],
        }
        for name, (first, second, parts) in rows.items()
    ]
    units = {"core0.dma0": 9 * us, "core0.matrix": -2 * us, "core0.vector": -3 * us}
    causes = {"dram": 9 * us, "compute": -5 * us}
    return {
        "labels": ["before.json", "after.json"], "time_ps": [16 * us, 20 * us], "delta_ps": 4 * us,
        "units": units, "causes": causes, "layers": layers,
    }  # fmt: skip
