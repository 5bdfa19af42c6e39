"""The location of tests and helpers, as described in CONTRIBUTING.md."""

from __future__ import annotations

import ast
import functools
import tomllib
from pathlib import Path

import pytest

from bench import mutants

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
FILES = sorted(path for top in ("tests", "bench") for path in (ROOT / top).rglob("*.py"))
KINDS = sorted({path.relative_to(TESTS).parts[0] for path in TESTS.glob("*/**/test_*.py")})
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["packages"]
ELSEWHERE = {
    "hal.abi": "abi",
    "npusim.torch": "torch",
    "npusim.validate": "validation",
    "npusim.validation": "validation",
    "npusim.configs": "unit/hw",
}
"""Packages whose tests are a separate kind, or belong to another package's tests."""
MAPPED = {"npusim.configs", "npusim.validation"}
"""Packages without modules, whose folders are at the top of the tree."""
NO_PACKAGE = {"unit/support"}
"""Tests of ``tests/support``."""


@functools.cache
def imported(path: Path) -> list[str]:
    """Return the modules of ``tests`` that a file imports; a name imported from a package counts as a module."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] == "tests"]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tests":
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def place(path: Path) -> str:
    """Return ``unit`` for ``tests/unit/x.py`` and ``bench`` for ``bench/x.py``."""
    return path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else path.relative_to(ROOT).parts[0]


def folder_of(package: str) -> str:
    """Return the test folder of a package below ``tests``: one per package, and one per subpackage of hal.nnapi."""
    rooms = package.split(".")[1:]
    depth = 2 if rooms[0] == "nnapi" else 1
    return ELSEWHERE.get(package) or "/".join(["unit", *rooms[:depth]])


def test_there_are_kinds() -> None:
    assert {"abi", "conformance", "golden", "packaging", "property", "timing", "unit", "validation"} <= set(KINDS)
    assert "support" not in KINDS


@pytest.mark.parametrize("kind", [*KINDS, "bench", "support"])
def test_a_kind_imports_from_support_or_itself(kind: str) -> None:
    allowed = {"support"} if kind in ("bench", "support") else {"support", kind}
    guilty = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in FILES
        if place(path) == kind
        for name in imported(path)
        if name.split(".")[1] not in allowed
    ]
    assert guilty == []


def test_nobody_imports_a_test() -> None:
    guilty = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in FILES
        for name in imported(path)
        if any(part.startswith("test_") for part in name.split("."))
    ]
    assert guilty == []


def test_helpers_lie_in_support() -> None:
    """Files elsewhere are tests, belong to pytest, or are commands."""
    helpers = [
        str(path.relative_to(ROOT))
        for kind in KINDS
        for path in (TESTS / kind).rglob("*.py")
        if not path.name.startswith("test_")
        and path.name not in ("__init__.py", "conftest.py")
        and 'if __name__ == "__main__":' not in path.read_text("utf-8")
    ]
    assert helpers == []


@pytest.mark.parametrize("package", [name for name in PACKAGES if "." in name])
def test_a_package_has_its_folder_of_tests(package: str) -> None:
    assert list((TESTS / folder_of(package)).glob("test_*.py")), f"no tests in tests/{folder_of(package)}"


@pytest.mark.parametrize("package", [name for name in PACKAGES if "." in name and name not in MAPPED])
def test_mutants_are_shown_to_that_folder(package: str) -> None:
    assert mutants.tests_of(package.replace(".", "/") + "/some_file.py") == f"tests/{folder_of(package)}"


@pytest.mark.parametrize("module", sorted(path.stem for path in (ROOT / "npusim").glob("*.py")))
def test_a_module_beside_the_packages_has_its_tests(module: str) -> None:
    if not module.startswith("__"):
        assert list((TESTS / "unit").glob(f"test_{module.lstrip('_')}*.py")), f"no tests/unit/test_{module}.py"


def test_a_folder_of_unit_tests_has_its_package() -> None:
    folders = {str(path.parent.relative_to(TESTS)) for path in TESTS.glob("unit/*/**/test_*.py")}
    assert folders - {folder_of(package) for package in PACKAGES if "." in package} - NO_PACKAGE == set()
