"""Command line of modules that generate a page of the manual: write it, or check that it is up to date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def write_or_check(
    module: str, description: str | None, default: Path, render: Callable[[], str], arguments: Sequence[str] | None
) -> int:
    """Write ``render()`` to the path in ``arguments``, or compare with ``--check``: exit code 1 if it is out of
    date."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("path", nargs="?", type=Path, default=default)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args(arguments)
    page = render()
    if options.check:
        same = options.path.is_file() and options.path.read_text(encoding="utf-8") == page
        sys.stderr.write(f"{options.path} is {'up to date' if same else f'out of date: python -m {module}'}\n")
        return int(not same)
    options.path.parent.mkdir(parents=True, exist_ok=True)
    options.path.write_text(page, encoding="utf-8")
    return 0
