"""npusim doctor, completion, --version, and progress on a terminal."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npusim import doctor
from npusim.cli.app import main
from npusim.cli.output import progress
from npusim.doctor import Diagnosis, Severity
from tests.support.kernel_operands import levels
from tests.unit.cli.conftest import Cli

ROOT = Path(__file__).resolve().parents[3]


def finding(subject: str, cache: Path) -> Diagnosis:
    """Return the only finding about a subject."""
    return next(found for found in doctor.examine(cache) if found.subject == subject)


def test_this_installation_is_sound(tmp_path: Path) -> None:
    found = doctor.examine(tmp_path)
    assert [f for f in found if f.verdict is Severity.FAILED] == []
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert {f.subject for f in found} >= {
        *(extras - {"test", "dev"}),
        "python",
        "npusim",
        "numpy",
        "simpy",
        "onnx",
        "kernels",
        "configs",
        "cache",
        "hal",
    }


def test_missing_kernels_are_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "npusim._core", None)
    monkeypatch.delattr("npusim._core", raising=False)
    assert finding("kernels", tmp_path).verdict is Severity.FAILED
    assert "needs a C compiler" in finding("kernels", tmp_path).detail


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    found = finding("cache", tmp_path / "file")
    assert found.verdict is Severity.NOTE
    assert "NPUSIM_CACHE_DIR" in found.detail


def test_a_cache_that_is_not_there_yet_is_fine(tmp_path: Path) -> None:
    assert finding("cache", tmp_path / "a" / "b").verdict is Severity.OK
    assert list(tmp_path.iterdir()) == []


def test_another_owner_of_hal_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    owners = {"hal": ["npusim", "some-hal"]}
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: owners)
    found = finding("hal", tmp_path)
    assert found.verdict is Severity.NOTE
    assert "some-hal" in found.detail


def test_a_missing_extra_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    version = importlib.metadata.version

    def without_onnx(name: str) -> str:
        if name == "onnx":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", without_onnx)
    found = finding("onnx", tmp_path)
    assert (found.verdict, "pip install 'npusim[onnx]'" in found.detail) == (Severity.NOTE, True)


def test_a_check_that_goes_wrong_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(_name: str) -> None:
        raise RuntimeError("odd")

    monkeypatch.setattr(importlib.util, "find_spec", broken)
    assert finding("hal", tmp_path) == Diagnosis("hal", Severity.FAILED, "RuntimeError: odd")


@pytest.mark.parametrize("verdict", Severity)
def test_only_what_failed_makes_the_command_fail(cli: Cli, monkeypatch: pytest.MonkeyPatch, verdict: Severity) -> None:
    found = [Diagnosis("kernels", verdict, "as it is"), Diagnosis("numpy", Severity.OK, "2.0")]
    monkeypatch.setattr(doctor, "examine", lambda directory: found)
    outcome = cli("doctor")
    assert re.search(rf"^kernels +{verdict.value} +as it is$", outcome.out, re.MULTILINE)
    if verdict is Severity.FAILED:
        assert outcome.code != 0
        assert outcome.message == "this installation does not work: kernels"
    else:
        assert (outcome.code, outcome.err) == (0, "")


def test_the_version_is_that_of_the_distribution(cli: Cli) -> None:
    assert cli("--version").out == f"npusim, version {importlib.metadata.version('npusim')}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_valid_in_their_shell(cli: Cli, tmp_path: Path, shell: str) -> None:
    script = cli("completion", shell).out
    assert "_NPUSIM_COMPLETE" in script
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", tmp_path / "script"], check=True)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("npusim co", {"compile", "config", "completion"}),
        ("npusim run --config ti", {"tiny"}),
        ("npusim config show ed", {"edge"}),
        ("npusim run --timing", {"--timing-only"}),
    ],
)
def test_what_is_completed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, wanted: set[str]
) -> None:
    monkeypatch.setenv("_NPUSIM_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit):
        main([])
    offered = {line.partition(",")[2] for line in capsys.readouterr().out.splitlines()}
    assert wanted <= offered


class Terminal(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_shows_on_a_terminal_and_cleans_up(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("compiling"):
        deadline = time.monotonic() + 60
        while "compiling ... 0 s" not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.02)
    assert "compiling ... 0 s" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize(
    "command", ["--help", "run --help", "completion --help", "config list", "config show edge --keys", "demo"]
)
def test_lines_fit_into_a_terminal_and_lose_no_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    main(command.split())
    wide = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(command.split()) == 0
    assert max(map(len, terminal.getvalue().splitlines())) <= 80 < max(map(len, wide.splitlines()))
    assert sorted(terminal.getvalue().split()) == sorted(wide.split())


def _chain(names: list[str]) -> onnx.ModelProto:
    """A convolution of each name, one after another."""
    weight = numpy_helper.from_array(np.ones((4, 4, 3, 3), np.float32), "weight")
    tensors = ["x", *(f"{name}_output_0" for name in names)]
    nodes = [
        helper.make_node("Conv", [x, "weight"], [y], name, pads=[1, 1, 1, 1])
        for name, x, y in zip(names, tensors[:-1], tensors[1:], strict=True)
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 8, 8]) for name in (tensors[0], tensors[-1])]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    "command",
    [
        "run {} --timing-only",
        "explain {} --memory",
        "explain {} --op conv0/Conv",
        "compare {} --with matrix.rows=4",
    ],
)
def test_columns_sets_the_width_in_a_pipe(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Names of a network's layers are long. They are shortened where COLUMNS says so, and whole in a pipe without."""
    model = tmp_path / "deep.onnx"
    names = [f"/model/backbone/stage{number}/residual_branch/conv{number}/Conv" for number in range(12)]
    model.write_bytes(_chain(names).SerializeToString())
    words = [word.format(model) for word in command.split()]
    long = names[-1]
    wide = cli(*words, "--config", "tiny")
    assert wide.code == 0
    assert long in wide.out or "--op" in words
    monkeypatch.setenv("COLUMNS", "80")
    narrow = cli(*words, "--config", "tiny")
    assert narrow.code == 0
    assert max(map(len, narrow.out.splitlines())) <= 80


