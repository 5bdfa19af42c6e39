"""The resource that each picosecond of a run waits for, from its critical path. The parts add up to the total time.

:meth:`npusim.timeline.Timeline.critical_path` assigns each picosecond on the device to one span, or to the sequencer.
The time of a span is divided by the terms of its cost (:mod:`npusim.hw.cost`): the k-th span of a unit is the k-th
command of that unit in the program, and the work of a command determines its terms. A span that took longer than alone
waited for a resource that other units used. A span that took less began while an older one was running, which hides its
first terms. The time of the host is that of an inference with a loaded program (:func:`host_ps`), so the result depends
on device and program alone, not on earlier runs and not on whether outputs were computed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.hw.units.dma import FETCH_BYTES, capacities, channels
from npusim.isa.base import Command, Instruction, Unit, unit_name
from npusim.isa.emitted import commands_of
from npusim.isa.repeat import blocks
from npusim.program import Program
from npusim.timeline import HOST, SEQUENCER, PathSegment, Timeline
from npusim.units import bytes_to_ps, cycles_to_ps
from npusim.work import ControlWork, DmaWork, MatrixWork, Port, VectorWork, Work

RESOURCES = {
    "array": "filling and draining the matrix unit, loading its weights",
    "macs": "multiply-accumulates of the matrix unit",
    "vector": "lanes of the vector unit",
    "scalar": "the scalar unit",
    "sram": "ports and banks of the SRAM",
    "dma": "width of the DMA channels",
    "dram": "bandwidth of the DRAM pins",
    "latency": "latency of DRAM, and bursts in flight",
    "l2": "latency and bandwidth of the L2",
    "interconnect": "bandwidth between cores and memories",
    "exchange": "the network between the SRAMs of cores",
    "dependencies": "set-up and dispatch of instructions that wait for each other",
    "host": "the host: decisions, transfers, submission, interrupts",
    "other jobs": "preemption by other jobs",
}
"""The resources with their meaning. Each picosecond belongs to one."""

TERMS = {
    "setup": "dependencies",
    "sram_latency": "dependencies",
    "stream": "macs",
    "mac": "macs",
    "rows": "macs",
    "swap": "array",
    "skew": "array",
    "start": "array",
    "tail": "array",
    "pipeline": "array",
    "weights": "array",
    "output": "array",
    "operands": "sram",
    "port": "sram",
    "sram": "sram",
}
"""The resource of terms of the cost of matrix, vector and scalar work. Others, such as ``compute``, are the unit's."""
_LIMITS = {"channel": "dma", "outstanding": "latency", "interconnect": "interconnect"}
_CAUSES = {"dispatch": "dependencies", "completion": "host", "context": "other jobs", "parked": "other jobs"}

Parts = tuple[tuple[str, int], ...]
"""(resource, ps) pairs."""


class BoundSegment(NamedTuple):
    """A segment of the critical path, and its time by resource."""

    segment: PathSegment
    parts: Parts


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """``path``: the critical path on the device. ``resources``: ps by resource, largest first, on the device and of the
    host; they add up to ``total_ps``, the time of an inference from its inputs to its outputs on the host."""

    path: Sequence[BoundSegment]
    resources: Mapping[str, int]

    @property
    def total_ps(self) -> int:
        """The sum of all parts."""
        return sum(self.resources.values())

    @property
    def bound(self) -> str:
        """The resource with the largest part; empty for a run without time."""
        return next(iter(self.resources), "")

    def to_json_dict(self) -> dict[str, Any]:
        return {"bound": self.bound, "total_ps": self.total_ps, "resources": dict(self.resources)}


Instructions = Mapping[str, Sequence[Instruction]]
"""The instructions of each unit, in order."""


def instructions(program: Program, *, held: bool) -> dict[str, list[Instruction]]:
    """The instructions of each unit in the order of execution. ``held``: without those that load pinned weights."""
    commands, prologue = commands_of(program)
    by_unit: defaultdict[tuple[int, int], list[Instruction]] = defaultdict(list)
    for each in blocks(commands[prologue if held else 0 :]):
        if isinstance(each, Command):
            if each.unit != Unit.CONTROL:
                by_unit[each.core, each.unit].append(each.instruction)
            continue
        # The work of a repeated command does not depend on its address, so its iterations need not be built.
        once: defaultdict[tuple[int, int], list[Instruction]] = defaultdict(list)
        for command in each[1].commands:
            once[command.core, command.unit].append(command.instruction)
        for place, block in once.items():
            by_unit[place] += block * each[1].times
    return {unit_name(*place): found for place, found in by_unit.items()}


CONTROL_COPIES, REGISTER_ACCESSES = 3, 4
"""Of the driver for one job: ring entry, table of addresses and completion record, less than a cache line each; the
doorbell and the registers of the interrupt. Jobs differ by up to two accesses."""


