"""The energy per action of a device: from its own table, or from its technology, otherwise unknown."""

from __future__ import annotations

import functools

from npusim.hw import actions as act
from npusim.hw import nodes
from npusim.hw.area import cells_um2, clocked_bits, column_bytes, computes_floats
from npusim.hw.config import Config
from npusim.hw.costs import ActionCost, ActionCosts
from npusim.hw.sections import ACCUMULATOR_BYTES
from npusim.hw.technology import PRICED, TechnologyConfig

TABLE = "the description: energy.{}"
_CLOCK_PJ, _DATA_PJ = 0.00794, 0.00106
"""nodes.ALADDIN: energy of a register bit at 40 nm, per clock cycle and additionally per change of data."""
_LEAKAGE_UW = 2.25 / 278
"""nodes.ALADDIN: microwatts of 1 um2 of cells at 40 nm, an adder's."""


@functools.lru_cache(64)
def action_costs(config: Config) -> ActionCosts:
    """Femtojoules of each action of a device with their sources; actions without a number are unknown."""
    found = _derived(config)
    table = config.energy
    if table is not None:
        given = {
            **{f"{act.MACS}{dtype}": (f"mac.{dtype}", value) for dtype, value in table.mac.items()},
            act.OPERANDS: ("operand_byte", table.operand_byte_fj),
            act.ACCUMULATORS: ("accumulator_byte", table.accumulator_byte_fj),
            act.VECTOR: ("vector", table.vector_fj),
            act.SCALAR: ("scalar", table.vector_fj if table.scalar_fj is None else table.scalar_fj),
            act.SRAM: ("sram_byte", table.sram_byte_fj),
            act.DMA: ("dma_byte", table.dma_byte_fj),
            act.DRAM: ("dram_byte", table.dram_byte_fj),
            act.CONSTANTS: ("constants_byte", table.constants_byte_fj),
            act.L2: ("l2_byte", table.l2_byte_fj),
            act.CLOCK: ("clock_cycle", table.clock_cycle_fj),
            act.LEAKAGE: ("leakage", table.leakage_uw),
        }
        for name, (key, value) in given.items():
            if value is not None:
                found[name] = ActionCost(value, TABLE.format(key))
    return ActionCosts(found)


def _derived(config: Config) -> dict[str, ActionCost]:
    """Energies derived from the technology."""
    technology = config.technology
    if technology is None:
        return {}
    found = {}
    if technology.dram in nodes.DRAMS:
        found[act.DRAM] = ActionCost(*nodes.DRAMS[technology.dram])
    if nodes.known(technology.node_nm):
        found |= _arithmetic(config, technology) | _memories(config, technology) | _waiting(config, technology)
    return found


def _arithmetic(config: Config, technology: TechnologyConfig) -> dict[str, ActionCost]:
    """Multiply-accumulates, lane operations and the registers of their operands."""
    node, activity = technology.node_nm, float(technology.activity)
    said = f"{nodes.TPU4I}; at {node} nm"
    found = {f"{act.MACS}{dtype}": ActionCost(_fj(activity * mac_pj(dtype, node)), said) for dtype in PRICED}
    lane, width = ("float32", 32) if computes_floats(config) else ("int16", 16)
    found[act.VECTOR] = ActionCost(_fj(activity * mac_pj(lane, node)), f"a product of {width} bits and a sum: {said}")
    found[act.SCALAR] = ActionCost(found[act.VECTOR].fj, f"as a vector lane operation: {said}")
    register = _register(node)
    found[act.OPERANDS] = ActionCost(_fj(activity * 8 * _DATA_PJ * register), _said(node, "data of a register"))
    # An engine latches a byte in its buffer and passes it on.
    found[act.DMA] = ActionCost(
        _fj(activity * 2 * 8 * (_CLOCK_PJ + _DATA_PJ) * register), _said(node, "two registers, wires not counted")
    )
    return found


def _memories(config: Config, technology: TechnologyConfig) -> dict[str, ActionCost]:
    """Energy per byte of SRAM, L2 and accumulators."""
    found = {act.SRAM: _access(technology, config.sram.bytes, config.sram.bytes_per_cycle)}
    if config.l2 is not None:
        found[act.L2] = _access(technology, config.l2.bytes, config.l2.line_bytes)
    if config.matrix is not None and config.matrix.accumulator_bytes:
        found[act.ACCUMULATORS] = _access(technology, column_bytes(config, config.matrix), ACCUMULATOR_BYTES)
    return found


def _access(technology: TechnologyConfig, size: int, port: int) -> ActionCost:
    node = technology.node_nm
    per_byte = float(technology.activity) * nodes.sram_pj(node, size, port) / port
    return ActionCost(_fj(per_byte), f"{nodes.CACTI}; at {node} nm, {size} bytes, {8 * port} bits wide")


def _waiting(config: Config, technology: TechnologyConfig) -> dict[str, ActionCost]:
    """Energy that depends on time: clock and leakage."""
    node = technology.node_nm
    clock = clocked_bits(config) * float(technology.clocked) * _CLOCK_PJ * _register(node)
    leaks = cells_um2(config) * _LEAKAGE_UW + config.cores * nodes.sram_leakage_uw(node, config.sram.bytes)
    if config.l2 is not None:
        leaks += nodes.sram_leakage_uw(node, config.l2.bytes)
    return {
        act.CLOCK: ActionCost(_fj(clock), _said(node, "clock of registers")),
        # Per cell area, because no source gives the leakage of logic by node.
        act.LEAKAGE: ActionCost(round(leaks), f"cells as at 40 nm: {nodes.ALADDIN}; SRAM: {nodes.CACTI}"),
    }


def mac_pj(dtype: str, node: int) -> float:
    """Picojoules of a product and its addition to a 32-bit sum."""
    sums = nodes.operation_pj("add_int32" if dtype.startswith("int") else "add_float32", node)
    if dtype == "int16":
        # Between 8 and 32 bits the energy of a product is interpolated as a power of the width.
        return sums + nodes.between([(bits, nodes.operation_pj(f"mul_int{bits}", node)) for bits in (8, 32)], 16)
    if dtype == "bfloat16":
        return sums + nodes.operation_pj("mul_float16", node) * nodes.BFLOAT16_PRODUCT
    return sums + nodes.operation_pj(f"mul_{dtype}", node)


def _register(node: int) -> float:
    return nodes.logic_factor(node, 40)


def _said(node: int, what: str) -> str:
    return f"{what}: {nodes.ALADDIN}; at {node} nm as an adder"


def _fj(picojoules: float) -> int:
    return round(1000 * picojoules)
