"""The energy per action of a device: from its own table, or from its technology, otherwise unknown.

Each clock domain has its own supply: the lowest at which its clock runs, or that of ``technology.voltage``. Energies
are published at the nominal supply and grow with the square of the supply, leakage in proportion.
"""

from __future__ import annotations

import functools

from npusim.hw import actions as act
from npusim.hw import nodes
from npusim.hw.area import CORE, LAYOUT, MATRIX, VECTOR, chip_mm, column_bytes, computes_floats, structures, supplies
from npusim.hw.config import Config
from npusim.hw.costs import ActionCost, ActionCosts
from npusim.hw.dram_kinds import CACTI_IO, KINDS, interface
from npusim.hw.sections import ACCUMULATOR_BYTES
from npusim.hw.technology import POWER_GATED, PRICED, RUNNING, TechnologyConfig
from npusim.units import Dimension, show

TABLE = "the description: energy.{}"
_CLOCK_PJ, _DATA_PJ = 0.00794, 0.00106
"""nodes.ALADDIN: energy of a register bit at 40 nm, per clock cycle and additionally per change of data."""


@functools.lru_cache(256)
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
            act.PHY: ("phy", table.phy_uw),
        }
        for name, (key, value) in given.items():
            if value is not None:
                found[name] = ActionCost(value, TABLE.format(key))
    return ActionCosts(found)


@functools.lru_cache(256)
def idle_costs(config: Config) -> ActionCosts:
    """The same for the actions that depend on time alone, between jobs: see ``technology.idle``."""
    technology, costs = config.technology, action_costs(config)
    state = RUNNING if technology is None else technology.idle
    off = ActionCost(0, f"the description: technology.idle = {state}")
    stopped = set() if state == RUNNING else {*act.CLOCKS} if state != POWER_GATED else {*act.OF_TIME}
    return ActionCosts({name: off if name in stopped else costs[name] for name in act.OF_TIME})


def _derived(config: Config) -> dict[str, ActionCost]:
    """Energies derived from the technology."""
    technology = config.technology
    if technology is None:
        return {}
    found = {}
    if technology.dram in KINDS:
        kind = KINDS[technology.dram]
        found[act.DRAM] = ActionCost(kind.byte_fj, kind.source)
        port = interface(technology.dram, config.dram.bandwidth, technology.dram_pins, technology.node_nm)
        found[act.PHY] = ActionCost(port.idle_uw, f"{CACTI_IO}: {port.pins} pins at {port.rate:.0f} Mbit/s")
    if nodes.known(technology.node_nm):
        found |= _Prices(config, technology).all()
    return found