def host_ps(config: Config, program: Program) -> int:
    """Host time in ps of an inference with a loaded program, outside of the device: the operators that the host
    computes, inputs and outputs over the link except for tensors that stay on the device, submission, interrupt."""
    host = config.host
    kept = {binding.name for pair in program.states for binding in pair}
    moved = [host.copy_ps(each.nbytes) for each in (*program.inputs, *program.outputs) if each.name not in kept]
    control = CONTROL_COPIES * host.copy_ps(0) + REGISTER_ACCESSES * host.mmio_ps
    return program.host.operations * host.operation_ps + sum(moved) + control + host.submit_ps + host.irq_ps


def bottleneck(config: Config, timeline: Timeline, executed: Instructions, host: int) -> Bottleneck:
    """The resources that a run on a device waited for. ``executed``: its instructions. ``host``: see
    :func:`host_ps`."""
    seen: Counter[str] = Counter()
    places = []
    for span in timeline.spans:
        places.append(seen[span.unit])
        seen[span.unit] += 1
    known: dict[tuple[Work, int], Parts] = {}
    path = []
    for segment in timeline.critical_path():
        taken = segment.end_ps - segment.start_ps
        if segment.unit in executed:
            work = executed[segment.unit][places[segment.span]].asked()
            parts = known.get((work, taken))
            if parts is None:
                parts = known[work, taken] = parts_of(config, work, taken)
        else:
            fetched = timeline.counters.units[SEQUENCER].bytes if SEQUENCER in timeline.counters.units else 0
            parts = _outside(config, segment, taken, fetched)
        path.append(BoundSegment(segment, parts))
    return Bottleneck(path, summed([*(each.parts for each in path), ((HOST, host),)]))


def summed(parts: Iterable[Parts]) -> dict[str, int]:
    """The sums by resource without zeros, largest first; equal ones in the order of RESOURCES."""
    sums: Counter[str] = Counter(dict.fromkeys(RESOURCES, 0))
    for each in parts:
        for resource, ps in each:
            sums[resource] += ps
    return {name: ps for name, ps in sums.most_common() if ps}


def _outside(config: Config, segment: PathSegment, taken: int, fetched: int) -> Parts:
    """The parts of a segment that is not an instruction. ``fetched``: bytes of instructions of the whole run."""
    if segment.unit == HOST:
        return ((HOST, taken),)
    if segment.cause == "fetch":
        moved = min(taken, bytes_to_ps(min(fetched, FETCH_BYTES), capacities(config)[Port.CODE]))
        return (("latency", taken - moved), ("dram", moved))
    return ((_CAUSES[segment.cause], taken),)


def parts_of(config: Config, work: Work, taken_ps: int) -> Parts:
    """The time of a work that took ``taken_ps`` by resource; the parts add up to it."""
    if isinstance(work, ControlWork):
        return (("dependencies", taken_ps),)
    terms, shared = _transfer(config, work) if isinstance(work, DmaWork) else _computation(config, work)
    hidden = max(0, sum(ps for _, ps in terms) - taken_ps)
    found, left = [], taken_ps
    for resource, ps in terms:
        overlapped = min(hidden, ps)
        hidden -= overlapped
        found.append((resource, ps - overlapped))
        left -= ps - overlapped
    return tuple([(resource, ps) for resource, ps in (*found, (shared, left)) if ps])


def _computation(config: Config, work: Work) -> tuple[list[tuple[str, int]], str]:
    """The terms of a work alone, in ps; and the resource that it shares with other units."""
    price = cost_model(config).cost(work)
    unit, hz = "scalar", config.clock_hz
    if isinstance(work, MatrixWork):
        unit, hz = "macs", config.matrix_hz
    elif isinstance(work, VectorWork):
        unit, hz = "vector", config.vector_hz
    found, cycles, before = [], 0, 0
    for name, count in price.terms:
        # Sums are converted, not terms, so that the parts of a clock with a fractional period add up, too.
        cycles += count
        until = cycles_to_ps(cycles, hz)
        found.append((TERMS.get(name, unit), until - before))
        before = until
    return found, "sram"


def _transfer(config: Config, work: DmaWork) -> tuple[list[tuple[str, int]], str]:
    """The terms of a transfer alone, in ps; and the resource that it shares with other transfers."""
    here, parts = channels(config).transfer(work)
    memory = {Port.L2: "l2", Port.EXCHANGE: "exchange"}.get(work.port, "dram")
    shared = "interconnect" if here.shared_by == "interconnect" else memory
    terms = [
        ("dependencies", parts.start_ps),
        ("latency" if memory == "dram" else memory, parts.latency_ps),
        (_LIMITS.get(here.limit(parts), memory), here.moving_ps(parts)),
        ("dma", parts.writing_ps),
    ]
    return terms, shared if parts.bus_bytes else "sram"


__all__ = [
    "RESOURCES",
    "TERMS",
    "Bottleneck",
    "BoundSegment",
    "Instructions",
    "Parts",
    "bottleneck",
    "host_ps",
    "instructions",
    "parts_of",
    "summed",
]
