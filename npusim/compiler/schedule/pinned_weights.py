"""Weights that stay in SRAM from one inference to the next: which ones, at which addresses, and the commands to load
them.

They are at the end of each core's SRAM, so that they do not split the rest. The prologue of a command stream loads
them; the device skips it if its SRAM still holds them (:class:`npusim.isa.control.Residents`). Weights that save the
most time per byte come first, as estimated by ``tile``. How much SRAM they may take is found by trial: the forecast of
an inference that finds them in SRAM decides, because pinned weights leave less space to values and tiles.
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
from npusim.graph import Tensor
from npusim.hw.memory import align
from npusim.isa.base import Command, Wait

SHARES = (2, 4, 8, 16)
"""Pinned weights leave 1/2, 1/4, ... of the SRAM to everything else. Those that leave the most come first."""


def candidates(groups: Iterable[tuple[Group, Context]]) -> dict[int, int]:
    """Bytes of the weights that could be pinned, by group, sorted by the time that they save per byte.

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
        # Without loads many tilings are equally good, and a slightly worse one may be chosen, so the difference may be
        # negative.
        saved = max(0, loading.estimate() - holding.estimate())
        if nbytes <= sram_budget(context.config):
            found.append((-saved / nbytes, nbytes, group.index))
    return {group: nbytes for _, nbytes, group in sorted(found)}


def _lowered(group: Group, context: Context, starts: Mapping[int, int]) -> MatrixLowering | None:
    """Lower a group in half of the SRAM; None if its weights cannot be pinned."""
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
    """Sets of groups to pin, one for each share of SRAM in ``SHARES``, with at most the bytes that the device allows.

    ``given``: groups that are always pinned. ``others``: whether more may be.
    """
    capacity = sram_budget(context.config)
    most = context.config.compiler.resident_bytes or capacity
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


def of_loops(groups: Sequence[Group], pinnable: Iterable[tuple[Group, Context]], context: Context) -> dict[int, int]:
    """The addresses of the weights that the iterations of loops share, by group: at the end of the scratchpad, those of
    the first loop last, as far as they fit into half of it. Empty if there are none.

    ``pinnable``: the groups, each with the context for its estimates.
    """
    readers: dict[Tensor, list[int]] = {}
    since: list[Group] = []
    for group in groups:
        since.append(group)
        if group.ops[0].kind == "repeat":
            for each in since:
                if each.anchor is not None and each.anchor.kind == "matmul":
                    readers.setdefault(each.anchor.input(1), []).append(each.index)
            since = []
    capacity = at = sram_budget(context.config)
    starts: dict[int, int] = {}
    found = {group.index: (group, own) for group, own in pinnable}
    for numbers in readers.values():
        if len(numbers) < _LEAST_ITERATIONS:
            continue
        group, own = found[numbers[0]]
        try:
            holding = _lowered(group, own, {group.index: 0})
        except CompileError:
            continue
        nbytes = 0 if holding is None else align(holding.weight_bytes)
        if nbytes and at - nbytes >= capacity // 2:
            at -= nbytes
            starts.update(dict.fromkeys(numbers, at))
    return starts


_LEAST_ITERATIONS = 3
"""Weights that fewer iterations read are not those of a loop."""


def _placed(chosen: Mapping[int, int], capacity: int) -> Pinned:
    starts, at = {}, capacity
    for group, nbytes in sorted(chosen.items(), reverse=True):
        at -= nbytes
        starts[group] = at
    return Pinned(starts, capacity - at)


def body(commands: Sequence[Command], prologue: int) -> list[Command]:
    """A command stream without its first ``prologue`` commands, which count as complete."""
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
