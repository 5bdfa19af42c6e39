"""The commands of the Makefile's targets, and the checks of setup.py before it compiles."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not here")
@pytest.mark.parametrize("target", ["torch", "tflite", "ort", "oldest", "newest"])
def test_another_environment_builds_in_a_copy_of_the_tree(target: str) -> None:
    """Kernels and C libraries are built in place for one environment; those of the tree belong to .venv."""
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
    # Continued lines are one command each.
    commands = done.stdout.replace("\\\n", " ").splitlines()
    building = [number for number, command in enumerate(commands) if "--editable" in command]
    assert building
    copied = [
        number for number, command in enumerate(commands) if f".venv-{target}/tree" in command and "tar " in command
    ]
    assert copied
    assert copied[0] < building[0]
    for number in building:
        folder = commands[number].removeprefix("cd ").split(" && ")[0]
        assert folder.endswith(f".venv-{target}/tree"), commands[number]


@pytest.mark.parametrize("command", ["build_ext", "dist_info", "bdist_wheel"])
def test_a_missing_compiler_is_one_sentence(command: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", command],
        cwd=ROOT, env={**os.environ, "CC": "no-such-cc -pipe"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "no-such-cc is not installed: install gcc" in line
