"""Models and programs from files, and the session that works on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from npusim.errors import UsageError

if TYPE_CHECKING:
    from npusim.hw.config import Config
    from npusim.program import Program
    from npusim.runtime import Session


def open_session(config: Config, cache_dir: Path | None, no_cache: bool) -> Session:
    """A session on a device; ``no_cache`` wins over ``cache_dir``."""
    from npusim.runtime import Session

    return Session(config, cache_dir=False if no_cache else cache_dir)


def load_program(path: Path) -> Program:
    """A program from a .npu file."""
    from npusim.program import Program

    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    return Program.load(path)
