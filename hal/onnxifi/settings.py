"""User settings: the devices of the backends, and the strictness of model checks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npusim.errors import ConfigError, shown
from npusim.hw.config import Config, load_config
from npusim.untrusted import TOML_BYTES, FileKind

BACKENDS_VARIABLE = "NPUSIM_ONNXIFI_BACKENDS"
LENIENT_VARIABLE = "NPUSIM_ONNXIFI_LENIENT"
FILE_VARIABLE = "NPUSIM_ONNXIFI_CONFIG"
SETTINGS = FileKind("settings of ONNXIFI", TOML_BYTES, ConfigError, ConfigError)
DEFAULT_BACKENDS = ("edge", "server")
_KEYS = {"backends": list, "lenient": bool}


@dataclass(frozen=True, slots=True)
class Settings:
    """``backends``: one device each, in the order of their ids. ``lenient``: see the guide, "Strict and lenient"."""

    backends: tuple[Config, ...]
    lenient: bool


def settings_file() -> Path:
    """``$NPUSIM_ONNXIFI_CONFIG``, else ``npusim/onnxifi.toml`` in the user's configuration directory."""
    chosen = os.environ.get(FILE_VARIABLE)
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path(os.path.expanduser("~")) / ".config") / "npusim" / "onnxifi.toml"


def read_settings() -> Settings:
    """Read the environment, else the file, else the defaults. Raises ConfigError that names the wrong key."""
    table = _read_file(settings_file())
    names = _from_environment()
    if names is None:
        names = table.get("backends", list(DEFAULT_BACKENDS))
    return Settings(tuple(load_config(name) for name in names), is_lenient(table))


def is_lenient(table: dict[str, Any] | None = None) -> bool:
    """Return whether models are checked leniently: ``$NPUSIM_ONNXIFI_LENIENT`` (1 or 0), else the file."""
    chosen = os.environ.get(LENIENT_VARIABLE, "")
    if chosen not in ("", "0", "1"):
        raise ConfigError(f"{LENIENT_VARIABLE}: must be 0 or 1, got {chosen!r}")
    return chosen == "1" if chosen else bool((table or {}).get("lenient", False))


def _from_environment() -> list[str] | None:
    chosen = os.environ.get(BACKENDS_VARIABLE)
    if chosen is None or not chosen.strip():
        return None
    names = [name.strip() for name in chosen.split(",")]
    if not all(names):
        raise ConfigError(f"{BACKENDS_VARIABLE}: must be names or paths between commas, got {chosen!r}")
    return names


def _read_file(path: Path) -> dict[str, Any]:
    if not os.path.lexists(path):
        if os.environ.get(FILE_VARIABLE):
            raise ConfigError(f"{FILE_VARIABLE}: no such file: {path}")
        return {}
    table = SETTINGS.toml(path)
    for key, value in table.items():
        if key not in _KEYS:
            raise ConfigError(f"{path}: {key}: unknown key; known are {', '.join(_KEYS)}")
        if not isinstance(value, _KEYS[key]):
            raise ConfigError(f"{path}: {key}: must be a {_KEYS[key].__name__}, got {shown(value)}")
    names = table.get("backends", [])
    if not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{path}: backends: must be names or paths of device descriptions, got {shown(names)}")
    if "backends" in table:
        table["backends"] = [_beside(path, name) for name in names]
    return table


def _beside(path: Path, name: str) -> str:
    """Return a path of the settings file, which is relative to that file."""
    return str(path.parent / name) if "/" in name or name.endswith(".toml") else name
