"""Opens models and programs from files, and sessions for them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim.cli.output import replacing
from npusim.errors import UsageError

if TYPE_CHECKING:
    from npusim.hw.config import Config
    from npusim.program import Program
    from npusim.runtime import Session


def open_session(
    config: Config, cache_dir: Path | None, no_cache: bool, options: Mapping[str, Any] | None = None
) -> Session:
    """A session on a device. ``no_cache`` overrides ``cache_dir``. ``options``: further arguments of the session."""
    from npusim.runtime import Session

    return Session(config, cache_dir=False if no_cache else cache_dir, **(options or {}))


def save_program(program: Program, path: Path) -> None:
    """Write a program file atomically. Pipes and devices are written directly."""
    from npusim.cache import write_program

    if path.exists() and not path.is_file():
        with tempfile.TemporaryDirectory() as directory:
            draft = Path(directory) / "program.npu"
            write_program(program, draft)
            with replacing(path) as target:
                target.write_bytes(draft.read_bytes())
    else:
        write_program(program, path)


def load_run(path: Path) -> dict[str, Any]:
    """The JSON of a run, as written by npusim run --json. Raises UsageError for other JSON."""
    from npusim.explore.rerun import RUN_JSON

    found = RUN_JSON.json(path)
    if not isinstance(found, dict):
        raise UsageError(f"{path}: must be an object, the JSON of a run")
    return found


def load_program(path: Path) -> Program:
    """Read a program from a .npu file. Raises UsageError."""
    from npusim.cache import read_program

    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    return read_program(path)
