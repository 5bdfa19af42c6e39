"""Compile a Graph to a Program: legalise, fuse, group, place, lower, schedule, emit."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from npusim.compiler.grouping.groups import VIEWS
from npusim.compiler.passes.around_products import pad_in_convolutions, scale_results
from npusim.compiler.passes.canonical_order import in_canonical_order
from npusim.compiler.passes.dynamic_quantization import dynamic_quantization
from npusim.compiler.passes.exported_forms import restore_operators
from npusim.compiler.passes.fill_groups import fill_groups
from npusim.compiler.passes.fusion import fold_affine, integerize
from npusim.compiler.passes.hoist_elementwise import raise_elements
from npusim.compiler.passes.integer_movement import dequantize_in_each, resample_together
from npusim.compiler.passes.legalize import legalize, separate_outputs, unsupported
from npusim.compiler.passes.long_topk import topk_in_blocks
from npusim.compiler.passes.narrow_weights import narrow_weights
from npusim.compiler.passes.padded_taps import leave_out_padded_taps
from npusim.compiler.passes.simplify import simplify
from npusim.compiler.passes.tables import tabulate
from npusim.compiler.passes.transposed_conv import separate_phases
from npusim.compiler.schedule.build import Build
from npusim.compiler.schedule.explain import Decision, decisions
from npusim.compiler.schedule.kv_cache import growths
from npusim.compiler.schedule.loops import NotUniformError, with_loops
from npusim.compiler.schedule.memory_map import places
from npusim.compiler.schedule.prepared import PreparedGraph
from npusim.compiler.schedule.schedule import FREE, Schedule
from npusim.compiler.schedule.search import ScheduleSearch
from npusim.dtypes import DType
from npusim.errors import CompileError, UnsupportedError
from npusim.graph import Graph, Op, live
from npusim.hw.config import Config
from npusim.isa.base import MOST_REGIONS, Command, Unit
from npusim.isa.control import Residents
from npusim.isa.emitted import emit
from npusim.isa.repeat import blocks, expanded
from npusim.limits import limits_of
from npusim.ops.budget import COPIES, Budget
from npusim.ops.build import real_bytes
from npusim.ops.unrolling import has_loops, unrolled, without_unused_rows, written_size
from npusim.program import FIRST_IO, Binding, ConstantData, Program
from npusim.timing.forecast import forecast
from npusim.timing.tile_costs import rewriting
from npusim.work import MatrixWork


def compile_graph(graph: Graph | PreparedGraph, config: Config, key: str = "", schedule: Schedule = FREE) -> Program:
    """Compile for one device. The same graph, config and schedule give the same bytes.

    ``schedule``: choices that are given; the others are searched.

    Raises UnsupportedError for operators that the device has no unit for, CompileError if something does not fit,
    ScheduleError for a schedule that cannot be built.
    """
    # Collect again only when everything that the program was made from has been freed, and need not be traversed.
    with uncollected():
        return _compiled(graph, config, key, schedule)[0]


def compile_traced(graph: Graph, config: Config) -> tuple[Program, list[frozenset[int]]]:
    """As :func:`compile_graph`. Also returns, for each operator of the program that takes time on the device, the
    ``Op.origin`` of the operators in it."""
    with uncollected():
        program, best = _compiled(graph, config, "", FREE)
    busy = {command.op for command in best.commands if command.unit != Unit.CONTROL}
    return program, [
        frozenset(op.origin for op in group.ops if op.origin is not None)
        for number, group in enumerate(best.groups)
        if number in busy
    ]


@dataclass(slots=True)
class Explained:
    """A program, and how it was chosen.

    ``orders``: (label, forecast picoseconds) of the schedules that were compared, the chosen one first.
    """

    program: Program
    decisions: list[Decision]
    orders: list[tuple[str, int]] = field(default_factory=list)
    schedule: Schedule = FREE
    """The complete schedule: every choice that was made."""


def explain_graph(graph: Graph, config: Config, schedule: Schedule = FREE) -> Explained:
    """Compile as :func:`compile_graph` does, and explain where values are. Raises the same errors."""
    tried: list[tuple[int, Build]] = []
    with uncollected():
        program, best = _compiled(graph, config, "", schedule, tried)
    tried = tried or [(forecast(best.commands, config), best)]
    orders = [(order.label, time) for time, order in sorted(tried, key=lambda pair: (pair[1] is not best, pair[0]))]
    return Explained(program, decisions(best), orders, best.plan.complete())


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Context manager: disable Python's cycle collector.

    A compilation creates many objects that it keeps or frees at once. The collector would traverse the same objects
    again and again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # The first of several threads to finish enables it again. That only costs the others time.
        if enabled:
            gc.enable()


def _settled(settled: PreparedGraph, config: Config) -> tuple[Graph, Budget]:
    """:func:`_prepared`, cached in the prepared graph."""
    key = rewriting(config), config.sram.bytes if any(op.kind == "topk" for op in settled.graph.ops) else 0
    if key not in settled.rewritten:
        if len(settled.rewritten) >= _MOST_REWRITTEN:
            settled.rewritten.clear()
        settled.rewritten[key] = _prepared(settled.graph, config)
    graph, budget = settled.rewritten[key]
    return graph, copy(budget)


_MORE = (0, 2, 4)
"""Numbers of iterations of a loop that are written out besides the first ones, tried in turn while these differ in the
stream. Then values have had the addresses of others for so many iterations that waits repeat."""
_FEW = 256
"""Operators of a graph with its loops written out, times the cores of the device, up to which that form is compared:
it may be faster, because it keeps more values in the scratchpad, and takes longer to compile."""
_MOST_REWRITTEN = 8
"""Cached rewritten graphs per graph. When there are more, the cache is cleared."""


def _prepared(graph: Graph, config: Config) -> tuple[Graph, Budget]:
    """The rewritten graph, and the rest of the budget."""
    budget = Budget.of(config)
    prepared = separate_outputs(_legal(in_canonical_order(graph), config, budget))
    budget.grant(operators=len(prepared.ops))
    prepared.cache_rows = graph.cache_rows
    return prepared, budget


def _compiled(
    given: Graph | PreparedGraph,
    config: Config,
    key: str,
    schedule: Schedule,
    tried: list[tuple[int, Build]] | None = None,
) -> tuple[Program, Build]:
    graph, config = given.graph if isinstance(given, PreparedGraph) else given, _known(config)
    if not has_loops(graph):
        return _built(given, config, key, schedule, tried)
    graph = without_unused_rows(replace(graph, ops=live(graph.ops, graph.outputs)))
    looped = _looped(graph, config, key, schedule, tried)
    if looped is not None and written_size(graph) * config.cores > _FEW:
        return looped
    kept = tried[:] if tried is not None else []
    if tried is not None:
        tried.clear()
    try:
        written = _built(unrolled(graph), config, key, schedule, tried)
    except CompileError:
        if looped is None:
            raise
        written = looped
    if looped is None or forecast(written[1].commands, config) < forecast(list(expanded(looped[1].commands)), config):
        return written
    if tried is not None:
        tried[:] = kept
    return looped


@functools.lru_cache(maxsize=16)
def _known(config: Config) -> Config:
    """The first description that was equal to this one. Caches of costs find the same object without comparing all
    fields of both."""
    return config


def _looped(
    graph: Graph, config: Config, key: str, schedule: Schedule, tried: list[tuple[int, Build]] | None
) -> tuple[Program, Build] | None:
    """The program with loops; None if iterations differ in the stream."""
    for more in _MORE:
        with contextlib.suppress(NotUniformError, CompileError):
            return _built(unrolled(graph, more), config, key, schedule, tried)
        if tried is not None:
            tried.clear()
    return None


def _built(
    given: Graph | PreparedGraph,
    config: Config,
    key: str,
    schedule: Schedule,
    tried: list[tuple[int, Build]] | None,
) -> tuple[Program, Build]:
    graph = given.graph if isinstance(given, PreparedGraph) else given
    # Taken before the rewriting, which may replace tensors: a client binds by the model's names.
    names = tuple(tensor.name for tensor in graph.outputs)
    prepared, budget = _settled(given, config) if isinstance(given, PreparedGraph) else _prepared(graph, config)
    # Not part of the rewriting that designs share: this choice depends on nearly all of the description.
    prepared = fill_groups(prepared, config, budget)
    best = ScheduleSearch(prepared, config, budget, schedule, tried).run()
    best.commands = with_loops(best)
    commands, sizes = _marked(best), best.sizes
    # The stream is not verified here. Whoever executes it verifies it, whatever its origin.
    emitted = emit(commands, limits_of(config, sizes))
    count = len(prepared.inputs)
    bindings = [
        Binding(name, FIRST_IO + index, tensor.shape, tensor.dtype)
        for index, (name, tensor) in enumerate(
            zip((*(t.name for t in prepared.inputs), *names), (*prepared.inputs, *prepared.outputs), strict=True)
        )
    ]
    for source, target, axis, capacity in growths(prepared):
        for number in (source, count + target):
            bindings[number] = replace(bindings[number], region=FIRST_IO + source, axis=axis, capacity=capacity)
    program = Program(
        graph.name, config.name, config.fingerprint(), key, emitted.code,
        ConstantData(sizes[0], best.constants.pieces), sizes,
        tuple(bindings[:count]), tuple(bindings[count:]),
        tuple(best.entries()), len(commands), _macs(commands), graph.bound, best.resident_bytes,
        places=places(best), host=graph.host, emitted=emitted,
    )  # fmt: skip
    return program, best


def _marked(order: Build) -> list[Command]:
    """The commands, with a mark in front if some of them load pinned weights."""
    if not order.prologue or not order.plan.device.compiler.resident_weights:
        return order.commands
    size = sum(command.size for command in order.commands[: order.prologue])
    mark = Residents(size, order.resident_bytes)
    return [Command(0, Unit.CONTROL, order.commands[0].op, (), mark), *order.commands]


def _macs(commands: Sequence[Command]) -> tuple[tuple[DType, int], ...]:
    totals: dict[DType, int] = {}
    for each in blocks(commands):
        one, times = ([each], 1) if isinstance(each, Command) else (each[1].commands, each[1].times)
        for command in one:
            work = command.instruction.asked()
            if isinstance(work, MatrixWork):
                totals[work.dtype] = totals.get(work.dtype, 0) + times * work.macs
    return tuple(sorted(totals.items()))


def prepare(graph: Graph, config: Config, budget: Budget | None = None) -> Graph:
    """Rewrite a graph to the form that is tiled: legal for the device and fused, with all loops written out. For
    integers, its reference result is exact.

    Raises UnsupportedError that names every operator that the device cannot execute, and why; CompileError for a value
    that is larger than the device's memory, or beyond the budget.
    """
    return _legal(unrolled(graph), config, budget or Budget.of(config))


def _legal(graph: Graph, config: Config, budget: Budget) -> Graph:
    """As :func:`prepare`, with loops as they are."""
    _check_sizes(graph, config, budget)
    prepared = _rewritten(graph, config, budget)
    reasons = [(op.name, op.kind, reason) for op, reason in unsupported(prepared, config)]
    if reasons:
        raise UnsupportedError(reasons)
    return prepared


def _check_sizes(graph: Graph, config: Config, budget: Budget) -> None:
    """Refuse early what rules and lowerings would otherwise write out before they find that it fits nowhere."""
    ends = len(graph.inputs) + len(graph.outputs)
    if FIRST_IO + ends > MOST_REGIONS:
        raise CompileError(
            f"{graph.name}: {ends} inputs and outputs; instructions address {MOST_REGIONS - FIRST_IO} of them at most"
        )
    readers = {tensor: f"{op.name} ({op.kind})" for op in graph.ops for tensor in op.inputs if tensor is not None}
    for tensor in graph.constants():
        # Bytes that a view repeats are written out when they are packed as a constant.
        copied = tensor.nbytes - real_bytes(tensor)
        budget.take_bytes(copied // COPIES, readers.get(tensor, tensor.name))
    for op in graph.ops:
        values = () if op.kind in VIEWS else (*op.inputs, *op.outputs)
        for value in values:
            if value is not None and value.data is None and value.size > config.dram.bytes:
                raise CompileError(
                    f"{op.name} ({op.kind}): {value.name!r} {list(value.shape)} has {value.size} elements, "
                    f"{config.name} has {config.dram.bytes} bytes of DRAM"
                )


def find_unsupported(graph: Graph, config: Config) -> list[tuple[Op, str]]:
    """The operators for which ``prepare`` would refuse a graph, and why. Raises CompileError."""
    return unsupported(_rewritten(graph, config, Budget.of(config)), config)


def _rewritten(graph: Graph, config: Config, budget: Budget) -> Graph:
    # The order matters. Quantised patterns are matched in the form of the model, before legalising moves a computed
    # bias. Narrowing comes last, when transposed convolutions are convolutions and weights have their final values.
    floats = scale_results(restore_operators(simplify(graph)))
    integers = separate_phases(integerize(dynamic_quantization(floats), config))
    together = resample_together(leave_out_padded_taps(pad_in_convolutions(integers)))
    legal = legalize(topk_in_blocks(raise_elements(together), config), budget)
    return dequantize_in_each(tabulate(narrow_weights(fold_affine(legal), config), config))
