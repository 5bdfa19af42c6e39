"""``make uml`` without its packages or tools: it prints one line, leaves no files, and does not fail."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "drivers" / "uml" / "build.sh"
NEEDED = ("bash", "dirname", "pwd", "cat", "sha256sum", "cut", "uname", "mkdir", "mktemp", "rm", "id", "grep", "head")
TOOLS = ("apt-get", "dpkg-deb", "gcc", "make", "bc", "xz", "perl", "flock")


FAILS = '#!/bin/sh\necho "E: Unable to locate package" >&2\nexit 100\n'


def build(
    folder: Path, *arguments: str, without: str = "", flock: str = "#!/bin/sh\n"
) -> subprocess.CompletedProcess[str]:
    """Run it with replaced tools: downloads fail, as without a network, and no other build is running."""
    tools = folder / "bin"
    tools.mkdir()
    for name in NEEDED:
        if (found := shutil.which(name)) is not None:
            (tools / name).symlink_to(found)
    for name in TOOLS:
        if name != without:
            (tools / name).write_text(flock if name == "flock" else FAILS)
            (tools / name).chmod(0o755)
    environment = {"PATH": str(tools), "HOME": str(folder), "NPUSIM_UML_CACHE": str(folder / "cache")}
    return subprocess.run(
        [tools / "bash", BUILD, *arguments], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_is_not_here(tmp_path: Path, tool: str) -> None:
    done = build(tmp_path, without=tool)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"make uml: skipped, {tool} is not here\n", "")
    assert not (tmp_path / "cache").exists()


def test_packages_that_cannot_be_fetched(tmp_path: Path) -> None:
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == (
        "make uml: skipped, apt-get cannot fetch linux-source-6.1 and what builds it: E: Unable to locate package"
    )
    assert os.listdir(tmp_path / "cache") == []


def recipe() -> str:
    sources = [BUILD.parent / name for name in ("config", "config-kasan", "fixed_random.c", "whole_xstate.c")]
    return hashlib.sha256(b"".join(each.read_bytes() for each in sources) + b"1 linux-source-6.1\n").hexdigest()[:16]


def test_a_kernel_that_is_there_is_left_alone(tmp_path: Path) -> None:
    kernel = tmp_path / "cache" / "kasan" / "linux"
    kernel.parent.mkdir(parents=True)
    kernel.touch(0o755)
    (kernel.parent / "recipe").write_text(recipe() + "\n")
    assert build(tmp_path, "kasan").stdout == f"{kernel} is there\n"
    (kernel.parent / "recipe").write_text("of another\n")
    shutil.rmtree(tmp_path / "bin")
    assert "fetching" in build(tmp_path, "kasan").stdout


def test_who_has_waited_for_another_takes_his_kernel(tmp_path: Path) -> None:
    kernel = tmp_path / "cache" / "kasan" / "linux"
    made = f"mkdir {kernel.parent}; echo {recipe()} > {kernel.parent}/recipe; cp {tmp_path}/bin/gcc {kernel}"
    done = build(tmp_path, "kasan", flock=f"#!/bin/sh\nPATH=/usr/bin:/bin\n{made}\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{kernel} is there\n", "")


def test_it_says_where_a_kernel_would_be(tmp_path: Path) -> None:
    assert build(tmp_path, "where", "kasan").stdout == f"{tmp_path}/cache/kasan/linux\n"
    shutil.rmtree(tmp_path / "bin")
    done = build(tmp_path, "other")
    assert done.returncode == 2
    assert "[plain|kasan], got other" in done.stderr
