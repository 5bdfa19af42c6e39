"""The names of cost models, which are the modules of :mod:`npusim.hw.units` and :mod:`npusim.hw.dram`."""

from __future__ import annotations

import os
import pkgutil


def unit_kinds(unit: str) -> tuple[str, ...]:
    """The kinds of one unit (``matrix``), sorted: each module ``<unit>_<kind>`` is one."""
    prefix = f"{unit}_"
    return tuple(name.removeprefix(prefix) for name in _modules("units") if name.startswith(prefix))


def dram_kinds() -> tuple[str, ...]:
    """The kinds of DRAM, sorted: each module whose name does not begin with an underscore is one."""
    return tuple(name for name in _modules("dram") if name[0] != "_")


def _modules(package: str) -> list[str]:
    """The modules of a package beside this file. They are not imported: they import the description of a device."""
    return sorted(module.name for module in pkgutil.iter_modules([os.path.join(os.path.dirname(__file__), package)]))
