"""The known energy of each layer."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from npusim.hw.costs import Breakdown
from npusim.report.layers import LayerReport
from npusim.report.result import ReportedRun


def energies(result: ReportedRun, found: Sequence[LayerReport]) -> dict[str, Any]:
    """``layers``: femtojoules of the priced actions of each layer, None without a price. ``unknown``: unpriced actions.

    If some actions are unknown, the page says that the sum is not a total.
    """
    energy = result.energy
    known: dict[tuple[str, str], deque[Breakdown]] = defaultdict(deque)
    for each in energy.layers:  # operators of equal name are matched in this order below
        known[each.name, each.kind].append(each.energy)
    values: dict[int, int | None] = {}
    for layer in sorted(found, key=lambda layer: layer.op):
        queue = known[layer.timing.name, layer.timing.kind]
        own = queue.popleft() if queue else None
        priced = own is not None and any(part.value is not None for part in own.parts)
        values[layer.op] = own.known if own is not None and priced else None
    return {"layers": [values[layer.op] for layer in found], "unknown": list(energy.unknown)}
