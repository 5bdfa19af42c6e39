"""Compiled modules follow the layers of ``pyproject.toml``, which import-linter only checks for Python files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
LINES = next(contract["layers"] for contract in CONTRACTS if contract["name"] == "Layers")
LEVELS = {name.strip(): level for level, line in enumerate(LINES) for name in re.split(r"[|:]", line)}
SOURCES = sorted(path.relative_to(ROOT) for path in (ROOT / "npusim").rglob("*.py[xd]"))
IMPORT = re.compile(r"^(?:from|c?import) +npusim\.(\w+)", re.MULTILINE)
DOORS = {"npusim/_core.pyx"}
"""Modules that re-export others."""


def room(path: Path) -> str:
    """Return the package of ``npusim`` that a file belongs to, or its own name."""
    return path.parts[1] if len(path.parts) > 2 else path.stem


def test_there_are_compiled_modules() -> None:
    assert len(SOURCES) > 20
    assert "timing" in LEVELS


@pytest.mark.parametrize("path", [path for path in SOURCES if path.as_posix() not in DOORS], ids=str)
def test_imports_go_down(path: Path) -> None:
    own = room(path)
    for name in IMPORT.findall((ROOT / path).read_text("utf-8")):
        if name == own:
            continue
        assert name in LEVELS, f"{path} imports npusim.{name}, which has no layer"
        # A module of the root has no layer: it is below everything that imports it.
        if own in LEVELS:
            assert LEVELS[name] > LEVELS[own], f"{path} imports npusim.{name}, which is not below {own}"


def test_a_module_that_imports_upwards_is_found() -> None:
    assert IMPORT.findall("from npusim.compiler.schedule.build import x\ncimport npusim.isa._stream") == [
        "compiler",
        "isa",
    ]
    assert LEVELS["compiler"] < LEVELS["timing"] < LEVELS["isa"] < LEVELS["errors"]


def test_kernels_are_reached_through_the_core() -> None:
    sources = (ROOT / "npusim").rglob("*.py")
    assert [str(path) for path in sources if re.search(r"^from npusim\.kernels", path.read_text("utf-8"), re.M)] == []
