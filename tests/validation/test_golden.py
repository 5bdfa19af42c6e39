"""The measured points shipped with the project: replayed with exactly the recorded errors."""

from __future__ import annotations

import json

import pytest

from npusim.hw.config import list_configs
from npusim.hw.files import config_folder
from npusim.validate.replay import SETS
from tests.support.carried import FOUND, replayed
from tests.validation.regenerate import RECORD, figures

GOLDEN = json.loads(RECORD.read_text("utf-8"))
LIMITS = {  # MAPE and worst point in percent: the project's limits for these sets
    "scalesim_cycles": (0, 0),
    "gemmini_mesh16_rtl": (0, 0),
    "nvdla_nv_small_rtl_gemm": (3, 12),
    "nvdla_nv_small_rtl_conv": (3, 12),
    "nvdla_nv_small_rtl_mem": (3, 12),
    "ramulator2_bw": (5, 25),
    "dramsim3_bw": (5, 25),
    "tpu_v1_isca17": (10, 25),
    "tpu_v1_isca17, compiled": (10, 20),
    "nvdla_primer_resnet50": (13, 31),
    "end_to_end": (10, 31),
}
LONG = ("dramsim3_bw", "end_to_end", "end_to_end_2", "nvdla_energy", "nvdla_primer_resnet50")
"""Slow sets; the default tests replay another set of the same kind."""


def test_every_carried_set_is_on_record() -> None:
    assert set(FOUND) == set(GOLDEN)
    assert set(LIMITS) <= set(GOLDEN)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in sorted(FOUND)]
)
def test_errors_are_those_on_record(name: str) -> None:
    outcome = replayed(name)
    shown = figures(outcome)
    assert shown == GOLDEN[name], "if this is meant: python -m tests.validation.regenerate"
    if name in LIMITS:
        mape, worst = LIMITS[name]
        assert (shown["mape"] <= mape, shown["worst"] <= worst) == (True, True)


def test_names_are_unique_and_files_but_for_reason() -> None:
    """A file is replayed once, and possibly compiled as well; the file of prices covers several chips."""
    twice = [data for data in SETS if data.name.endswith(", compiled")]
    prices = [data for data in SETS if data.filename == "energy_area.csv"]
    alone = [data for data in SETS if data not in twice and data not in prices]
    assert len({data.name for data in SETS}) == len(SETS)
    assert len({data.filename for data in alone}) == len(alone)
    assert all(data.name == f"{data.filename.removesuffix('.csv')}, compiled" for data in twice)
    assert all(data.name.endswith(("_energy", "_area", "_power")) for data in prices)


@pytest.mark.parametrize("name", [data.name for data in SETS if f"{data.name}, compiled" in FOUND])
def test_what_is_compiled_is_as_near_as_the_unit_alone(name: str) -> None:
    direct, compiled = (figures(replayed(which)) for which in (name, f"{name}, compiled"))
    assert compiled["mape"] <= 1.5 * direct["mape"]


@pytest.mark.parametrize("name", ["gemmini_mesh16_rtl", "nvdla_nv_small_rtl_gemm", "nvdla_nv_small_rtl_conv"])
def test_of_two_jobs_the_model_prefers_the_one_that_is_faster_in_rtl(name: str) -> None:
    outcome = replayed(name)
    points = sorted(outcome.points, key=lambda point: point.measured)
    pairs = [(a, b) for i, a in enumerate(points) for b in points[i + 1 :] if b.measured > 1.1 * a.measured]
    assert len(pairs) > 200
    assert [(a.label, b.label) for a, b in pairs if a.predicted >= b.predicted] == []


@pytest.mark.parametrize(
    "name", sorted({config for data in SETS for config in data.configs if config in list_configs()})
)
def test_a_machine_has_a_dozen_fitted_constants_at_most(name: str) -> None:
    lines = (config_folder() / f"{name}.toml").read_text("utf-8").splitlines()
    fitted = [line for line in lines if "=" in line.partition("#")[0] and "fitted" in line.partition("#")[2]]
    assert len(fitted) <= 12
