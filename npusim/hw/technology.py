"""Keys of energy and area: a process technology from which they are derived, and single values given by hand."""

# ruff: noqa: RUF009 - key() and table() make dataclass fields
from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fractions import Fraction

from npusim.hw.dram_kinds import DRAMS
from npusim.hw.keys import Choice, Count, Flag, FrozenTable, MapOf, Quantity, Ratio, key, table
from npusim.hw.nodes import FLOORPLAN, SRAM_LAYOUT
from npusim.units import Dimension

UNPRICED: Mapping[str, str] = {
    **dict.fromkeys(
        ("dma.setup_cycles", "matrix.setup_cycles", "vector.setup_cycles", "interconnect.latency_cycles",
         "l2.latency_cycles", "sram.latency_cycles"),
        "no source relates the length of a pipeline to area or energy",
    ),
    **dict.fromkeys(("dram.latency", "dma.write_latency"), "the latency is that of the DRAM chips"),
    "dram.efficiency": "no source relates the order of requests to the size of a controller",
    "dma.in_flight": "the state of a transfer is a part of the buffers of its channel",
    "vector.cost": "no source gives the area of units for functions at different rates",
    **dict.fromkeys(
        ("matrix.dataflow", "matrix.model", "interconnect.arbitration", "queue_depth"),
        "a choice of organisation whose control logic has no published area",
    ),
    "matrix.accumulator_bytes": "less of it can be faster, because the compiler chooses other tiles",
    "matrix.weight_bits": "no source gives the area of what unpacks weights",
    "interconnect.multicast": "a write to several cores uses the wires of one",
    "interconnect.separate_code_port": "instructions come from the host",
}  # fmt: skip
"""Keys that can make a device faster without a price, with the reason. A test derives the keys."""
ENERGY = Quantity(Dimension.ENERGY, 0, 10**9)
AREA = Quantity(Dimension.AREA, 0, 10**12)
RUNNING, CLOCK_GATED, POWER_GATED = "running", "clock_gated", "power_gated"
PRICED = ("int8", "int16", "int32", "float16", "bfloat16", "float32")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TechnologyConfig:
    """The process technology of the chip. Absent: energy and area are only known where they are given by hand."""

    node_nm: int = key(
        Quantity(Dimension.LENGTH, 1, 1000), "process node; energy and area are scaled to it from published figures"
    )
    voltage_mv: int | None = key(
        Quantity(Dimension.VOLTAGE, 100, 5000),
        "supply of the chip; left out = for each clock domain the lowest at which its clock runs",
        None,
    )
    any_clock: bool = key(
        Flag(), "clocks above the limit of synthesised logic of this node are accepted, at its highest supply", False
    )
    idle: str = key(
        Choice((RUNNING, CLOCK_GATED, POWER_GATED)),
        "state of the chip between jobs: clocks run, clocks stop, or supply and DRAM interface are off",
        RUNNING,
    )
    leakage: Fraction = key(
        Ratio(1024), "leakage relative to that of transistors with regular threshold at 25 degrees", Fraction(1)
    )
    dram: str = key(
        Choice(("unknown", *DRAMS)), "type of DRAM, for the energy per byte and area and power of its PHY", "unknown"
    )
    dram_pins: int = key(
        Count(0, 1 << 16), "data pins of the DRAM; 0 = as many as the bandwidth needs at the usual data rate", 0
    )
    phy: bool = key(
        Flag(), "controllers and PHYs of the DRAM are part of the device; false: part of the surrounding chip", False
    )
    pe_register_bytes: int = key(
        Count(0, 1 << 16),
        "registers of a PE in addition to those of its dataflow, such as scratchpads for operands and sums",
        0,
    )
    pe_memory_bytes: int = key(Count(0, 1 << 20), "an SRAM in each PE, such as a scratchpad for filters", 0)
    accumulator_pixels: int = key(
        Count(0, 1 << 20),
        "accumulators per column of the array; 0 = as many as fit matrix.accumulator_bytes",
        0,
    )
    activity: Fraction = key(
        Ratio(1),
        "switching activity of arithmetic, registers and memories, relative to the random data of the tables",
        Fraction(1),
    )
    clocked: Fraction = key(Ratio(1), "average fraction of the registers whose clock is not gated", Fraction(1))
    # Gemmini, DAC 2021 figure 6a: 116 000 um2 for 16 x 16 PEs at 22 nm, divided by 298 um2 of cells per PE.
    logic_layout: Fraction = key(
        Ratio(64, positive=True),
        "area of an array divided by the cell area of its arithmetic and registers",
        Fraction("1.5"),
    )
    sram_layout: Fraction = key(
        Ratio(64, positive=True), "area of a memory divided by the area from CACTI", Fraction(str(SRAM_LAYOUT))
    )
    floorplan: Fraction = key(
        Ratio(64, positive=True),
        "area on the die divided by that of the placed block; 1 = the description is of a block, not of a chip",
        Fraction(str(FLOORPLAN)),
    )
    # Gemmini, DAC 2021 figure 6a: 52 000 um2 at 22 nm are neither array nor memory nor processor; of them 5 800 are
    # the channels, crossbars and interconnects of its description.
    control_um2: int = key(AREA, "sequencer and registers of a core at 40 nm", 149_000)
    cache: bool = key(
        Flag(),
        "the L2 is a cache, with tags and a controller for each slice that delivers a line per cycle; false: it is "
        "managed by software",
        False,
    )
    core_transistors: int = key(
        Count(0, 10**12), "transistors of a core that are not in the units of this description", 0
    )
    chip_um2: int = key(AREA, "area of the chip without its cores and DRAM PHYs, at this node", 0)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EnergyConfig:
    """Energy per action. A value given here overrides the one derived from the technology."""

    mac: FrozenTable[int] = table(MapOf(PRICED, ENERGY), "one multiply-accumulate, by type")
    operand_byte_fj: int | None = key(ENERGY, "one byte latched by the registers of a PE", None)
    accumulator_byte_fj: int | None = key(ENERGY, "one byte read from or written to the accumulators", None)
    vector_fj: int | None = key(ENERGY, "one vector lane operation", None)
    scalar_fj: int | None = key(
        ENERGY, "one element of the scalar unit; left out = the energy of a vector lane operation", None
    )
    sram_byte_fj: int | None = key(ENERGY, "one byte read from or written to SRAM", None)
    dma_byte_fj: int | None = key(ENERGY, "one byte through a DMA engine and the interconnect", None)
    dram_byte_fj: int | None = key(ENERGY, "one byte over the DRAM pins", None)
    constants_byte_fj: int | None = key(ENERGY, "one byte from the memory for constants", None)
    l2_byte_fj: int | None = key(ENERGY, "one byte read from or written to the L2", None)
    clock_cycle_fj: int | None = key(ENERGY, "one clock cycle of one core with all its units, busy or idle", None)
    leakage_uw: int | None = key(Quantity(Dimension.POWER, 0, 10**9), "leakage power of the chip", None)
    phy_uw: int | None = key(
        Quantity(Dimension.POWER, 0, 10**9), "power of the DRAM interface while no data pass", None
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AreaConfig:
    """Area per component. A value given here overrides the one derived from the technology."""

    pe_um2: int | None = key(AREA, "one PE: multiplier, adder and registers", None)
    sram_kib_um2: int | None = key(AREA, "1 KiB of SRAM", None)
    l2_kib_um2: int | None = key(AREA, "1 KiB of L2", None)
    accumulator_kib_um2: int | None = key(AREA, "1 KiB of accumulators", None)
    lane_um2: int | None = key(AREA, "one vector lane", None)
    scalar_um2: int | None = key(AREA, "the scalar unit of a core", None)
    dma_um2: int | None = key(AREA, "one DMA channel", None)
    wires_um2: int | None = key(AREA, "crossbars between memories and units, and the interconnects of the chip", None)
    control_um2: int | None = key(AREA, "sequencer, registers and ports of a core", None)
    phy_um2: int | None = key(AREA, "controllers and PHYs of the DRAM", None)