def with_simd(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run npusim in a process whose kernels use an instruction set."""
    environment = {**os.environ, "NPUSIM_SIMD": name}
    return subprocess.run(
        [sys.executable, "-m", "npusim", *words], env=environment, capture_output=True, text=True, check=False
    )


def test_an_unknown_instruction_set_is_named() -> None:
    done = with_simd("mmx", "demo")
    assert done.returncode == 2
    assert done.stderr.startswith("npusim: error: NPUSIM_SIMD: instruction set must be one of auto, portable")
    assert "got 'mmx'" in done.stderr


@pytest.mark.slow
def test_results_do_not_depend_on_the_instruction_set(tmp_path: Path) -> None:
    """The outputs of the demo have the same bits, and its timeline the same digest, with each that this host has."""
    found = {}
    for name in levels():
        run = tmp_path / name
        done = with_simd(name, "demo", "--save", str(tmp_path / "model.onnx"))
        assert done.returncode == 0, done.stderr
        words = ("--config", "edge", "--no-cache", "--output-dir", str(run), "--json", str(run.with_suffix(".json")))
        done = with_simd(name, "run", str(tmp_path / "model.onnx"), *words)
        assert done.returncode == 0, done.stderr
        told = json.loads(run.with_suffix(".json").read_text())
        assert told["provenance"]["simd"] == name
        found[name] = ((run / "probabilities.npy").read_bytes(), told["timeline_digest"])
    assert len(set(found.values())) == 1


def test_progress_is_silent_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with progress("compiling"):
        time.sleep(0.35)
    assert pipe.getvalue() == ""
