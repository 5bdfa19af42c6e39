"""Costs of work on many designs, by the cost functions of :mod:`npusim.hw`: picoseconds, as [works][designs]."""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.compiler.lower.base import sram_rate
from npusim.explore.estimates.designs import Array, Designs
from npusim.hw.actions import ACCUMULATORS, SRAM, actions
from npusim.hw.config import Config
from npusim.hw.cost import CostModel
from npusim.hw.memory import constants_side
from npusim.hw.units import dma
from npusim.isa.matrix_types import rate_type
from npusim.timing.tile_costs import MovePrices, move_pricing
from npusim.timing.tile_problem import MatrixProblem
from npusim.work import DmaWork, MatrixWork, ScalarWork, VectorWork

PS = 1e12


def up(dividend: Array | float, divisor: Array | float) -> Array:
    """Quotients rounded up; exact below 2**52."""
    return np.ceil(np.asarray(dividend, np.float64) / divisor)


def touched(
    designs: Designs, problem: MatrixProblem, groups: Array, oh: Array, ow: Array, oc: Array, ic: Array, kh: Array,
    kw: Array,
) -> tuple[Array, Array]:  # fmt: skip
    """Bytes that a tile moves in SRAM, and in the accumulators."""

    def ask(config: Config, batch: Any, oh: Any, ow: Any, oc: Any, ic: Any, kh: Any, kw: Any) -> tuple[Any, Any]:
        work = MatrixWork(
            rate_type(problem.x_type, problem.w_type), batch, oh, ow, oc, ic, kh, kw,
            problem.depthwise, True, True, problem.out_type.itemsize, problem.sum_bytes, problem.w_width,
        )  # fmt: skip
        found = actions(config, work)
        return found[SRAM], found.get(ACCUMULATORS, 0)

    if problem.depthwise:  # the groups are the channels of one product
        groups, oc, ic = np.ones(1), groups * oc, groups
    streams, sums = designs.evaluate(ask, groups, oh, ow, oc, ic, kh, kw)
    return streams, sums


def move(designs: Designs, way: str, nbytes: Array, run: Array, stride: Array) -> Array:
    """Figures of transfers, [3][works][designs]: picoseconds alone on the bus, picoseconds per transfer of a stream,
    bytes at the pins. See ``MovePrices``."""

    def ask(config: Config, *key: Any) -> Any:
        return MovePrices(config)[(*key, way)]

    fields = np.broadcast_arrays(nbytes, np.maximum(1, np.minimum(run, nbytes)), stride)
    found = np.empty((3, len(fields[0]), designs.count))
    # Most transfers are the same for all arrays, and there are few kinds of channels and memories.
    same = np.all([(each == each[:, :1]).all(1) for each in fields], axis=0)
    if same.any():
        some, mine = designs.seen_by(move_pricing)
        found[:, same] = np.stack(some.evaluate(ask, *(each[same, :1] for each in fields)))[..., mine]
    if not same.all():
        found[:, ~same] = designs.evaluate(ask, *(each[~same] for each in fields))
    return found


def work(designs: Designs, work: VectorWork | ScalarWork | DmaWork) -> Array:
    """Picoseconds of work of the vector or scalar unit, or of a transfer alone on the bus."""
    return designs.figure(work, lambda config: CostModel(config).once(work).ps)


def bandwidth(designs: Designs, *, constants: bool = False) -> Array:
    """Bytes per second that all cores together reach at the DRAM, or at the memory for constants."""
    if constants:
        return designs.figure("reached constants", lambda config: dma.memory_bandwidth(constants_side(config)))
    return designs.figure("reached DRAM", dma.memory_bandwidth)


def channel(designs: Designs) -> Array:
    """Bytes per second that one channel can request."""
    return designs.figure("channel", dma.channel_bandwidth)


def latency(designs: Designs) -> Array:
    """Picoseconds from a request of a channel to its first datum."""
    return designs.figure("latency", dma.latency_ps)


def start(designs: Designs) -> Array:
    """Picoseconds of a channel before its first request."""
    return designs.figure("start", dma.start_ps)


def exchange(designs: Designs) -> tuple[Array, Array]:
    """Bytes per second from core to core, and picoseconds before the first: over the exchange network, or through
    DRAM."""
    if designs.config.exchange is None:
        return bandwidth(designs), 2 * designs["dram.latency"]
    rate = designs.figure("exchange", dma.exchange_bandwidth)
    return rate, designs.figure("exchange latency", dma.exchange_latency_ps)


def banks_rate(designs: Designs) -> Array:
    """Bytes per second of all SRAM banks."""
    return designs.figure("banks rate", lambda config: config.sram.total_bytes_per_cycle * config.clock_hz)


def banks(designs: Designs, work: VectorWork) -> Array:
    """Picoseconds of all SRAM banks for work of the vector unit."""
    return designs.figure((work, "banks"), lambda config: CostModel(config).cost(work).sram_ps)


def local_rate(designs: Designs) -> Array:
    """Bytes per second that a channel copies within SRAM."""
    return designs.figure("local rate", sram_rate)
