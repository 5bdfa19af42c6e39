"""The area of a device by component: from its own table, or from its technology, otherwise unknown.

Logic: area of the cells of its arithmetic and registers at 40 nm, scaled to the node, times
``technology.logic_layout``. Memory: area from CACTI for its size, times ``technology.sram_layout``, plus port registers
per bank.
"""

from __future__ import annotations

from npusim.hw import nodes
from npusim.hw.config import Config
from npusim.hw.costs import UNKNOWN, Breakdown, CostItem
from npusim.hw.sections import ACCUMULATOR_BYTES, MatrixConfig, VectorConfig
from npusim.hw.technology import PRICED, TechnologyConfig
from npusim.units import ceil_div

_ADDER, _MULTIPLIER, _FLOAT_ADDER, _FLOAT_MULTIPLIER, _REGISTER = 278, 6350, 4360, 8970, 5.98
"""nodes.ALADDIN: um2 at 40 nm of a 32-bit adder and multiplier, the same of float32, and a bit of a register."""
_SIGNIFICANT = {"int8": 8, "int16": 16, "int32": 32, "bfloat16": 8, "float16": 11, "float32": 24}
"""Significant bits of a multiplier. Its area grows with their square."""
_WIDTH = dict(zip(PRICED, (8, 16, 32, 16, 16, 32), strict=True))
_LOGIC = f"{nodes.ALADDIN}; {nodes.STILLMAKER}"
_PHY = {"hbm2": (10_450_000, 552_743_000, 1024), "ddr4": (1_450_000, 90_446_400, 32)}
"""um2 at 7 nm and transistors of a PHY of so many pins and its controller: PrincetonUniversity/LLMCompass,
cost_model.py, HBM2e and DDR5."""
_PHY_NODE = 7


def area(config: Config) -> Breakdown:
    """Square micrometres of each component of the chip, without the DRAM chips. Their sum is the whole chip."""
    return Breakdown(tuple(_Parts(config).all()))


