"""The structures of a device, and their area by component: from its own table, or from its technology, otherwise
unknown.

Logic: area of the cells of its arithmetic and registers at 40 nm, scaled to the node, times
``technology.logic_layout``. Memory: area from CACTI for its size, times ``technology.sram_layout``, plus port registers
per bank. Crossbars and interconnects: bits times ports at both ends. Leakage (:mod:`npusim.hw.energy`) is computed from
the same structures.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from npusim.hw import nodes
from npusim.hw.config import Config
from npusim.hw.costs import UNKNOWN, Breakdown, CostItem
from npusim.hw.dram_kinds import KINDS, interface
from npusim.hw.sections import ACCUMULATOR_BYTES, L2Config, MatrixConfig, VectorConfig
from npusim.hw.technology import PRICED
from npusim.units import ceil_div

_ADDER, _MULTIPLIER, _FLOAT_ADDER, _FLOAT_MULTIPLIER, _REGISTER = 278, 6350, 4360, 8970, 5.98
"""nodes.ALADDIN: um2 at 40 nm of a 32-bit adder and multiplier, the same of float32, and a bit of a register."""
_COUNTER, _COMPARATOR = 495.5, 71
"""nodes.ALADDIN: the same of a counter and a comparator of 32 bits."""
_FLOAT_SUM = 3075
"""um2 at 40 nm to add a product to a sum of float32 in a PE, which is aligned but not rounded: what is left of the 14
mm2 of an array of TPUv4i (ISCA 2021, figure 6: 128 x 128 PEs at 7 nm) without multipliers, registers and layout."""
_SIGNIFICANT = {"int8": 8, "int16": 16, "int32": 32, "bfloat16": 8, "float16": 11, "float32": 24}
"""Significant bits of a multiplier. Its area grows with their square."""
_WIDTH = dict(zip(PRICED, (8, 16, 32, 16, 16, 32), strict=True))
_LOGIC = f"{nodes.ALADDIN}; {nodes.STILLMAKER}"
_ROUTER = "ISAAC, ISCA 2016: router of 256 bits and 5 ports, 0.15 mm2 at 32 nm"
_CROSSPOINT = 150_000 / (5 * 5 * 256) * nodes.area_factor(40) / nodes.area_factor(32)
"""_ROUTER: um2 at 40 nm of a bit from one port to another, layout included."""
LAYOUT = 1.5
"""Area of ports, channels and crossbars divided by that of their cells: the default of ``technology.logic_layout``,
which is about arrays."""
_A100_L2 = "A100: 119 mm2 for 48 MiB in 96 slices (LLMCompass, die_area.csv)"
_SLICE_TRANSISTORS = 76_000_000
"""_A100_L2, without the data at TPUv4i's density and without tags: controller of a slice."""
_ADDRESS_BITS, _STATE_BITS = 48, 8
"""Chosen: of a physical address; of a line: validity, changed sectors, age."""
_MULTIPLEXER = _REGISTER / 4
"""Chosen: um2 at 40 nm of the cells that connect a bit of a bank to the port of a unit."""

CORE, MATRIX, VECTOR = "core", "matrix", "vector"
"""Clock domains."""


@dataclass(frozen=True, slots=True)
class Structure:
    """One component of a chip, all instances together. ``cells``: um2 of cells at 40 nm, ``laid``: um2 at 40 nm with
    their layout. ``memories``: (bytes, number of memories). ``here``: um2 at the node of the chip; None: not known.
    ``key``: of its area by hand, for each of ``units``. ``bits``: clocked bits of registers."""

    name: str
    domain: str
    key: str = ""
    units: int = 0
    cells: float = 0.0
    laid: float = 0.0
    memories: tuple[tuple[int, int], ...] = ()
    here: int | None = 0
    bits: int = 0
    source: str = _LOGIC


@functools.lru_cache(8)
def supplies(config: Config) -> Mapping[str, int]:
    """Millivolts of each clock domain; empty if the node is not known."""
    technology = config.technology
    if technology is None or not nodes.known(technology.node_nm):
        return {}
    clocks = {CORE: config.clock_hz, MATRIX: config.matrix_hz, VECTOR: config.vector_hz}
    given = technology.voltage_mv
    return {domain: given or nodes.supply_mv(technology.node_nm, hz) for domain, hz in clocks.items()}


