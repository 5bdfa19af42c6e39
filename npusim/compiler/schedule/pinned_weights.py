"""Weights that stay in SRAM from one inference to the next: which, where, and the commands that load them.

They lie at the end of each core's SRAM, out of the way of everything else, and are loaded by the prologue of a stream,
which the device leaves out where its SRAM still holds them (:class:`npusim.isa.control.Residents`). Those come first
that save most of the time of an inference for their bytes, as ``tile`` estimates it. How much of SRAM they may take is
tried, and decided by the forecast of an inference that finds them there: what they take, values and tiles lack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context, Pinned, sram_budget
from npusim.compiler.lower.kinds import lower
from npusim.compiler.lower.matrix import MatrixLowering
from npusim.errors import CompileError
from npusim.hw.memory import align
from npusim.isa.base import Command, Wait

SHARES = (2, 4, 8, 16)
"""Residents leave one part in so many of SRAM to everything else; those that leave most come first."""


def candidates(groups: Iterable[tuple[Group, Context]]) -> dict[int, int]:
    """Bytes of SRAM for the weights that could stay, by group; those first that save most time for their bytes.

    ``groups``: each with the context in which it is lowered.
    """
    found = []
    for group, context in groups:
        try:
            loading, holding = (_lowered(group, context, starts) for starts in ({}, {group.index: 0}))
        except CompileError:
            continue
        if loading is None or holding is None or not (nbytes := align(holding.weight_bytes)):
            continue
        # Any tiling is as good without loads; of those that are nearly the best it may be another one that is chosen.
        saved = max(0, loading.estimate() - holding.estimate())
        if nbytes <= sram_budget(context.config):
            found.append((-saved / nbytes, nbytes, group.index))
    return {group: nbytes for _, nbytes, group in sorted(found)}


def _lowered(group: Group, context: Context, starts: Mapping[int, int]) -> MatrixLowering | None:
    """A group as it would be with half of SRAM, if its weights can stay."""
    kept, context.pinned, context.rows = context.pinned, Pinned(starts), 0
    context.room = sram_budget(context.config) // 2
    try:
        lowering = lower(context, group)
    finally:
        context.pinned = kept
    return lowering if isinstance(lowering, MatrixLowering) and lowering.can_pin else None


def choices(
    found: Mapping[int, int], context: Context, given: Collection[int] = (), *, others: bool = True
) -> list[Pinned]:
    """What may be pinned: as much as fits beside the room that is left to everything else, for several such rooms, and
    no more than the device lets weights take. ``given``: groups that are always pinned; ``others``: if more may be."""
    capacity = sram_budget(context.config)
    most = context.config.sram.resident_bytes or capacity
    options: dict[tuple[int, ...], Pinned] = {}
    ordered = sorted(found, key=lambda group: group not in given)
    for share in SHARES:
        chosen, left = {}, min(most, capacity - capacity // share)
        for group in ordered if others else ordered[: len(given)]:
            if found[group] <= left:
                chosen[group] = found[group]
                left -= found[group]
        if chosen and chosen.keys() >= set(given):
            options.setdefault(tuple(sorted(chosen)), _placed(chosen, capacity))
    return list(options.values())


def _placed(chosen: Mapping[int, int], capacity: int) -> Pinned:
    starts, at = {}, capacity
    for group, nbytes in sorted(chosen.items(), reverse=True):
        at -= nbytes
        starts[group] = at
    return Pinned(starts, capacity - at)


def body(commands: Sequence[Command], prologue: int) -> list[Command]:
    """A stream without its first commands, which count as complete."""
    done = Counter((command.core, command.unit) for command in commands[:prologue])
    return [
        replace(
            command,
            waits=tuple(
                Wait(core, unit, count - done[core, unit])
                for core, unit, count in command.waits
                if count > done[core, unit]
            ),
        )
        for command in commands[prologue:]
    ]
