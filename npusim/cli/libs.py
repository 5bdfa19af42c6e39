"""``npusim libs``: the shared libraries for C programs, and how to compile, link and run with them.

The libraries belong to the facades, which npusim does not import. Their pkg-config files contain all that is needed.
"""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

import click

from npusim.cli.base import Command, json_option
from npusim.cli.output import answer
from npusim.errors import NpusimError


@dataclass(frozen=True, slots=True)
class Library:
    """One library, as its pkg-config file describes it."""

    name: str
    what: str
    path: Path
    cflags: str
    ldflags: str
    pkg_config: Path

    def to_json_dict(self) -> dict[str, str | bool]:
        """As JSON values."""
        return {
            "name": self.name,
            "what": self.what,
            "path": str(self.path),
            "built": self.path.exists(),
            "cflags": self.cflags,
            "ldflags": self.ldflags,
            "pkg_config": str(self.pkg_config),
        }


def find_libraries() -> list[Library]:
    """All libraries installed next to this package. Raises NpusimError if there is none."""
    spec = importlib.util.find_spec("hal")
    places = spec.submodule_search_locations if spec is not None else None
    files = sorted(file for place in places or () for file in Path(place).glob("abi/lib/**/*.pc"))
    if not files:
        raise NpusimError("no shared libraries are installed: they are built with the package, on Linux")
    return [read(file) for file in files]


def read(file: Path) -> Library:
    """Read a library from its pkg-config file, with all variables substituted."""
    values: dict[str, str] = {"pcfiledir": str(file.parent.resolve())}
    for line in file.read_text("utf-8").splitlines():
        if match := re.fullmatch(r"(\w+)(=|: ?)(.*)", line):
            value = re.sub(r"\$\{(\w+)\}", lambda name: values[name[1]], match[3]).strip()
            values[match[1]] = os.path.normpath(value) if match[2] == "=" else value
    path = Path(values["libdir"]) / f"lib{values['Name']}.so"
    return Library(values["Name"], values["Description"], path, values["Cflags"], values["Libs"], file.parent.resolve())


def variables(libraries: list[Library]) -> dict[str, str]:
    """Environment variables for loaders and pkg-config to find the libraries."""
    folders = dict.fromkeys(str(library.path.parent) for library in libraries)
    descriptions = dict.fromkeys(str(library.pkg_config) for library in libraries)
    return {"LD_LIBRARY_PATH": os.pathsep.join(folders), "PKG_CONFIG_PATH": os.pathsep.join(descriptions)}


@click.command(cls=Command, short_help="Show the shared libraries for C programs.")
@json_option("the libraries")
def libs(json_file: str | None) -> None:
    """Show the shared libraries for C programs: ONNXIFI, NNAPI, and the plug-in for ONNX Runtime.

    \b
    Examples:
      npusim libs
      eval "$(npusim libs | grep ^export)"      LD_LIBRARY_PATH and PKG_CONFIG_PATH for this shell
      npusim libs --json -
    """
    found = find_libraries()
    described = [library.to_json_dict() for library in found]
    answer(
        json_file, lambda: {"libraries": described, "environment": variables(found)}, lambda: _text(found), whole=True
    )
    missing = [library.name for library in found if not library.path.exists()]
    if missing:
        raise NpusimError(f"not built: {', '.join(missing)}; install the package again on a Linux machine with gcc")


def _text(libraries: list[Library]) -> str:
    lines = []
    for library in libraries:
        lines += [f"{library.name}: {library.what}", f"  file     {library.path}"]
        if library.ldflags:
            lines += [f"  compile  {library.cflags}", f"  link     {library.ldflags}"]
        lines.append("")
    for name, value in variables(libraries).items():
        lines.append(f'export {name}="{value}${{{name}:+:${name}}}"')
    return "\n".join(lines)
