"""DRAM parts: one row each, to be checked against a datasheet. Timings in clocks of the command bus.

Where a source leaves a value out: tRCD for writes is that for reads; tRC is tRAS + tRP; tREFI of LPDDR3 is 3.9 us
(JEDEC JESD209-3). Rows of the 128-bit HBM channels have 2 KiB: 64 columns of 32 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npusim.units import Dimension, show

if TYPE_CHECKING:
    from npusim.hw.config import DramConfig


@dataclass(frozen=True, slots=True)
class Part:
    """A channel of one kind of DRAM, as wide as its data bus. ``rows``, ``row_bytes``: of one bank, of one rank.

    ``rate``: million transfers a second. ``bits``: of the data bus of a channel, or of each of its ``pseudo`` channels.
    ``dual``: commands for rows and for columns travel side by side. ``act_slots``: clocks of the command bus that an
    activation takes.
    """

    name: str
    source: str
    rate: int
    tck_ps: int
    bits: int
    burst_length: int
    groups: int
    banks: int
    rows: int
    row_bytes: int
    pseudo: int
    dual: bool
    act_slots: int
    cl: int
    cwl: int
    rcd_rd: int
    rcd_wr: int
    rp: int
    ras: int
    rc: int
    rfc: int
    refi: int
    rrd_s: int
    rrd_l: int
    faw: int
    ccd_s: int
    ccd_l: int
    wr: int
    rtp: int
    wtr_s: int
    wtr_l: int

    @property
    def burst_bytes(self) -> int:
        """Bytes of one access."""
        return self.bits * self.burst_length // 8

    @property
    def burst_clocks(self) -> int:
        """Clocks of the command bus that the data of one access take."""
        transfers = round(self.rate * self.tck_ps / 10**6)  # in one clock: 2, or more where data have a faster one
        return max(1, self.burst_length // transfers)

    @property
    def bandwidth(self) -> int:
        """Peak of one channel in bytes a second."""
        return self.pseudo * self.burst_bytes * 10**12 // (self.burst_clocks * self.tck_ps)

    @property
    def rank_bytes(self) -> int:
        """Capacity of one rank or pseudo channel."""
        return self.groups * self.banks * self.rows * self.row_bytes


Timings = tuple[
    int, int, int, int, int, int, int, int, int, int, int, int, int, int, int, int, int, int
]  # fmt: skip


def _part(
    name: str,
    source: str,
    bus: tuple[int, int, int, int],
    cells: tuple[int, int, int, int],
    pins: tuple[int, bool, int],
    timings: Timings,
) -> Part:
    return Part(name, source, *bus, *cells, *pins, *timings)


# fmt: off
_ROWS = (
    # name, source,
    # (MT/s, tCK ps, bits, burst length), (bank groups, banks in each, rows, row bytes), (pseudo, dual, act_slots),
    # (CL, CWL, tRCD, tRCD for writes, tRP, tRAS, tRC, tRFC, tREFI, tRRD_S, tRRD_L, tFAW, tCCD_S, tCCD_L, tWR, tRTP,
    # tWTR_S, tWTR_L)
    _part(
        "DDR4_8Gb_x8_3200", "DRAMsim3 configs/DDR4_8Gb_x8_3200.ini",
        (3175, 630, 64, 8), (4, 4, 65536, 8192), (1, False, 1),
        (22, 16, 22, 22, 22, 52, 74, 560, 12480, 4, 8, 34, 4, 8, 24, 12, 4, 12),
    ),
    _part(
        "DDR4_8Gb_x8_2400", "DRAMsim3 configs/DDR4_8Gb_x8_2400.ini",
        (2410, 830, 64, 8), (4, 4, 65536, 8192), (1, False, 1),
        (17, 12, 17, 17, 17, 39, 56, 420, 9360, 4, 6, 26, 4, 6, 18, 9, 3, 9),
    ),
    _part(
        "DDR4_8Gb_x16_3200", "DRAMsim3 configs/DDR4_8Gb_x16_3200.ini",
        (3175, 630, 64, 8), (2, 4, 65536, 8192), (1, False, 1),
        (22, 16, 22, 22, 22, 52, 74, 560, 12480, 9, 11, 48, 4, 8, 24, 12, 4, 12),
    ),
    _part(
        "LPDDR4_8Gb_x16_2400", "DRAMsim3 configs/LPDDR4_8Gb_x16_2400.ini",
        (2410, 830, 64, 16), (2, 4, 65536, 8192), (1, False, 1),
        (17, 14, 15, 15, 15, 32, 47, 392, 8660, 8, 8, 32, 4, 6, 30, 12, 8, 16),
    ),
    _part(
        "LPDDR3_8Gb_x32_1866", "DRAMsim3 configs/LPDDR3_8Gb_x32_1866.ini",
        (1869, 1070, 64, 8), (1, 8, 32768, 8192), (1, False, 1),
        (14, 11, 17, 17, 17, 40, 57, 196, 3645, 10, 10, 47, 4, 4, 15, 7, 7, 7),
    ),
    _part(
        "HBM2_8Gb_x128", "DRAMsim3 configs/HBM2_8Gb_x128.ini",
        (2000, 1000, 128, 4), (4, 4, 32768, 2048), (1, True, 1),
        (14, 4, 14, 14, 14, 34, 48, 260, 3900, 4, 6, 30, 1, 2, 16, 6, 6, 8),
    ),
    _part(
        "HBM1_4Gb_x128", "DRAMsim3 configs/HBM1_4Gb_x128.ini",
        (1000, 2000, 128, 4), (4, 4, 16384, 2048), (1, True, 1),
        (7, 2, 7, 7, 7, 17, 24, 130, 1950, 2, 3, 15, 1, 1, 8, 3, 3, 4),
    ),
    _part(
        "GDDR6_8Gb_x16", "DRAMsim3 configs/GDDR6_8Gb_x16.ini",
        (3030, 660, 128, 16), (4, 4, 16384, 2048), (1, False, 1),
        (24, 16, 24, 20, 24, 54, 78, 126, 11862, 9, 9, 32, 3, 4, 16, 3, 7, 7),
    ),
    _part(
        "DDR4_3200AA", "Ramulator 2.1 python/ramulator/dram/ddr4.py",
        (3200, 625, 64, 8), (4, 4, 65536, 8192), (1, False, 1),
        (22, 16, 22, 22, 22, 52, 74, 576, 12480, 4, 8, 34, 4, 8, 24, 12, 4, 12),
    ),
    _part(
        "DDR4_3200W", "Ramulator 2.1 python/ramulator/dram/ddr4.py",
        (3200, 625, 64, 8), (4, 4, 65536, 8192), (1, False, 1),
        (20, 16, 20, 20, 20, 52, 72, 576, 12480, 4, 8, 34, 4, 8, 24, 12, 4, 12),
    ),
    _part(
        "DDR4_3200AA_x16", "Ramulator 2.1 python/ramulator/dram/ddr4.py",
        (3200, 625, 64, 8), (2, 4, 65536, 8192), (1, False, 1),
        (22, 16, 22, 22, 22, 52, 74, 576, 12480, 9, 11, 48, 4, 8, 24, 12, 4, 12),
    ),
    _part(
        "LPDDR5_6400", "Ramulator 2.1 python/ramulator/dram/lpddr5.py",
        (6400, 1250, 16, 16), (4, 4, 32768, 2048), (1, False, 2),
        (17, 9, 15, 15, 15, 34, 49, 168, 3125, 4, 4, 16, 2, 4, 28, 8, 5, 10),
    ),
    _part(
        "LPDDR5_6400_16Gb", "Ramulator 2.1 python/ramulator/dram/lpddr5.py",
        (6400, 1250, 16, 16), (4, 4, 65536, 2048), (1, False, 2),
        (17, 9, 15, 15, 15, 34, 49, 224, 3125, 4, 4, 16, 2, 4, 28, 8, 5, 10),
    ),
    _part(
        "HBM2_2000Mbps", "Ramulator 2.1 python/ramulator/dram/hbm2.py",
        (2000, 1000, 64, 4), (4, 4, 65536, 1024), (2, True, 2),
        (14, 5, 14, 12, 14, 34, 48, 350, 3900, 4, 4, 15, 2, 4, 16, 5, 6, 8),
    ),
    _part(
        "HBM2_2400Mbps", "Ramulator 2.1 python/ramulator/dram/hbm2.py",
        (2400, 833, 64, 4), (4, 4, 65536, 1024), (2, True, 2),
        (17, 6, 17, 14, 17, 40, 57, 421, 4682, 5, 5, 19, 2, 4, 19, 6, 8, 10),
    ),
    _part(
        "DDR5_6400AN", "Ramulator 2.1 python/ramulator/dram/ddr5.py",
        (6400, 312, 32, 16), (4, 4, 131072, 4096), (1, False, 1),
        (46, 44, 46, 46, 46, 103, 149, 1315, 12500, 16, 16, 80, 8, 16, 96, 24, 5, 32),
    ),
    _part(
        "HBM3_6400Mbps", "Ramulator 2.1 python/ramulator/dram/hbm3.py",
        (6400, 625, 32, 8), (4, 4, 32768, 1024), (2, True, 2),
        (20, 10, 31, 15, 26, 45, 72, 560, 6240, 4, 5, 24, 2, 4, 33, 9, 7, 10),
    ),
    _part(
        "LPDDR4_4266", "DRAMSys configs/memspec/JEDEC_1Gbx16_LPDDR4-4266.json",
        (4266, 469, 16, 16), (1, 8, 131072, 2048), (1, False, 1),
        (36, 18, 39, 39, 39, 90, 129, 812, 8341, 22, 22, 86, 8, 8, 39, 17, 22, 22),
    ),
)
# fmt: on

PARTS = {part.name: part for part in _ROWS}
"""Every part by its name."""

FIELDS = ("ro", "ra", "bg", "ba", "ch", "co")
"""What an address says, by the names in an address mapping: row, rank, bank group, bank, channel, column."""
MAPPING = "rocorababgch"
"""A sequential stream goes over all channels, then over all bank groups and banks, before it moves on in a row."""


def bad_mapping(mapping: str) -> str | None:
    """What is wrong with an address mapping, if anything is."""
    names = [mapping[i : i + 2] for i in range(0, len(mapping), 2)]
    if sorted(names) != sorted(FIELDS):
        return f"must name each of {', '.join(FIELDS)} once, got {mapping!r}"
    if names[0] != "ro":
        return f"must begin with ro, the highest bits, got {mapping!r}"
    return None


def bad_dram(dram: DramConfig) -> Iterator[tuple[str, str]]:
    """(key, problem) of what contradicts the part, or would have no effect."""
    if dram.kind != "jedec":
        if dram.part != "none":
            yield "dram.part", f'must be none with kind = "{dram.kind}", got {dram.part!r}'
        return
    if dram.part == "none":
        yield "dram.part", f'must be given with kind = "jedec": one of {", ".join(PARTS)}'
        return
    part = PARTS[dram.part]
    problem = bad_mapping(dram.mapping)
    if problem:
        yield "dram.mapping", problem
    if dram.channels & (dram.channels - 1):
        yield "dram.channels", f'must be a power of two with kind = "jedec", got {dram.channels}'
    if part.pseudo > 1 and dram.ranks > 1:
        yield "dram.ranks", f"must be 1: a channel of {part.name} is {part.pseudo} pseudo channels, got {dram.ranks}"
    if dram.efficiency != 1:
        yield "dram.efficiency", f'must be 1 with kind = "jedec", whose banks decide that, got {dram.efficiency}'
    peak = dram.channels * part.bandwidth
    if abs(dram.bandwidth - peak) * 100 > peak:
        yield (
            "dram.bandwidth",
            (
                f"must be that of {dram.channels} x {part.name} = {show(peak, Dimension.BANDWIDTH)} within 1 %, "
                f"got {show(dram.bandwidth, Dimension.BANDWIDTH)}"
            ),
        )
    most = dram.channels * max(dram.ranks, part.pseudo) * part.rank_bytes
    if dram.bytes > most:
        yield (
            "dram.bytes",
            (f"must be <= what the parts hold = {show(most, Dimension.SIZE)}, got {show(dram.bytes, Dimension.SIZE)}"),
        )
