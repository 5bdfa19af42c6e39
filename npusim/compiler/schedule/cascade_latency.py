"""Estimate the time of the groups of a cascade, stripe by stripe.

Groups on the same unit alternate. The chain after the last group overlaps with the first group's next stripe, as long
as both find free SRAM bank cycles. Rows from DRAM and weights load at the same time; only the first ones are waited
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
    """Picoseconds of a cascade, without the wait for the weights of its first group, which previous groups may hide."""
    config, turns = context.config, cascade.images * len(cascade.stripes)
    with rolling_views(context, cascade.loaded):
        costs = [lowering.striped(rows) for lowering, rows in zip(lowerings, cascade.usual, strict=True)]
    computing = _computing(cascade, groups, lowerings, costs)
    nbytes, urgent = sum(each.value.tensor.nbytes for each in cascade.loaded), urgent_bytes(cascade)
    rows, urgent = loading(nbytes - urgent, config), loading(urgent, config)
    # Rows that consecutive stripes share move to the front of their rolling buffers.
    kept = sum(rows * each.pitch for each in cascade.loaded for _, rows in each.moves.values())
    rows += cascade.images * lowerings[0].copying(kept)
    # The rows of each stripe are a separate transfer, and wait for the previous one.
    if config.dma.in_flight == 1:
        rows += turns * len(cascade.loaded) * latency_ps(config)
    # The end needs all rows. Work starts when the rows of the first stripe have arrived. It also needs weights: those
    # of each group load during the last tile of the previous group, because loads run one tile ahead.
    first, later = computing // turns, computing - computing // turns
    weights = [lowering.held_ps() for lowering in lowerings]
    steps = [cost // (turns * lowering.turns()) for cost, lowering in zip(costs, lowerings, strict=True)]
    first += sum(max(0, load - step) for load, step in zip(weights[1:], steps, strict=False))
    first += lowerings[0].ends() + lowerings[-1].ends()
    # As for single groups: traffic costs energy, so among equal times the least traffic wins.
    traffic = (loading(nbytes, config) + sum(weights)) // OVERLAP
    return urgent + max(sum(weights), first) + max(rows, later) + traffic


def _computing(cascade: Cascade, groups: Sequence[Group], lowerings: Sequence[Lowering], costs: Sequence[int]) -> int:
    """Picoseconds of the units for all stripes. ``costs``: the time of each group alone."""
    turns = cascade.images * len(cascade.stripes)
    # The matrix unit works on one stripe while the vector unit works on the other.
    matrix = sum(cost for cost, group in zip(costs, groups, strict=True) if on_matrix(group))
    vector = sum(costs) - matrix
    shown = min(turns, OVERLAP) if side_by_side(groups) else 1
    computing = max(matrix, vector) + min(matrix, vector) // shown
    if vector:  # the vector unit also computes the chains
        computing = max(computing, vector + sum(lowering.chaining() for lowering in lowerings))
    if not cascade.apart:
        # Whenever rows move, one unit waits for the other to finish its stripe, which then waits for the next stripe.
        computing += cascade.images * most_moves(cascade, groups) * min(matrix, vector) // turns
    # Within a stripe each group waits for the previous one. Only the last group overlaps with the next stripe.
    computing += turns * sum(lowering.tail() for lowering in lowerings[:-1])
    if not vector:
        computing -= _hidden(lowerings, costs, turns)
    # Units that work at the same time share the banks.
    computing = max(computing, sum(lowering.banked() for lowering in lowerings))
    # A group that writes rows waits until older rows have moved to the front of the buffer, unless other work hides it.
    return computing + cascade.images * lowerings[0].copying(moved_bytes(cascade))


def _hidden(lowerings: Sequence[Lowering], costs: Sequence[int], turns: int) -> int:
    """Picoseconds during which the vector unit finishes the last tiles of stripes while the matrix unit works on the
    next."""
    *before, last = lowerings
    idle = last.waiting()
    plain = list(takewhile(lambda pair: not pair[1].tail(), zip(costs, before, strict=False)))
    ahead = sum(cost for cost, _ in plain)
    if not idle or not ahead:
        return 0
    hidden = min(idle, (turns - 1) * last.behind(), ahead * (turns - 1) // turns)
    # Together they may need more bank cycles than there are.
    wanted = last.crowding() + sum(lowering.banked() for _, lowering in plain) * 1024 // ahead
    return hidden * min(1024, max(0, 2048 - wanted)) // 1024