class _Prices:
    """Prices of one device by the technology."""

    def __init__(self, config: Config, technology: TechnologyConfig) -> None:
        self._config, self._technology, self._node = config, technology, technology.node_nm
        self._supplies = supplies(config)
        nominal = nodes.nominal_mv(self._node)
        self._relative = {domain: supply / nominal for domain, supply in self._supplies.items()}
        self._register = nodes.logic_factor(self._node, 40)

    def all(self) -> dict[str, ActionCost]:
        return self._arithmetic() | self._memories() | self._waiting()

    def _cost(self, picojoules: float, domain: str, said: str, active: bool = True) -> ActionCost:
        """Of an action in a clock domain, from its energy at the nominal supply."""
        activity = float(self._technology.activity) if active else 1.0
        value = round(1000 * activity * picojoules * self._relative[domain] ** 2)
        return ActionCost(value, f"{said}; at {self._at(domain)}")

    def _at(self, domain: str) -> str:
        return f"{self._node} nm and {show(self._supplies[domain], Dimension.VOLTAGE)}"

    def _arithmetic(self) -> dict[str, ActionCost]:
        """Multiply-accumulates, lane operations and the registers of their operands."""
        node = self._node
        found = {
            f"{act.MACS}{dtype}": self._cost(mac_pj(dtype, node), MATRIX, nodes.TPU4I) for dtype in PRICED
        }  # fmt: skip
        lane, width = ("float32", 32) if computes_floats(self._config) else ("int16", 16)
        said = f"a product of {width} bits and a sum: {nodes.TPU4I}"
        found[act.VECTOR] = self._cost(mac_pj(lane, node), VECTOR, said)
        found[act.SCALAR] = self._cost(mac_pj(lane, node), CORE, f"as a vector lane operation, {said}")
        data = 8 * _DATA_PJ * self._register
        found[act.OPERANDS] = self._cost(data, MATRIX, f"data of a register: {nodes.ALADDIN}, as an adder")
        # An engine latches a byte in its buffer and passes it on, over a path as long as the edge of the chip.
        wire = nodes.wire_fj(nodes.nominal_mv(node) / 1000) / 1000 * chip_mm(self._config)
        latched = 2 * 8 * (_CLOCK_PJ + _DATA_PJ) * self._register
        said = f"two registers: {nodes.ALADDIN}, as an adder; wires of {chip_mm(self._config):.1f} mm: {nodes.KECKLER}"
        found[act.DMA] = self._cost(latched + wire, CORE, said)
        return found

    def _memories(self) -> dict[str, ActionCost]:
        """Energy per byte of SRAM, L2 and accumulators."""
        config = self._config
        found = {act.SRAM: self._access(config.sram.bytes, config.sram.bytes_per_cycle, CORE)}
        if config.l2 is not None:
            found[act.L2] = self._access(config.l2.bytes, config.l2.line_bytes, CORE)
        if config.matrix is not None and config.matrix.accumulator_bytes:
            size = column_bytes(config, config.matrix)
            found[act.ACCUMULATORS] = self._access(size, ACCUMULATOR_BYTES, MATRIX)
        return found

    def _access(self, size: int, port: int, domain: str) -> ActionCost:
        per_byte = nodes.sram_pj(self._node, size, port) / port
        return self._cost(per_byte, domain, f"{nodes.CACTI}, {size} bytes, {8 * port} bits wide")

    def _waiting(self) -> dict[str, ActionCost]:
        """Energy that depends on time: clock and leakage."""
        config, technology = self._config, self._technology
        bits = dict.fromkeys((CORE, MATRIX, VECTOR), 0)
        for each in structures(config):
            bits[each.domain] += each.bits
        bit = _CLOCK_PJ * self._register * float(technology.clocked) / config.cores
        said = f"clock of {{}} bits a core: {nodes.ALADDIN}, as an adder"
        found = {}
        own = dict(act.own_clocks(config))
        for domain, action in ((MATRIX, act.CLOCK_MATRIX), (VECTOR, act.CLOCK_VECTOR)):
            if action in own:
                found[action] = self._cost(bit * bits[domain], domain, said.format(bits[domain] // config.cores), False)
            else:
                bits[CORE] += bits[domain]
        found[act.CLOCK] = self._cost(bit * bits[CORE], CORE, said.format(bits[CORE] // config.cores), False)
        leaks = leakage_uw(config)
        if leaks is not None:
            sources = f"{nodes.ALADDIN}; {nodes.ASAP7}; {nodes.CACTI}"
            supply = self._at(CORE)
            found[act.LEAKAGE] = ActionCost(round(sum(leaks.values())), f"{sources}; at {supply}")
        return found


def leakage_uw(config: Config) -> dict[str, float] | None:
    """Microwatts that each structure of a device leaks; None if the node is not known."""
    technology = config.technology
    if technology is None or not nodes.known(technology.node_nm):
        return None
    node, nominal = technology.node_nm, nodes.nominal_mv(technology.node_nm)
    here = nodes.area_factor(node) / nodes.area_factor(40)
    cell = nodes.cell_leakage_uw(node)
    found = {}
    at = supplies(config)
    for each in structures(config):
        cells = each.cells + (each.laid + (each.here or 0) / here) / LAYOUT
        leaks = cells * cell + sum(count * nodes.sram_leakage_uw(node, size) for size, count in each.memories)
        found[each.name] = leaks * float(technology.leakage) * at[each.domain] / nominal
    return found


def mac_pj(dtype: str, node: int) -> float:
    """Picojoules of a product and its addition to a 32-bit sum."""
    sums = nodes.operation_pj("add_int32" if dtype.startswith("int") else "add_float32", node)
    if dtype == "int16":
        # Between 8 and 32 bits the energy of a product is interpolated as a power of the width.
        return sums + nodes.between([(bits, nodes.operation_pj(f"mul_int{bits}", node)) for bits in (8, 32)], 16)
    if dtype == "bfloat16":
        return sums + nodes.operation_pj("mul_float16", node) * nodes.BFLOAT16_PRODUCT
    return sums + nodes.operation_pj(f"mul_{dtype}", node)
