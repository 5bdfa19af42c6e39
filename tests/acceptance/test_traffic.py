"""DRAM traffic of whole networks: close to the minimum, and never more than with the vendor's own compiler."""

from __future__ import annotations

import csv
import functools
import os
from pathlib import Path

import pytest

from npusim import Session
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.validate.networks import NETWORKS

VELA = Path(os.environ.get("NPUSIM_VELA") or Path(__file__).resolve().parents[3] / "shared" / "vela")
"""Vela's report for an Ethos-U65 with 256 MACs."""
SIZES = (128, 256, 512, 1024, 2048, 4096)
"""SRAM sizes in KiB."""
NAMES = {
    "mobilenet_v1": "mobilenet_v1",
    "mobilenet_v2": "mobilenet_v2",
    "resnet50": "resnet50_v1",
    "efficientnet_b0": "efficientnet_b0",
}
"""Vela's names of networks, and ours."""


@functools.lru_cache(maxsize=3)
def graph(name: str) -> Graph:
    return NETWORKS[name].make((1, 224, 224, 3))


def moved(name: str, kib: int) -> tuple[int, int]:
    """Return the DRAM bytes moved by an inference, and the minimum: weights, inputs, outputs and instructions."""
    with Session(load_config("ethos_u65_256").with_(**{"sram.bytes": f"{kib} KiB"}), cache_dir=False) as session:
        program = session.compile(graph(name))
        result = session.run(program, timing_only=True)
    ends = sum(tensor.nbytes for tensor in (*program.inputs, *program.outputs))
    return result.dram_read_bytes + result.dram_write_bytes, program.constants.nbytes + ends + len(program.code)


@pytest.mark.parametrize(
    ("name", "kib", "most"),
    [
        ("mobilenet_v2", 256, 1.5),
        ("mobilenet_v2", 512, 1.2),
        pytest.param("mobilenet_v1", 256, 1.5, marks=pytest.mark.slow),
        pytest.param("mobilenet_v1", 512, 1.2, marks=pytest.mark.slow),
        pytest.param("resnet50_v1", 512, 1.5, marks=pytest.mark.slow),
        pytest.param("resnet50_v1", 2048, 1.15, marks=pytest.mark.slow),
        pytest.param("efficientnet_b0", 1024, 1.5, marks=pytest.mark.slow),
        pytest.param("efficientnet_b0", 2048, 1.2, marks=pytest.mark.slow),
    ],
)
def test_little_more_is_moved_than_must_be(name: str, kib: int, most: float) -> None:
    done, needed = moved(name, kib)
    assert needed <= done <= most * needed


@pytest.mark.slow
@pytest.mark.skipif(not VELA.is_dir(), reason="Vela's figures are not here")
@pytest.mark.parametrize("name", NAMES)
def test_never_more_than_the_vendors_compiler_moves(name: str) -> None:
    with (VELA / "dram_traffic.csv").open(encoding="utf-8", newline="") as file:
        vendors = {
            int(row["arena_kib"]): float(row["dram_total_mb"]) for row in csv.DictReader(file) if row["network"] == name
        }
    assert {kib: done for kib in SIZES if (done := moved(NAMES[name], kib)[0] / 1e6) > vendors[kib]} == {}
