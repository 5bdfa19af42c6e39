"""How long the groups of a cascade take together, stripe by stripe, by estimate.

Groups of one unit take turns; the chain behind the last one goes on while the first one is at the next stripe, as long
as both find room in the banks of the SRAM. Rows from DRAM and weights come meanwhile: what is wanted first is waited
for.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from npusim.compiler.grouping.groups import Group, on_matrix, side_by_side
from npusim.compiler.lower.base import Context, Lowering, loading
from npusim.compiler.schedule.cascade import Cascade, most_moves, moved_bytes, urgent_bytes
from npusim.compiler.schedule.scratchpad import rolling_views
from npusim.hw.units.dma import latency_ps
from npusim.timing.tile import OVERLAP


def cascade_latency(cascade: Cascade, groups: Sequence[Group], lowerings: Sequence[Lowering], context: Context) -> int:
    """Picoseconds, without what a cascade waits for the weights of its first group: those in front hide that."""
    config, turns = context.config, cascade.images * len(cascade.stripes)
    with rolling_views(context, cascade.loaded):
        costs = [lowering.striped(rows) for lowering, rows in zip(lowerings, cascade.usual, strict=True)]
    computing = _computing(cascade, groups, lowerings, costs)
    nbytes, urgent = sum(each.value.tensor.nbytes for each in cascade.loaded), urgent_bytes(cascade)
    rows, urgent = loading(nbytes - urgent, config), loading(urgent, config)
    # Those that stripes share go to the front of their windows.
    kept = sum(rows * each.pitch for each in cascade.loaded for _, rows in each.moves.values())
    rows += cascade.images * lowerings[0].copying(kept)
    # Each stripe's rows are a transfer of their own, and wait for the one before.
    if config.dma.in_flight == 1:
        rows += turns * len(cascade.loaded) * latency_ps(config)
    # All rows have to be there for the end, and nobody works before those for the first stripe are; nor before weights
    # are, each group's while the one before it is at its last tile: loads run one ahead.
    first, later = computing // turns, computing - computing // turns
    weights = [lowering.held_ps() for lowering in lowerings]
    steps = [cost // (turns * lowering.turns()) for cost, lowering in zip(costs, lowerings, strict=True)]
    first += sum(max(0, load - step) for load, step in zip(weights[1:], steps, strict=False))
    first += lowerings[0].ends() + lowerings[-1].ends()
    # As of groups alone: traffic costs energy, and of equals the least is wanted.
    traffic = (loading(nbytes, config) + sum(weights)) // OVERLAP
    return urgent + max(sum(weights), first) + max(rows, later) + traffic


def _computing(cascade: Cascade, groups: Sequence[Group], lowerings: Sequence[Lowering], costs: Sequence[int]) -> int:
    """Picoseconds of the units for all stripes, each group of which takes ``costs`` alone."""
    turns = cascade.images * len(cascade.stripes)
    # While the matrix unit is at one stripe, the vector unit is at the next.
    matrix = sum(cost for cost, group in zip(costs, groups, strict=True) if on_matrix(group))
    vector = sum(costs) - matrix
    shown = min(turns, OVERLAP) if side_by_side(groups) else 1
    computing = max(matrix, vector) + min(matrix, vector) // shown
    if vector:  # which is at the chains, too
        computing = max(computing, vector + sum(lowering.chaining() for lowering in lowerings))
    if not cascade.apart:
        # Whenever rows have moved, one unit waits for the other's stripe, and that one for the next.
        computing += cascade.images * most_moves(cascade, groups) * min(matrix, vector) // turns
    # Within a stripe each group waits for the one before it; only the last one overlaps with the next stripe.
    computing += turns * sum(lowering.tail() for lowering in lowerings[:-1])
    if not vector:
        computing -= _hidden(lowerings, costs, turns)
    # What works side by side shares the banks.
    computing = max(computing, sum(lowering.banked() for lowering in lowerings))
    # Who makes rows waits until those before them have moved to the front of their window; what others do hides it.
    return computing + cascade.images * lowerings[0].copying(moved_bytes(cascade))


def _hidden(lowerings: Sequence[Lowering], costs: Sequence[int], turns: int) -> int:
    """Picoseconds that the vector unit is still at the last tiles of stripes while the matrix unit is at the next."""
    *before, last = lowerings
    idle = last.waiting()
    plain = list(takewhile(lambda pair: not pair[1].tail(), zip(costs, before, strict=False)))
    ahead = sum(cost for cost, _ in plain)
    if not idle or not ahead:
        return 0
    hidden = min(idle, (turns - 1) * last.behind(), ahead * (turns - 1) // turns)
    # Both may want more of the banks than there is.
    wanted = last.crowding() + sum(lowering.banked() for _, lowering in plain) * 1024 // ahead
    return hidden * min(1024, max(0, 2048 - wanted)) // 1024
