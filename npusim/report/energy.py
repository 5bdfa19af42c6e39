"""Report rows: energy of a run by action and unit, area of a chip by component."""

from __future__ import annotations

from npusim.energy import Energy, energy, power_uw
from npusim.hw.costs import Breakdown
from npusim.report.format import percent, scaled

__all__ = ["area_rows", "energy", "energy_rows", "joules", "square", "watts"]


def energy_rows(found: Energy, time_ps: int) -> list[tuple[str, str]]:
    """Name and value: the total, its power, its parts and the unknown actions; empty if no action has a price."""
    if all(part.value is None or not part.value for part in found.parts):
        return []
    if found.total is None:
        return [("energy", f"unknown, because {', '.join(found.unknown)} have no price; of the rest {_shares(found)}")]
    power = power_uw(found.total, time_ps)
    return [("energy", f"{joules(found.total)}{'' if power is None else f' = {watts(power)}'}: {_shares(found)}")]


def largest(found: Breakdown) -> str:
    """The largest item and its share of the total; empty without one."""
    part = max(found.parts, key=lambda part: part.value or 0, default=None)
    return f"{part.name} {percent(part.value, found.known)}" if part is not None and part.value else ""


def unpriced(found: Breakdown) -> str:
    """Why a total is not known; empty if it is."""
    if not found.known:
        return "nothing has a price"
    more = f" and {len(found.unknown) - 1} more" if len(found.unknown) > 1 else ""
    return f"no price of {found.unknown[0]}{more}" if found.unknown else ""


def area_rows(found: Breakdown) -> list[tuple[str, str]]:
    """Name and value of each component of a chip, largest first, and the sources of the prices."""
    rows = [("whole", "not known" if found.total is None else square(found.total))]
    if not found.known:
        return rows
    for part in sorted(found.parts, key=lambda part: (part.value is None, -(part.value or 0), part.name)):
        value = "not known" if part.value is None else square(part.value)
        share = f" = {percent(part.value or 0, found.known)}" if found.total is not None else ""
        rows.append((part.name, f"{value}{share}"))
    sources = dict.fromkeys(
        source for part in found.parts if part.value is not None for source in part.source.split("; ")
    )
    return [*rows, ("sources", "; ".join(sources))]


_SHOWN = 5
_JOULES = ((10**15, "J"), (10**12, "mJ"), (10**9, "uJ"), (10**6, "nJ"), (10**3, "pJ"), (1, "fJ"))
_WATTS = ((10**6, "W"), (10**3, "mW"), (1, "uW"))


def _shares(found: Energy) -> str:
    """The largest actions as shares of the known total, and the sum of the others."""
    parts = sorted((part for part in found.parts if part.value), key=lambda part: (-(part.value or 0), part.name))
    shown = [f"{part.name} {percent(part.value or 0, found.known)}" for part in parts[:_SHOWN]]
    rest = sum(part.value or 0 for part in parts[_SHOWN:])
    return ", ".join([*shown, *([f"other {percent(rest, found.known)}"] if rest else [])])


def joules(femtojoules: float) -> str:
    """An energy as text: ``1.08 mJ``."""
    return scaled(femtojoules, _JOULES)


def watts(microwatts: float) -> str:
    """A power as text: ``806 mW``."""
    return scaled(microwatts, _WATTS)


def square(um2: int) -> str:
    """An area as text: ``3.3 mm2``."""
    if um2 < 1000:
        return f"{um2} um2"
    return f"{um2 / 10**6:.3g} mm2" if um2 < 999_500_000 else f"{um2 / 10**6:.0f} mm2"
