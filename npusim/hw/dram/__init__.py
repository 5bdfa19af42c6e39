"""DRAM models: one file per kind; a new file with a class ``Dram`` is a new kind."""

from __future__ import annotations

import pkgutil


def kinds() -> tuple[str, ...]:
    """The kinds of DRAM, sorted: the modules of this package whose names do not begin with an underscore."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name[0] != "_"))
