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
    assert done.code == 1
    assert done.out.startswith("run.npt: incomplete, the same as far as it goes: ")
    assert "the file was cut off: its end is missing" in done.out
    assert cli("replay", "run.npt", "--allow-cut").code == 0
    assert cli("replay", "run.npt", "--allow-cut", "--set", "host.mmio='300 ns'").code == 1
    found = json.loads(cli("replay", "run.npt", "--json", "-").out)
    assert (found["same"], found["complete"], found["first"]) == (False, False, None)


def test_no_cut_of_a_trace_is_the_same(cli: Cli, here: Path) -> None:
    """The replay of a truncated trace passes only if that is allowed and something was compared."""
    record(cli)
    whole = (here / "run.npt").read_bytes()
    for length in range(0, len(whole), max(1, len(whole) // 23)):
        (here / "run.npt").write_bytes(whole[:length])
        done = cli("replay", "run.npt")
        assert done.code in (1, 2)
        assert ": the same: " not in done.out
        if cli("replay", "run.npt", "--allow-cut").code == 0:
            assert ": 0 accesses" not in done.out


def test_a_trace_without_accesses_compares_nothing(cli: Cli, here: Path) -> None:
    from npusim.device.npu import NpuDevice
    from npusim.device.traces import TracedBus
    from npusim.hw.config import load_config

    TracedBus(NpuDevice(load_config("tiny")), here / "empty.npt").close()
    for options in ((), ("--allow-cut",)):
        done = cli("replay", "empty.npt", *options)
        assert done.code == 2
        assert done.message == "bus trace: nothing was compared, because it has no accesses"


def test_what_is_no_trace(cli: Cli) -> None:
    done = cli("replay", "m.onnx")
    assert done.code == 2
    assert done.message == "bus trace m.onnx: is not a bus trace; its first bytes must be NPUTRACE"
    assert cli("replay", "nowhere.npt").message == "bus trace nowhere.npt: cannot be read: No such file or directory"


def test_a_device_that_a_trace_makes_up(cli: Cli, here: Path) -> None:
    from npusim.device.traces.format import Writer

    with open(here / "f.npt", "wb") as file:
        Writer(file, {"config": {"cores": 0}}).end()
    done = cli("replay", "f.npt")
    assert done.code == 2
    assert "f.npt: cores: must be >= 1, got 0" in done.message
