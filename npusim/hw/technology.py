"""Keys of what a device's actions and parts cost: a technology from which prices follow, or prices by hand."""

# ruff: noqa: RUF009 - key() and its kin make dataclass fields
from __future__ import annotations

import dataclasses
from fractions import Fraction

from npusim.hw.keys import Choice, Count, Flag, MapOf, Quantity, Ratio, Table, key, table
from npusim.hw.nodes import DRAMS
from npusim.units import Dimension

ENERGY = Quantity(Dimension.ENERGY, 0, 10**9)
AREA = Quantity(Dimension.AREA, 0, 10**12)
PRICED = ("int8", "int16", "int32", "float16", "bfloat16", "float32")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TechnologyConfig:
    """The process of the chip and how it is used; absent = not known, nor is any price that is not given by hand."""

    node_nm: int = key(
        Quantity(Dimension.LENGTH, 1, 1000), "process node; energy and area are scaled to it from published figures"
    )
    dram: str = key(
        Choice(("unknown", *DRAMS)), "sort of DRAM, for the energy of a byte and the area of its PHY", "unknown"
    )
    phy: bool = key(
        Flag(), "controllers and PHYs of the DRAM are on the chip; false: on the one that it is a part of", False
    )
    pe_register_bytes: int = key(
        Count(0, 1 << 16),
        "registers of a PE besides those that its dataflow needs: scratchpads of operands and sums",
        0,
    )
    accumulator_pixels: int = key(
        Count(0, 1 << 20),
        "accumulators that there are for each column of the array; 0 = as many as matrix.accumulator_bytes holds",
        0,
    )
    activity: Fraction = key(
        Ratio(1),
        "what data make arithmetic, registers and memories take, by the random data of the tables",
        Fraction(1),
    )
    clocked: Fraction = key(Ratio(1), "part of the registers whose clock runs, on average", Fraction(1))
    # 14 mm2 for 128 x 128 PEs at 7 nm (TPUv4i, ISCA 2021 figure 6), by the 0.45 thousandths of a mm2 of their cells.
    logic_layout: Fraction = key(
        Ratio(64, positive=True), "silicon of an array by the cells of its arithmetic and registers", Fraction("1.9")
    )
    # 544 000 um2 for 256 KiB at 22 nm (Gemmini, DAC 2021 figure 6a), by CACTI's 255 400.
    sram_layout: Fraction = key(
        Ratio(64, positive=True), "silicon of a memory by what CACTI gives for it", Fraction("2.1")
    )
    # Gemmini, DAC 2021 figure 6a: 52 000 um2 at 22 nm are neither array nor memory nor processor.
    control_um2: int = key(AREA, "sequencer, registers and buses of a core, as they would be at 40 nm", 168_000)
    core_transistors: int = key(
        Count(0, 10**12), "what a core has besides the units of this description, by its transistors", 0
    )
    chip_um2: int = key(
        AREA, "what the chip has once besides its cores and the PHYs of its DRAM, as it is at this node", 0
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EnergyConfig:
    """Energy of one action each; a price that is given here goes before that of the technology."""

    mac: Table[int] = table(MapOf(PRICED, ENERGY), "one multiply-accumulate, by type")
    operand_byte_fj: int | None = key(ENERGY, "one byte that a PE's registers take over", None)
    accumulator_byte_fj: int | None = key(ENERGY, "one byte read from or written to the accumulators", None)
    vector_fj: int | None = key(ENERGY, "one vector lane operation", None)
    scalar_fj: int | None = key(ENERGY, "one element of the scalar unit; left out = that of a vector lane", None)
    sram_byte_fj: int | None = key(ENERGY, "one byte read from or written to SRAM", None)
    dma_byte_fj: int | None = key(ENERGY, "one byte through a DMA engine and the interconnect", None)
    dram_byte_fj: int | None = key(ENERGY, "one byte over the DRAM pins", None)
    constants_byte_fj: int | None = key(ENERGY, "one byte from the memory for constants", None)
    l2_byte_fj: int | None = key(ENERGY, "one byte read from or written to the L2", None)
    clock_cycle_fj: int | None = key(ENERGY, "a cycle of the clock in one core, whether it works or waits", None)
    leakage_uw: int | None = key(Quantity(Dimension.POWER, 0, 10**9), "power of the chip when its clock stands", None)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AreaConfig:
    """Area of one part each; what is given here goes before that of the technology."""

    pe_um2: int | None = key(AREA, "one PE: multiplier, adder and registers", None)
    sram_kib_um2: int | None = key(AREA, "1 KiB of SRAM", None)
    l2_kib_um2: int | None = key(AREA, "1 KiB of L2", None)
    accumulator_kib_um2: int | None = key(AREA, "1 KiB of accumulators", None)
    lane_um2: int | None = key(AREA, "one vector lane", None)
    scalar_um2: int | None = key(AREA, "the scalar unit of a core", None)
    dma_um2: int | None = key(AREA, "one DMA channel", None)
    control_um2: int | None = key(AREA, "sequencer, registers and ports of a core", None)
    phy_um2: int | None = key(AREA, "controllers and PHYs of the DRAM", None)
