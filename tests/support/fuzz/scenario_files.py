"""Serving scenarios and their arrival files: rejected, or turned into request times."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

from npusim.explore.serving.arrivals import prompts, times
from npusim.explore.serving.scenario import read_scenario
from tests.support.fuzz.given_files import NUMBERS, TEXTS, Kind, altered, mangled, toml

SCENARIOS: tuple[dict[str, Any], ...] = (
    {
        "device": "tiny", "seed": 3, "until": "5 ms", "method": "times",
        "model": [
            {"name": "a", "file": "a.onnx", "rate": 1000, "priority": "high", "shapes": {"x": [1, 8]}},
            {"name": "b", "file": "b.onnx", "every": "1 ms", "bind": {"n": 3}},
            {"name": "c", "file": "c.onnx", "trace": "arrivals.csv"},
        ],
    },
    {
        "device": "edge", "until": "20 ms",
        "decoder": {
            "prefill": "p.onnx", "decode": "d.onnx", "kv_cache": "1 MiB", "lengths": [64, 128], "contexts": [64, 256],
            "batches": [1, 2, 4], "prompt": [16, 100], "output": 20, "rate": 500,
            "prefill_shapes": {"x": ["batch", "length"]}, "decode_shapes": {"x": ["batch", 1], "k": ["context"]},
        },
    },
    {
        "until": "1 s",
        "decoder": {
            "prefill": "p.onnx", "decode": "d.onnx", "lengths": [64], "contexts": [64], "batches": [1],
            "trace": "arrivals.csv", "prefill_shapes": {}, "decode_shapes": {},
        },
    },
)  # fmt: skip
ARRIVALS = "time,prompt,output\n0,16,3\n1 ms,5,7\n2500000,100,1\n0.003 s,2,2\n"


class Scenarios(Kind):
    """Scenarios with several models and with a decoder."""

    def good(self, rng: random.Random) -> bytes:
        return toml(rng.choice(SCENARIOS)).encode()

    def changed(self, rng: random.Random) -> bytes:
        scenario = rng.choice(SCENARIOS)
        return toml(altered(scenario, rng) if rng.random() < 0.75 else scenario).encode("utf-8", "surrogatepass")

    def use(self, path: Path, rng: random.Random) -> str:
        (self.folder / "arrivals.csv").write_bytes(_arrivals(rng))
        told = read_scenario(path)
        count = 0
        for load in told.models:
            count += len(times(load, told.until_ps, told.seed, load.name, told.folder))
        if told.decoder is not None:
            count += len(prompts(told.decoder, told.until_ps, told.seed, told.folder))
        return "requests" if count else "no requests"


def _arrivals(rng: random.Random) -> bytes:
    rows = [line.split(",") for line in ARRIVALS.splitlines()]
    for _ in range(rng.choice((0, 0, 1, 2))):
        row = rng.choice(rows)
        row[rng.randrange(len(row))] = str(rng.choice((*NUMBERS, *TEXTS, "9" * 5000, '"', "1e9 s", "1e99999 s", "٣")))
    if rng.random() < 0.1:
        rows = list(itertools.chain(rows, [rows[-1]] * 2000))
    data = "".join(",".join(row) + "\n" for row in rows).encode("utf-8", "replace")
    return mangled(data, rng) if rng.random() < 0.1 else data


def make() -> Scenarios:
    return Scenarios()
