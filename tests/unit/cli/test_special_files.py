"""Pipes, devices, directories and endless files in place of any file that a command reads are refused at once."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest

from tests.support.cli import models
from tests.unit.cli.conftest import Cli

COMMANDS = {
    "replay": ("replay", "FILE"),
    "rerun": ("rerun", "FILE"),
    "compare": ("compare", "FILE", "FILE"),
    "config": ("run", "m.onnx", "--config", "FILE"),
    "resolved": ("run", "m.onnx", "--config", "FILE.json"),
    "model": ("run", "FILE.onnx"),
    "program": ("run", "FILE.npu"),
    "input": ("run", "m.onnx", "--config", "tiny", "--input", "FILE.npy"),
    "faults": ("run", "m.onnx", "--config", "tiny", "--faults", "FILE"),
    "script": ("debug", "m.onnx", "--config", "tiny", "--script", "FILE"),
    "scenario": ("load-test", "FILE"),
    "initrd": ("uml", "tiny", "--kernel", "/bin/true", "--initrd", "FILE"),
    "busybox": ("uml", "tiny", "--kernel", "/bin/true", "--busybox", "FILE"),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPUSIM_CACHE_DIR", str(tmp_path / "cache"))
    models.save(models.small(), tmp_path / "m.onnx")
    return tmp_path


def special(kind: str, suffix: str, folder: Path) -> Path:
    path = folder / f"special{suffix}"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "sparse":  # more than any file may have, and no bytes on the disk
            with path.open("wb") as file:
                file.truncate(1 << 41)
        case _:
            path.symlink_to(kind)
    return path


@pytest.mark.parametrize("kind", ["pipe", "directory", "sparse", "/dev/zero", "/dev/tty", "/proc/self/mem"])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_small_regular_file_is_refused_at_once(cli: Cli, here: Path, command: str, kind: str) -> None:
    if (command, kind) == ("model", "sparse"):
        pytest.skip("a model may be as large as its weights are")
    words = COMMANDS[command]
    suffix = next(word.removeprefix("FILE") for word in words if word.startswith("FILE"))
    path = special(kind, suffix, here)
    words = tuple(str(path) if word.startswith("FILE") else word for word in words)
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = cli(*words)
    assert done.code in (1, 2)
    assert "error: " in done.err
    assert "a defect of npusim" not in done.err
    assert path.name in done.err or "special" in done.err
    assert time.process_time() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10
