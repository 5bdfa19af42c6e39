"""The duration of a command stream, to compare schedules: a timing-only run of the commands alone.

It uses the clock of timing-only runs (``_timeline.pyx``), except for three things: the time before the first
instruction fetch, the time after the last command (completion record, interrupt), and ``compiler.layer_cycles`` between
layers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from npusim.hw.config import Config
from npusim.hw.cost import ahead_ps, cost_model, depths
from npusim.hw.units import dma
from npusim.hw.units.dma import FETCH_BYTES
from npusim.isa.base import Command, of_unit
from npusim.timing import _timeline
from npusim.units import cycles_to_ps
from npusim.work import DmaWork, Port, Work


def forecast(commands: Sequence[Command], config: Config) -> int:
    """Picoseconds from the first instruction fetch to the end of the last command.

    Returns 2^62 - 1 (53 days) for streams that take longer.
    """
    if not commands:
        return 0
    return _timeline.forecast(
        commands, _charges(config), cycles_to_ps(1, config.clock_hz), config.queue_depth,
        dma.latency_ps(config), dma.fetch_rate(config), FETCH_BYTES, dma.capacities(config), dma.ports(config),
        config.interconnect.arbitration == "need", functools.partial(_depth, config),
        config.interconnect.separate_code_port, config.compiler.one_by_one, config.compiler.layer_time_ps,
    )  # fmt: skip


class _Charge(NamedTuple):
    """The time of one command.

    First ``fixed_ps`` pass, then ``nbytes`` flow over link ``way`` at up to ``rate`` bytes per second. ``ahead_ps`` of
    the fixed time may overlap with older commands of the unit, and the unit cannot start another command during the
    first ``front_ps``. ``share``: the part of the core's SRAM banks that the command uses, in units of 1/WHOLE.
    """

    fixed_ps: int
    nbytes: int = 0
    rate: int = 0
    ahead_ps: int = 0
    front_ps: int = 0
    way: int = Port.DRAM
    share: int = 0


def _depth(config: Config, unit: int) -> int:
    """The number of commands that a unit may execute at once."""
    return of_unit(unit, depths(config))


@functools.lru_cache(maxsize=4)
def _charges(config: Config) -> Callable[[Work], _Charge]:
    """:func:`_charge` of one device, cached, because schedules of one graph have the same commands."""
    return functools.lru_cache(maxsize=1 << 12)(lambda work: _charge(work, config))


def _charge(work: Work, config: Config) -> _Charge:
    if not isinstance(work, DmaWork):
        price = cost_model(config).cost(work)
        return _Charge(price.ps, 0, 0, *ahead_ps(config, work, price), share=price.share)
    parts = dma.transfer(config, work)
    if not parts.bus_bytes:
        return _Charge(cost_model(config).cost(work).ps, 0, 0, parts.ahead_ps, parts.start_ps)
    # If the channel writes for longer than the bytes flow, the difference is charged first: the bus is free meanwhile.
    fixed = parts.start_ps + parts.latency_ps + parts.writing_ps
    return _Charge(fixed, parts.bus_bytes, parts.rate, parts.ahead_ps, parts.start_ps, dma.port(config, work))
