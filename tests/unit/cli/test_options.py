"""The meaning of options, and messages about invalid ones. Nothing is computed; the runtime is a stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.cli import fake_runtime
from tests.unit.cli.conftest import Cli

pytestmark = pytest.mark.usefixtures("fake")


def asked(what: str) -> list[Any]:
    """Return the arguments of every call of one session method."""
    return [argument for name, argument in fake_runtime.CALLS if name == what]


def test_help_names_every_command_and_has_examples(cli: Cli) -> None:
    out = cli("--help").out
    for command in ("run", "compile", "disasm", "info", "config", "demo", "libs", "doctor", "cache", "completion"):
        assert f"\n  {command} " in out
    assert "npusim run resnet50.onnx --config edge" in out


@pytest.mark.parametrize("command", ["run", "compile", "disasm", "info", "config", "demo", "cache", "completion"])
def test_every_command_has_examples(cli: Cli, command: str) -> None:
    outcome = cli(command, "--help")
    assert outcome.code == 0
    assert f"  npusim {command}" in outcome.out.split("Examples:")[1] or f'"$(npusim {command}' in outcome.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "Missing argument 'MODEL'; see npusim run --help"),
        (["frobnicate"], "No such command 'frobnicate'; see npusim --help"),
        (["run", "m.onnx", "--jsn", "x"], "No such option"),
        (["run", "m.onnx", "--seed", "-1"], "Invalid value for '--seed'"),
        (["run", "m.onnx", "--input-shape", "x:1"], "--input-shape x:1: must be NAME=N,N,..."),
        (["run", "m.onnx", "--input-shape", "x=1,-3"], "--input-shape x=1,-3: must be NAME=N,N,..."),
        (["run", "m.onnx", "--input-shape", "x=1", "--input-shape", "x=2"], "input 'x' has a shape already"),
        (["run", "m.onnx", "--bind", "x"], "--bind x: must be NAME=VALUE with a number, several with commas"),
        (["run", "m.onnx", "--bind", "=1"], "--bind =1: must be NAME=VALUE"),
        (["run", "m.onnx", "--bind", "x=fast"], "--bind x=fast: must be NAME=VALUE"),
        (["compile", "m.onnx", "--bind", "x=1,,2"], "--bind x=1,,2: must be NAME=VALUE"),
        (["explain", "m.onnx", "--op", "a", "--bind", "x=null"], "--bind x=null: must be NAME=VALUE"),
        (["run", "m.onnx", "--bind", "x=1", "--bind", "x=2"], "input 'x' has a value already"),
        (
            ["run", "m.onnx", "--input", "x.npy"],
            "--input x.npy: must be NAME=FILE.npy; the model's inputs are 'x', 'ids'",
        ),
        (["run", "m.onnx", "--timing-only", "--input", "x=x.npy"], "--input: not used with --timing-only"),
        (
            ["run", "m.onnx", "--timing-only", "--output-dir", "d"],
            "--output-dir: there are no outputs with --timing-only",
        ),
        (["run", "m.onnx", "--json", "no/such/dir/run.json"], "there is no directory no/such/dir"),
        (["run", "m.onnx", "--config", "nope"], "nope: no such config"),
        (["explain", "m.onnx"], "explain: needs --op NAME (time of an operator) or --memory (memory areas)"),
        (["explain", "m.onnx", "--op", "a", "--memory"], "--op: not used with --memory"),
        (["run", "m.onnx", "--config", "nope.toml"], "nope.toml: no such file"),
        (["run", "m.onnx", "--set", "cores"], "--set cores: must be KEY=VALUE"),
        (["info", "--config"], "Option '--config' requires an argument"),
        (["completion", "cmd"], "Invalid value for '{bash|zsh|fish}'"),
    ],
)
def test_a_wrong_call_exits_with_2(cli: Cli, arguments: list[str], message: str) -> None:
    outcome = cli(*arguments)
    assert outcome.code == 2
    assert message in outcome.message
    assert outcome.out == ""


def test_shapes_reach_the_compiler(cli: Cli) -> None:
    cli("run", "m.onnx", "--input-shape", "x=1,3,224,224", "--input-shape", "n=")
    assert asked("compile") == [(Path("m.onnx"), {"x": (1, 3, 224, 224), "n": ()})]


def test_values_reach_the_compiler(cli: Cli) -> None:
    bind = ["--bind", "x=1", "--bind", "a=b=-2.5,3e2", "--bind", "on=True", "--bind", "off=false, true"]
    for command in (["run"], ["compile", "-o", "m.npu"], ["explain", "--op", "conv"]):
        cli(command[0], "m.onnx", *command[1:], *bind)
        wanted = {"x": 1, "a=b": [-2.5, 300.0], "on": True, "off": [False, True]}
        assert asked("bind") == [wanted]
        fake_runtime.CALLS.clear()


def test_overrides_change_the_device(cli: Cli) -> None:
    cli("run", "m.onnx", "--config", "tiny", "--set", "dram.bandwidth=5 GB/s", "--set", "dma.channels=3")
    config, _ = asked("session")[0]
    assert (config.dram.bandwidth, config.dma.channels) == (5 * 10**9, 3)


def test_a_wrong_override_names_the_key(cli: Cli) -> None:
    outcome = cli("run", "m.onnx", "--set", "dram.bandwith='5 GB/s'")
    assert outcome.code == 2
    assert "dram.bandwith: unknown key (did you mean 'bandwidth'?)" in outcome.message


@pytest.mark.parametrize("value", ["9" * 5000, "0x" + "f" * 5000, "[" * 5000])
def test_an_override_that_nobody_can_read(cli: Cli, value: str) -> None:
    outcome = cli("info", "--set", f"queue_depth={value}")
    assert outcome.code == 2
    assert "queue_depth: must be " in outcome.message
    assert len(outcome.message) < 300


@pytest.mark.parametrize(
    ("arguments", "wanted"), [([], None), (["--no-cache"], False), (["--cache-dir", "kept"], Path("kept"))]
)
def test_where_programs_are_kept(cli: Cli, arguments: list[str], wanted: object) -> None:
    cli("run", "m.onnx", *arguments)
    assert asked("session")[0][1] == wanted


def test_random_inputs_come_from_the_seed_and_are_announced(cli: Cli) -> None:
    first = cli("run", "m.onnx", "--seed", 7)
    cli("run", "m.onnx", "--seed", 7)
    cli("run", "m.onnx", "--seed", 8)
    a, b, c = (call["x"] for call in asked("run"))
    assert a.dtype == np.float32
    assert a.shape == (2, 3)
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert "x float32[2, 3], ids int64[4], random with seed 7" in first.out


def test_inputs_come_from_files(cli: Cli, tmp_path: Path) -> None:
    x, ids = np.ones((2, 3), np.float32), np.arange(4)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "ids.npy", ids)
    outcome = cli("run", "m.onnx", "--input", f"x={tmp_path}/x.npy", "-i", f"ids={tmp_path}/ids.npy")
    assert outcome.code == 0, outcome.err
    given = asked("run")[0]
    assert np.array_equal(given["x"], x)
    assert np.array_equal(given["ids"], ids)
    assert "from files" in outcome.out


def test_a_timing_run_gets_no_inputs(cli: Cli) -> None:
    outcome = cli("run", "m.onnx", "--timing-only")
    assert asked("run") == [None]
    assert "not computed (timing only)" in outcome.out
