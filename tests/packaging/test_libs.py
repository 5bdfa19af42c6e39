"""``npusim libs``, pkg-config and CMake work as documented for C programmers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hal import abi
from npusim.cli import libs
from npusim.cli.app import main
from tests.support.own_places import places

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/onnxifi_conv.c"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


def test_every_library_is_listed_and_built() -> None:
    found = {library.name: library for library in libs.find_libraries()}
    assert set(found) == {library.name for library in abi.LIBRARIES}
    for library in abi.LIBRARIES:
        described = found[library.name]
        assert described.path == library.path
        assert library.path.exists()
        assert (described.cflags, described.ldflags) == (library.cflags, library.ldflags)
        assert (abi.INCLUDE / library.header).exists()


def test_the_pkg_config_files_have_the_version_of_the_package() -> None:
    for file in abi.LIB.rglob("*.pc"):
        assert f"Version: {VERSION}\n" in file.read_text("utf-8")


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["libs", "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert all(each["built"] and Path(each["path"]).exists() for each in told["libraries"])
    assert told["environment"]["LD_LIBRARY_PATH"].split(":") == sorted(
        {str(library.folder) for library in abi.LIBRARIES}
    )


def test_a_library_that_is_not_built_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = [libs.Library("gone", "a library", Path("/nowhere/libgone.so"), "", "", Path("/nowhere"))]
    monkeypatch.setattr(libs, "find_libraries", lambda: gone)
    assert main(["libs"]) == 1
    assert "not built: gone" in capsys.readouterr().err


def test_no_library_is_an_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libs.importlib.util, "find_spec", lambda _name: None)
    assert main(["libs"]) == 1
    assert "no shared libraries are installed" in capsys.readouterr().err


def test_the_guide_shows_the_example() -> None:
    guide = (ROOT / "docs/guide/c-libraries.md").read_text("utf-8")
    assert f"```text\n{EXAMPLE.read_text('utf-8')}```\n" in guide


def shell(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script with npusim on the PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env={**places(), "PATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(not (shutil.which("pkg-config") and shutil.which("gcc")), reason="no pkg-config or gcc")
def test_pkg_config(tmp_path: Path) -> None:
    """The example's build command, after the line that `npusim libs` prints; the program prints its usage."""
    done = shell(
        f"""eval "$(npusim libs | grep ^export)"
        cc -Wall -Werror {EXAMPLE} -o conv $(pkg-config --cflags --libs onnxifi-npusim)
        ./conv""",
        tmp_path,
    )
    assert done.returncode == 2
    assert "usage: ./conv MODEL.onnx INPUT.bin" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("make")), reason="no cmake")
def test_cmake(tmp_path: Path) -> None:
    """The snippet of the guide."""
    guide = (ROOT / "docs/guide/c-libraries.md").read_text("utf-8")
    snippet = guide.split("```text\n# CMakeLists.txt\n")[1].split("```")[0]
    (tmp_path / "CMakeLists.txt").write_text(snippet)
    shutil.copy(EXAMPLE, tmp_path / "client.c")
    done = shell(
        'eval "$(npusim libs | grep ^export)"\ncmake -S . -B build\ncmake --build build\nbuild/client', tmp_path
    )
    assert done.returncode == 2, done.stderr
    assert "usage: build/client" in done.stderr
