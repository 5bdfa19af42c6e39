"""npusim info and npusim config."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npusim.hw.config import list_configs, load_config
from tests.unit.cli.conftest import Cli


def test_the_list_has_every_config(cli: Cli) -> None:
    lines = cli("config", "list").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(list_configs())
    listed = json.loads(cli("config", "list", "--json", "-").out)
    assert [item["name"] for item in listed] == list(list_configs())


@pytest.mark.parametrize("name", ["tiny", "edge"])
def test_what_show_prints_is_the_same_device(cli: Cli, tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.toml"
    path.write_text(cli("config", "show", name).out)
    assert load_config(path) == load_config(name)
    assert cli("config", "check", path).out == f"{path}: ok\n"


def test_show_names_the_origin_of_each_value(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text('inherit = "tiny"\ndram.bandwidth = "3 GB/s"\n')
    rows = {line.split()[0]: line for line in cli("config", "show", tmp_path / "my.toml", "--keys").out.splitlines()}
    assert "my.toml" in rows["dram.bandwidth"]
    assert '"3 GB/s"' in rows["dram.bandwidth"]
    assert "configs/tiny.toml" in rows["matrix.rows"]
    values = json.loads(cli("config", "show", tmp_path / "my.toml", "--json", "-").out)
    assert values["values"]["dram"]["bandwidth"] == 3 * 10**9
    assert values["origins"]["matrix.rows"] == "configs/tiny.toml"


def test_check_prints_every_problem_of_every_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('inherit = "tiny"\nmatrix.rows = 0\nmatrix.colls = 3\n')
    (tmp_path / "b.toml").write_text('inherit = "tiny"\nclock = "fast"\n')
    (tmp_path / "c.toml").write_text("clock = = 3\n")
    outcome = cli("config", "check", "tiny", *(tmp_path / f"{name}.toml" for name in "abc"))
    assert outcome.code == 2
    assert "tiny: ok" in outcome.out
    for text in (
        "matrix.rows: must be >= 1, got 0",
        "matrix.colls: unknown key (did you mean 'cols'?)",
        "clock: must be",
    ):
        assert text in outcome.out
    assert "c.toml: not valid TOML" in outcome.out
    assert outcome.message.startswith("4 problems in ")
    found = json.loads(cli("config", "check", "tiny", tmp_path / "a.toml", "--json", "-").out)
    assert [len(problems) for problems in found.values()] == [0, 2]


@pytest.mark.usefixtures("fake")
def test_a_wrong_config_stops_every_command(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('inherit = "tiny"\nmatrix.rows = 0\n')
    for command in (["info"], ["demo"], ["run", "m.onnx"], ["compile", "m.onnx"]):
        outcome = cli(*command, "--config", tmp_path / "a.toml")
        assert outcome.code == 2
        assert "matrix.rows: must be >= 1, got 0" in outcome.message


@pytest.mark.parametrize("name", ["tiny", "edge"])
def test_info_is_derived_from_the_description(cli: Cli, name: str) -> None:
    config = load_config(name)
    assert config.matrix is not None
    found = json.loads(cli("info", "--config", name, "--json", "-").out)
    assert found["peak_macs"]["int8"] == config.matrix.rows * config.matrix.cols * config.matrix_hz * config.cores
    assert found["dram_bandwidth"] <= found["dram_peak"] == config.dram.bandwidth
    doubled = json.loads(
        cli("info", "--config", name, "--set", f"matrix.rows={2 * config.matrix.rows}", "--json", "-").out
    )
    assert doubled["peak_macs"]["int8"] == 2 * found["peak_macs"]["int8"]


def test_info_as_text(cli: Cli) -> None:
    out = cli("info", "--config", "edge").out
    assert out.startswith("edge: ")
    for heading in ("matrix peak", "vector peak", "memory", "host", "int8", "DRAM", "ridge"):
        assert heading in out


def test_info_of_a_device_without_a_matrix_unit(cli: Cli) -> None:
    outcome = cli("info", "--config", "tiny", "--set", "matrix=false", "--set", "energy=false")
    assert outcome.code == 0, outcome.err
    assert "matrix" not in outcome.out.replace("matrix unit", "").split("\n\n", 1)[1]
    assert "ridge" not in outcome.out
