"""DRAM parts, one row each, to be checked against a datasheet. Timings are in clocks of the command bus.

If a source omits a value: tRCD of writes is that of reads; tRC is tRAS + tRP; tREFI of LPDDR3 is 3.9 us (JEDEC
JESD209-3). Rows of the 128-bit HBM channels have 2 KiB: 64 columns of 32 bytes.

If a source has a tCCD shorter than the burst, it is replaced by the burst, half the burst length (JESD235, JESD209-4):
HBM1_4Gb_x128 and HBM2_8Gb_x128 (1 clock in their files, for a burst of 2), LPDDR4_8Gb_x16_2400 (4 and 6 in its file).
tREFI of LPDDR4_8Gb_x16_2400 is 7.2 us as in its file, not the 3.9 us of JESD209-4.

There is no row for GDDR7: no vendor's timings are public, and Ramulator 2.1 calls those of its file guesses. There is
none for HBM3E: the same source scales tCCD_L to three bursts, at which the controller of this model, which takes banks
in turn, reaches three quarters of the bandwidth of a stream.

Refresh is that of all banks of a rank at once, or of one set of banks after another (``dram.bank_refresh``), with 8
commands in tREFI: REFpb of LPDDR4 and LPDDR5 (tRFCpb: the sources of the rows), and REFsb of DDR5, one bank of each
group (tRFCsb: Ramulator 2.0 src/dram/impl/DDR5.cpp; JESD79-5: with fine granularity, twice in tREFI).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True, slots=True)
class DramPart:
    """A channel of one DRAM part. ``rows``, ``row_bytes``: per bank of one rank.

    ``rate``: million transfers per second. ``bits``: width of the data bus of a channel, or of each of its ``pseudo``
    channels. ``dual``: row and column commands are issued in parallel. ``act_slots``: clocks of the command bus per
    activation. Fields from ``cl`` on are JEDEC timings without their t: the minimum clocks between two commands to the
    same bank, bank group or rank.
    """

    name: str
    source: str
    _: KW_ONLY
    rate: int
    tck_ps: int
    bits: int
    burst_length: int
    groups: int
    banks: int
    rows: int
    row_bytes: int
    pseudo: int = 1
    dual: bool = False
    act_slots: int = 1
    rfc_set: int = 0  # REFpb or REFsb -> ACT of the banks that it refreshes; 0: not in the source
    refresh_sets: int = 8  # of banks that such commands refresh in turn
    # per bank
    cl: int  # RD -> first datum
    cwl: int  # WR -> first datum
    rcd_rd: int  # ACT -> RD
    rcd_wr: int  # ACT -> WR
    rp: int  # PRE -> ACT, REF
    ras: int  # ACT -> PRE
    rc: int  # ACT -> ACT
    wr: int  # last datum of WR -> PRE
    rtp: int  # RD -> PRE
    # per rank
    rfc: int  # REF -> ACT
    refi: int  # REF -> REF, on average
    faw: int  # ACT -> the fourth ACT after it
    # per rank (_s), per bank group (_l)
    rrd_s: int  # ACT -> ACT
    rrd_l: int
    ccd_s: int  # RD -> RD, WR -> WR
    ccd_l: int
    wtr_s: int  # last datum of WR -> RD
    wtr_l: int

    @property
    def burst_bytes(self) -> int:
        """Bytes of one access."""
        return self.bits * self.burst_length // 8

    @property
    def burst_clocks(self) -> int:
        """Clocks of the command bus for the data of one access."""
        transfers = round(self.rate * self.tck_ps / 10**6)  # per clock: 2, or more if data have a faster clock
        return max(1, self.burst_length // transfers)

    @property
    def bandwidth(self) -> int:
        """Peak of one channel in bytes/s."""
        return self.pseudo * self.burst_bytes * 10**12 // (self.burst_clocks * self.tck_ps)

    @property
    def rank_bytes(self) -> int:
        """Capacity of one rank or pseudo channel."""
        return self.groups * self.banks * self.rows * self.row_bytes


# fmt: off
_ROWS = (
    DramPart(
        "DDR4_8Gb_x8_3200", "DRAMsim3 configs/DDR4_8Gb_x8_3200.ini",
        rate=3175, tck_ps=630, bits=64, burst_length=8, groups=4, banks=4, rows=65536, row_bytes=8192,
        cl=22, cwl=16, rcd_rd=22, rcd_wr=22, rp=22, ras=52, rc=74, rfc=560, refi=12480,
        rrd_s=4, rrd_l=8, faw=34, ccd_s=4, ccd_l=8, wr=24, rtp=12, wtr_s=4, wtr_l=12,
    ),
    DramPart(
        "DDR4_8Gb_x8_2400", "DRAMsim3 configs/DDR4_8Gb_x8_2400.ini",
        rate=2410, tck_ps=830, bits=64, burst_length=8, groups=4, banks=4, rows=65536, row_bytes=8192,
        cl=17, cwl=12, rcd_rd=17, rcd_wr=17, rp=17, ras=39, rc=56, rfc=420, refi=9360,
        rrd_s=4, rrd_l=6, faw=26, ccd_s=4, ccd_l=6, wr=18, rtp=9, wtr_s=3, wtr_l=9,
    ),
    DramPart(
        "DDR4_8Gb_x16_3200", "DRAMsim3 configs/DDR4_8Gb_x16_3200.ini",
        rate=3175, tck_ps=630, bits=64, burst_length=8, groups=2, banks=4, rows=65536, row_bytes=8192,
        cl=22, cwl=16, rcd_rd=22, rcd_wr=22, rp=22, ras=52, rc=74, rfc=560, refi=12480,
        rrd_s=9, rrd_l=11, faw=48, ccd_s=4, ccd_l=8, wr=24, rtp=12, wtr_s=4, wtr_l=12,
    ),
    DramPart(
        "LPDDR4_8Gb_x16_2400", "DRAMsim3 configs/LPDDR4_8Gb_x16_2400.ini",
        rate=2410, tck_ps=830, bits=64, burst_length=16, groups=2, banks=4, rows=65536, row_bytes=8192,
        cl=17, cwl=14, rcd_rd=15, rcd_wr=15, rp=15, ras=32, rc=47, rfc=392, refi=8660,
        rrd_s=8, rrd_l=8, faw=32, ccd_s=8, ccd_l=8, wr=30, rtp=12, wtr_s=8, wtr_l=16,
    ),
    DramPart(
        "LPDDR3_8Gb_x32_1866", "DRAMsim3 configs/LPDDR3_8Gb_x32_1866.ini",
        rate=1869, tck_ps=1070, bits=64, burst_length=8, groups=1, banks=8, rows=32768, row_bytes=8192,
        cl=14, cwl=11, rcd_rd=17, rcd_wr=17, rp=17, ras=40, rc=57, rfc=196, refi=3645,
        rrd_s=10, rrd_l=10, faw=47, ccd_s=4, ccd_l=4, wr=15, rtp=7, wtr_s=7, wtr_l=7,
    ),
    DramPart(
        "HBM2_8Gb_x128", "DRAMsim3 configs/HBM2_8Gb_x128.ini",
        rate=2000, tck_ps=1000, bits=128, burst_length=4, groups=4, banks=4, rows=32768, row_bytes=2048, dual=True,
        cl=14, cwl=4, rcd_rd=14, rcd_wr=14, rp=14, ras=34, rc=48, rfc=260, refi=3900,
        rrd_s=4, rrd_l=6, faw=30, ccd_s=2, ccd_l=2, wr=16, rtp=6, wtr_s=6, wtr_l=8,
    ),
    DramPart(
        "HBM1_4Gb_x128", "DRAMsim3 configs/HBM1_4Gb_x128.ini",
        rate=1000, tck_ps=2000, bits=128, burst_length=4, groups=4, banks=4, rows=16384, row_bytes=2048, dual=True,
        cl=7, cwl=2, rcd_rd=7, rcd_wr=7, rp=7, ras=17, rc=24, rfc=130, refi=1950,
        rrd_s=2, rrd_l=3, faw=15, ccd_s=2, ccd_l=2, wr=8, rtp=3, wtr_s=3, wtr_l=4,
    ),
    # The command clock is an eighth of the data rate (JESD250: 8 bits per clock and pin).
    DramPart(
        "GDDR6_8Gb_x16", "DRAMsim3 configs/GDDR6_8Gb_x16.ini",
        rate=12121, tck_ps=660, bits=128, burst_length=16, groups=4, banks=4, rows=16384, row_bytes=2048,
        cl=24, cwl=16, rcd_rd=24, rcd_wr=20, rp=24, ras=54, rc=78, rfc=126, refi=11862,
        rrd_s=9, rrd_l=9, faw=32, ccd_s=3, ccd_l=4, wr=16, rtp=3, wtr_s=7, wtr_l=7,
    ),
    DramPart(
        "DDR4_3200AA", "Ramulator 2.1 python/ramulator/dram/ddr4.py",
        rate=3200, tck_ps=625, bits=64, burst_length=8, groups=4, banks=4, rows=65536, row_bytes=8192,
        cl=22, cwl=16, rcd_rd=22, rcd_wr=22, rp=22, ras=52, rc=74, rfc=576, refi=12480,
        rrd_s=4, rrd_l=8, faw=34, ccd_s=4, ccd_l=8, wr=24, rtp=12, wtr_s=4, wtr_l=12,
    ),
    DramPart(
        "DDR4_3200W", "Ramulator 2.1 python/ramulator/dram/ddr4.py",
        rate=3200, tck_ps=625, bits=64, burst_length=8, groups=4, banks=4, rows=65536, row_bytes=8192,
        cl=20, cwl=16, rcd_rd=20, rcd_wr=20, rp=20, ras=52, rc=72, rfc=576, refi=12480,
        rrd_s=4, rrd_l=8, faw=34, ccd_s=4, ccd_l=8, wr=24, rtp=12, wtr_s=4, wtr_l=12,
    ),
    DramPart(
        "DDR4_3200AA_x16", "Ramulator 2.1 python/ramulator/dram/ddr4.py",
        rate=3200, tck_ps=625, bits=64, burst_length=8, groups=2, banks=4, rows=65536, row_bytes=8192,
        cl=22, cwl=16, rcd_rd=22, rcd_wr=22, rp=22, ras=52, rc=74, rfc=576, refi=12480,
        rrd_s=9, rrd_l=11, faw=48, ccd_s=4, ccd_l=8, wr=24, rtp=12, wtr_s=4, wtr_l=12,
    ),
    DramPart(
        "LPDDR5_6400", "Ramulator 2.1 python/ramulator/dram/lpddr5.py",
        rate=6400, tck_ps=1250, bits=16, burst_length=16, groups=4, banks=4, rows=32768, row_bytes=2048, act_slots=2,
        cl=17, cwl=9, rcd_rd=15, rcd_wr=15, rp=15, ras=34, rc=49, rfc_set=96, rfc=168, refi=3125,
        rrd_s=4, rrd_l=4, faw=16, ccd_s=2, ccd_l=4, wr=28, rtp=8, wtr_s=5, wtr_l=10,
    ),
    DramPart(
        "LPDDR5_6400_16Gb", "Ramulator 2.1 python/ramulator/dram/lpddr5.py",
        rate=6400, tck_ps=1250, bits=16, burst_length=16, groups=4, banks=4, rows=65536, row_bytes=2048, act_slots=2,
        cl=17, cwl=9, rcd_rd=15, rcd_wr=15, rp=15, ras=34, rc=49, rfc_set=128, rfc=224, refi=3125,
        rrd_s=4, rrd_l=4, faw=16, ccd_s=2, ccd_l=4, wr=28, rtp=8, wtr_s=5, wtr_l=10,
    ),
    # LPDDR5X: the same times in ns, at a faster clock.
    DramPart(
        "LPDDR5X_8533_16Gb", "Ramulator 2.1 python/ramulator/dram/lpddr5.py at commit f13c87c, LPDDR5_8533",
        rate=8533, tck_ps=938, bits=16, burst_length=16, groups=4, banks=4, rows=65536, row_bytes=2048, act_slots=2,
        cl=23, cwl=12, rcd_rd=20, rcd_wr=20, rp=20, ras=46, rc=66, rfc_set=171, rfc=299, refi=4165,
        rrd_s=6, rrd_l=6, faw=22, ccd_s=2, ccd_l=6, wr=38, rtp=11, wtr_s=7, wtr_l=14,
    ),
    DramPart(
        "HBM2_2000Mbps", "Ramulator 2.1 python/ramulator/dram/hbm2.py",
        rate=2000, tck_ps=1000, bits=64, burst_length=4, groups=4, banks=4, rows=65536, row_bytes=1024,
        pseudo=2, dual=True, act_slots=2,
        cl=14, cwl=5, rcd_rd=14, rcd_wr=12, rp=14, ras=34, rc=48, rfc=350, refi=3900,
        rrd_s=4, rrd_l=4, faw=15, ccd_s=2, ccd_l=4, wr=16, rtp=5, wtr_s=6, wtr_l=8,
    ),
    DramPart(
        "HBM2_2400Mbps", "Ramulator 2.1 python/ramulator/dram/hbm2.py",
        rate=2400, tck_ps=833, bits=64, burst_length=4, groups=4, banks=4, rows=65536, row_bytes=1024,
        pseudo=2, dual=True, act_slots=2,
        cl=17, cwl=6, rcd_rd=17, rcd_wr=14, rp=17, ras=40, rc=57, rfc=421, refi=4682,
        rrd_s=5, rrd_l=5, faw=19, ccd_s=2, ccd_l=4, wr=19, rtp=6, wtr_s=8, wtr_l=10,
    ),
    DramPart(
        "DDR5_6400AN", "Ramulator 2.1 python/ramulator/dram/ddr5.py",
        rate=6400, tck_ps=312, bits=32, burst_length=16, groups=4, banks=4, rows=131072, row_bytes=4096,
        cl=46, cwl=44, rcd_rd=46, rcd_wr=46, rp=46, ras=103, rc=149, rfc_set=609, refresh_sets=4, rfc=1315, refi=12500,
        rrd_s=16, rrd_l=16, faw=80, ccd_s=8, ccd_l=16, wr=96, rtp=24, wtr_s=5, wtr_l=32,
    ),
    DramPart(
        "DDR5_7200AN", "Ramulator 2.1 python/ramulator/dram/ddr5.py at commit 3894015",
        rate=7200, tck_ps=278, bits=32, burst_length=16, groups=4, banks=4, rows=131072, row_bytes=4096,
        cl=52, cwl=50, rcd_rd=52, rcd_wr=52, rp=52, ras=115, rc=167, rfc_set=684, refresh_sets=4, rfc=1475, refi=14029,
        rrd_s=18, rrd_l=18, faw=90, ccd_s=8, ccd_l=18, wr=108, rtp=27, wtr_s=5, wtr_l=36,
    ),
    # Older commits of the same file have other cycles under this name: CL, RCD and RP 26.
    DramPart(
        "HBM3_6400Mbps", "Ramulator 2.1 python/ramulator/dram/hbm3.py at commit 300e25f",
        rate=6400, tck_ps=625, bits=32, burst_length=8, groups=4, banks=4, rows=32768, row_bytes=1024,
        pseudo=2, dual=True, act_slots=2,
        cl=20, cwl=10, rcd_rd=31, rcd_wr=15, rp=26, ras=45, rc=72, rfc=560, refi=6240,
        rrd_s=4, rrd_l=5, faw=24, ccd_s=2, ccd_l=4, wr=33, rtp=9, wtr_s=7, wtr_l=10,
    ),
    # One stack identifier of the four of a stack of 16 dies.
    DramPart(
        "HBM4_8000Mbps", "Ramulator 2.1 python/ramulator/dram/hbm4.py at commit 10dc869, HBM4_32Gb_4Hi",
        rate=8000, tck_ps=500, bits=32, burst_length=8, groups=2, banks=8, rows=16384, row_bytes=1024,
        pseudo=2, dual=True, act_slots=2,
        cl=20, cwl=10, rcd_rd=39, rcd_wr=19, rp=33, ras=57, rc=90, rfc=800, refi=7800,
        rrd_s=5, rrd_l=7, faw=30, ccd_s=2, ccd_l=4, wr=42, rtp=12, wtr_s=9, wtr_l=13,
    ),
    DramPart(
        "LPDDR4_4266", "DRAMSys configs/memspec/JEDEC_1Gbx16_LPDDR4-4266.json",
        rate=4266, tck_ps=469, bits=16, burst_length=16, groups=1, banks=8, rows=131072, row_bytes=2048,
        cl=36, cwl=18, rcd_rd=39, rcd_wr=39, rp=39, ras=90, rc=129, rfc_set=406, rfc=812, refi=8341,
        rrd_s=22, rrd_l=22, faw=86, ccd_s=8, ccd_l=8, wr=39, rtp=17, wtr_s=22, wtr_l=22,
    ),
)
# fmt: on

PARTS = {part.name: part for part in _ROWS}
"""All parts by name."""

FIELDS = ("ro", "ra", "bg", "ba", "ch", "co")
"""The fields of an address mapping: row, rank, bank group, bank, channel, column."""
MAPPING = "rocorababgch"
"""A sequential stream visits all channels, then all bank groups and banks, before it advances within a row."""


def bad_mapping(mapping: str) -> str | None:
    """The error in an address mapping; an empty string if it is valid."""
    names = [mapping[i : i + 2] for i in range(0, len(mapping), 2)]
    if sorted(names) != sorted(FIELDS):
        return f"must name each of {', '.join(FIELDS)} once, got {mapping!r}"
    if names[0] != "ro":
        return f"must begin with ro, the highest bits, got {mapping!r}"
    return None
