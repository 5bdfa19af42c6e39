"""Runs of models that decide at run time: the programs of a plan, with the decisions of the host between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from npusim import energy as energies
from npusim.bottleneck import Instructions, instructions
from npusim.driver import HostCounters
from npusim.dtypes import DType, from_storage, to_storage, value_text
from npusim.energy import Energy
from npusim.errors import DeadlineError, InputError
from npusim.hw import actions
from npusim.hw.config import Config
from npusim.isa.base import Instruction
from npusim.occupancy import Occupancy, Stay
from npusim.plan import Array, Items, PlanBuffer, Strings, Value, on_host
from npusim.program import FIRST_IO, Binding, ConstantData, OpEntry, Program
from npusim.runtime.dispatcher import Dispatcher
from npusim.runtime.request import DeviceBuffer, Request
from npusim.runtime.result import HostDecisions, Result
from npusim.timeline import HOST, NO_OP, ORDER, Counters, Span, Timeline, UnitCounters

if TYPE_CHECKING:
    from npusim.frontends.onnx.plan import NodePlan, PlannedModel
    from npusim.frontends.tflite.plan import PlannedTflite, TflitePlan

TRANSFER = OpEntry("host", "transfer")
"""The row of the operator table for time of the host between programs that no decision takes."""


@dataclass(slots=True, eq=False)
class PlannedProgram(Program):
    """A model that decides at run time what is computed: its programs are compiled when they are needed.

    It has no instructions of its own. Only :meth:`Session.run` can execute it. The shapes of ``outputs`` are unknown
    before a run, so there are none.
    """

    plan: NodePlan | TflitePlan | None = None


class HostSpan(NamedTuple):
    """Time of the host for one decision, in ps since power-on."""

    name: str
    kind: str
    start_ps: int
    end_ps: int


class SessionBackend:
    """Runs the programs of one execution, and records them.

    ``limit_ps``: simulated time for the execution. Programs are charged as in any run; a decision takes
    ``host.decision`` and ``host.operation`` for each element, a transfer ``host.link_latency`` and the time of its
    bytes.
    """

    def __init__(self, dispatcher: Dispatcher, limit_ps: int) -> None:
        self.started_ps = dispatcher.now_ps
        self.jobs: list[Result] = []
        # Arrays that a program has read, by identity. A second program reads them from device memory, so that inputs
        # of the model and values that a loop does not change are not copied again for each program.
        self._kept: dict[int, tuple[Array, DeviceBuffer | None]] = {}
        self.decisions: list[HostSpan] = []
        self._dispatcher = dispatcher
        self._limit_ps = limit_ps

    def limited(self) -> AbstractContextManager[None]:
        """See Backend."""
        return nullcontext()

    def run(
        self, program: Program, inputs: Mapping[str, Array | PlanBuffer], outputs: Mapping[str, PlanBuffer]
    ) -> Mapping[str, Array]:
        """See Backend. Raises DeadlineError, and errors of the device."""
        self._check()
        given = {
            name: self._input(value) if isinstance(value, np.ndarray) else cast("DeviceBuffer", value)
            for name, value in inputs.items()
        }
        request = Request(program, given, cast("Mapping[str, DeviceBuffer]", outputs))
        result = self._dispatcher.run(request)
        self.jobs.append(result)
        return result.outputs

    def _input(self, array: Array) -> Array | DeviceBuffer:
        """An input of a program: the array at its first use, then a copy in device memory."""
        if id(array) not in self._kept:
            self._kept[id(array)] = array, None
            return array
        _, buffer = self._kept[id(array)]
        if buffer is None:
            buffer = self.allocate(max(1, array.nbytes))
            self.write(buffer, array)
            self._kept[id(array)] = array, buffer
        return buffer

    def close(self) -> None:
        """Release the copies of arrays."""
        for _, buffer in self._kept.values():
            if buffer is not None:
                buffer.release()
        self._kept.clear()

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """See Backend."""
        return DeviceBuffer(self._dispatcher, self._dispatcher.memory.allocate(nbytes))

    def read(self, buffer: PlanBuffer, nbytes: int) -> bytes | bytearray:
        """See Backend."""
        self._dispatcher.idle(self._dispatcher.config.host.copy_ps(nbytes))
        return self._dispatcher.driver.read(cast("DeviceBuffer", buffer).block.address, nbytes)

    def write(self, buffer: PlanBuffer, data: Array) -> None:
        """See Backend."""
        self._dispatcher.idle(self._dispatcher.config.host.copy_ps(data.nbytes))
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._dispatcher.driver.write(cast("DeviceBuffer", buffer).block.address, raw.data)

    def again(self, limit_ps: int) -> int:
        """See Backend: iterations are not repeated without their decisions."""
        return 0

    def decide(self, name: str, kind: str, elements: int) -> None:
        """See Backend. Raises DeadlineError."""
        self._check()
        host, start_ps = self._dispatcher.config.host, self._dispatcher.now_ps
        self._dispatcher.idle(host.decision_ps + elements * host.operation_ps)
        self.decisions.append(HostSpan(name, kind, start_ps, self._dispatcher.now_ps))

    def elapsed_ps(self) -> int:
        """See Backend."""
        return self._dispatcher.now_ps - self.started_ps

    def _check(self) -> None:
        if self.elapsed_ps() > self._limit_ps:
            raise DeadlineError(
                f"the model was stopped after {self._limit_ps} ps of simulated time, the limit of a run with decisions "
                "(see Session, decision_limit); a loop may be endless"
            )


@dataclass(slots=True, eq=False, repr=False)
class PlannedResult(Result):
    """The result of a run with decisions: one timeline over all programs, with the host as a unit.

    ``time_ps`` is from the start of the first program or decision to the end of the last one, including transfers,
    submissions and interrupts between them, which are time of the host.
    """

    parts: Sequence[tuple[int, int, Result]] = field(default_factory=list)
    """(start in ps, first operator, result) of each program run."""

    @property
    def decisions(self) -> HostDecisions:
        """The decisions of the host."""
        spans = [span for span in self.timeline.spans if span.unit == HOST]
        decided = [span for span in spans if self.program.ops[span.op] is not TRANSFER]
        steps: dict[int, tuple[int, int]] = {}
        for span in decided:
            count, spent = steps.get(span.op, (0, 0))
            steps[span.op] = count + 1, spent + span.end_ps - span.start_ps
        return HostDecisions(
            len(decided),
            sum(span.end_ps - span.start_ps for span in decided),
            sum(span.end_ps - span.start_ps for span in spans) - sum(span.end_ps - span.start_ps for span in decided),
            len(self.parts),
            tuple((self.program.ops[op].name, self.program.ops[op].kind, *steps[op]) for op in sorted(steps)),
        )

    def part_of(self, op: int) -> tuple[Result, int] | None:
        """The last run of the program that has an operator, and the index of the operator there; None for the host."""
        found = [(part, op - first) for _, first, part in self.parts if 0 <= op - first < len(part.program.ops)]
        return found[-1] if found else None

    @property
    def memory(self) -> list[Occupancy]:
        """See Result: the memories of all programs, one after the other."""
        if self._memory is None:
            found: dict[str, Occupancy] = {}
            for start, _, part in self.parts:
                for each in part.memory:
                    into = found.setdefault(each.memory, Occupancy(each.memory, each.capacity_bytes))
                    into.stays += [Stay(place, first + start, last + start) for place, first, last in each.stays]
                    into.steps += [(at + start, held) for at, held in each.steps]
                    if each.peak_bytes > into.peak_bytes:
                        into.peak_ps, into.at_peak = each.peak_ps + start, each.at_peak
            self._memory = [found[name] for name in sorted(found)]
        return self._memory

    @property
    def energy(self) -> Energy:
        """See Result: the energy of all programs, and of the device while the host works."""
        if self._energy is None:
            counted: energies.Counts = {}
            for _, first, part in self.parts:
                for (op, unit), found in energies.counts(part.device, part.program, part.timeline).items():
                    place = (op + first if op >= 0 else op, unit)
                    energies.add(counted.setdefault(place, {}), found, 1)
            for span in self.timeline.spans:
                if span.unit == HOST:
                    spent = actions.time_actions(self.device, span.start_ps, span.end_ps)
                    energies.add(counted.setdefault((span.op, energies.CHIP), {}), spent, 1)
            self._energy = energies.priced(self.device, counted, self.program.ops)
        return self._energy

    def _executed(self) -> Instructions:
        """See Result: of all programs, one after the other."""
        found: dict[str, list[Instruction]] = {}
        for _, _, part in self.parts:
            for unit, each in instructions(part.program, held=part.residents_held).items():
                found.setdefault(unit, []).extend(each)
        return found


def merged(program: PlannedProgram, device: Config, backend: SessionBackend, now_ps: int) -> PlannedResult:
    """The result of an execution without its outputs."""
    jobs, decisions = backend.jobs, backend.decisions
    starts = [job.timeline.started_ps for job in jobs[:1]] + [span.start_ps for span in decisions[:1]]
    ends = [job.timeline.started_ps + job.timeline.time_ps for job in jobs[-1:]]
    origin = min(starts, default=now_ps)
    end = max([*ends, *(span.end_ps for span in decisions[-1:])], default=origin)
    ops: list[OpEntry] = []
    firsts: dict[int, int] = {}
    for job in jobs:
        if id(job.program) not in firsts:
            firsts[id(job.program)] = len(ops)
            ops += job.program.ops
    rows: dict[tuple[str, str], int] = {}
    for decision in decisions:
        if decision[:2] not in rows:
            rows[decision.name, decision.kind] = len(ops)
            ops.append(OpEntry(decision.name, f"host {decision.kind}"))
    transfer = len(ops)
    ops.append(TRANSFER)
    parts = [(job.timeline.started_ps - origin, firsts[id(job.program)], job) for job in jobs]
    spans = [
        span._replace(
            start_ps=span.start_ps + start,
            end_ps=span.end_ps + start,
            op=NO_OP if span.op == NO_OP else span.op + first,
        )
        for start, first, job in parts
        for span in job.timeline.spans
    ]
    host = [(start, start + job.timeline.time_ps, NO_OP) for start, _, job in parts]
    host += [(each.start_ps - origin, each.end_ps - origin, rows[each.name, each.kind]) for each in decisions]
    spans += _host_spans(sorted(host), transfer)
    spans.sort(key=ORDER)
    timeline = Timeline(spans, _counters(jobs, spans, end - origin), 0, end - origin, origin)
    timeline.injected = tuple(each for job in jobs for each in job.timeline.injected)
    counters = HostCounters()
    for job in jobs:
        counters.add(job.host)
    macs: dict[Any, int] = {}
    for job in jobs:
        for dtype, count in job.program.macs:
            macs[dtype] = macs.get(dtype, 0) + count
    whole = _program_of(program, tuple(ops), tuple(macs.items()), jobs)
    total = now_ps - backend.started_ps
    return PlannedResult(whole, device, {}, timeline, sum(job.queued_ps for job in jobs), total, counters, parts=parts)


def _program_of(program: PlannedProgram, ops: tuple[OpEntry, ...], macs: Any, jobs: Sequence[Result]) -> Program:
    """The operator table and the sums of all programs of a run."""
    cached = bool(jobs) and all(job.program.from_cache for job in jobs)
    return Program(
        program.name,
        program.config_name,
        program.config_fingerprint,
        program.key,
        b"",
        ConstantData(0, []),
        program.region_bytes,
        program.inputs,
        (),
        ops,
        sum({id(job.program): job.program.commands for job in jobs}.values()),
        macs,
        program.bound,
        0,
        cached,
    )


def _host_spans(busy: Sequence[tuple[int, int, int]], transfer: int) -> list[Span]:
    """The spans of the host: its decisions, and the time between (start, end, operator or NO_OP for the device)."""
    found, until = [], busy[0][0] if busy else 0
    for start, end, op in busy:
        if start > until:
            found.append(Span(HOST, until, start, transfer, "transfer", 0, 0, "latency"))
        if op != NO_OP and end > start:
            found.append(Span(HOST, start, end, op, "decision", 0, 0, "latency"))
        until = max(until, end)
    return found


def _counters(jobs: Sequence[Result], spans: Sequence[Span], total_ps: int) -> Counters:
    """The sums of the counters of all programs; units are idle while the host works."""
    found = Counters(total_ps)
    for job in jobs:
        counters = job.timeline.counters
        for name, unit in counters.units.items():
            into = found.units.setdefault(name, UnitCounters())
            into.busy_ps += unit.busy_ps
            into.instructions += unit.instructions
            into.macs += unit.macs
            into.bytes += unit.bytes
            for cause, spent in unit.stalls.items():
                into.stalls[cause] = into.stalls.get(cause, 0) + spent
        found.dram_read_bytes += counters.dram_read_bytes
        found.dram_write_bytes += counters.dram_write_bytes
        found.dram_busy_ps += counters.dram_busy_ps
        found.instructions += counters.instructions
    host = [span for span in spans if span.unit == HOST]
    busy = sum(span.end_ps - span.start_ps for span in host)
    found.units[HOST] = UnitCounters(busy, instructions=sum(span.kind == "decision" for span in host))
    for unit in found.units.values():
        unit.idle_ps = total_ps - unit.busy_ps - sum(unit.stalls.values())
    return found


def planned_program(model: PlannedModel | PlannedTflite, name: str, key: str) -> PlannedProgram:
    """A model as a program without instructions. Raises OpenInputsError, UnsupportedError."""
    inputs = tuple(Binding(n, FIRST_IO + i, shape, dtype) for i, (n, shape, dtype) in enumerate(model.inputs()))
    regions = (0, 0, *(binding.nbytes for binding in inputs))
    config = model.config
    bound = tuple((n, value_text(np.asarray(value))) for n, value in model.bind.items())
    nothing = ConstantData(0, [])
    program = PlannedProgram(
        name, config.name, config.fingerprint(), key, b"", nothing, regions, inputs, (), (), 0, (), bound
    )
    program.plan = model.root
    return program


def held_value(name: str, value: Any, dtype: DType, *, text: bool) -> Value:
    """The value of an input that is a sequence or optional: a list of arrays, an array, or None; or a tensor of strings
    (``text``). Raises InputError."""
    if text:
        array = np.asarray(value)
        if array.dtype.kind == "U":
            array = array.astype(object)
        if array.dtype != object or not all(isinstance(each, str) for each in array.flat):
            raise InputError(f"input {name!r}: must be strings, got {type(value).__name__} of {array.dtype}")
        return Strings(array)
    if value is None:
        return Items(None)
    parts = list(value) if isinstance(value, list | tuple) else [value]
    arrays = [to_storage(np.asarray(part)) for part in parts]
    for array in arrays:
        if array.dtype != dtype.storage:
            raise InputError(f"input {name!r}: tensors must be {dtype.label}, got {array.dtype}")
    return Items(tuple(arrays)) if isinstance(value, list | tuple) else arrays[0]


def _given_back(value: Value, dtype: DType) -> Any:
    """An output: an array, a list of arrays, or None."""
    if isinstance(value, Items):
        return None if value.values is None else [from_storage(np.asarray(each), dtype) for each in value.values]
    return value.array if isinstance(value, Strings) else from_storage(np.asarray(value), dtype)


def execute(
    program: PlannedProgram,
    arrays: Mapping[str, Value],
    dispatcher: Dispatcher,
    limit_ps: int,
) -> PlannedResult:
    """Run a planned program once. ``arrays``: its inputs, in storage form. Outputs that are sequences are lists."""
    plan = program.plan
    assert plan is not None
    for name, dtype in (*((each.name, each.dtype) for each in program.inputs), *plan.shared.held.items()):
        plan.types[plan.number(name)] = dtype
    backend = SessionBackend(dispatcher, limit_ps)
    try:
        values = plan.execute(backend, [arrays[name] for name in plan.inputs], [on_host] * len(plan.outputs), limit_ps)
    finally:
        backend.close()
    result = merged(program, dispatcher.config, backend, dispatcher.now_ps)
    result.outputs = {
        name: _given_back(value, plan.types[plan.number(output)])
        for name, output, value in zip(plan.result_names, plan.outputs, values, strict=True)
    }
    return result
