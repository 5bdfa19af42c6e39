"""Cost models of compute units: one file per kind, named ``<unit>_<kind>.py``; a new file is a new kind."""

from __future__ import annotations

import pkgutil


def kinds(unit: str) -> tuple[str, ...]:
    """The kinds of one unit (``matrix``), sorted: the modules of this package that are named after it."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(name.removeprefix(f"{unit}_") for name in names if name.startswith(f"{unit}_"))
