"""Compiling C for the tests: clients of the libraries, and the C core with an engine that needs no Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from hal import abi

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "c_programs"
SOURCES = ROOT / "hal/abi"
CORE = [
    SOURCES / f"onnxifi_{part}.c" for part in ("core", "calls", "faults", "events", "runs", "backends", "graphs", "abi")
]
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Werror", "-g"]

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")


def gcc(*arguments: str | Path) -> None:
    """Run gcc; fails with its messages."""
    done = subprocess.run(["gcc", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def compile_client(source: Path, target: Path, library: abi.Library, *flags: str) -> Path:
    """A program that is linked with a library."""
    gcc("-std=gnu11", *WARNINGS, source, "-o", target, *library.cflags.split(), *library.ldflags.split(), *flags)
    return target


def compile_core(source: Path, target: Path, *flags: str) -> Path:
    """A program of the C core and the stub engine."""
    parts = [
        SOURCES / "embed.c",
        SOURCES / "embed_stack.c",
        SOURCES / "handles.c",
        *CORE,
        PROGRAMS / "stub_engine.c",
        source,
    ]
    includes = [f"-I{SOURCES}", f"-I{abi.INCLUDE}", f"-I{PROGRAMS}", f"-I{sysconfig.get_path('include')}"]
    gcc("-std=gnu11", *WARNINGS, "-O1", "-DNPU_HANDLE_TAG=0x1A5", *flags, *includes, *parts, "-o", target, "-lpthread")
    return target


def run(*command: str | Path, timeout: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in an environment that holds nothing but what is given."""
    return subprocess.run(
        [str(word) for word in command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        cwd=os.sep,
    )
