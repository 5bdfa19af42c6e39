"""The search for the fastest schedule: build candidates, forecast their durations and choose one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from itertools import takewhile
from math import inf
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import ConstantPool, Context, Pinned, facts_of
from npusim.compiler.schedule.build import (
    Build,
    Emission,
    ProgramPlan,
    build,
    build_plan,
    commands_until,
    form_all,
    make_plan,
    planned_device,
)
from npusim.compiler.schedule.dram import by_l2
from npusim.compiler.schedule.layout import place
from npusim.compiler.schedule.memory_plan import MemoryPlan
from npusim.compiler.schedule.names import LayerNames
from npusim.compiler.schedule.pinned_weights import body, candidates, choices, of_loops
from npusim.compiler.schedule.repeats import shortened
from npusim.compiler.schedule.schedule import BY_USE, DRAM, FREE, L2, PinnedLayer, Schedule
from npusim.compiler.schedule.scratchpad import ScheduleStep, fit
from npusim.errors import CompileError, ScheduleError
from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.isa._stream import tally
from npusim.isa.base import HEADER_BYTES, WAIT_BYTES, Command
from npusim.ops.budget import Budget
from npusim.timing.forecast import forecast
from npusim.timing.tile_costs import cores_served
from npusim.work import DmaWork, Port

Floats = npt.NDArray[np.floating]

_FEW = 4
"""With urgent transfers first at the DRAM, no program has been observed to slow down from one more channel up to this
number. Searching fewer channels would double compile time for nothing."""
_MOST_WORSE = 2
"""The channel search stops after this many consecutive numbers that are no faster than more channels."""
_MOST_RISEN = 4
"""The search for tiles shared by fewer cores stops after this many consecutive numbers that are slower than more cores.
"""
_MOST_WORSE_SHARDS = 2
"""The same limit for sharded layers. Numbers that divide the cores are exempt: they may cut layers better."""
_FAR_PERCENT = 70
"""If sharded layers take at most this percentage of the time of tiles shared by all cores, sharing by fewer cores is
not tried: such times differ by a tenth on variants of ``edge``."""
_ALONE_PERCENT = 130
"""One core is not tried if its estimate is above this percentage of the shortest forecast of several cores, although
all values between layers are assumed to be in the scratchpad."""
_CORES_PERCENT = 200
"""The same limit for sharded layers. Their weights are loaded many steps ahead, which the estimates of single steps
ignore."""
_COUNTS = (*range(2, 9), 12, 16, 24, 32, 48)
"""Numbers of cores that are also tried on a larger device, so that it is not slower than a device with fewer."""
_WHOLE_PERCENT = 20
"""Limit for the error of the estimate of a plan without cascades over its forecast. The estimate adds up layers and
ignores that neighbours overlap: 6 to 17 % for ResNet-50 and MobileNetV2 on variants of ``edge``."""
_APART = 3
"""Limit, in thousandths, for the difference in duration of programs that differ only in the addresses of their slots.
The largest difference on variants of ``edge`` is 1.6."""
_NEARLY_PERCENT = 1
"""Programs of a shortened graph whose forecasts differ by less may be in the other order for the whole graph."""
_SLACK = 4
"""In thousandths: forecasts that differ by less are taken as equal, and the traffic decides, which is known exactly."""

_MORE_TRAFFIC_PERCENT = 20
"""Several cores should not move more bytes than necessary by more than this percentage."""
_DEAR_PERCENT = 5
"""A program that moves more must take less time by this percentage."""


@dataclass(slots=True)
class ScheduleSearch:
    """The search for one graph and device.

    ``wanted``: constraints that every candidate satisfies. ``tried``: if it is a list, all candidates are appended to
    it with their forecasts in picoseconds.
    """

    graph: Graph
    config: Config
    budget: Budget
    wanted: Schedule = FREE
    tried: list[tuple[int, Build]] | None = None
    refused: CompileError | None = None
    """The error of the first candidate that could not be built."""

    def run(self) -> Build:
        """Return the best program.

        Raises CompileError if no candidate fits, ScheduleError if no candidate satisfies ``wanted``.
        """
        if self.wanted.is_complete:
            return build(self.graph, self.config, self.wanted, self.budget)
        planned_device(self.config, self.wanted)
        if self.wanted.pinned and not self.config.compiler.resident_weights:
            raise ScheduleError(f"pinned: needs compiler.resident_weights, which {self.config.name} does not have")
        best = self.with_loop_weights(self.best())
        may_pin = self.config.compiler.resident_weights and (self.wanted.searches("pinned") or self.wanted.pinned)
        # The weights of loops are pinned already, once for all iterations.
        if not may_pin or best.prologue:
            return best
        made = [self.with_pinned_weights(best)]
        if (
            best.cores > 1 and not self.wanted.pinned
        ):  # one core with pinned weights may be faster, although it is slower without them
            alone = self._try(self._shared(1))
            made += [] if alone is None else [self.with_pinned_weights(alone)]
        return _first([(self._forecast(body(each.commands, each.prologue)), each) for each in made], self.config)

    def best(self) -> Build:
        """Return the program with the shortest forecast, without pinned weights.

        Using fewer cores may be faster than using all: the cores share one DRAM, and each layer ends with its slowest
        core. A single core may also use cascades, or be faster without them.
        """
        # The shortened graph may lack layers that the schedule names.
        short = shortened(self.graph) if self.config.cores > 1 and not self.wanted.has_entries else None
        if short is not None:
            found = [(self._forecast(each.commands), each) for each in self._as_of(short)]
            if found:
                return _first(found, self.config)
        best = self._with_all_channels()
        few = _FEW if self.config.interconnect.arbitration == "need" else 2
        # With a separate channel for weights, a device with fewer channels gets a very different plan.
        if self.wanted.channels or self.config.dma.channels <= few or self.config.dma.separate_weight_port:
            return best
        return self._with_fewer_channels(best, few)

    def _as_of(self, short: Graph) -> Iterator[Build]:
        """Yield this graph with the choices that are best for the shortened graph, and with the next best ones if these
        take nearly the same time: the first and the last layer have a larger share of the shortened graph."""
        tried: list[tuple[int, Build]] = []
        chosen = ScheduleSearch(short, self.config, copy(self.budget), self.wanted, tried).best()
        plans, least = [chosen.plan], self._forecast(chosen.commands)
        for ps, each in sorted(tried, key=itemgetter(0)):
            if ps * 100 > least * (100 + _NEARLY_PERCENT):
                break
            if self._base(each.plan).with_(channels=None) != self._base(chosen.plan).with_(channels=None):
                plans.append(each.plan)
                break
        for plan in plans:
            found = self._again(plan, plan.schedule.channels)
            if found is not None:
                yield found

    def _try(self, schedule: Schedule, most_ps: float = inf) -> Build | None:
        """Build a candidate. Returns None if it does not fit or violates ``wanted``, or if its estimate is above
        ``most_ps``."""
        if not self.wanted.agrees_with(schedule):
            return None
        try:
            plan = make_plan(self.graph, self.config, schedule)
            return build_plan(plan, self.config, self.budget) if plan.estimated_ps <= most_ps else None
        except CompileError as error:
            self.refused = self.refused or error
            return None

    def _again(self, plan: ProgramPlan, channels: int | None) -> Build | None:
        """Build this graph with the choices of ``plan``, which may be for the shortened graph, on ``channels`` DMA
        channels."""
        found = self._try(self._base(plan).with_(channels=channels))
        if found is None or plan.schedule.searches("cascades") or plan.shards.are_cut:
            return found
        if not found.layout.needs_forecast:
            return found
        try:
            return self._alone(found.plan).finish()
        except CompileError:
            return None

    def _base(self, plan: ProgramPlan) -> Schedule:
        """The schedule of a plan, with its cascades and fused attention open again."""
        asked = plan.schedule
        if plan.shards.are_cut:
            return asked
        return self._shared(plan.device.cores, asked.backing or DRAM).with_(channels=asked.channels)

    def _forecast(self, commands: Sequence[Command]) -> int:
        return forecast(commands, self.config)

    # channels

    def _with_fewer_channels(self, best: Build, few: int) -> Build:
        """Return ``best``, or a program with the same choices that leaves DMA channels idle, down to ``few`` channels.

        Loads that run further ahead need more scratchpad. If all transfers share the DRAM equally, they also delay the
        most urgent one. This search keeps a device with more channels from being slower than one with fewer.
        """
        least, worse = self._forecast(best.commands), 0
        for channels in (few, *range(self.config.dma.channels - 1, few, -1)):
            found = self._again(best.plan, channels)
            if found is not None:
                ps = self._forecast(found.commands)
                if self.tried is not None:
                    self.tried.append((ps, found))
                if ps < least:
                    best, least, worse = found, ps, 0
                    continue
            worse += channels > few
            if worse == _MOST_WORSE:
                break
        return best

    # cores, cascades and L2

    def _with_all_channels(self) -> Build:
        config, near = self.config, by_l2(self.config)
        best = self._try(self._shared(config.cores))
        if best is None and self.refused is not None and self.wanted == FREE:
            raise self.refused
        if best is not None and config.cores == 1 and not best.layout.needs_forecast and near is None:
            return best
        found = [] if best is None else [(self._forecast(best.commands), best)]
        alone = best
        if config.cores > 1:
            if config.exchange is not None:
                found += self._without_exchange()
            found += self._on_fewer_cores(min((ps for ps, _ in found), default=None))
            found += self._with_cascades(found)
            least = min((ps for ps, _ in found), default=inf)
            alone = self._try(self._shared(1)) if self._on_chip_ps() * 100 <= least * _ALONE_PERCENT else None
        if alone is not None and alone is not best:
            found.append((self._forecast(alone.commands), alone))
        # On a device with one core, the last candidate is the first one.
        if alone is not None and alone.layout.needs_forecast and _may_do_without(alone.layout, found[-1][0]):
            # If there are candidates for the L2, more than these two are compared.
            found += self._without_cascades(found[-1], may_drop=near is None)
        if near is not None:
            found += self._for_l2()
        if not found:
            raise self.refused or ScheduleError(
                f"no schedule of {self.graph.name} on {config.name} satisfies the constraints"
            )
        if self.tried is not None:
            self.tried.extend(found)
        return _first(found, config)

    def _without_exchange(self) -> Iterator[tuple[int, Build]]:
        """Yield (forecast, candidate) for tiles shared by all cores, each of which reads all of its operands itself."""
        found = self._try(self._shared(self.config.cores).with_(exchange=False))
        if found is not None:
            yield self._forecast(found.commands), found

    def _for_l2(self) -> Iterator[tuple[int, Build]]:
        """Yield (forecast, candidate) for plans that assume that all tensors fit into the L2."""
        cores = self.wanted.cores or self.config.cores
        exchange = self.wanted.exchange is not False
        schedules = [self._shared(cores, L2)]
        if cores > 1:
            schedules.append(self._sharded(cores, backing=L2, exchange=exchange))
        for schedule in schedules:
            found = self._try(schedule)
            if found is not None:
                yield self._forecast(found.commands), found

    def _shared(self, cores: int, backing: str = DRAM) -> Schedule:
        """A schedule in which cores share the tiles of each layer. With one core, it may use cascades."""
        return self._plain.with_("shards", cores=cores, backing=backing)

    def _sharded(self, cores: int, *, backing: str = DRAM, exchange: bool = True) -> Schedule:
        """A schedule in which layers are sharded across cores."""
        return self._plain.with_("cascades", cores=cores, backing=backing, exchange=exchange)

    @property
    def _plain(self) -> Schedule:
        """``wanted`` without pinned weights, which are chosen last."""
        return self.wanted.with_(pinned=(), large_tiles=None)

    def _on_fewer_cores(self, shared_ps: int | None) -> Iterator[tuple[int, Build]]:
        """Yield (forecast, candidate) for sharded layers on all or fewer cores, and for shared tiles on fewer cores.

        ``shared_ps``: the forecast with tiles shared among all cores, None if that candidate does not exist.
        """
        risen = worse = 0
        cores, best = self.config.cores, inf
        counts = {count for count in (*_COUNTS, self.wanted.cores or cores) if 1 < count < cores}
        for count in sorted({cores, *counts}, reverse=True):
            if worse < _MOST_WORSE_SHARDS or cores % count == 0:
                least = best
                for ps, sharded in self._sharded_both(count, min(best, inf if shared_ps is None else shared_ps)):
                    yield ps, sharded
                    best = min(best, ps)
                worse = 0 if best < least else worse + 1
            # If fewer cores are slower, even fewer are too, unless a number divides a layer badly.
            if risen >= _MOST_RISEN or count == cores or _is_far_better(best, shared_ps):
                continue
            if (found := self._try(self._shared(count))) is not None:
                ps = self._forecast(found.commands)
                yield ps, found
                risen, shared_ps = (0, ps) if shared_ps is None or ps < shared_ps else (risen + 1, shared_ps)

    def _sharded_both(self, count: int, least: float) -> Iterator[tuple[int, Build]]:
        """Yield (forecast, candidate) for sharded layers whose values pass between cores, or are in DRAM as a whole.
        ``least``: the shortest forecast so far.

        Passing values needs scratchpad and time, which may be less or more than a round trip through DRAM. Without an
        exchange network the second form is only tried on all cores, because it doubles the search time.
        """
        both = count == self.config.cores or self.config.exchange is not None
        if self.config.l2 is not None:
            least = inf  # the estimate assumes DRAM for what may be in the L2
        for exchange in (True, False) if both else (True,):
            found = self._try(self._sharded(count, exchange=exchange), least * _CORES_PERCENT / 100)
            if found is not None:
                ps = self._forecast(found.commands)
                least = min(least, ps)
                yield ps, found

    def _on_chip_ps(self) -> int:
        """The estimated picoseconds of all layers on one core if all values between them are in its scratchpad."""
        device = replace(self.config, cores=1)
        context = Context(device, ConstantPool(), facts=facts_of(self.graph))
        groups, buffers = place(self.graph, form_all(self.graph, device, FREE.with_("fused_attention")), context)
        for buffer in buffers:
            buffer.core = 0 if buffer.is_scratch else None
        total = 0
        for group in groups:
            if not ScheduleStep([group]).is_empty:
                with suppress(CompileError):
                    total += fit(ScheduleStep([group]), context).lowerings[0].estimate()
        return total

    def _with_cascades(self, found: Sequence[tuple[int, Build]]) -> Iterator[tuple[int, Build]]:
        """Yield (forecast, candidate) for layers of many rows cut along these, with cascades where they gain: on all
        cores, on the number of cores that is best for the sharded layers in ``found``, and on fewer while it gains."""
        sharded = [(ps, each) for ps, each in found if each.plan.shards.are_cut]
        if not sharded or not self.wanted.searches("cascades"):
            return
        _, best = min(sharded, key=itemgetter(0))
        cores = self.wanted.cores or self.config.cores
        fewer = {count for count in _COUNTS if count < cores and self.wanted.cores is None}
        worse, least = 0, inf
        for count in sorted({cores, best.cores, *fewer}, reverse=True):
            if worse >= _MOST_WORSE_SHARDS and count != best.cores:
                continue
            exchange = best.plan.schedule.exchange
            schedule = self._plain.with_(
                "fused_attention", cores=count, exchange=exchange, fused_attention=best.plan.attentions
            )
            try:
                plan = make_plan(self.graph, self.config, schedule)
                known = any(each.plan.layer_shards == plan.layer_shards for _, each in sharded if each.cores == count)
                # The estimate ignores waits between layers, so a program cannot be shorter.
                # But it assumes DRAM for what may be in the L2.
                slower = plan.estimated_ps >= least and self.config.l2 is None
                if (known and not plan.layer_cascades) or slower:
                    worse += 1
                    continue
                striped = Emission(plan, copy(self.budget)).finish()
            except CompileError as error:
                self.refused = self.refused or error
                continue
            ps = self._forecast(striped.commands)
            worse, least = (0, ps) if ps < least else (worse + 1, least)
            yield ps, striped

    def _without_cascades(self, striped: tuple[int, Build], *, may_drop: bool) -> list[tuple[int, Build]]:
        """Build the candidate on one core without cascades, for comparison with ``striped``. Empty if it does not fit.

        ``may_drop``: stop building it once it cannot win, unless ``tried`` is collected.
        """
        try:
            emission = self._alone(striped[1].plan)
            may_win = not may_drop or self._may_win(emission, striped)
            if not may_win and self.tried is None:
                return []
            found = emission.finish()
        except CompileError:
            return []
        result = [(self._forecast(found.commands), found)]
        if not may_win and self.tried is not None:
            self.tried += result
        return result if may_win else []

    def _alone(self, plan: ProgramPlan) -> Emission:
        """Start the program on one core without cascades. ``plan``: the plan with cascades. Raises CompileError."""
        closed = plan.schedule.with_("cascades", "fused_attention", fused_attention=plan.attentions)
        if self.wanted == FREE:  # all estimates are cached, so none of them places constants
            closed = closed.with_(constants=BY_USE)
        return Emission(make_plan(self.graph, self.config, closed, plan.context.facts), copy(self.budget))

    def _may_win(self, emission: Emission, striped: tuple[int, Build]) -> bool:
        """Whether the program without cascades may beat the one with them. Raises CompileError.

        Cascades mostly cover the large images at the beginning. After the last cascade both programs are the same, so
        they are compared up to there, plus one step so that loads that run ahead count.
        """
        ps, other = striped
        group = _last_difference(other.layout.steps, emission.steps)
        if group is None:
            return True
        ours, theirs = emission.until(group), commands_until(other.commands, group)
        longer = self._forecast(ours) - self._forecast(theirs)
        at_best = ps + longer - ps * _APART // 1000
        more = _traffic(ours, self.config) - _traffic(theirs, self.config)
        traffic = _traffic(other.commands, self.config)
        return _first_of([(at_best, traffic + more), (ps, traffic)]) == 0

    # pinned weights

    def with_loop_weights(self, plain: Build) -> Build:
        """Return the program with the weights of loops in the scratchpad for its whole duration, if it is faster."""
        if not any(group.ops[0].kind == "repeat" for group in plain.groups) or not self.wanted.searches("pinned"):
            return plain
        plan = plain.plan
        starts = of_loops(plain.groups, _pinnable(plan), plan.context)
        if not starts:
            return plain
        layers = LayerNames(plain.groups)
        pinned = tuple(PinnedLayer(layers.names[group], start) for group, start in sorted(starts.items()))
        closed = self._base(plan).with_(
            "fused_attention", "shards", "pinned", fused_attention=plan.attentions, shards=plan.layer_shards
        )
        # Without large tiles, iterations might have different tiles, because the first one reads a constant.
        made = self._try(closed.with_(pinned=pinned, large_tiles=True))
        if made is None:
            return plain
        return _first([(self._forecast(each.commands), each) for each in (plain, made)], self.config)

    def with_pinned_weights(self, plain: Build) -> Build:
        """Return the program whose inferences after the first have the shortest forecast. ``plain``: the best program
        without pinned weights."""
        plan = plain.plan
        closed = self._base(plan).with_(
            "fused_attention", "shards", "pinned", fused_attention=plan.attentions, shards=plan.layer_shards
        )
        config, layers = replace(self.config, cores=plain.cores), LayerNames(plain.groups)
        wanted = self.wanted
        best: Build | None = None if wanted.pinned else plain
        least, most = forecast(plain.commands, config), closed

        def try_(schedule: Schedule) -> bool:
            """Whether this schedule beats the best so far, or is as fast with less traffic."""
            nonlocal best, least, most
            found = self._try(schedule)
            if found is None:
                return False
            later = forecast(body(found.commands, found.prologue), config)
            if best is not None and _first([(later, found), (least, best)], config) is not found:
                return False
            best, least, most = found, later, schedule
            return True

        given = {layers.number(each.layer, "pinned"): each.offset for each in wanted.pinned}
        searched = wanted.searches("pinned") or None in given.values()
        options = choices(candidates(_pinnable(plan)), plan.context, given, others=wanted.searches("pinned"))
        for number, pinned in enumerate(options if searched else [Pinned({k: v or 0 for k, v in given.items()})]):
            weights = tuple(PinnedLayer(layers.names[group], start) for group, start in sorted(pinned.starts.items()))
            # If pinning more is slower, pinning even more is too. The smallest choice may be slower than none.
            if not try_(closed.with_(pinned=weights, large_tiles=wanted.large_tiles)) and number:
                break
        if most.pinned and wanted.large_tiles is None:
            try_(most.with_(large_tiles=True))
        if best is None:
            names = ", ".join(each.layer for each in wanted.pinned)
            raise ScheduleError(
                f"pinned: the weights of {names} cannot stay in the scratchpad; must be constant weights of matrix "
                f"products and convolutions that fit beside the tiles"
            )
        return best


def _pinnable(plan: ProgramPlan) -> list[tuple[Group, Context]]:
    """The groups whose weights may be pinned, each with the context for its estimates."""
    if plan.shards.are_cut:
        return plan.shards.on_first_core(plan.groups)
    # Assume that all tensors are in DRAM: which ones fit into the scratchpad depends on what is pinned.
    context = Context(plan.device, ConstantPool(), facts=facts_of(plan.graph))
    schedule = plan.schedule.with_("fused_attention", fused_attention=plan.attentions)
    groups, _ = place(plan.graph, form_all(plan.graph, plan.device, schedule), context)
    return [(each, context) for each in groups]


def _is_far_better(ps: float, shared_ps: int | None) -> bool:
    """Whether sharded layers take far less time than shared tiles."""
    return shared_ps is not None and ps * 100 <= shared_ps * _FAR_PERCENT


def _may_do_without(layout: MemoryPlan, striped_ps: int) -> bool:
    """Whether a program without cascades may be as fast as the one with them, whose forecast is ``striped_ps``."""
    return layout.no_cascade_ps * 100 <= striped_ps * (100 + _WHOLE_PERCENT)


def _last_difference(one: Sequence[ScheduleStep], other: Sequence[ScheduleStep]) -> int | None:
    """The last group of the first step after which both programs have the same steps and the same residents. None if no
    steps follow it."""
    same = sum(1 for _ in takewhile(lambda pair: _alike(*pair), zip(reversed(one), reversed(other), strict=False)))
    return one[-same].groups[-1].index if same > 1 else None


def _alike(one: ScheduleStep, other: ScheduleStep) -> bool:
    """Whether two steps differ at most in the addresses of their slots."""
    if one.cascade or other.cascade or one.groups[0].index != other.groups[0].index:
        return False
    return _places(one) == _places(other)


def _places(step: ScheduleStep) -> list[tuple[str, int]]:
    return [(buffer.name, buffer.offset) for buffer in step.resident]


def _first(found: Sequence[tuple[int, Build]], config: Config) -> Build:
    """Return the fastest program; among similar forecasts on the same number of cores, the one with the least traffic.

    The best program for one number of cores does not depend on the others, and these are compared by time alone. So a
    device with more cores never gets a slower program than one with fewer.
    """
    best: dict[int, tuple[int, Build]] = {}
    for cores in dict.fromkeys(each.cores for _, each in found):
        alike = [(ps, each) for ps, each in found if each.cores == cores]
        best[cores] = alike[0]
        if len(alike) > 1:
            figures = [(ps, _traffic(each.commands[each.prologue :], config)) for ps, each in alike]
            best[cores] = alike[_first_of(figures, most_traffic(alike[0][1].plan.graph, cores, config))]
    return min(best.values(), key=itemgetter(0))[1]


def most_traffic(graph: Graph, cores: int, config: Config) -> float:
    """The bytes of traffic that several cores should not exceed; infinite for one core.

    Cores that share loads, or values through an exchange network, read everything once. Otherwise each core reads the
    weights of a layer, or all of its input, which is also written.
    """
    if cores == 1:
        return inf
    once = sum(tensor.nbytes for tensor in (*graph.inputs, *graph.outputs))
    shares = cores_served(config, cores, Port.DRAM) > 1
    for op in graph.ops:
        if op.kind in ("conv", "matmul"):
            image, weights = op.input(0).nbytes, op.input(1).nbytes
            once += weights if shares else min(cores * weights, weights + (cores + 1) * image)
    return once * (100 + _MORE_TRAFFIC_PERCENT) / 100


def _first_of(figures: Sequence[tuple[int, int]], most: float = inf) -> int:
    """The index of the best (picoseconds, bytes of traffic) of programs on the same number of cores."""
    times, traffic = np.array(figures, np.float64).T[:, :, np.newaxis]
    return int(first_of(times, traffic, most)[0])


def first_of(times: Floats, traffic: Floats, most: float) -> npt.NDArray[np.intp]:
    """The index of the best of several programs, by device. Picoseconds and bytes: [programs][devices].

    A program with more than ``most`` bytes must be faster by ``_DEAR_PERCENT``.
    """
    dear = np.floor(times.min(0) * (100 + _DEAR_PERCENT) / 100)
    near = (traffic <= most) & (times <= dear)
    near |= ~near.any(0)
    limit = np.floor(np.where(near, times, inf).min(0) * (1000 + _SLACK) / 1000)
    moved = np.where(near & (times <= limit), traffic, inf)
    found: npt.NDArray[np.intp] = np.where(moved == moved.min(0), times, inf).argmin(0)
    return found


def _traffic(commands: Sequence[Command], config: Config) -> int:
    """Bytes that cross the pins of the DRAM, with those of the commands."""
    model, kinds = cost_model(config), tally(commands)
    works = [(command.instruction.asked(), times) for command, times in kinds]
    code = 0
    if not config.interconnect.separate_code_port:
        code = sum(times * (HEADER_BYTES + command.instruction.encoded_bytes()) for command, times in kinds)
        code += WAIT_BYTES * sum(len(command.waits) for command in commands)
    return code + sum(times * model.dram_bytes(work) for work, times in works if isinstance(work, DmaWork))
