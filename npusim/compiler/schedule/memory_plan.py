"""Plan the memory of one core: values in the scratchpad, cascades with rolling buffers, the rest in L2 or DRAM.

The steps depend on each other, so they alternate. First, values are chosen (``residency``), because a value in the
scratchpad needs no cascade. Then cascades are chosen beside them (``cascade_search``); a cascade may take the space of
such a value if it gains more. With the cascades known, values are chosen again. Finally all other values are placed in
L2 and DRAM (``dram``). For sharded layers, ``sharding`` plans the first core's shards for all cores.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from npusim.compiler.buffers import Buffer
from npusim.compiler.grouping.groups import ANCHORS, ROWS, Group
from npusim.compiler.lower.base import Context
from npusim.compiler.schedule.allocate import Scratchpad
from npusim.compiler.schedule.cascade import CoreGroups
from npusim.compiler.schedule.cascade_search import CascadeSearch, given_cascade, with_cascades
from npusim.compiler.schedule.dram import lay_out
from npusim.compiler.schedule.memory_choices import MemoryChoices
from npusim.compiler.schedule.residency import choose_values, choose_values_again, place_given, value_lives
from npusim.compiler.schedule.scratchpad import ScheduleStep
from npusim.compiler.schedule.step_costs import KnownCosts, StepCosts
from npusim.graph import Tensor
from npusim.hw.config import Config

_NEAR_PERCENT = 30
"""If the estimate without cascades is at most this percentage higher, the forecast decides about cascades: the estimate
of single groups ignores that a group starts on the first rows of the previous one."""
_ALIKE_PERCENT = 15
"""If the estimates differ by at most this percentage, both plans are forecast in full. Plans without cascades that
turned out faster had been estimated at most 8 % slower."""
_MOST_PLANS = 128
"""Plans per graph whose estimates are cached: about 1 MB each for a network of 100 layers."""


@dataclass(slots=True)
class MemoryPlan:
    """The steps in order, the buffers of all values, and the bytes of DRAM that they need (``scratch_bytes``)."""

    steps: list[ScheduleStep]
    buffers: list[Buffer]
    scratch_bytes: int = 0
    needs_forecast: bool = False
    """There are cascades, and by estimate a plan without them might be as fast."""
    no_cascade_ps: int = 0
    """The estimate of that plan in picoseconds; 0 if it is too close to the other one to decide."""
    costs: StepCosts | None = None
    """The estimates behind the plan; None if all values are in DRAM."""
    untried: Collection[Buffer] = ()
    """Values that were never tried in the scratchpad."""

    def whole_buffer(self, tensor: Tensor) -> Buffer:
        """The buffer that a value would have if no rolling buffer had replaced it."""
        assert self.costs is not None
        return self.costs.whole_views[tensor].buffer


def plan_memory(
    groups: Sequence[Group],
    buffers: list[Buffer],
    context: Context,
    choices: MemoryChoices,
    cores: Sequence[CoreGroups] = (),
) -> MemoryPlan:
    """Choose a memory area and an address for every buffer, within the given ``choices``. ``cores``: the shards of the
    other cores, which have the same cascades."""
    # The groups of a core's shards belong to one plan, so caching their estimates is useless.
    costs = _known_costs(groups, context) if context.whole is None else KnownCosts()
    result = MemoryPlan([ScheduleStep([group]) for group in groups], buffers)
    if context.config.cores == 1 and (context.config.compiler.keeps_values or passes_on(context.config)):
        _choose(result, StepCosts(groups, buffers, context, costs, cores), choices)
        # A value that was replaced by a rolling buffer needs no bytes of its own.
        used = {
            context.view(t).buffer
            for group in groups
            for op in group.ops
            for t in (*op.inputs, *op.outputs)
            if t in context.views
        }
        result.buffers = [buffer for buffer in buffers if buffer in used or not buffer.is_scratch]
    result.scratch_bytes = lay_out(result.buffers, context.config, choices)
    return result


def _choose(result: MemoryPlan, costs: StepCosts, choices: MemoryChoices) -> None:
    steps, keeps = result.steps, costs.context.config.compiler.keeps_values
    result.costs = costs
    if choices.operands_first:
        costs.make_lowerings(steps)
    if choices.are_complete:
        result.steps = with_cascades([given_cascade(run, costs) for run in choices.cascade_runs], costs, choices)
        place_given(value_lives(result.steps, costs), Scratchpad(result.steps, costs.context.sram_bytes), choices)
        return
    alone, result.untried = choose_values(steps, costs, choices)
    search = CascadeSearch(steps, alone, costs, choices)
    found = search.run() if choices.search_cascades or choices.runs else []
    if found:
        beside = {buffer for step in steps for buffer in step.resident}
        result.steps = with_cascades(found, costs, choices)
        together, result.untried = choose_values_again(result.steps, costs, choices, beside)
        single, striped = sum(alone), sum(together)
        # Where the scratchpad keeps no values, the only cascade is a convolution with its pooling, on two units that
        # work in step. Estimates are poor at that, so the forecast decides.
        result.needs_forecast = not keeps or single * 100 <= striped * (100 + _NEAR_PERCENT)
        result.no_cascade_ps = single if keeps and single * 100 > striped * (100 + _ALIKE_PERCENT) else 0


def passes_on(config: Config) -> bool:
    """Whether the matrix unit passes rows to pooling although the scratchpad keeps no values."""
    compiler = config.compiler
    passes = compiler.pools_outputs and compiler.may_cascade and not compiler.keeps_values
    return passes and config.vector is not None


def _known_costs(groups: Sequence[Group], context: Context) -> KnownCosts:
    """The estimates of an earlier plan of these groups, for a device that gives the same plans, or an empty cache."""
    pinned = context.pinned
    key = (
        planning(groups, context.config),
        tuple(groups),
        tuple(pinned.starts.items()),
        pinned.nbytes,
        pinned.large_tiles,
    )
    plans: dict[Any, KnownCosts] = context.facts.setdefault("known costs", {})
    known = plans.pop(key, None)
    if known is None and len(plans) >= _MOST_PLANS:
        del plans[next(iter(plans))]  # the least recently used
    found = plans[key] = known or KnownCosts()
    return found


def planning(groups: Sequence[Group], config: Config) -> Config:
    """The fields of a description that a plan for one core depends on, the others set to fixed values.

    The results are equal for devices that can share plans.
    """
    dma = config.dma
    # For most kinds, tiles only depend on whether loads and stores share a channel.
    if all(not group.parts and (group.anchor is None or group.anchor.kind in _ONE_OR_MORE) for group in groups):
        dma = replace(dma, channels=min(dma.channels, 2))
    compiler = replace(config.compiler, layer_time_ps=0, layer_cycles=0, layer_bytes=0)
    return replace(config, description="", compiler=compiler, dma=dma)


_ONE_OR_MORE = ANCHORS | ROWS | {"pool", "reduce"}
"""Kinds whose estimates do not depend on the number of channels beyond two."""
