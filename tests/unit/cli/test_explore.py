"""npusim explore."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from npusim.demo import as_onnx
from npusim.explore import Study
from npusim.hw.config import load_config
from tests.support.cli.interruptible import started
from tests.unit.cli.conftest import Cli

SPACE = """
base = "edge"
constraints = ["dram.bandwidth <= 8 GB/s"]
set = { technology.node = "22 nm", area.phy = "0.5 mm2" }
[vary]
matrix.rows = [16, 32]
dram.bandwidth = ["4 GB/s", "8 GB/s", "16 GB/s"]
[derive]
matrix.cols = "rows"
[[model]]
name = "demo"
file = "demo.onnx"
"""


@pytest.fixture
def space(tmp_path: Path) -> Path:
    (tmp_path / "demo.onnx").write_bytes(as_onnx())
    path = tmp_path / "space.toml"
    path.write_text(SPACE)
    return path


def test_from_a_space_file_to_the_front(cli: Cli, space: Path, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("all.csv", "all.parquet", "page.html", "study.json")]
    outcome = cli(
        "explore",
        space,
        "--workers",
        0,
        "--csv",
        files[0],
        "--parquet",
        files[1],
        "--html",
        files[2],
        "--json",
        files[3],
    )
    assert outcome.code == 0, outcome.err
    assert "space: 6 designs of edge, 4 simulated, 4 feasible" in outcome.out
    header = next(line for line in outcome.out.splitlines() if line.startswith("design"))
    assert header.split() == ["design", "rows", "dram.bandwidth", "latency", "area", "energy", "tier", "bound", "by"]
    assert "least latency" in outcome.out
    assert "2  breaks dram.bandwidth <= 8 GB/s" in outcome.out
    found = json.loads(files[3].read_text())
    front = [each["design"] for each in found["front"]]
    assert front
    assert all(f"\n{number:>6}  " in outcome.out for number in front)
    with files[0].open(newline="") as opened:
        assert {int(row["design"]) for row in csv.DictReader(opened)} == {0, 1, 3, 4}
    assert files[1].read_bytes()[:4] == b"PAR1"
    assert "<html" in files[2].read_text()
    again = cli("explore", space, "--budget", 0)
    assert again.out.splitlines()[:6] == outcome.out.splitlines()[:6]
    assert json.loads(cli("explore", space, "--budget", 0, "--json", "-").out) == found


def test_shards_are_merged_and_a_store_in_use_is_read(cli: Cli, space: Path) -> None:
    once = json.loads(cli("explore", space, "--workers", 0, "--store", space.with_name("one.study"), "--json", "-").out)
    assert "must be I/N" in cli("explore", space, "--shard", "3/2").message
    assert "stores need --merge" in cli("explore", space, space).message
    assert "needs the stores" in cli("explore", space, "--merge").message
    assert "--merge: only joins" in cli("explore", space, "--merge", space, "--budget", 3).message
    for number in (1, 2):
        assert cli("explore", space, "--workers", 0, "--shard", f"{number}/2").code == 0
    stores = [space.with_suffix(f".{number}-of-2.study") for number in (1, 2)]
    assert json.loads(cli("explore", space, "--merge", *stores, "--json", "-").out) == once
    with Study(space):
        assert "another study is writing" in cli("explore", space).message
        assert json.loads(cli("explore", space, "--budget", 0, "--json", "-").out) == once


def test_a_design_is_written_as_a_device(cli: Cli, space: Path, tmp_path: Path) -> None:
    outcome = cli("explore", space, "--write", 4, tmp_path / "design.toml")
    assert outcome.out == f"wrote {tmp_path / 'design.toml'}\n"
    design = load_config(tmp_path / "design.toml")
    assert (design.matrix.rows, design.matrix.cols, design.dram.bandwidth) == (32, 32, 8 * 10**9)
    assert "there is no design 6; the space has 0 to 5" in cli("explore", space, "--write", 6, tmp_path / "d").message


def test_what_cannot_be_done_is_one_paragraph(cli: Cli, space: Path, tmp_path: Path) -> None:
    assert (
        "--cluster: not used with --workers" in cli("explore", space, "--workers", 2, "--cluster", "tcp://a:1").message
    )
    assert "no such file" in cli("explore", tmp_path / "none.toml").message
    assert "there is no directory" in cli("explore", space, "--csv", tmp_path / "no" / "a.csv").message
    assert "there is no directory" in cli("explore", space, "--store", tmp_path / "no" / "a.study").message
    assert "is not a store of npusim explore" in cli("explore", space, "--store", space).message
    space.write_text(SPACE + "bogus = 3\n[search]\nbudget = 0.5\n")
    outcome = cli("explore", space)
    assert outcome.code == 2
    assert "model.1.bogus: unknown key" in outcome.message
    assert "search.budget: must be a whole number" in outcome.message


def test_ctrl_c_says_how_to_go_on_and_the_same_command_does(space: Path, tmp_path: Path) -> None:
    space.write_text(SPACE.replace("[16, 32]", "{ from = 1, to = 30, step = 1 }"))  # more than are done at once
    command = [sys.executable, "-m", "npusim", "explore", str(space), "--workers", "1"]
    store = space.with_suffix(".study")
    process = started(command)
    while process.poll() is None and not (store.exists() and store.stat().st_size > 0 and _count(store)):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    kept = _count(store)
    assert 0 < kept < 60
    said, line, last = errors.splitlines()
    assert said == f"stopped with {kept} designs in the store; continue with:"
    assert line.split() == ["npusim", *command[3:]]
    assert last == "npusim: interrupted"
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    assert "60 simulated" in done.stdout
    assert _count(store) == 60


def _count(path: Path) -> int:
    from npusim.errors import UsageError
    from npusim.explore.store import StudyStore

    try:
        with StudyStore(path, reading=True) as store:
            return len(store.rows())
    except UsageError:  # between two of its writes
        return 0
