"""The contents of the package, and the cost of importing it. Nothing is built here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def modules_after(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after a statement."""
    script = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_every_package_is_named_in_pyproject() -> None:
    found = {
        str(init.parent.relative_to(ROOT)).replace("/", ".")
        for top in ("npusim", "hal")
        for init in (ROOT / top).rglob("__init__.py")
    }
    named = set(PROJECT["tool"]["setuptools"]["packages"])
    mapped = {"npusim.configs", "npusim.validation"}
    assert named == found | mapped, "pyproject.toml: tool.setuptools.packages must name every package"


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for top in ("npusim", "hal") for path in (ROOT / top).rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize(
    ("contract", "section"),
    [
        ("Layers", "## Import layers"),
        ("Packages of the compiler", "## Inside the compiler"),
        ("Packages of the NNAPI driver", "## Inside the NNAPI driver"),
    ],
)
def test_the_import_order_in_the_documentation_is_the_one_that_is_checked(contract: str, section: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    drawn = page.partition(section)[2].split("```")[1].splitlines()[1:]
    (layers,) = (c["layers"] for c in PROJECT["tool"]["importlinter"]["contracts"] if c["name"] == contract)
    assert drawn == layers


def test_the_documentation_names_every_module_of_the_compiler() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    section = page.partition("## Inside the compiler")[2].partition("## Where to change what")[0]
    modules = {path.stem for path in (ROOT / "npusim" / "compiler").rglob("*.py")} - {"__init__"}
    assert sorted(module for module in modules if not re.search(rf"\b{module}\b", section)) == []


def test_the_places_to_change_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    section = page.partition("## Where to change what")[2].partition("\n## ")[0]
    paths = re.findall(r"`((?:npusim|hal)/[\w/.]+)`", section)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_extras_hold_what_they_promise() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert all(extras.values())
    assert any(requirement.startswith("onnx>") for requirement in extras["onnx"])
    assert set(extras["onnx"]) <= set(extras["test"])


@pytest.mark.parametrize("heavy", ["onnx", "onnxruntime", "simpy", "google.protobuf"])
def test_importing_npusim_is_light(heavy: str) -> None:
    assert heavy not in modules_after("import npusim")


@pytest.mark.parametrize("heavy", ["numpy", "simpy", "onnx", "npusim._core", "npusim.runtime", "npusim.compiler"])
def test_help_loads_nothing_heavy(heavy: str) -> None:
    script = (
        "import contextlib, io\nfrom npusim.cli.app import main\nwith contextlib.redirect_stdout(io.StringIO()) as out:"
    )
    assert heavy not in modules_after(
        f"{script}\n    assert main(['--help']) == 0\nassert 'Commands' in out.getvalue()"
    )


def test_npusim_does_not_import_its_facades() -> None:
    sources = [path for path in (ROOT / "npusim").rglob("*.py*") if path.suffix in (".py", ".pyx", ".pyi")]
    assert len(sources) > 20
    guilty = [
        p
        for p in sources
        for line in p.read_text("utf-8").splitlines()
        if line.split()[:2] in (["import", "hal"], ["from", "hal"])
    ]
    assert guilty == []