@functools.lru_cache(8)
def structures(config: Config) -> tuple[Structure, ...]:
    """Every component of a device but the DRAM interface."""
    return tuple(_structures(config))


def _structures(config: Config) -> Iterator[Structure]:
    cores, matrix, vector, dma, sram, l2 = (
        config.cores, config.matrix, config.vector, config.dma, config.sram, config.l2,
    )  # fmt: skip
    if matrix is not None:
        pes = cores * matrix.elements
        bits = pes * pe_bits(config, matrix)
        # Stationary operands beyond two for each PE wait in a memory beside the array.
        waiting = matrix.elements * operand_bits(matrix) // 8 * (matrix.weight_buffers - 2)
        memories: tuple[tuple[int, int], ...] = ((waiting, cores),) if waiting > 0 else ()
        if config.technology is not None and config.technology.pe_memory_bytes:
            memories += ((config.technology.pe_memory_bytes, pes),)
        cells = pes * pe_um2(config, matrix)
        yield Structure("matrix", MATRIX, "pe", pes, cells, memories=memories, bits=bits)
        if matrix.accumulator_bytes:
            columns = matrix.cols * matrix.arrays
            size = column_bytes(config, matrix) * columns
            yield _memory("accumulators", "accumulator_kib", size, cores, ACCUMULATOR_BYTES * columns, MATRIX)
    yield _memory("sram", "sram_kib", sram.bytes, cores, sram.total_bytes_per_cycle)
    if l2 is not None:
        yield _memory("l2", "l2_kib", l2.bytes, 1, l2.bytes_per_cycle)
        if config.technology is not None and config.technology.cache:
            yield _cache(config, l2)
    if vector is not None:
        lanes = cores * vector.lanes
        cells = lanes * lane_um2(config, vector)
        yield Structure("vector", VECTOR, "lane", lanes, cells=cells, bits=lanes * lane_bits(vector))
    if config.scalar is not None:
        bits = cores * 4 * 32
        tight = _tightness(config, CORE, config.clock_hz)
        cells = cores * (_FLOAT_MULTIPLIER + _FLOAT_ADDER) * tight + bits * _REGISTER
        yield Structure("scalar", CORE, "scalar", cores, cells=cells, bits=bits)
    channels = cores * dma.channels
    # A channel buffers its outstanding bursts, and has a register behind the buffer, whose clock is part of a transfer.
    latches = channels * 8 * dma.bytes_per_cycle * _REGISTER
    decoders = channels * dma.decoder_weights_per_cycle * _ADDER
    buffered = dma.max_outstanding * dma.burst_bytes + dma.gather_bytes + 2 * dma.reorder_bytes
    yield Structure(
        "dma", CORE, "dma", channels, laid=(latches + decoders) * LAYOUT, memories=((buffered, channels),),
        source=f"{nodes.CACTI}; {_LOGIC}",
    )  # fmt: skip
    technology = config.technology
    control = 0.0 if technology is None else float(cores * technology.control_um2)
    yield Structure("control", CORE, "control", cores, laid=control, source="the description: technology.control")
    # By hand, the area of control includes its buses.
    if config.area is None or config.area.control_um2 is None or config.area.wires_um2 is not None:
        laid = _multiplexed(config) * _MULTIPLEXER * LAYOUT + _routed(config) * _CROSSPOINT
        yield Structure("wires", CORE, "wires", 1, laid=laid, source=f"{_ROUTER}; {_LOGIC}")
    if technology is not None and technology.core_transistors:
        um2 = None
        if nodes.known(technology.node_nm):
            um2 = round(cores * technology.core_transistors / nodes.transistors_per_um2(technology.node_nm))
        yield Structure("core_others", CORE, here=um2, source=nodes.KHAN)
    if technology is not None and technology.chip_um2:
        yield Structure("chip_others", CORE, here=technology.chip_um2, source="the description: technology.chip")


