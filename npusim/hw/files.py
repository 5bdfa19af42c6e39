"""Files of device descriptions and inheritance between them; independent of the keys."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from npusim.errors import ConfigError, shown
from npusim.untrusted import TOML_BYTES, FileKind

INHERIT = "inherit"
MOST_INHERITED = 32
DESCRIPTION = FileKind("device description", TOML_BYTES, ConfigError, ConfigError)
REPORT = FileKind("JSON of a run or of a device", 1 << 26, ConfigError, ConfigError)


def config_folder() -> Path:
    """``npusim/configs`` of an installed package, or ``configs`` beside the package in a source tree.

    A path, not importlib.resources: the compiled kernels need real files anyway, and this imports faster.
    """
    package = Path(__file__).resolve().parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def config_names() -> tuple[str, ...]:
    """The names of the shipped descriptions, sorted."""
    folder = config_folder()
    if not folder.is_dir():
        return ()
    return tuple(sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml")))


def read_description(source: str) -> tuple[tuple[str, ...], dict[str, Any], dict[str, str]]:
    """(labels of the file and of those that it inherits, in this order, merged table, {dotted key: label of the file
    that sets it}) of a shipped name or a path."""
    found: dict[str, dict[str, Any]] = {}
    base: object = source
    beside = None
    while base is not None:
        heir = next(reversed(found), None)
        if not isinstance(base, str):
            raise ConfigError(f"{heir}: {INHERIT}: must be a config's name or a path, got {shown(base)}")
        try:
            label, file = _find(base, beside)
        except FileNotFoundError:
            raise ConfigError(f"{heir}: {INHERIT}: no such config {shown(base)}; {_known()}") from None
        if label in found:
            way = " -> ".join((*found, label))
            raise ConfigError(f"{label}: {INHERIT}: must not form a cycle, got {way}")
        if len(found) > MOST_INHERITED:
            raise ConfigError(f"{heir}: {INHERIT}: must end within {MOST_INHERITED} files")
        found[label] = DESCRIPTION.toml(file, label)
        base, beside = found[label].pop(INHERIT, None), file.parent
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for label, own in reversed(found.items()):
        merged = _merge(merged, own)
        origins.update(_origins(own, label))
    return tuple(found), merged, origins


def _find(source: str, beside: Path | None) -> tuple[str, Path]:
    """The file of a shipped name, otherwise of a path. A path in ``inherit`` is relative to the file that contains
    it."""
    shipped = config_folder() / f"{source}.toml"
    # os.path instead of pathlib, because it accepts names that no file can have.
    if not _is_path(source) and os.path.isfile(shipped):
        return f"configs/{source}.toml", shipped
    path = Path(source) if beside is None else beside / source
    if not os.path.exists(path):
        if beside is not None:
            raise FileNotFoundError(source)
        if _is_path(source):
            raise ConfigError(f"{source}: no such file; {_known()}")
        from difflib import get_close_matches

        close = get_close_matches(source, config_names(), 1)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        raise ConfigError(f"{source}: no such config{hint}; {_known()}")
    return str(path), path


def description_file(label: str) -> Path:
    """The file that a label of :func:`read_description` names."""
    path = Path(label)
    shipped = config_folder() / path.name
    return shipped if label == f"configs/{path.name}" and shipped.is_file() else path


def _is_path(source: str) -> bool:
    return source.endswith(".toml") or os.sep in source or "/" in source


def _known() -> str:
    return f"known names: {', '.join(config_names())}; anything else is a path to a TOML file"


def read_resolved(label: str) -> dict[str, Any]:
    """The table of a device in a JSON file: the report of a run, or the output of ``npusim config show --json``.

    Raises ConfigError.
    """
    found = REPORT.json(label)
    for place in (("provenance", "config"), ("values",)):
        table: Any = found
        for name in place:
            table = table.get(name) if isinstance(table, dict) else None
        if isinstance(table, dict):
            return table
    raise ConfigError(
        f"{label}: holds no device; must be the JSON of a run (provenance.config) or of npusim config show (values)"
    )


def _merge(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """``own`` over ``base``, table by table."""
    merged = dict(base)
    for name, value in own.items():
        below = merged.get(name)
        merged[name] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _origins(plain: dict[str, Any], label: str, path: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in plain.items():
        found[path + name] = label
        if isinstance(value, dict):
            found.update(_origins(value, label, f"{path}{name}."))
    return found
