"""The benefit of each resource as a text table."""

from __future__ import annotations

from npusim.explore.whatif import CHANGES, INFINITE, WhatIf, WhatIfPoint, WhatIfRow
from npusim.report.energy import joules
from npusim.report.format import duration, facts, quantity, table
from npusim.report.layers import shares


def text(found: WhatIf, top: int = 20) -> str:
    """The current bottleneck, the ``top`` resources by benefit, and those without effect."""
    moving = [row for row in found.rows if row.moves]
    still = [row.resource.key for row in found.rows if not row.moves]
    blocks = [[f"{found.model} on {found.device}", *facts(_facts(found))], _table(moving[:top])]
    if moving[top:]:
        blocks.append([f"{len(moving) - top} more buy less; --top shows them, --json has all"])
    if still:
        blocks.append([f"no effect: {', '.join(still)}"])
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _facts(found: WhatIf) -> list[tuple[str, str]]:
    base = found.base
    rows = [
        ("time", f"{duration(base.time_ps)}; {duration(base.total_ps)} with the host"),
        ("DRAM", quantity(base.dram_bytes, "B")),
    ]
    if base.energy_fj is not None:
        rows.append(("energy", joules(base.energy_fj)))
    rows.append(("bound by", f"{shares(dict(base.resources))} with the host"))
    best = next((row for row in found.rows if isinstance(row.points[INFINITE], WhatIfPoint)), None)
    if best is not None and best.best_ps > 0:
        behind = best.points[INFINITE]
        assert isinstance(behind, WhatIfPoint)
        left = duration(behind.latency_ps(best.resource))
        bound = shares(dict(behind.resources))
        rows.append(("behind it", f"with {best.resource.key} = {best.values[INFINITE]}: {left}, then bound by {bound}"))
    return rows


def _table(rows: list[WhatIfRow]) -> list[str]:
    if not rows:
        return []
    cells = []
    for row in rows:
        changes = [_change(row, change) for change in CHANGES]
        infinite = row.points[INFINITE]
        behind = shares(dict(infinite.resources), 1) if isinstance(infinite, WhatIfPoint) else ""
        moved, spent = _best_of_others(row)
        cells.append((row.resource.key, row.resource.value, *changes, moved, spent, behind))
    header = ("resource", "is", "infinite: time", "doubled", "halved", "DRAM", "energy", "then bound by")
    return [
        "time, and for the best of the three DRAM traffic and energy, against now",
        *table(header, cells, right="<<>>>>><"),
    ]


def _change(row: WhatIfRow, change: str) -> str:
    share = row.share(change)
    return "-" if share is None else _signed(-share)


def _signed(share: float) -> str:
    return "0" if round(1000 * share) == 0 else f"{100 * share:+.1f} %"


def _best_of_others(row: WhatIfRow) -> tuple[str, str]:
    """DRAM traffic and energy of the change that saves the most time."""
    gains = {change: gain for change in CHANGES if (gain := row.gain_ps(change)) is not None}
    if not gains:
        return "-", "-"
    best = row.points[max(gains, key=lambda change: gains[change])]
    assert isinstance(best, WhatIfPoint)
    base = row.base
    traffic = _signed(best.dram_bytes / base.dram_bytes - 1) if base.dram_bytes else "-"
    if best.energy_fj is None or not base.energy_fj:
        return traffic, "-"
    return traffic, _signed(best.energy_fj / base.energy_fj - 1)
