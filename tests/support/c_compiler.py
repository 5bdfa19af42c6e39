"""Compile C for the tests: clients of the libraries, and the C core with a stub engine that needs no Python."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import pytest

from hal import abi
from tests.support.own_places import places

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "c_programs"
SOURCES = ROOT / "hal/abi"
CORE = [
    *(SOURCES / f"{part}.c" for part in ("embed", "embed_stack", "handles")),
    *(
        SOURCES / f"onnxifi_{part}.c"
        for part in ("core", "calls", "faults", "events", "runs", "backends", "graphs", "abi")
    ),
    PROGRAMS / "stub_engine.c",
]
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Werror", "-g"]

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")


def gcc(*arguments: str | Path) -> None:
    """Run gcc. Fails with its messages."""
    done = subprocess.run(["gcc", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def compile_client(source: Path, target: Path, library: abi.Library, *flags: str) -> Path:
    """Compile a program and link it with a library. Returns the target."""
    gcc("-std=gnu11", *WARNINGS, source, "-o", target, *library.cflags.split(), *library.ldflags.split(), *flags)
    return target


def compile_core(source: Path, target: Path, *flags: str) -> Path:
    """Compile a program with the C core and the stub engine. Returns the target."""
    core = Path(_core_objects(flags).name)
    gcc(*_core_flags(flags), source, *sorted(core.glob("*.o")), "-o", target, "-lm", "-lpthread")
    return target


@functools.cache
def _core_objects(flags: tuple[str, ...]) -> tempfile.TemporaryDirectory[str]:
    """Compile the core and the stub engine to a folder, once per set of flags, because every sanitizer program needs
    them."""
    folder: tempfile.TemporaryDirectory[str] = tempfile.TemporaryDirectory(prefix="npusim-core-")
    for part in CORE:
        gcc(*_core_flags(flags), "-c", part, "-o", Path(folder.name) / f"{part.stem}.o")
    return folder


def _core_flags(flags: tuple[str, ...]) -> list[str]:
    includes = [f"-I{SOURCES}", f"-I{abi.INCLUDE}", f"-I{PROGRAMS}", f"-I{sysconfig.get_path('include')}"]
    return ["-std=gnu11", *WARNINGS, "-O1", "-DNPU_HANDLE_TAG=0x1A5", *flags, *includes]


def run(*command: str | Path, timeout: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program with only the given environment and the locations where a test run keeps its files."""
    return subprocess.run(
        [str(word) for word in command],
        env={**places(), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        cwd=os.sep,
    )
