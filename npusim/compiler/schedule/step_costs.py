"""Estimated times of the steps of a schedule, and which groups use which values.

Choosing memory areas and cascades needs the same few thousand estimates many times; they take most of the compile time.
An estimate is therefore cached by everything that it depends on: the groups, which of their values are in the
scratchpad, and which bytes of the scratchpad are free. Addresses and names do not matter, so other designs that share
this part of the description also use the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from npusim.compiler.buffers import Buffer
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context
from npusim.compiler.schedule.cascade import CoreGroups
from npusim.compiler.schedule.cascade_latency import cascade_latency
from npusim.compiler.schedule.scratchpad import Fitted, Made, ScheduleStep, fit
from npusim.compiler.schedule.slots import Span
from npusim.errors import CompileError
from npusim.graph import Tensor

StepKey = tuple[tuple[int, ...], tuple[tuple[bool, ...], ...], tuple[Span, ...]]
"""What an estimate depends on: the group, or the first and last group of a cascade with its stripe height; which of
their values are in the scratchpad; the free byte ranges."""

Known = dict[StepKey, int | None]
"""Picoseconds of steps; None for a step that does not fit."""

Heights = dict[tuple[Any, ...], tuple[int, int, bool] | None]
"""The best stripes of a cascade: picoseconds, rows of the last result, and ``apart`` as in ``Cascade``; None if none
fit.

The key consists of the keys of the groups, which of their values are the same, and the bytes that are left. So equal
blocks of a network share one search.
"""


@dataclass(slots=True)
class KnownCosts:
    """Estimates for one graph, shared by all devices for which they are equal."""

    steps: Known = field(default_factory=dict)
    heights: Heights = field(default_factory=dict)


class StepCosts:
    """Estimates of steps, with the memory areas that values have at the time of the call.

    ``users``: for each value that may be in the scratchpad, the numbers of the groups that read or write it, in order.
    ``tensors``: the tensors of each of these values. ``touched``: the values that each group reads or writes.
    ``input_bytes``: bytes of graph inputs that each group reads. ``whole_views``: the views of values that are stored
    as a whole, also while a rolling buffer replaces them in the context. None of these changes while memory areas are
    chosen.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        buffers: Iterable[Buffer],
        context: Context,
        known: KnownCosts,
        cores: Sequence[CoreGroups] = (),
    ) -> None:
        """``context``: as it is before any value has a rolling buffer. ``cores``: the shards of the other cores."""
        self.groups, self.context, self.known, self.cores = groups, context, known, cores
        self.users: dict[Buffer, list[int]] = {each: [] for each in buffers if each.is_scratch and each.nbytes}
        self.tensors: dict[Buffer, dict[Tensor, None]] = {buffer: {} for buffer in self.users}
        self.touched: list[list[Buffer]] = [[] for _ in groups]
        self.input_bytes = [0] * len(groups)
        self.whole_views = dict(context.views)
        self._made: Made = {}
        for group in groups:
            for tensor in group.stored():
                if tensor in context.views:
                    self._add_use(group, tensor)

    def _add_use(self, group: Group, tensor: Tensor) -> None:
        buffer = self.context.views[tensor].buffer
        if not buffer.is_scratch and tensor not in group.outputs and tensor.data is None:
            self.input_bytes[group.index] += tensor.nbytes
        if buffer in self.users:
            self.tensors[buffer][tensor] = None
            if group.index not in self.users[buffer][-1:]:
                self.users[buffer].append(group.index)
                self.touched[group.index].append(buffer)

    def all_on_chip(self, groups: Iterable[Group]) -> bool:
        """Whether all values that these groups use are in the scratchpad."""
        return all(buffer.on_chip for group in groups for buffer in self.touched[group.index])

    def of(self, step: ScheduleStep) -> int | None:
        """Picoseconds of a step; None if it does not fit."""
        if step.is_empty:
            return 0
        key = self._key(step)
        if key not in self.known.steps:
            self.known.steps[key] = self._estimated(step)
        return self.known.steps[key]

    def total(self, steps: Iterable[ScheduleStep]) -> int | None:
        """Picoseconds of steps in sequence; None if one of them does not fit."""
        costs = [self.of(step) for step in steps]
        return None if None in costs else sum(cost or 0 for cost in costs)

    def fitted(self, step: ScheduleStep) -> Fitted:
        """The lowerings behind the estimate of a step. Raises CompileError if it does not fit."""
        return fit(step, self.context, made=self._made)

    def make_lowerings(self, steps: Sequence[ScheduleStep]) -> None:
        """Lower each group once, even if its estimate is cached: lowering places its constants, and their order is part
        of the program."""
        for step in steps:
            if not step.is_empty and self._key(step) in self.known.steps:
                self._estimated(step)
            else:
                self.of(step)

    def _key(self, step: ScheduleStep) -> StepKey:
        cascade, touched = step.cascade, self.touched
        which: tuple[int, ...] = (step.groups[0].index,)
        if cascade:
            which = cascade.first, cascade.last, cascade.height, cascade.apart
        on_chip = tuple([tuple([buffer.on_chip for buffer in touched[group.index]]) for group in step.groups])
        return which, on_chip, tuple(step.free(self.context))

    def _estimated(self, step: ScheduleStep) -> int | None:
        try:
            fitted = self.fitted(step)
        except CompileError:
            return None
        if step.cascade is None:
            return fitted.lowerings[0].estimate()
        return cascade_latency(step.cascade, step.groups, fitted.lowerings, self.context)
