"""The energy of a run: counts of actions, computed once per program, times the energy of each action."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from npusim.hw import actions as act
from npusim.hw.actions import Actions, actions
from npusim.hw.config import Config
from npusim.hw.costs import ActionCosts, Breakdown
from npusim.hw.energy import action_costs, idle_costs
from npusim.isa._stream import tally
from npusim.isa.base import Command, unit_name
from npusim.isa.dma import MULTICASTS, Exchange, Fill
from npusim.isa.emitted import commands_of
from npusim.isa.repeat import expanded
from npusim.program import OpEntry, Program
from npusim.timeline import Counters, Timeline
from npusim.work import DmaWork

CHIP, SEQUENCER = "chip", "sequencer"
"""Consumers that are not units: the chip (clock, leakage), and fetches and moves between instructions."""


def power_uw(energy_fj: float | None, time_ps: float) -> int | None:
    """Average power of a run in microwatts, None if unknown; a femtojoule per picosecond is a milliwatt."""
    return None if energy_fj is None or not time_ps else int(energy_fj * 1000 // time_ps)


class EnergyInputs(Protocol):
    """The part of a result that its energy depends on."""

    @property
    def program(self) -> Program: ...
    @property
    def device(self) -> Config: ...
    @property
    def timeline(self) -> Timeline: ...


@dataclass(frozen=True, slots=True)
class LayerEnergy:
    """The energy of one operator. ``name``, ``kind``: of the operator, both empty for energy of no operator."""

    name: str
    kind: str
    energy: Breakdown


@dataclass(frozen=True, slots=True)
class Energy(Breakdown):
    """Femtojoules of one run by action, by unit and by operator; each has the same sum.

    Clock and leakage are assigned to an operator for its time on the critical path.
    """

    units: Mapping[str, Breakdown]
    layers: tuple[LayerEnergy, ...]

    def to_json_dict(self) -> dict[str, Any]:
        return {
            "total": self.total,
            "unknown": list(self.unknown),
            "parts": [{"name": part.name, "value": part.value, "source": part.source} for part in self.parts],
            "units": {unit: _values(found) for unit, found in self.units.items()},
            "layers": [{"name": each.name, "kind": each.kind, **_values(each.energy)} for each in self.layers],
        }


def _values(found: Breakdown) -> dict[str, Any]:
    return {"total": found.total, "parts": {part.name: part.value for part in found.parts}}


Counts = dict[tuple[int, str], Actions]
"""Actions by operator (-1 for none) and unit."""
NONE = -1


def energy(run: EnergyInputs) -> Energy:
    """The energy of a run on its device. A program is decoded once for all its runs."""
    return priced(run.device, counts(run.device, run.program, run.timeline), run.program.ops)


def priced(config: Config, counted: Counts, ops: Sequence[OpEntry]) -> Energy:
    """The energy of actions by operator of this table and unit."""
    costs = action_costs(config)
    totals: dict[str, int] = {}
    units: dict[str, Actions] = {}
    layers: dict[int, Actions] = {}
    for (op, unit), found in counted.items():
        for into in (totals, units.setdefault(unit, {}), layers.setdefault(op, {})):
            for name, count in found.items():
                into[name] = into.get(name, 0) + count
    named = [
        LayerEnergy(ops[op].name if op >= 0 else "", ops[op].kind if op >= 0 else "", _priced(costs, layers[op]))
        for op in sorted(layers, key=lambda op: (op < 0, op))
    ]
    return Energy(
        _priced(costs, totals).parts, {unit: _priced(costs, units[unit]) for unit in sorted(units)}, tuple(named)
    )


def _priced(priced: ActionCosts, found: Mapping[str, int]) -> Breakdown:
    return Breakdown(tuple([priced.part(name, found[name]) for name in sorted(found) if found[name]]))


def counts(config: Config, program: Program, timeline: Timeline) -> Counts:
    """Counts of the actions of a run by operator and unit, including those that depend on time."""
    prologue, body = _program_counts(config, program)
    found: Counts = {key: dict(value) for key, value in body.items()}
    if not timeline.residents_held:
        for key, value in prologue.items():
            add(found.setdefault(key, {}), value, 1)
    counters = timeline.counters
    add(found.setdefault((NONE, SEQUENCER), {}), {act.DRAM: _fetched(found, counters)}, 1)
    for op, start_ps, end_ps in _stretches(timeline, len(program.ops)):
        add(found.setdefault((op, CHIP), {}), act.time_actions(config, start_ps, end_ps), 1)
    return found


def idle_energy(config: Config, duration_ps: int) -> Breakdown:
    """Femtojoules of a device that waits for jobs for some time."""
    return _priced(idle_costs(config), act.time_actions(config, 0, duration_ps))


def _fetched(found: Counts, counters: Counters) -> int:
    """Bytes over the pins without a transfer: instructions, and contexts of preempted jobs."""
    asked = sum(value.get(act.DRAM, 0) + value.get(act.CONSTANTS, 0) for value in found.values())
    return max(0, counters.dram_read_bytes + counters.dram_write_bytes - asked)


def _stretches(timeline: Timeline, ops: int) -> Iterable[tuple[int, int, int]]:
    """(operator, start, end) in ps along the critical path, which covers the whole duration."""
    done = 0
    for stretch in timeline.critical_path():
        yield stretch.op if stretch.op < ops else NONE, stretch.start_ps, stretch.end_ps
        done = stretch.end_ps
    yield NONE, done, max(done, timeline.counters.duration_ps)


_counted: weakref.WeakKeyDictionary[Program, tuple[Config, Counts, Counts]] = weakref.WeakKeyDictionary()


def _program_counts(config: Config, program: Program) -> tuple[Counts, Counts]:
    """Actions of the prologue, which a run may skip, and of the rest."""
    known = _counted.get(program)
    if known is not None and known[0] == config:
        return known[1], known[2]
    commands, prologue = commands_of(program)
    parts = commands[:prologue], list(expanded(commands[prologue:]))
    made = [_by_unit(config, tally(part), len(program.ops)) for part in parts]
    _counted[program] = (config, made[0], made[1])
    return made[0], made[1]


def _by_unit(config: Config, found: Sequence[tuple[Command, int]], ops: int) -> Counts:
    counts: Counts = {}
    works: dict[Any, Actions] = {}
    for command, times in found:
        instruction = command.instruction
        several = isinstance(instruction, (*MULTICASTS, Exchange))
        targets = len(instruction.targets(command.core)) if several else 1
        key = (instruction.asked(), isinstance(instruction, Fill), targets)
        if key not in works:
            works[key] = _actions(config, *key)
        if works[key]:
            place = (command.op if command.op < ops else NONE, unit_name(command.core, command.unit))
            add(counts.setdefault(place, {}), works[key], times)
    return counts


def _actions(config: Config, work: Any, fills: bool, targets: int) -> Actions:
    """Actions of one instruction: a fill has no reads, and each target core of a transfer has writes; an exchange is
    read once."""
    found = actions(config, work)
    if fills:
        found[act.SRAM] = work.bytes if work.is_local else 0
    if isinstance(work, DmaWork) and work.exchanged:
        found[act.SRAM] = (1 + targets) * work.bytes
    elif targets > 1:
        found[act.SRAM] *= targets
    return found


def add(into: Actions, found: Mapping[str, int], times: int) -> None:
    """Add counts of actions, ``times`` times."""
    for name, count in found.items():
        into[name] = into.get(name, 0) + count * times


__all__ = ["Energy", "EnergyInputs", "LayerEnergy", "counts", "energy", "idle_energy"]
