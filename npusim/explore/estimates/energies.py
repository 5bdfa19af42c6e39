"""The energy of designs: the actions that an estimate counts, with the prices of a run."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from npusim.explore.estimates.attentions import RowBlocks
from npusim.explore.estimates.designs import Array, Designs, config_at
from npusim.explore.estimates.layer_times import COUNTS
from npusim.explore.estimates.layers import Demand, EstimatedLayer, Plain
from npusim.explore.estimates.placement import Plan
from npusim.explore.estimates.tiles import Case
from npusim.hw import actions as act
from npusim.hw.config import Config
from npusim.hw.energy import action_costs
from npusim.isa.matrix_types import rate_type
from npusim.work import MatrixWork


def energy(layers: list[EstimatedLayer], designs: Designs, plan: Plan, time_ps: Array) -> Array:
    """Femtojoules of one inference on each design; nan if one of its actions has no price."""
    none = np.zeros((len(COUNTS), designs.count))  # a network of views alone has no layers
    counts = np.sum([none, *(figures.counts for figures in plan.layers)], axis=0)
    done = _actions(layers, plan, designs, dict(zip(COUNTS, counts, strict=True)), time_ps)
    if designs.config.constants is not None and np.any(done[act.DRAM]):
        return np.full(designs.count, np.nan)  # bytes from the memory for constants are not counted separately
    # Prices that are derived from a technology may depend on all keys.
    some, mine = designs.alike(tuple(designs.columns) if designs.config.technology is not None else ())
    found = np.zeros(designs.count)
    tables = [action_costs(config_at(some, number)) for number in range(some.count)]
    for action, count in done.items():
        price = np.array([table.fj(action) for table in tables], np.float64)[mine]
        found = found + np.where(np.asarray(count) > 0, count * price, 0.0)
    return found


def _actions(
    layers: list[EstimatedLayer], plan: Plan, designs: Designs, counts: dict[str, Array], time_ps: Array
) -> dict[str, Array]:
    config = designs.config
    has_sums = np.broadcast_to(designs["matrix.accumulator_bytes"] > 0, (designs.count,)) if config.matrix else False
    done: dict[str, Array] = {
        act.DRAM: counts["dram"] + counts["code"], act.DMA: counts["moved"],
        act.ACCUMULATORS: np.where(has_sums, counts["accumulators"], 0.0),
        act.SRAM: counts["sram"] + counts["moved"] + np.where(has_sums, 0.0, counts["accumulators"]),
    }  # fmt: skip
    done |= _of_time(designs, time_ps)
    for layer, near in zip(layers, plan.near, strict=True):
        forms = near >> len(layer.buffers)
        for form in np.unique(forms):
            for action, count in _fixed(layer.case(int(form) << len(layer.buffers)), config).items():
                done[action] = done.get(action, np.zeros(1)) + count * (forms == form)
    return done


def _of_time(designs: Designs, time_ps: Array) -> dict[str, Array]:
    """See :func:`npusim.hw.actions.time_actions`."""
    by_time = act.time_actions(designs.config, 0, 1000)
    found = {name: np.floor(time_ps / 1000) for name in (act.LEAKAGE, act.PHY) if name in by_time}
    clocks = ((act.CLOCK, "clock"), (act.CLOCK_MATRIX, "matrix.clock"), (act.CLOCK_VECTOR, "vector.clock"))
    for name, key in clocks[:1] if act.has_clock_by_hand(designs.config) else clocks:
        # A column of an optional clock is nan where the clock is left out.
        own = ~np.isnan(designs.columns[key]) if key in designs.columns else np.array([name in by_time])
        if own.any():
            found[name] = np.where(own, designs.config.cores * np.floor(time_ps / 1e12 * designs[key]), 0.0)
    return found


def _fixed(case: Demand | None, config: Config) -> dict[str, float]:
    """Actions of a layer that depend neither on its tiles nor on the memories of its values."""
    if isinstance(case, tuple):
        return _attention(case[0], config)
    if isinstance(case, Plain):
        works = [(work.elements * work.passes * count, work.bytes * count) for work, count in case.vector]
        elements = sum(work.elements * count for work, count in case.scalar)
        moved = sum(each[1] for each in works) + sum(work.bytes * count for work, count in case.scalar)
        return {act.VECTOR: sum(each[0] for each in works), act.SCALAR: elements, act.SRAM: moved}
    return {} if case is None else _product(case, config)


def _attention(blocks: RowBlocks, config: Config) -> dict[str, float]:
    done: defaultdict[str, float] = defaultdict(float)
    for part in blocks.parts:
        if part.product is not None:
            for action, count in _product(part.product, config).items():
                done[action] += count * blocks.of_image
        else:
            count = blocks.count * part.elements / part.chain.probe
            done[act.VECTOR] += count * sum(work.elements * work.passes for work in part.chain.many)
            done[act.SRAM] += count * sum(work.bytes for work in part.chain.many)
    return done


def _product(case: Case, config: Config) -> dict[str, float]:
    problem = case.problem
    results = problem.images * case.height * problem.ow * problem.groups * problem.oc
    macs = results * problem.ic * problem.kh * problem.kw
    one = MatrixWork(
        rate_type(problem.x_type, problem.w_type), 1, 1, 1, 1, 1, 1, 1, False, True, True, 1, problem.sum_bytes
    )
    each = act.actions(config, one)
    found = {name: float(count * macs) for name, count in each.items() if name.startswith(act.MACS)}
    found[act.OPERANDS] = float(each[act.OPERANDS] * macs)
    elements = results / case.chain.probe
    found[act.VECTOR] = elements * sum(work.elements * work.passes for work in case.chain.many)
    found[act.SRAM] = elements * sum(work.bytes for work in case.chain.many)
    return found
