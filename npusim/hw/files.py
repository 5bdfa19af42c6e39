"""Where device descriptions are, and what one says after inheritance; knows TOML, not the keys."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from npusim.errors import ConfigError

INHERIT = "inherit"


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


def read_description(
    source: str, beside: Path | None = None, chain: tuple[str, ...] = ()
) -> tuple[str, dict[str, Any], dict[str, str]]:
    """(label, merged table, {dotted key: label of the file that says it}) of a shipped name or a path.

    ``beside``, ``chain``: for a description that others inherit, the folder of the last of these and all their labels.
    """
    label, file = _find(source, beside)
    if label in chain:
        raise ConfigError(f"{label}: {INHERIT}: must not lead back to itself, got {' -> '.join((*chain, label))}")
    own = _parse(label, file)
    base = own.pop(INHERIT, None)
    if base is None:
        return label, own, _origins(own, label)
    if not isinstance(base, str):
        raise ConfigError(f"{label}: {INHERIT}: must be a config's name or a path, got {base!r}")
    try:
        _, inherited, origins = read_description(base, file.parent, (*chain, label))
    except FileNotFoundError:
        raise ConfigError(f"{label}: {INHERIT}: no such config {base!r}; {_known()}") from None
    return label, _merge(inherited, own), {**origins, **_origins(own, label)}


def _find(source: str, beside: Path | None) -> tuple[str, Path]:
    """The file of a shipped name, else of a path; the path of ``inherit`` is relative to the file that says it."""
    shipped = config_folder() / f"{source}.toml"
    if not _is_path(source) and shipped.is_file():
        return f"configs/{source}.toml", shipped
    path = Path(source) if beside is None else beside / source
    if not path.exists():
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


def _parse(label: str, file: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(file.read_bytes().decode("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{label}: not valid TOML: {error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{label}: not valid TOML: must be UTF-8 text, got byte {error.object[error.start]:#04x} "
            f"at offset {error.start}"
        ) from None
    except RecursionError:
        raise ConfigError(f"{label}: not valid TOML: nested too deeply") from None
    except OSError as error:
        raise ConfigError(f"{label}: cannot be read: {error.strerror}") from None


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
