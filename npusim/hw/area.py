"""What a device takes of silicon, part by part: by its own table, else by its technology, else not known."""

from __future__ import annotations

from npusim.hw import nodes
from npusim.hw.config import ACCUMULATOR_BYTES, Config, MatrixConfig
from npusim.hw.prices import UNKNOWN, Breakdown, Part

_ADDER, _MULTIPLIER, _FLOAT_ADDER, _FLOAT_MULTIPLIER, _REGISTER = 278, 6350, 4360, 8970, 5.98
"""nodes.ALADDIN: um2 at 40 nm of a 32-bit adder and multiplier, the same of float32, and a bit of a register."""
_SIGNIFICANT = {"int8": 8, "int16": 16, "int32": 32, "bfloat16": 8, "float16": 11, "float32": 24}
"""Bits that a multiplier multiplies: its area grows with their square."""
_CONTROL_BITS = 20_000
_LANE_BITS = 4 * 32


def area(config: Config) -> Breakdown:
    """Square micrometres of each part of the chip; the parts add up to the whole, the DRAM's chips are not in it."""
    node = config.technology.node_nm if config.technology is not None and nodes.known(config.technology.node_nm) else 0
    given = config.area
    parts = []

    def part(name: str, key: str, value: float | None, each: int, count: int, source: str) -> None:
        by_hand = None if given is None else getattr(given, f"{key}_um2")
        if by_hand is not None:
            parts.append(Part(name, by_hand * count // each, f"the description: area.{key}"))
        elif not node or value is None:
            parts.append(Part(name, 0 if not count else None, UNKNOWN))
        else:
            parts.append(Part(name, round(value * count / each), source))

    cores, matrix, vector = config.cores, config.matrix, config.vector
    logic = f"{nodes.ALADDIN}; {nodes.STILLMAKER}"
    scale = nodes.area_factor(node) / nodes.area_factor(40) if node else 0
    if matrix is not None:
        part("matrix", "pe", pe_um2(config, matrix) * scale, 1, cores * matrix.elements, logic)
        if matrix.accumulator_bytes:
            pixels = config.technology.accumulator_pixels if config.technology is not None else 0
            columns = matrix.cols * matrix.arrays
            size = pixels * ACCUMULATOR_BYTES * columns or matrix.accumulator_bytes
            kib = nodes.sram_um2(node, size) * 1024 / size if node else None
            part("accumulators", "accumulator_kib", kib, 1024, cores * size, nodes.CACTI)
    bank = config.sram.bytes // config.sram.banks
    kib = nodes.sram_um2(node, bank) * 1024 / bank if node else None
    part("sram", "sram_kib", kib, 1024, cores * config.sram.bytes, nodes.CACTI)
    if vector is not None:
        part("vector", "lane", _lane_um2() * scale, 1, cores * vector.lanes, logic)
    if config.scalar is not None:
        part("scalar", "scalar", _lane_um2() * scale, 1, cores, logic)
    part("dma", "dma", 64 * 8 * config.dma.bytes_per_cycle * _REGISTER * scale, 1, cores * config.dma.channels, logic)
    part("control", "control", _CONTROL_BITS * _REGISTER * scale, 1, cores, logic)
    part("phy", "phy", None, 1, 1, UNKNOWN)
    return Breakdown(tuple(parts))


def pe_um2(config: Config, matrix: MatrixConfig) -> float:
    """One PE at 40 nm: the arithmetic of its widest type, and its registers."""
    arithmetic = max((rate * _arithmetic_um2(dtype) for dtype, rate in matrix.throughput.items() if rate), default=0)
    return float(arithmetic) + pe_bits(config, matrix) * _REGISTER


def _arithmetic_um2(dtype: str) -> float:
    bits = _SIGNIFICANT[dtype]
    if dtype.startswith("int"):
        return _MULTIPLIER * (bits / 32) ** 2 + _ADDER
    return _FLOAT_MULTIPLIER * (bits / 24) ** 2 + _FLOAT_ADDER


def pe_bits(config: Config, matrix: MatrixConfig) -> int:
    """Bits of registers in a PE: its operands, the stationary ones that it holds, a sum or a product, and scratchpads."""
    widest = max(
        (min(int(8 * _ITEM[dtype] * rate), 8 * _ITEM[dtype]) for dtype, rate in matrix.throughput.items() if rate), default=8
    )
    held = 1 if matrix.dataflow == "output_stationary" else matrix.weight_buffers
    sums = 2 * widest if matrix.model in ("direct", "grid") else 8 * ACCUMULATOR_BYTES
    extra = 8 * config.technology.pe_register_bytes if config.technology is not None else 0
    return widest * (1 + held) + sums + extra


_ITEM = {"int8": 1, "int16": 2, "int32": 4, "bfloat16": 2, "float16": 2, "float32": 4}


def _lane_um2() -> float:
    return _FLOAT_MULTIPLIER + _FLOAT_ADDER + _LANE_BITS * _REGISTER


def clocked_bits(config: Config) -> int:
    """Bits of registers in a core that see every cycle of its clock."""
    pes = config.matrix.elements * pe_bits(config, config.matrix) if config.matrix is not None else 0
    lanes = config.vector.lanes * _LANE_BITS if config.vector is not None else 0
    return pes + lanes + _CONTROL_BITS


def logic_um2(config: Config, node: int) -> float:
    """Logic of all cores at a node."""
    matrix = config.matrix.elements * pe_um2(config, config.matrix) if config.matrix is not None else 0
    lanes = config.vector.lanes * _lane_um2() if config.vector is not None else 0
    scale = nodes.area_factor(node) / nodes.area_factor(40)
    return config.cores * (matrix + lanes + _CONTROL_BITS * _REGISTER) * scale
