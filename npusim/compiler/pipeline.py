"""Graph to Program: legalise, fuse, group, place, lower, schedule, emit, verify."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from npusim.compiler.forecast import forecast
from npusim.compiler.fuse import fold_affine, integerize
from npusim.compiler.groups import Group, form_groups
from npusim.compiler.legalize import legalize, separate_outputs, unsupported
from npusim.compiler.lower.base import ConstantPool, Context, Lowering, SlotTable
from npusim.compiler.memory import Layout, fit, plan
from npusim.compiler.narrow import narrow_weights
from npusim.compiler.place import Placement, place
from npusim.compiler.schedule import Scheduler, Tile
from npusim.compiler.stripes import before_stripe
from npusim.compiler.tile import acc_bytes
from npusim.compiler.values import align
from npusim.dtypes import DType
from npusim.errors import CompileError, UnsupportedError
from npusim.graph import Graph, Op
from npusim.hw.config import Config
from npusim.isa.base import Command, Unit, encode
from npusim.isa.verify import Limits, verify
from npusim.program import FIRST_IO, Binding, ConstantData, OpEntry, Program
from npusim.work import MatrixWork


def compile_graph(graph: Graph, config: Config, key: str = "") -> Program:
    """Compile for one device; the same graph and config give the same bytes.

    Raises UnsupportedError for operators that the device has no unit for, CompileError for what does not fit.
    """
    # Taken before the rewriting, which may put other tensors in their place: a client binds by the model's names.
    names = tuple(tensor.name for tensor in graph.outputs)
    prepared = separate_outputs(prepare(graph, config))
    best = _best(prepared, config)
    commands, sizes = best.commands, best.sizes
    # Our own output is not trusted more than a file's: a bug in a lowering ends here, not in a fault on the device.
    verify(
        commands, Limits(sizes, config.sram.bytes, acc_bytes(config), config.cores, config.dma.channels, config.units)
    )
    count = len(prepared.inputs)
    bindings = [
        Binding(name, FIRST_IO + index, tensor.shape, tensor.dtype)
        for index, (name, tensor) in enumerate(
            zip((*(t.name for t in prepared.inputs), *names), (*prepared.inputs, *prepared.outputs), strict=True)
        )
    ]
    return Program(
        graph.name, config.name, config.fingerprint(), key, encode(commands),
        ConstantData(sizes[0], best.constants.pieces), sizes,
        tuple(bindings[:count]), tuple(bindings[count:]),
        tuple(OpEntry(group.name, group.kind) for group in best.groups), len(commands), _macs(commands),
    )  # fmt: skip


@dataclass(slots=True)
class _Order:
    """A command stream, and what it works on: bytes of regions, constants, the groups that commands name."""

    commands: list[Command]
    sizes: tuple[int, ...]
    constants: ConstantPool
    groups: list[Group]
    striped: bool


def _best(graph: Graph, config: Config) -> _Order:
    """The order that is done first, by forecast. Few cores may be faster than many: each loads its own weights, and one
    alone keeps values in its SRAM; there, whole values may be faster than stripes."""
    best = _ordered(graph, config)
    time = forecast(best.commands, config) if config.cores > 1 or best.striped else 0
    for count in [config.cores >> shift for shift in range(1, config.cores.bit_length())]:
        order = _ordered(graph, replace(config, cores=count))
        taken = forecast(order.commands, config)
        if taken < time:
            best, time = order, taken
    if best.striped:
        order = _ordered(graph, replace(config, cores=1), stripes=False)
        if forecast(order.commands, config) < time:
            return order
    return best


def _ordered(graph: Graph, config: Config, *, stripes: bool = True) -> _Order:
    context = Context(config, ConstantPool())
    placement = place(graph, form_groups(graph.ops, graph.outputs), context)
    layout = plan(placement, context, stripes=stripes)
    values = (layout.scratch_bytes, *(tensor.nbytes for tensor in (*graph.inputs, *graph.outputs)))
    _check_capacity(graph, (0, *values), config)  # before tiles are made of what fits nowhere
    commands = _schedule(placement, layout, context, config)
    sizes = (align(context.constants.size), *values)
    _check_capacity(graph, sizes, config)
    striped = any(unit.segment for unit in layout.units)
    return _Order(commands, sizes, context.constants, placement.groups, striped)


def _macs(commands: Sequence[Command]) -> tuple[tuple[DType, int], ...]:
    totals: dict[DType, int] = {}
    for command in commands:
        if command.unit == Unit.MATRIX:
            work = command.instruction.work()
            if isinstance(work, MatrixWork):
                totals[work.dtype] = totals.get(work.dtype, 0) + work.macs
    return tuple(sorted(totals.items()))


def prepare(graph: Graph, config: Config) -> Graph:
    """The graph as it is tiled: legal for the device, fused; its reference is the truth for integer results.

    Raises UnsupportedError naming every operator that the device cannot execute, and why.
    """
    prepared = _rewritten(graph, config)
    reasons = [(op.name, op.kind, reason) for op, reason in unsupported(prepared, config)]
    if reasons:
        raise UnsupportedError(reasons)
    return prepared


def find_unsupported(graph: Graph, config: Config) -> list[tuple[Op, str]]:
    """The operators for which ``prepare`` would refuse a graph, as it rewrites them, and why."""
    return unsupported(_rewritten(graph, config), config)


def _rewritten(graph: Graph, config: Config) -> Graph:
    # The order matters. Quantised patterns are looked for as the model has them, before legalising moves a computed
    # bias; narrowing comes last, when transposed convolutions are convolutions and weights have their final values.
    return narrow_weights(fold_affine(legalize(integerize(graph))), config)


def _schedule(placement: Placement, layout: Layout, context: Context, config: Config) -> list[Command]:
    scheduler = Scheduler(config)
    born: dict[int, list[int]] = {}
    for number, buffer in enumerate(placement.buffers):
        born.setdefault(buffer.born, []).append(number)
    low_end = True
    for unit in layout.units:
        for group in unit.groups:
            for number in born.get(group.index, ()):
                scheduler.born(placement.buffers[number])
        if not any(prod(tensor.shape) for group in unit.groups for tensor in group.outputs):
            continue
        fitted = fit(unit, context, low_end=low_end)
        # Neighbouring groups use opposite ends of SRAM, so that one may load while the other
        # still computes, if both fit.
        low_end = not low_end
        # Every core has the same slots at the same addresses in its own SRAM; only the tiles differ.
        tables = [
            [SlotTable(core, specs, starts) for core in range(config.cores)]
            for specs, starts in zip(fitted.specs, fitted.starts, strict=True)
        ]
        if unit.segment is None:
            scheduler.add(unit.groups[0].index, _streams(fitted.lowerings[0], tables[0]))
            continue
        for image, (stripe, rows) in product(range(unit.segment.images), enumerate(unit.segment.stripes)):
            moved = unit.segment.moved(stripe)
            for number, (first, end) in enumerate(rows):
                index = unit.groups[number].index
                # Also where nothing is made: padding below the image may be wanted then.
                scheduler.add(index, [before_stripe(unit.segment, number, image, stripe)])
                if first < end:
                    scheduler.add(
                        index, _streams(fitted.lowerings[number].stripe(image, (first, end), moved), tables[number])
                    )
    return scheduler.finish()


def _streams(lowering: Lowering, tables: Sequence[SlotTable]) -> list[Iterator[Tile]]:
    return [lowering.steps(table, core, len(tables)) for core, table in enumerate(tables)]


def _check_capacity(graph: Graph, sizes: tuple[int, ...], config: Config) -> None:
    needed = sum(sizes)
    if needed > config.dram.bytes:
        raise CompileError(
            f"{graph.name}: needs {needed} bytes of DRAM (constants {sizes[0]}, intermediate values {sizes[1]}), "
            f"{config.name} has {config.dram.bytes}"
        )
