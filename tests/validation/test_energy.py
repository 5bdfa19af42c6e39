"""Errors of energies and areas against published values, and the stated values of the constants."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.hw.area import area
from npusim.hw.config import Config, load_config
from npusim.hw.nodes import nominal_mv
from npusim.runtime import Session
from npusim.validate.base import DataPoint
from npusim.validate.energy import FITTED
from npusim.validate.networks import NETWORKS
from npusim.validate.stats import error
from tests.support.carried import replayed

BOUNDS = {"nvdla_energy": 20, "nvdla_area": 15, "tpu_v1_power": 30, "eyeriss_power": 30}
"""Largest error of a prediction in percent of the published value."""


def points(name: str) -> list[DataPoint]:
    assert not replayed(name).excluded
    return replayed(name).points


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "nvdla_energy" else name for name in BOUNDS]
)
def test_predictions_are_near_what_was_published(name: str) -> None:
    assert len(points(name)) == {"nvdla_energy": 4, "nvdla_area": 8, "tpu_v1_power": 1, "eyeriss_power": 13}[name]
    for point in points(name):
        assert abs(error(point)) < BOUNDS[name], point


def test_gemmini_as_a_whole() -> None:
    (whole,) = [point for point in points("gemmini_area") if point.group == "whole"]
    assert abs(error(whole)) < 15


def test_gpus_are_their_units_and_what_is_published_of_the_rest() -> None:
    """The PHYs of an MI210 take 20 mm2 for each stack in photographs, twice those of an A100; no source says why."""
    found = {point.label: error(point) for point in points("gpu_area")}
    assert found.pop("MI210, PHYs and controllers") < -25
    assert len(found) == 5
    assert max(map(abs, found.values())) < 20


def test_areas_of_dies() -> None:
    assert {point.label for point in points("die_area")} == {"Eyeriss", "Simba"}
    for point in points("die_area"):
        assert abs(error(point)) < 30, point


def _given(name: str) -> dict[str, float]:
    """Return published values of the designs that constants are fitted to, by MACs, and by node for areas."""
    return {
        point.label.split()[1]
        + (point.label.rpartition(",")[2].split()[0] if name == "nvdla_area" else ""): point.measured
        for point in points(name)
        if point.group == "fitted to"
    }


def test_the_layout_of_nvdla_is_the_least_squares_of_two_designs() -> None:
    published, ratios, rests = _given("nvdla_area"), [], []
    for macs in FITTED:
        for node in (28, 16):
            one, two = (area(_at(macs, node, factor)).total / 1e6 / published[f"{macs}{node}"] for factor in (1, 2))
            ratios.append(two - one)
            rests.append(1 - (2 * one - two))
    fitted = np.dot(ratios, rests) / np.dot(ratios, ratios)
    assert float(load_config("nvdla_2048").technology.logic_layout) == pytest.approx(fitted, rel=0.005)


def _at(macs: str, node: int, factor: int) -> Config:
    keys = {"node": f"{node} nm", "voltage": f"{nominal_mv(node)} mV", "logic_layout": factor}
    return load_config(f"nvdla_{macs}").with_(**{f"technology.{key}": value for key, value in keys.items()})


@pytest.mark.slow
def test_activity_and_clock_of_nvdla_solve_two_designs() -> None:
    published, rows, rests = _given("nvdla_energy"), [], []
    for macs in FITTED:
        config = load_config(f"nvdla_{macs}").with_(**{"technology.activity": 1, "technology.clocked": 1})
        with Session(config, cache_dir=False) as session:
            program = session.compile(NETWORKS["resnet50_v1"].make((1, 224, 224, 3)))
            found = session.run(program, timing_only=True).energy
        moved = sum(part.value or 0 for part in found.parts if part.name not in ("dram", "phy", "clock", "leakage"))
        scale = published[macs] * 1e12
        rows.append((moved / scale, found["clock"] / scale))
        rests.append(1 - found["leakage"] / scale)
    activity, clocked = np.linalg.solve(rows, rests)
    technology = load_config("nvdla_2048").technology
    assert float(technology.activity) == pytest.approx(activity, rel=0.02)
    assert float(technology.clocked) == pytest.approx(clocked, rel=0.02)


def test_layouts_follow_from_three_published_chips() -> None:
    technology = load_config("gemmini").technology
    (array,) = [point for point in points("gemmini_area") if "array" in point.label]
    assert abs(error(array)) < 3  # technology.logic_layout
    assert float(technology.floorplan) == 1
    # Jouppi et al., ISCA 2017, figure 2: buffers and compute, 37 and 30 % of 331 mm2.
    found = area(load_config("tpuv1"))
    blocks = sum(found[name] for name in ("matrix", "accumulators", "sram", "vector")) / 1e6
    assert blocks == pytest.approx(0.67 * 331, rel=0.03)
    # Jouppi et al., ISCA 2021, figure 6: an array and a memory of TPUv4i.
    one = {"cores": 1, "matrix.arrays": 1, "matrix.rows": 128, "matrix.cols": 128, "matrix.weight_buffers": 2}
    mxu = load_config("tpuv4").with_(**one, **{"matrix.throughput": {"bfloat16": 1}, "sram.bytes": "128 MiB"})
    assert area(mxu)["matrix"] == pytest.approx(14e6, rel=0.03)
    assert area(mxu)["sram"] == pytest.approx(112e6, rel=0.03)
