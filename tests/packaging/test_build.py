"""Wheel and sdist, built and tried in a bare environment: slow, and run by .ci/run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def call(*command: object, cwd: Path) -> str:
    """Standard output of a command in a clean environment; fails with all its output."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "NPUSIM_CACHE_DIR")}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("sdist")
    call(sys.executable, "-m", "build", "--sdist", "--outdir", target, ROOT, cwd=target)
    return next(target.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, sdist: Path) -> Path:
    """Built from the sdist, as somebody without our repository would."""
    target = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", target, sdist, cwd=target)
    return next(target.glob("*.whl"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The scripts of an environment that holds the wheel and its required dependencies, nothing else."""
    target = tmp_path_factory.mktemp("bare")
    call(sys.executable, "-m", "venv", target / "venv", cwd=target)
    call(target / "venv/bin/python", "-m", "pip", "install", "--quiet", wheel, cwd=target)
    return target / "venv/bin"


def test_the_sdist_holds_what_a_build_and_a_test_run_need(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for name in (
        "pyproject.toml",
        "setup.py",
        "npusim/_core.pyx",
        "npusim/_core.pyi",
        "configs/edge.toml",
        "Makefile",
        "LICENSE",
    ):
        assert name in names
    assert any(re.fullmatch(r"npusim/kernels/.*\.h", name) for name in names)
    assert any(name.startswith("tests/unit/") for name in names)
    assert not [name for name in names if name.endswith((".so", ".pyc", ".c")) or name.startswith((".venv", "build/"))]


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/", 1)[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"npusim", "hal"}
    expected = {str(path.relative_to(ROOT)) for top in ("npusim", "hal") for path in (ROOT / top).rglob("*.py")}
    expected |= {f"npusim/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.toml")}
    expected |= {"npusim/py.typed", "npusim/_core.pyi", "npusim/report/run.schema.json"}
    assert expected - set(names) == set()
    assert any(re.fullmatch(r"npusim/_core\..*\.so", name) for name in names)
    assert not [name for name in names if name.endswith((".pyx", ".pxd", ".h", ".c"))]


def test_the_installed_command_works(bare: Path, tmp_path: Path) -> None:
    assert call(bare / "npusim", "--version", cwd=tmp_path).startswith("npusim")
    assert "edge" in call(bare / "npusim", "config", "list", cwd=tmp_path)
    doctor = call(bare / "npusim", "doctor", cwd=tmp_path)
    assert "FAILED" not in doctor
    assert "pip install 'npusim[onnx]'" in doctor
    assert "agree with the reference" in call(bare / "npusim", "demo", "--config", "tiny", cwd=tmp_path)


def test_a_model_without_onnx_installed_says_what_to_install(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08")
    command = [str(bare / "npusim"), "run", "m.onnx"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)
    assert "npusim[onnx]" in done.stderr
    assert "Traceback" not in done.stderr
