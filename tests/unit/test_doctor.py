"""Findings for working and broken installations."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from npusim import doctor
from npusim.doctor import Diagnosis, Severity, examine


def finding(subject: str, directory: Path) -> Diagnosis:
    (found,) = [line for line in examine(directory) if line.subject == subject]
    return found


def test_this_installation_is_sound(tmp_path: Path) -> None:
    found = examine(tmp_path)
    subjects = [line.subject for line in found]
    assert subjects[:5] == ["python", "npusim", "numpy", "simpy", "click"]
    assert subjects[-4:] == ["kernels", "configs", "cache", "hal"]
    extras = subjects[5:-4]
    assert {line.verdict for line in found if line.subject not in extras} == {Severity.OK}, found
    assert finding("onnx", tmp_path).verdict is Severity.OK
    assert "tiny" in finding("configs", tmp_path).detail
    assert ", SIMD " in finding("kernels", tmp_path).detail
    assert finding("cache", tmp_path).detail == f"{tmp_path} can be written"


def test_packages_that_are_missing_are_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = importlib.metadata.version

    def version(name: str) -> str:
        if name == "onnx":
            raise importlib.metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = finding("onnx", tmp_path)
    assert found.verdict is Severity.NOTE
    assert found.detail == "not installed: onnx; pip install 'npusim[onnx]'"
    assert finding("pytest", tmp_path).verdict is Severity.OK


def test_a_folder_that_is_not_there_yet_is_looked_for_above(tmp_path: Path) -> None:
    assert finding("cache", tmp_path / "a" / "b").verdict is Severity.OK
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").write_text("")
    found = finding("cache", tmp_path / "file")
    assert found.verdict is Severity.NOTE
    assert "cannot be written" in found.detail
    assert "NPUSIM_CACHE_DIR" in found.detail


def test_configs_that_do_not_load_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from npusim.hw import config

    def load(name: str) -> Any:
        raise config.ConfigError(f"{name}.toml: clock: must be given")

    monkeypatch.setattr(config, "list_configs", lambda: ("one", "two"))
    monkeypatch.setattr(config, "load_config", load)
    found = [line for line in examine(tmp_path) if line.subject == "configs"]
    assert [line.verdict for line in found] == [Severity.FAILED, Severity.FAILED, Severity.OK]
    assert found[1].detail == "two: two.toml: clock: must be given"
    monkeypatch.setattr(config, "list_configs", lambda: ())
    found = [line for line in examine(tmp_path) if line.subject == "configs"]
    assert [line.verdict for line in found] == [Severity.FAILED]
    assert found[0].detail.startswith("none in ")


def test_a_check_that_breaks_down_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken() -> Any:
        raise RuntimeError("no idea")

    monkeypatch.setattr(doctor, "_kernels", broken)
    assert finding("kernels", tmp_path) == Diagnosis("kernels", Severity.FAILED, "RuntimeError: no idea")
    assert finding("hal", tmp_path).verdict is Severity.OK


def test_whose_hal_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ours = str(Path(doctor.__file__).resolve().parents[1] / "hal")
    assert finding("hal", tmp_path) == Diagnosis("hal", Severity.OK, ours)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None, origin="/x/hal/__init__.py"))
    assert finding("hal", tmp_path) == Diagnosis("hal", Severity.NOTE, "import hal gives /x/hal, which is not npusim's")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert finding("hal", tmp_path).detail.startswith("not installed")
    owners = {"hal": ["npusim", "robots", "arms"], "other": ["more"]}
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: owners)
    found = finding("hal", tmp_path)
    assert (found.verdict, found.detail) == (
        Severity.NOTE, "arms, robots also installs a package hal; import hal gives ",
    )  # fmt: skip