def _memory(name: str, key: str, size: int, count: int, ports: int, domain: str = CORE) -> Structure:
    """``count`` memories of ``size`` bytes, whose banks together have ``ports`` bytes per cycle."""
    # CACTI's memory has one port. Each bank has registers for address, input and output data; their clock is part of
    # an access.
    laid = count * 2 * 8 * ports * _REGISTER * LAYOUT
    return Structure(name, domain, key, count * size, laid=laid, memories=((size, count),), source=nodes.CACTI)


def _cache(config: Config, l2: L2Config) -> Structure:
    """Tags, and the controllers of the slices: queues, misses, atomic operations."""
    offset = l2.line_bytes.bit_length() - 1
    tags = ceil_div(l2.bytes // l2.line_bytes * (_ADDRESS_BITS + _STATE_BITS - offset), 8)
    node = config.technology.node_nm if config.technology is not None else 0
    slices = ceil_div(l2.bytes_per_cycle, l2.line_bytes)
    um2 = round(slices * _SLICE_TRANSISTORS / nodes.transistors_per_um2(node)) if nodes.known(node) else None
    return Structure("cache", CORE, here=um2, memories=((tags, 1),), source=f"{_A100_L2}; {nodes.CACTI}")


def _multiplexed(config: Config) -> int:
    """Bits times ports of the crossbars between the banks and the units of all cores."""
    whole = config.sram.total_bytes_per_cycle
    ports = [unit.port_bytes_per_cycle or whole for unit in (config.matrix, config.vector) if unit is not None]
    widths = sum(ports) + whole * ((config.scalar is not None) + config.dma.channels)
    return 8 * config.cores * widths


def _routed(config: Config) -> int:
    """Bits times ports at both ends: of the interconnect between DRAM and channels, which is one port of the width of
    a core's, of the L2 and of the exchange network."""
    between, cores = config.interconnect, config.cores
    directions = 1 + between.separate_write_port
    width = min(between.bytes_per_cycle, between.core_bytes_per_cycle or between.bytes_per_cycle)
    found = cores * config.dma.channels * width * directions
    if config.l2 is not None:
        found += cores * config.l2.bytes_per_cycle
    if config.exchange is not None:
        found += cores * config.exchange.bytes_per_cycle
    return 8 * found


def area(config: Config) -> Breakdown:
    """Square micrometres of each component of the chip, without the DRAM chips. Their sum is the whole chip."""
    found = [_area(config, each) for each in structures(config)]
    if config.technology is not None and config.technology.phy:
        found.append(_phy(config))
    return Breakdown(tuple(found))


def _area(config: Config, of: Structure) -> CostItem:
    technology = config.technology
    given = getattr(config.area, f"{of.key}_um2", None) if config.area is not None and of.key else None
    if given is not None:
        value = given * of.units // (1024 if of.key.endswith("_kib") else 1)
        return CostItem(of.name, value, f"the description: area.{of.key}")
    if technology is None or of.here is None or not nodes.known(technology.node_nm):
        return CostItem(of.name, of.here or None, of.source if of.here else UNKNOWN)
    # Floats, because Fractions are slow and thousands of designs are screened by area.
    scale = nodes.area_factor(technology.node_nm) / nodes.area_factor(40)
    value = (of.cells * float(technology.logic_layout) + of.laid) * scale
    for size, count in of.memories:
        value += count * nodes.sram_um2(technology.node_nm, size) * float(technology.sram_layout)
    value = value * float(technology.floorplan) + of.here
    source = f"{of.source}; {nodes.TSMC}" if technology.node_nm < 7 and of.here == 0 else of.source
    return CostItem(of.name, round(value), source)


def _phy(config: Config) -> CostItem:
    if config.area is not None and config.area.phy_um2 is not None:
        return CostItem("phy", config.area.phy_um2, "the description: area.phy")
    technology = config.technology
    assert technology is not None
    if technology.dram not in KINDS:
        return CostItem("phy", None, UNKNOWN)
    found = interface(technology.dram, config.dram.bandwidth, technology.dram_pins, technology.node_nm)
    return CostItem("phy", found.um2, found.source if found.um2 is not None else UNKNOWN)


@functools.lru_cache(8)
def chip_mm(config: Config) -> float:
    """The edge of the chip in mm, its known components as a square: the length of a path from the DRAM to a core."""
    return math.sqrt(sum(_area(config, each).value or 0 for each in structures(config)) / 1e6)


def column_bytes(config: Config, matrix: MatrixConfig) -> int:
    """Bytes of accumulators per column of the array."""
    technology = config.technology
    if technology is not None and technology.accumulator_pixels:
        return technology.accumulator_pixels * ACCUMULATOR_BYTES
    return matrix.accumulator_bytes // (matrix.cols * matrix.arrays)


def pe_um2(config: Config, matrix: MatrixConfig) -> float:
    """Cells of one PE at 40 nm in um2: arithmetic of the type with the largest area at its rate, and registers."""
    arithmetic = max(
        (float(rate) * _mac_um2(dtype, matrix) for dtype, rate in matrix.throughput.items() if rate), default=0
    )
    found = arithmetic * _tightness(config, MATRIX, config.matrix_hz) + pe_bits(config, matrix) * _REGISTER
    technology = config.technology
    if technology is not None:
        # Each scratchpad has the addresses of a read and of a write.
        for size in filter(None, (technology.pe_register_bytes, technology.pe_memory_bytes)):
            bits = max(1, (8 * size // operand_bits(matrix) - 1).bit_length())
            found += 2 * bits / 32 * (_COUNTER + _COMPARATOR)
    return found


def _tightness(config: Config, domain: str, hz: int) -> float:
    """Area of the arithmetic of a domain relative to the tables: gates are larger where a clock leaves less time."""
    supply = supplies(config).get(domain)
    return nodes.tightness(config.technology.node_nm, supply, hz) if config.technology and supply else 1.0


def _mac_um2(dtype: str, matrix: MatrixConfig) -> float:
    """A product and its addition to a sum."""
    bits = _SIGNIFICANT[dtype]
    if dtype.startswith("int"):
        return _MULTIPLIER * (bits / 32) ** 2 + _ADDER
    # A dot product aligns its products once and adds integers: a shift and an addition for each.
    return _FLOAT_MULTIPLIER * (bits / 24) ** 2 + (2 * _ADDER if matrix.model == "direct" else _FLOAT_SUM)


def operand_bits(matrix: MatrixConfig) -> int:
    """Width of an operand register of a PE. A type that takes several cycles is computed in pieces of this width."""
    widths = (_WIDTH[dtype] if rate >= 1 else int(_WIDTH[dtype] * rate) for dtype, rate in matrix.throughput.items())
    return max(widths, default=8)


def pe_bits(config: Config, matrix: MatrixConfig) -> int:
    """Register bits of a PE: operands passed on, stationary operands and their next values, a sum or a product,
    scratchpads."""
    width = operand_bits(matrix)
    held = 1 if matrix.dataflow == "output_stationary" else min(2, matrix.weight_buffers)
    sums = 2 * width if matrix.model in ("direct", "grid") else 8 * ACCUMULATOR_BYTES
    extra = 8 * config.technology.pe_register_bytes if config.technology is not None else 0
    return width * (1 + held) + sums + extra


def lane_um2(config: Config, vector: VectorConfig) -> float:
    """Cells of a lane at 40 nm in um2: for floats, or for integers of half the width beside a matrix unit without
    floats."""
    bits = lane_bits(vector)
    if computes_floats(config):
        arithmetic = _FLOAT_MULTIPLIER * (min(24, 6 * vector.lane_bytes) / 24) ** 2 + _FLOAT_ADDER
    else:
        arithmetic = _MULTIPLIER * (vector.lane_bytes / 8) ** 2 + _ADDER
    return arithmetic * _tightness(config, VECTOR, config.vector_hz) + bits * _REGISTER


def lane_bits(vector: VectorConfig) -> int:
    """Register bits of a lane: two operands, a result and an intermediate value."""
    return 4 * 8 * vector.lane_bytes


def computes_floats(config: Config) -> bool:
    """Whether lanes are assumed to compute floats."""
    matrix = config.matrix
    return matrix is None or any("float" in dtype for dtype, rate in matrix.throughput.items() if rate)