class _Parts:
    """The components of one device."""

    def __init__(self, config: Config) -> None:
        technology = config.technology
        known = technology is not None and nodes.known(technology.node_nm)
        self._config = config
        self._technology: TechnologyConfig | None = technology if known else None
        # Floats, because Fractions are slow and thousands of designs are screened by area.
        self._cells = self._memory = 0.0
        if self._technology is not None:
            scale = nodes.area_factor(self._technology.node_nm) / nodes.area_factor(40)
            self._cells = float(self._technology.logic_layout) * scale
            self._memory = float(self._technology.sram_layout)

    def all(self) -> list[CostItem]:
        config = self._config
        cores, matrix, vector, dma = config.cores, config.matrix, config.vector, config.dma
        found = []
        if matrix is not None:
            found.append(self._logic("matrix", "pe", pe_um2(config, matrix), cores * matrix.elements))
            if matrix.accumulator_bytes:
                found.append(self._accumulators(matrix))
        ports = config.sram.total_bytes_per_cycle
        found.append(self._sram("sram", "sram_kib", config.sram.bytes, ports))
        if config.l2 is not None:
            found.append(self._sram("l2", "l2_kib", config.l2.bytes, config.l2.bytes_per_cycle, 1))
        if vector is not None:
            found.append(self._logic("vector", "lane", lane_um2(config, vector), cores * vector.lanes))
        if config.scalar is not None:
            found.append(self._logic("scalar", "scalar", _FLOAT_MULTIPLIER + _FLOAT_ADDER + 4 * 32 * _REGISTER, cores))
        found.append(self._buffers(dma.max_outstanding * dma.burst_bytes, cores * dma.channels))
        found.append(self._control())
        found += self._others()
        if config.technology is not None and config.technology.phy:
            found.append(self._phy())
        return found

    def _by_hand(self, key: str) -> int | None:
        table = self._config.area
        return None if table is None else getattr(table, f"{key}_um2")

    def _logic(self, name: str, key: str, cells: float, count: int) -> CostItem:
        """``count`` instances of logic with ``cells`` um2 at 40 nm."""
        given = self._by_hand(key)
        if given is not None:
            return CostItem(name, given * count, f"the description: area.{key}")
        if self._technology is None:
            return CostItem(name, None, UNKNOWN)
        return CostItem(name, round(cells * count * self._cells), _LOGIC)

    def _sram(self, name: str, key: str, size: int, ports: int, count: int = 0) -> CostItem:
        """``count`` memories (0: one per core) of ``size`` bytes, whose banks together have ``ports`` bytes per
        cycle."""
        given, count = self._by_hand(key), count or self._config.cores
        if given is not None:
            return CostItem(name, given * count * size // 1024, f"the description: area.{key}")
        if self._technology is None:
            return CostItem(name, None, UNKNOWN)
        # CACTI's memory has one port. Each bank has registers for address, input and output data.
        cells = nodes.sram_um2(self._technology.node_nm, size) * self._memory
        return CostItem(name, round(count * (cells + 2 * 8 * ports * _REGISTER * self._cells)), nodes.CACTI)

    def _accumulators(self, matrix: MatrixConfig) -> CostItem:
        columns = matrix.cols * matrix.arrays
        return self._sram(
            "accumulators", "accumulator_kib", column_bytes(self._config, matrix) * columns, ACCUMULATOR_BYTES * columns
        )

    def _buffers(self, size: int, count: int) -> CostItem:
        """A channel buffers its outstanding bursts."""
        given = self._by_hand("dma")
        if given is not None:
            return CostItem("dma", given * count, "the description: area.dma")
        if self._technology is None:
            return CostItem("dma", None, UNKNOWN)
        each = nodes.sram_um2(self._technology.node_nm, size) * self._memory
        return CostItem("dma", round(count * each), nodes.CACTI)

    def _control(self) -> CostItem:
        given, cores, technology = self._by_hand("control"), self._config.cores, self._technology
        if given is not None:
            return CostItem("control", given * cores, "the description: area.control")
        if technology is None:
            return CostItem("control", None, UNKNOWN)
        scale = nodes.area_factor(technology.node_nm) / nodes.area_factor(40)
        return CostItem("control", round(cores * technology.control_um2 * scale), "the description: technology.control")

    def _others(self) -> list[CostItem]:
        """Additional areas given in the description."""
        technology, found = self._config.technology, []
        if technology is not None and technology.core_transistors:
            count = self._config.cores * technology.core_transistors
            um2 = round(count / nodes.transistors_per_um2(technology.node_nm)) if self._technology else None
            found.append(CostItem("core_others", um2, nodes.KHAN if self._technology else UNKNOWN))
        if technology is not None and technology.chip_um2:
            found.append(CostItem("chip_others", technology.chip_um2, "the description: technology.chip"))
        return found

    def _phy(self) -> CostItem:
        given, technology, dram = self._by_hand("phy"), self._config.technology, self._config.dram
        if given is not None:
            return CostItem("phy", given, "the description: area.phy")
        assert technology is not None
        # PHYs are analogue and do not scale like logic, so a figure is only valid for its node.
        if technology.dram not in _PHY or technology.node_nm != _PHY_NODE:
            return CostItem("phy", None, UNKNOWN)
        um2, transistors, pins = _PHY[technology.dram]
        rate = nodes.PIN_BITS[technology.dram]
        each = um2 + round(transistors / nodes.transistors_per_um2(technology.node_nm))
        return CostItem("phy", each * ceil_div(8 * dram.bandwidth, rate * pins), "LLMCompass, cost_model.py, at 7 nm")


def column_bytes(config: Config, matrix: MatrixConfig) -> int:
    """Bytes of accumulators per column of the array."""
    technology = config.technology
    if technology is not None and technology.accumulator_pixels:
        return technology.accumulator_pixels * ACCUMULATOR_BYTES
    return matrix.accumulator_bytes // (matrix.cols * matrix.arrays)


def pe_um2(config: Config, matrix: MatrixConfig) -> float:
    """Cells of one PE at 40 nm in um2: arithmetic of the type with the largest area at its rate, and registers."""
    arithmetic = max(
        (float(rate) * _arithmetic_um2(dtype) for dtype, rate in matrix.throughput.items() if rate), default=0
    )
    return arithmetic + pe_bits(config, matrix) * _REGISTER


def _arithmetic_um2(dtype: str) -> float:
    bits = _SIGNIFICANT[dtype]
    if dtype.startswith("int"):
        return _MULTIPLIER * (bits / 32) ** 2 + _ADDER
    return _FLOAT_MULTIPLIER * (bits / 24) ** 2 + _FLOAT_ADDER


def pe_bits(config: Config, matrix: MatrixConfig) -> int:
    """Register bits of a PE: operands passed on, stationary operands and their next values, a sum or a product,
    scratchpads.

    A type that takes several cycles is computed in pieces, and the registers have the width of a piece.
    """
    widths = (_WIDTH[dtype] if rate >= 1 else int(_WIDTH[dtype] * rate) for dtype, rate in matrix.throughput.items())
    width = max(widths, default=8)
    held = 1 if matrix.dataflow == "output_stationary" else min(2, matrix.weight_buffers)
    sums = 2 * width if matrix.model in ("direct", "grid") else 8 * ACCUMULATOR_BYTES
    extra = 8 * config.technology.pe_register_bytes if config.technology is not None else 0
    return width * (1 + held) + sums + extra


def lane_um2(config: Config, vector: VectorConfig) -> float:
    """Cells of a lane at 40 nm in um2: for floats, or for integers of half the width beside a matrix unit without
    floats."""
    bits = lane_bits(vector)
    if computes_floats(config):
        return _FLOAT_MULTIPLIER * (min(24, 6 * vector.lane_bytes) / 24) ** 2 + _FLOAT_ADDER + bits * _REGISTER
    return _MULTIPLIER * (vector.lane_bytes / 8) ** 2 + _ADDER + bits * _REGISTER


def lane_bits(vector: VectorConfig) -> int:
    """Register bits of a lane: two operands, a result and an intermediate value."""
    return 4 * 8 * vector.lane_bytes


def computes_floats(config: Config) -> bool:
    """Whether lanes are assumed to compute floats."""
    matrix = config.matrix
    return matrix is None or any("float" in dtype for dtype, rate in matrix.throughput.items() if rate)


def clocked_bits(config: Config) -> int:
    """Clocked register bits of a core."""
    pes = config.matrix.elements * pe_bits(config, config.matrix) if config.matrix is not None else 0
    return pes + (config.vector.lanes * lane_bits(config.vector) if config.vector is not None else 0)


def cells_um2(config: Config) -> float:
    """Cells of arithmetic and registers of all cores at 40 nm, in um2."""
    matrix, vector = config.matrix, config.vector
    pes = matrix.elements * pe_um2(config, matrix) if matrix is not None else 0
    return config.cores * (pes + (vector.lanes * lane_um2(config, vector) if vector is not None else 0))
