"""If any allocation, write, fsync, rename or mmap fails: an error text, files that are old or new, and a library that
still works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.c_compiler import PROGRAMS, gcc, needs_gcc
from tests.support.failing_calls import OPERATIONS, Walk

pytestmark = needs_gcc

FAILS = {
    "run": {"allocation", "write", "fsync", "rename", "mmap"},
    "time": {"allocation", "mmap"},
    "compile": {"allocation", "write", "fsync", "rename", "mmap"},
    "explore": {"write", "fsync", "rename"},
    "golden": {"allocation", "write", "fsync", "rename", "mmap"},
    "checkpoint": {"write", "fsync", "rename", "mmap"},
    "trace": {"allocation", "write", "mmap"},
    "serve": {"mmap"},
    "onnxifi": {"allocation"},
    "nnapi": {"allocation", "mmap"},
}
"""The injected failures that each operation must report. A walk without any would prove nothing."""


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("failing") / "failing_calls.so"
    gcc(
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O1",
        "-fPIC",
        "-shared",
        PROGRAMS / "failing_calls.c",
        "-o",
        target,
        "-ldl",
    )
    return target


def walks(failing: Path, operation: str, every: int) -> dict[str, Walk]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.failing_calls", operation, str(every)],
        env={**os.environ, "LD_PRELOAD": str(failing)}, capture_output=True, text=True, check=False, timeout=3600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {kind: Walk(**found) for kind, found in json.loads(done.stdout.splitlines()[-1]).items()}


def holds(failing: Path, operation: str, every: int) -> None:
    found = walks(failing, operation, every)
    assert [problem for walk in found.values() for problem in walk.problems] == []
    assert {kind for kind, walk in found.items() if walk.refused} >= FAILS[operation], found


def test_each_operation_has_a_row() -> None:
    assert FAILS.keys() == OPERATIONS.keys()


@pytest.mark.parametrize("operation", ["checkpoint", "onnxifi"])
def test_some_calls_fail(failing: Path, operation: str) -> None:
    holds(failing, operation, 0)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_call_fails(failing: Path, operation: str) -> None:
    holds(failing, operation, 1)
