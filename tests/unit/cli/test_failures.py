"""Errors, interruptions and full disks: one paragraph, the right exit code, no partial files."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from npusim.cli.app import explain
from npusim.cli.output import replacing, write_json
from npusim.dtypes import DType
from npusim.errors import (
    CacheError,
    CompileError,
    ConfigError,
    DeviceFaultError,
    DriverCheckError,
    InputError,
    ModelError,
    NpusimError,
    UnsupportedError,
    UsageError,
)
from npusim.program import Binding
from npusim.trusted_files import DRAFT
from tests.support.cli import fake_runtime
from tests.unit.cli.conftest import Cli


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UsageError("m.onnx: no such file"), 2, "m.onnx: no such file"),
        (ModelError("m.onnx: truncated"), 1, "m.onnx: truncated"),
        (CompileError("conv1: does not fit"), 1, "conv1: does not fit"),
        (CacheError("m.npu: altered"), 1, "m.npu: altered"),
        (DeviceFaultError("BAD_ADDRESS", 64, "outside"), 1, "device fault BAD_ADDRESS at 0x40: outside"),
        (UnsupportedError([("n", "Foo", "unknown operator")]), 1, "n (Foo): unknown operator"),
        (MemoryError(), 1, "this machine has too little memory for that"),
        (OSError(28, "No space left on device", "/tmp/x"), 1, "/tmp/x: No space left on device"),
    ],
)
@pytest.mark.parametrize("where", ["compile", "run"])
def test_an_error_is_one_message(cli: Cli, error: Exception, code: int, message: str, where: str) -> None:
    fake_runtime.BEHAVIOUR[where] = error
    outcome = cli("run", "m.onnx")
    assert (outcome.code, outcome.message, outcome.out) == (code, message, "")


@pytest.mark.usefixtures("fake")
def test_a_very_long_list_is_cut(cli: Cli) -> None:
    fake_runtime.BEHAVIOUR["compile"] = UnsupportedError([(f"node{i}", "Foo", f"no {i}") for i in range(1000)])
    lines = cli("run", "m.onnx").message.splitlines()
    assert lines[0] == "1000 unsupported:"
    assert lines[1] == "node0 (Foo): no 0"
    assert lines[-1] == "... and 977 more; --debug shows them all"
    assert "node999 (Foo): no 999" in cli("run", "m.onnx", "--debug").err


@pytest.mark.usefixtures("fake")
def test_a_defect_is_called_one_and_debug_shows_where(cli: Cli) -> None:
    fake_runtime.BEHAVIOUR["run"] = KeyError("oops")
    outcome = cli("run", "m.onnx")
    assert outcome.code == 1
    assert outcome.err == (
        "npusim: error: a defect of npusim, please report it with the output of --debug: KeyError: 'oops'\n"
    )
    assert "Traceback (most recent call last)" in cli("run", "m.onnx", "--debug").err


def test_every_error_class_has_a_code() -> None:
    special = {
        ConfigError: ConfigError(["text"]),
        UnsupportedError: UnsupportedError([("node", "Op", "text")]),
        DeviceFaultError: DeviceFaultError("CODE", 0, "text"),
        DriverCheckError: DriverCheckError(["text"]),
    }
    classes = NpusimError.__subclasses__()
    assert len(classes) > 8
    for cls in classes:
        code, message = explain(special.get(cls) or cls("text"))
        assert code == (2 if issubclass(cls, UsageError | ConfigError | InputError) else 1)
        assert message.endswith("text")


@pytest.mark.usefixtures("fake")
def test_ctrl_c_is_one_line(cli: Cli, tmp_path: Path) -> None:
    fake_runtime.BEHAVIOUR["run"] = KeyboardInterrupt()
    outcome = cli("run", "m.onnx", "--json", tmp_path / "run.json")
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "npusim: interrupted\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [
        (signal.SIGINT, 130, "npusim: interrupted\n"),
        (signal.SIGTERM, 143, "npusim: terminated\n"),
        (signal.SIGHUP, 129, "npusim: terminated\n"),
    ],
)
def test_signals_that_end_a_command(tmp_path: Path, number: int, code: int, line: str) -> None:
    script = (
        "import signal, sys\n"
        "from tests.support.cli import fake_runtime\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a process inherits an ignored signal
        "signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "sys.modules['npusim.runtime'] = fake_runtime\n"
        "fake_runtime.BEHAVIOUR['wait'] = True\n"
        "from npusim.cli import entry\n"
        f"sys.argv = ['npusim', 'run', 'm.onnx', '--json', {str(tmp_path / 'run.json')!r}]\n"
        "entry()\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.send_signal(number)
        try:
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (code, line)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("fake")
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("option", ["--json", "--trace"])
def test_a_full_disk(cli: Cli, option: str) -> None:
    outcome = cli("run", "m.onnx", option, "/dev/full")
    assert outcome.code == 1
    assert outcome.message == "/dev/full: No space left on device"
    assert os.path.exists("/dev/full")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_standard_output_on_a_full_disk() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "npusim", "config", "list"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "npusim: error: No space left on device\n")


def test_a_reader_that_has_seen_enough() -> None:
    command = [sys.executable, "-m", "npusim", "config", "show", "tiny"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 1


@pytest.mark.usefixtures("fake")
def test_results_take_the_place_of_older_ones(cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    target.write_text("old")
    outcome = cli("run", "m.onnx", "--json", target, "--output-dir", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    assert json.loads(target.read_text())["cycles"] == 2200
    assert np.array_equal(np.load(tmp_path / "out" / "y.npy"), np.arange(4, dtype=np.float32))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run.json"]
    assert f"wrote {target}" in outcome.out


@pytest.mark.usefixtures("fake")
def test_json_on_standard_output_comes_alone(cli: Cli) -> None:
    outcome = cli("run", "m.onnx", "--json", "-")
    assert json.loads(outcome.out)["model"] == "net"
    assert outcome.err == ""


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    target.write_text("old")
    with pytest.raises(UnicodeEncodeError), replacing(target) as draft:
        draft.write_text("half \ud800", "utf-8")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_of_the_system_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="6 requested and 2 written") as caught, replacing(tmp_path / "y.npy"):
        raise OSError("6 requested and 2 written")  # numpy's message
    assert caught.value.filename == str(tmp_path / "y.npy")


_HOLDS = """
import os, signal, sys
from pathlib import Path
from npusim.cli.output import replacing
with replacing(Path(sys.argv[1])) as draft:
    draft.write_text("half")
    print("writing", flush=True)
    signal.pause()
