"""Where device descriptions are, and what one says after inheritance; knows TOML, not the keys."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from npusim.errors import ConfigError, shown
from npusim.own import open_regular

INHERIT = "inherit"
MOST_INHERITED = 32
LARGEST = 1 << 14
"""Bytes of a description: one with every key has some 3 000. The parser needs the square of the parts of a key."""
DEEPEST = 16


def config_folder() -> Path:
    """``npusim/configs`` of an installed package, or the ``configs`` beside the package in a source tree.

    A path, not importlib.resources: the compiled kernels need real files anyway, and this is quicker to import.
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


def read_description(source: str) -> tuple[str, dict[str, Any], dict[str, str]]:
    """(label, merged table, {dotted key: label of the file that says it}) of a shipped name or a path."""
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
            raise ConfigError(f"{label}: {INHERIT}: must not lead back to itself, got {way}")
        if len(found) > MOST_INHERITED:
            raise ConfigError(f"{heir}: {INHERIT}: must lead to the end within {MOST_INHERITED} files")
        found[label] = read_toml(label, file)
        base, beside = found[label].pop(INHERIT, None), file.parent
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for label, own in reversed(found.items()):
        merged = _merge(merged, own)
        origins.update(_origins(own, label))
    return next(iter(found)), merged, origins


def _find(source: str, beside: Path | None) -> tuple[str, Path]:
    """The file of a shipped name, else of a path; the path of ``inherit`` is relative to the file that says it."""
    shipped = config_folder() / f"{source}.toml"
    # os.path, for which a name that no file can have is one of no file.
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


def _is_path(source: str) -> bool:
    return source.endswith(".toml") or os.sep in source or "/" in source


def _known() -> str:
    return f"known names: {', '.join(config_names())}; anything else is a path to a TOML file"


def read_toml(label: str, file: Path) -> dict[str, Any]:
    """The tables of a small file of TOML. Raises ConfigError, which calls it ``label``."""
    import tomllib

    try:
        with open_regular(file) as stream:
            data = stream.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise ConfigError(f"{label}: must have at most {LARGEST} bytes, got more")
        plain = tomllib.loads(data.decode("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{label}: not valid TOML: {error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{label}: not valid TOML: must be UTF-8 text, got byte {error.object[error.start]:#04x} "
            f"at offset {error.start}"
        ) from None
    except ValueError:  # after its two kinds: what Python says of integers that it does not read
        raise ConfigError(f"{label}: not valid TOML: an integer has too many digits") from None
    except RecursionError:
        plain = {}
    except OSError as error:
        raise ConfigError(f"{label}: cannot be read: {error.strerror}") from None
    else:
        if not _is_deep(plain):
            return plain
    raise ConfigError(f"{label}: not valid TOML: nested too deeply; must be at most {DEEPEST} tables deep")


def read_resolved(label: str) -> dict[str, Any]:
    """The table of a device in a JSON file: the report of a run, or what ``npusim config show --json`` writes.

    Raises ConfigError.
    """
    import json

    try:
        with open_regular(Path(label)) as stream:
            found = json.loads(stream.read())
    except OSError as error:
        raise ConfigError(f"{label}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{label}: not valid JSON: {error}") from None
    for place in (("provenance", "config"), ("values",)):
        table: Any = found
        for name in place:
            table = table.get(name) if isinstance(table, dict) else None
        if isinstance(table, dict):
            return table
    raise ConfigError(
        f"{label}: holds no device; must be the JSON of a run (provenance.config) or of npusim config show (values)"
    )


def _is_deep(plain: dict[str, Any]) -> bool:
    """Whether tables lie deeper in each other than any key can; with dots, that takes no recursion of the parser."""
    tables = [plain]
    for _ in range(DEEPEST):
        tables = [value for each in tables for value in each.values() if isinstance(value, dict)]
    return bool(tables)


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
