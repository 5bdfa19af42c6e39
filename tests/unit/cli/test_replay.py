"""npusim run --bus-trace and npusim replay on a real model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import models
from tests.unit.cli.conftest import Cli


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPUSIM_CACHE_DIR", str(tmp_path / "cache"))
    models.save(models.small(), tmp_path / "m.onnx")
    return tmp_path


def record(cli: Cli) -> None:
    done = cli("run", "m.onnx", "--config", "tiny", "--bus-trace", "run.npt")
    assert done.code == 0
    assert done.out.endswith("wrote run.npt\n")


def test_a_run_goes_the_same_way_again(cli: Cli, here: Path) -> None:
    record(cli)
    done = cli("replay", "run.npt", "--trace", "run.perfetto-trace")
    assert done.code == 0
    assert done.out.startswith("run.npt: the same: ")
    assert (here / "run.perfetto-trace").stat().st_size > 0


def test_what_differs_is_named(cli: Cli) -> None:
    record(cli)
    done = cli("replay", "run.npt", "--set", "host.mmio='300 ns'")
    assert done.code == 1
    assert "first    access 0 at 0 ps: read of 4 bytes at 0x0 of BAR 0 (ID): expected 100000 ps, got 300000" in done.out
    done = cli("replay", "run.npt", "--config", "edge", "--json", "-")
    assert done.code == 1
    found = json.loads(done.out)
    assert (found["same"], found["complete"], found["first"]["number"]) == (False, True, 0)


def test_a_file_that_was_cut_off_says_so(cli: Cli, here: Path) -> None:
    record(cli)
    whole = (here / "run.npt").read_bytes()
    (here / "run.npt").write_bytes(whole[:-1])
    done = cli("replay", "run.npt")
    assert done.code == 0
    assert "the file was cut off: its end is missing" in done.out


def test_what_is_no_trace(cli: Cli) -> None:
    done = cli("replay", "m.onnx")
    assert done.code == 2
    assert done.message == "bus trace m.onnx: is no bus trace; its first bytes must be NPUTRACE"
    assert cli("replay", "nowhere.npt").code == 1


def test_a_device_that_a_trace_makes_up(cli: Cli, here: Path) -> None:
    from npusim.device.traces.format import Writer

    with open(here / "f.npt", "wb") as file:
        Writer(file, {"config": {"cores": 0}}).end()
    done = cli("replay", "f.npt")
    assert done.code == 2
    assert "f.npt: cores: must be >= 1, got 0" in done.message
