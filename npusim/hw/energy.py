"""What one action of a device takes: by its own table, else by its technology, else not known."""

from __future__ import annotations

import functools

from npusim.hw import actions as act
from npusim.hw import nodes
from npusim.hw.area import clocked_bits, logic_um2
from npusim.hw.config import Config
from npusim.hw.prices import NOT_KNOWN, Price, Prices
from npusim.hw.technology import PRICED

TABLE = "the description: energy.{}"
_REGISTER_PJ = (0.00794, 0.00106)
"""nodes.ALADDIN: a bit of a register at 40 nm, its clock and its data."""
_LEAKAGE_UW_PER_UM2 = 0.0024e3 / 278
"""nodes.ALADDIN: 2.4 fJ in 1 ns of an adder of 278 um2 at 40 nm."""


@functools.lru_cache(64)
def prices(config: Config) -> Prices:
    """Femtojoules of each action of a device, with where they come from; what has no number is not known."""
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
            act.CLOCK: ("clock_cycle", table.clock_cycle_fj),
            act.LEAKAGE: ("leakage", table.leakage_uw),
        }
        found |= {name: Price(value, TABLE.format(key)) for name, (key, value) in given.items() if value is not None}
    return Prices(found)


def _derived(config: Config) -> dict[str, Price]:
    """What follows from the technology."""
    technology = config.technology
    if technology is None:
        return {}
    node = technology.node_nm
    found = {}
    if technology.dram in nodes.DRAMS:
        found[act.DRAM] = Price(*nodes.DRAMS[technology.dram])
    if not nodes.known(node):
        return found
    arithmetic = f"{nodes.TPU4I}; at {node} nm"
    for dtype in PRICED:
        found[f"{act.MACS}{dtype}"] = Price(_fj(mac_pj(dtype, node)), arithmetic)
    found[act.VECTOR] = Price(_fj(nodes.operation_pj("mul_float32", node)), f"a float32 product: {arithmetic}")
    found[act.SCALAR] = Price(found[act.VECTOR].fj, f"as a vector lane operation: {arithmetic}")
    register = f"{nodes.ALADDIN}; at {node} nm as an adder"
    found[act.OPERANDS] = Price(_fj(8 * _REGISTER_PJ[1] * nodes.logic_factor(node, 40)), f"data of a register: {register}")
    clock = _REGISTER_PJ[0] * nodes.logic_factor(node, 40)
    found[act.CLOCK] = Price(_fj(clocked_bits(config) * clock), f"clock of every register: {register}")
    found[act.SRAM] = _memory(config, config.sram.bytes, config.sram.bytes_per_cycle)
    sums = accumulator_bytes(config)
    found[act.ACCUMULATORS] = _memory(config, *sums) if sums else NOT_KNOWN
    leaks = logic_um2(config, 40) * _LEAKAGE_UW_PER_UM2 + config.cores * nodes.sram_leakage_uw(node, config.sram.bytes)
    found[act.LEAKAGE] = Price(round(leaks), f"adders: {nodes.ALADDIN}; SRAM: {nodes.CACTI}")
    # An engine takes a byte into its buffer and passes it on: registers, since their wires are not known.
    moved = 2 * 8 * sum(_REGISTER_PJ) * nodes.logic_factor(node, 40)
    found[act.DMA] = Price(_fj(moved), f"two registers, wires not counted: {register}")
    return found


def mac_pj(dtype: str, node: int) -> float:
    """Picojoules of a product and of adding it to a sum of 32 bits."""
    sums = nodes.operation_pj("add_int32" if dtype.startswith("int") else "add_float32", node)
    if dtype == "int16":
        # Between 8 and 32 bits a product grows with a power of the width.
        return sums + nodes.between([(bits, nodes.operation_pj(f"mul_int{bits}", node)) for bits in (8, 32)], 16)
    if dtype == "bfloat16":
        return sums + nodes.operation_pj("mul_float16", node) * nodes.BFLOAT16_PRODUCT
    return sums + nodes.operation_pj(f"mul_{dtype}", node)


def accumulator_bytes(config: Config) -> tuple[int, int] | None:
    """(bytes behind one column of the array, width of a sum); None if there are no accumulators of their own."""
    matrix, technology = config.matrix, config.technology
    if matrix is None or not matrix.accumulator_bytes:
        return None
    pixels = technology.accumulator_pixels if technology is not None else 0
    return (pixels * 4 or matrix.accumulator_bytes // (matrix.cols * matrix.arrays)), 4


def _memory(config: Config, size: int, port: int) -> Price:
    assert config.technology is not None
    node = config.technology.node_nm
    return Price(_fj(nodes.sram_pj(node, size, port) / port), f"{nodes.CACTI}; at {node} nm, {8 * port} bits wide")


def _fj(picojoules: float) -> int:
    return round(1000 * picojoules)