"""


def test_drafts_of_killed_processes_go_with_the_next_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDS, str(tmp_path / "run.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        write_json(str(tmp_path / "other.json"), {})
        [draft] = tmp_path.glob(f".*{DRAFT}")
        assert draft.read_text() == "half", "its writer lives"
        process.kill()
    write_json(str(tmp_path / "other.json"), {})
    assert [path.name for path in tmp_path.iterdir()] == ["other.json"]


def test_what_looks_like_a_draft_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("of somebody")
    (tmp_path / f".a{DRAFT}").symlink_to(tmp_path / "other")
    os.mkfifo(tmp_path / f".b{DRAFT}")
    (tmp_path / f".c{DRAFT}").mkdir()
    write_json(str(tmp_path / "run.json"), {"a": 1})
    assert (tmp_path / "other").read_text() == "of somebody"
    assert len(list(tmp_path.iterdir())) == 5


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    write_json(str(tmp_path / "link.json"), {"a": 1})
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text()) == {"a": 1}


def test_json_refuses_what_json_cannot_say(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(str(tmp_path / "run.json"), {"share": float("nan")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("group", [[], ["config"], ["cache"]])
def test_who_names_no_command_is_told_which_there_are(cli: Cli, group: list[str]) -> None:
    assert cli(*group) == cli(*group, "--help")
    assert cli(*group).code == 0
    assert "Commands:" in cli(*group).out


def test_without_standard_output() -> None:
    command = [sys.executable, "-c", "import os, sys; os.close(1); os.execv(sys.executable, sys.argv[1:])"]
    done = subprocess.run(
        [*command, sys.executable, "-m", "npusim", "config", "list"], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b31m\u202eevil\r"


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("options", [[], ["--debug"]])
def test_what_a_model_calls_its_nodes_gives_a_terminal_no_orders(cli: Cli, options: list[str]) -> None:
    fake_runtime.BEHAVIOUR["compile"] = UnsupportedError([(HOSTILE, "Foo", "unknown"), ("n\ud800", "Bar", "unknown")])
    outcome = cli("run", "m.onnx", *options)
    assert "\\x1b[2J\\x1b]0;title\\x07\\x9b31m\\u202eevil\\r (Foo): unknown" in outcome.err
    assert "n\\ud800 (Bar)" in outcome.err
    assert outcome.err.replace("\n", "").isprintable()


@pytest.mark.usefixtures("fake")
def test_reports_and_warnings_give_a_terminal_no_orders(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_runtime.BEHAVIOUR["outputs"] = {HOSTILE: np.ones(1, np.float32)}
    monkeypatch.setattr(fake_runtime.Program, "name", HOSTILE)

    def warn(*_: object, **__: object) -> fake_runtime.Program:
        logging.getLogger("npusim.cache").warning("%s: is left alone", HOSTILE)
        return fake_runtime.Program(inputs=(Binding(f"x{HOSTILE}", 2, (1,), DType.FLOAT32),))

    monkeypatch.setattr(fake_runtime.Session, "compile", warn)
    outcome = cli("run", "m.onnx")
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("\\x1b[2J") == 2
    assert outcome.err.count("\\x1b[2J") == 1
    assert (outcome.out + outcome.err).replace("\n", "").isprintable()
    found = json.loads(cli("run", "m.onnx", "--json", "-").out)
    assert "\x1b" not in json.dumps(found)
