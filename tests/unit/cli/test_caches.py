"""Files in the program cache: used if written by this user's npusim, never waited for, reported once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.cli import models
from tests.support.planted_files import DAMAGED, REASONS, STRANGE, plant, promptly
from tests.unit.cli.conftest import Cli

KINDS = (*DAMAGED, *STRANGE)
STAYS = dict.fromkeys(STRANGE, True) | dict.fromkeys(DAMAGED, False) | {"empty": True}
"""Whether ``clear`` keeps it: anything that is not the user's own program file, damaged or not."""


@pytest.fixture
def kept(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only file of a cache, with the program of m.onnx."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPUSIM_CACHE_DIR", str(tmp_path / "cache"))
    models.save(models.small(), tmp_path / "m.onnx")
    assert cli("run", "m.onnx", "--config", "tiny").code == 0
    (path,) = (tmp_path / "cache").glob("*.npu")
    return path


def said(err: str, path: Path, kind: str) -> None:
    """Check for one line that names the file and what is wrong with it."""
    lines = [line for line in err.splitlines() if path.name in line]
    assert len(lines) == 1, err
    assert lines[0].startswith(f"npusim: warning: {path}: ")
    assert REASONS.get(kind, "") in lines[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", ["run", "compile", "explain"])
def test_programs_are_compiled_anew(cli: Cli, kept: Path, kind: str, command: str) -> None:
    arguments = {
        "run": ["run", "m.onnx", "--config", "tiny", "--json", "out.json"],
        "compile": ["compile", "m.onnx", "--config", "tiny", "-o", "out.npu"],
        "explain": ["explain", "m.onnx", "--config", "tiny", "--op", "conv1"],
    }[command]
    if command == "explain":  # which needs a program for timing alone
        kept.unlink()
        assert cli(*arguments).code == 0
        (kept,) = kept.parent.glob("*.npu")
    good = kept.read_bytes()
    plant(kind, kept)
    with promptly():
        outcome = cli(*arguments)
    assert outcome.code == 0, outcome.err
    said(outcome.err, kept, kind)
    if command == "run":
        assert json.loads(Path("out.json").read_text())["compile_from_cache"] is False
    if kind != "directory":  # nothing takes its place
        assert kept.read_bytes() == good
        assert not kept.is_symlink()
        assert cli(*arguments).err == ""


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_leaves_it_out(cli: Cli, kept: Path, kind: str) -> None:
    plant(kind, kept)
    with promptly():
        outcome = cli("cache", "list", "--json", "-")
    assert (outcome.code, json.loads(outcome.out)) == (0, [])
    said(outcome.err, kept, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_clearing_removes_what_is_the_users_own(cli: Cli, kept: Path, kind: str) -> None:
    plant(kind, kept)
    with promptly():
        outcome = cli("cache", "clear")
    assert outcome.code == 0
    assert os.path.lexists(kept) == STAYS[kind]
    assert f"removed {'0 programs' if STAYS[kind] else '1 program'}, " in outcome.out
    if kind in STRANGE:
        said(outcome.err, kept, kind)
    else:
        assert outcome.err == ""


@pytest.mark.parametrize("kind", ["pipe", "loop", "link", "device"])
def test_a_cache_that_is_no_directory_holds_nothing(cli: Cli, kept: Path, kind: str) -> None:
    plant(kind, kept.parent)
    for command in (["run", "m.onnx", "--config", "tiny"], ["cache", "list"], ["cache", "clear"]):
        with promptly():
            assert cli(*command).code == 0
