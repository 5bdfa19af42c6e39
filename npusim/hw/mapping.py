"""The differences allowed between the device of a program and a device that runs it.

Costs may differ: rates, times, energies, and everything of off-chip memory except its size. They influence the choice
of a mapping, but not its validity. Structure must be equal: memories, units, types, queues.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from npusim.errors import UsageError
from npusim.hw.build import walk
from npusim.hw.config import Config
from npusim.hw.keys import Count, Key, MapOf, Quantity, Ratio
from npusim.units import Dimension

_FREE = re.compile(r"name|description|(dram|host|energy|area|technology)\..+")
"""Keys that no instruction depends on."""
_FIXED = frozenset({"dram.bytes", "dma.decoder_weights_per_cycle"})
"""Structural keys that look like costs: compressed weights need a decoder."""
_CYCLES = re.compile(r"(\w+_)?cycles|cycles_per_\w+|\w+_per_cycle")


def may_differ(path: str, entry: Key) -> bool:
    """Whether a key is a cost, not structure."""
    if path in _FIXED:
        return False
    if _FREE.fullmatch(path):
        return True
    match entry.kind:
        case Quantity(dimension=dimension):
            return dimension is not Dimension.SIZE
        case Ratio():
            return True
        case MapOf():
            return True  # rates and costs by type or function; for missing ones see below
        case Count():
            return _CYCLES.fullmatch(entry.name) is not None
    return False


def changes(made_for: Config, other: Config) -> dict[str, tuple[str, str]]:
    """The keys in which a device differs from the device of a program, with both values as TOML.

    Raises UsageError with every key that must not differ.
    """
    before, after = ({path: (entry, value) for path, entry, value in walk(config)} for config in (made_for, other))
    found, bad = {}, []
    for path in dict.fromkeys([*before, *after]):
        entry = (before.get(path) or after[path])[0]
        values = [side[path][1] if path in side else None for side in (before, after)]
        if values[0] == values[1] or path in ("name", "description"):
            continue
        texts = ["left out" if value is None else entry.kind.text(value) for value in values]
        found[path] = texts[0], texts[1]
        # The rate of a type may differ, but both devices must support the same types.
        same = not path.startswith("matrix.throughput") or _computed(values[0]) == _computed(values[1])
        if not (may_differ(path, entry) and same):
            bad.append(f"{path} must be {texts[0]}, got {texts[1]}")
    if bad:
        raise UsageError(
            f"a program for {made_for.name!r} cannot run as it is on {other.name!r}: {'; '.join(bad)}; compile it for "
            "that device"
        )
    return found


def _computed(rates: object) -> set[str]:
    """The types that a unit supports."""
    return {name for name, rate in rates.items() if rate} if isinstance(rates, Mapping) else set()
