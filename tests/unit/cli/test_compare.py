"""npusim compare, rerun and whatif on a real model."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from npusim import report
from npusim.cli.base import RENAMED
from npusim.explore.measure import Measurer
from npusim.hw.config import Config
from tests.support.cli import models
from tests.support.onnx_models.small import node_model
from tests.support.traces import packets
from tests.unit.cli.conftest import Cli

SCHEMA = json.loads((Path(report.__file__).parent / "run.schema.json").read_text("utf-8"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPUSIM_CACHE_DIR", str(tmp_path / "cache"))
    models.save(models.small(), tmp_path / "m.onnx")
    return tmp_path


def run(cli: Cli, file: str, *options: str) -> None:
    assert cli("run", "m.onnx", "--config", "tiny", "--json", file, *options).code == 0


def test_a_run_says_where_it_comes_from(cli: Cli, here: Path) -> None:
    run(cli, "run.json", "--seed", "7", "--set", "dram.latency='90 ns'", "--trace", "run.trace")
    found = json.loads((here / "run.json").read_text())
    jsonschema.validate(found, SCHEMA)
    told = found["provenance"]
    assert (told["seed"], told["arithmetic"], told["model"]["file"]) == (7, True, "m.onnx")
    assert told["overrides"] == {"dram.latency": '"90 ns"'}
    assert sum(row["time_ps"] for row in found["critical_path"]) == found["time_ps"]
    trace = packets((here / "run.trace").read_bytes())
    assert told["fingerprint"].encode() in trace
    assert told["model"]["digest"].encode() in trace
    run(cli, "timing.json", "--timing-only")
    told = json.loads((here / "timing.json").read_text())["provenance"]
    assert (told["seed"], told["arithmetic"], told["overrides"]) == (None, False, {})


def test_a_run_is_repeated(cli: Cli, here: Path) -> None:
    run(cli, "run.json")
    digest = json.loads((here / "run.json").read_text())["timeline_digest"]
    outcome = cli("rerun", "run.json")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"run.json: the same: {digest}\n", "")
    assert json.loads(cli("rerun", "run.json", "--json", "-").out)["same"] is True


def test_a_run_that_cannot_be_repeated_says_why(cli: Cli, here: Path) -> None:
    run(cli, "run.json")
    models.save(models.small(operator="Tanh"), here / "m.onnx")
    outcome = cli("rerun", "run.json")
    assert (outcome.code, outcome.err) == (1, "")
    assert "run.json: differs: " in outcome.out
    assert "  first    operator " in outcome.out
    assert "  changed  model: m.onnx is not what it was" in outcome.out
    assert "no such file" in cli("rerun", "no.json").message
    (here / "bad.json").write_text("{")
    assert cli("rerun", "bad.json").message.startswith("bad.json: not valid JSON")
    (here / "bad.json").write_text("[]")
    assert cli("rerun", "bad.json").code == 2


def test_a_compiled_program_is_repeated(cli: Cli) -> None:
    assert cli("compile", "m.onnx", "--config", "tiny").code == 0
    assert cli("run", "m.npu", "--json", "run.json").code == 0
    assert cli("rerun", "run.json").code == 0


def test_the_device_of_a_run_is_a_device(cli: Cli) -> None:
    run(cli, "run.json", "--set", "dram.latency='90 ns'")
    assert cli("run", "m.onnx", "--config", "run.json", "--json", "again.json").code == 0
    first, second = (json.loads(Path(name).read_text()) for name in ("run.json", "again.json"))
    assert first["timeline_digest"] == second["timeline_digest"]


def test_two_runs_side_by_side(cli: Cli) -> None:
    run(cli, "a.json")
    run(cli, "b.json", "--set", "dram.bandwidth='200 MB/s'")
    outcome = cli("compare", "a.json", "b.json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("a.json  ->  b.json\n")
    assert 'dram.bandwidth "' in outcome.out
    by_files = json.loads(cli("compare", "a.json", "b.json", "--json", "-").out)
    options = ["--config", "tiny", "--with", "dram.bandwidth='200 MB/s'", "--json", "-"]
    by_model = json.loads(cli("compare", "m.onnx", *options).out)
    assert by_model["labels"] == ["tiny", 'tiny with dram.bandwidth = "200 MB/s"']
    assert by_model["delta_ps"] == by_files["delta_ps"] > 0
    assert by_model["layers"] == by_files["layers"]
    assert sum(by_files["units"].values()) == by_files["delta_ps"]
    other = json.loads(cli("compare", "m.onnx", "--config", "tiny", "--with-config", "edge", "--json", "-").out)
    assert other["labels"] == ["tiny", "edge"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m.onnx"], "needs --with KEY=VALUE"),
        (["a.json", "b.json", "c.json"], "takes two files of runs or one MODEL, got 3 files"),
        (["a.json", "b.json", "--with", "cores=2"], "--with: only valid with a MODEL"),
        (["m.onnx", "--with", "cores"], "must be KEY=VALUE"),
    ],
)
def test_what_compare_refuses(cli: Cli, arguments: list[str], message: str) -> None:
    outcome = cli("compare", *arguments)
    assert outcome.code == 2
    assert message in outcome.message


@pytest.mark.parametrize(
    "option",
    [
        ["--config", "tiny"], ["--set", "cores=2"], ["--with", "cores=2"], ["--with-config", "edge"],
        ["--input-shape", "x=1,2"], ["--bind", "n=2"],
    ],
)  # fmt: skip
def test_options_of_a_model_are_refused_for_two_runs(cli: Cli, option: list[str]) -> None:
    outcome = cli("compare", "a.json", "b.json", *option)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.message == f"{option[0]}: only valid with a MODEL; a.json and b.json are finished runs"


def test_where_a_page_cannot_be_written_nothing_is_run(cli: Cli, here: Path) -> None:
    outcome = cli("compare", "no.onnx", "--with", "cores=2", "--html", "nowhere/page.html")
    assert outcome.message == "nowhere/page.html: there is no directory nowhere"
    assert cli("compare", "m.onnx", "--with", "cores=2", "--html", "page.html", "--json", "-").code == 0
    assert (here / "page.html").read_text().startswith("<!doctype html>")


def test_labels_are_the_devices_and_their_changes(cli: Cli) -> None:
    def labels(*arguments: str) -> list[str]:
        found: list[str] = json.loads(cli("compare", "m.onnx", *arguments, "--json", "-").out)["labels"]
        return found

    assert labels("--with", "cores=2") == ["edge", "edge with cores = 2"]
    assert labels("--with-config", "tiny") == ["edge", "tiny"]
    assert labels("--config", "tiny", "--set", "dma.channels=2", "--with-config", "edge", "--with", "cores=2") == [
        "tiny with dma.channels = 2",
        "edge with cores = 2, dma.channels = 2",
    ]


def test_runs_from_files_are_labelled_in_their_order(cli: Cli) -> None:
    run(cli, "a.json")
    run(cli, "b.json", "--set", "dram.latency=900 ns")
    forth, back = (
        json.loads(cli("compare", *files, "--json", "-").out) for files in (("a.json", "b.json"), ("b.json", "a.json"))
    )
    assert forth["labels"] == ["a.json", "b.json"] == back["labels"][::-1]
    assert forth["delta_ps"] == -back["delta_ps"] > 0


def test_where_weights_stay_the_runs_that_find_them_are_compared(cli: Cli, here: Path) -> None:
    operands = {"x": np.ones((2, 48), np.float32), "w": np.ones((48, 40), np.float32)}
    models.save(node_model("MatMul", operands, ["w"]), here / "w.onnx")
    line, stay = ("w.onnx", "--config", "tiny"), "compiler.resident_weights=true"
    found = json.loads(cli("compare", *line, "--with", stay, "--json", "-").out)
    plain = json.loads(cli("run", *line, "--timing-only", "--json", "-").out)
    resident = json.loads(cli("run", *line, "--set", stay, "--timing-only", "--json", "-").out)
    assert found["time_ps"][0] == plain["time_ps"]
    assert found["time_ps"][1] == resident["time_ps"] < plain["time_ps"]


def test_what_if(cli: Cli) -> None:
    outcome = cli("whatif", "m.onnx", "--config", "tiny", "--only", "dram.bandwidth", "--only", "dram.bytes")
    assert (outcome.code, outcome.err) == (0, "")
    assert "dram.bandwidth" in outcome.out
    assert "no effect: dram.bytes" in outcome.out
    line = ("m.onnx", "--config", "tiny", "--set", "dram.latency=90 ns")
    found = json.loads(cli("whatif", *line, "--only", "dram.bandwidth", "--json", "-").out)
    run = json.loads(cli("run", *line, "--timing-only", "--json", "-").out)
    same = ("config", "config_origin", "fingerprint", "overrides", "versions")
    assert {key: found["provenance"][key] for key in same} == {key: run["provenance"][key] for key in same}
    assert found["provenance"]["model"]["digest"] == run["provenance"]["model"]["digest"]
    (resource,) = found["resources"]
    assert (
        resource["changes"]["doubled"]["gain_ps"]
        == found["base"]["time_ps"] - resource["changes"]["doubled"]["time_ps"]
    )
    assert (
        "no number of tiny is called dram.x" in cli("whatif", "m.onnx", "--config", "tiny", "--only", "dram.x").message
    )
    assert cli("compile", "m.onnx", "--config", "tiny").code == 0
    assert "is for one device" in cli("whatif", "m.npu").message


@pytest.mark.parametrize(("former", "name"), RENAMED.items())
def test_a_former_name_of_a_command_names_the_new_one(cli: Cli, former: str, name: str) -> None:
    done = cli(former, "s.toml")
    assert (done.code, done.out) == (2, "")
    assert done.message.startswith(f"the command {former} is now called {name}")
    assert cli(name, "--help").code == 0


def test_load_test(cli: Cli, here: Path) -> None:
    (here / "s.toml").write_text(
        'device = "tiny"\nuntil = "1 ms"\n[[model]]\nname = "m"\nfile = "m.onnx"\nevery = "100 us"\n'
    )
    outcome = cli("load-test", "s.toml", "--times", "t.csv", "--json", "s.json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("10 requests on tiny in ")
    found = json.loads((here / "s.json").read_text())
    assert found["classes"][0]["requests"] == 10
    assert (here / "t.csv").read_text().startswith("model,phase,batch,length,context,operator,kind,time_ps,")
    other = json.loads(cli("load-test", "s.toml", "--config", "edge", "--json", "-").out)
    assert (found["config"], other["config"]) == ("tiny", "edge")
    assert cli("load-test", "no.toml").message == "no.toml: no such file"
    assert "is a directory" in cli("load-test", "s.toml", "--times", ".").message


def test_whatif_continues_after_ctrl_c(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = ("whatif", "m.onnx", "--config", "tiny", "--only", "dram.bandwidth")
    plain = cli(*line, "--no-cache")
    calls, one = [], Measurer.one

    def counted(self: Measurer, device: Config) -> object:
        calls.append(device)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return one(self, device)

    monkeypatch.setattr(Measurer, "one", counted)
    ended = cli(*line, "--cache-dir", tmp_path / "kept")
    assert ended.code == 130
    assert ended.err.startswith("stopped with results of 2 devices; continue with:\n  npusim whatif")
    assert cli(*line, "--cache-dir", tmp_path / "kept") == plain
    again = len(calls)
    assert again > 3
    assert cli(*line, "--cache-dir", tmp_path / "kept") == plain
    assert len(calls) == again
