"""The rows of DRAM parts entered a second time in one table, to reveal typing errors in either."""

from __future__ import annotations

import pytest

from npusim.hw.dram_parts import PARTS

COLUMNS = """
rate tck_ps bits burst_length groups banks rows row_bytes pseudo dual act_slots
cl cwl rcd_rd rcd_wr rp ras rfc refi rrd_s rrd_l faw ccd_s ccd_l wr rtp wtr_s wtr_l
"""
# the bus and the cells | pseudo channels, two command buses, slots of an activation | timings in clocks
ROWS = """
DDR4_8Gb_x8_3200     3175 630 64 8 4 4 65536 8192 | 1 0 1 | 22 16 22 22 22 52 560 12480 4 8 34 4 8 24 12 4 12
DDR4_8Gb_x8_2400     2410 830 64 8 4 4 65536 8192 | 1 0 1 | 17 12 17 17 17 39 420 9360 4 6 26 4 6 18 9 3 9
DDR4_8Gb_x16_3200    3175 630 64 8 2 4 65536 8192 | 1 0 1 | 22 16 22 22 22 52 560 12480 9 11 48 4 8 24 12 4 12
LPDDR4_8Gb_x16_2400  2410 830 64 16 2 4 65536 8192 | 1 0 1 | 17 14 15 15 15 32 392 8660 8 8 32 8 8 30 12 8 16
LPDDR3_8Gb_x32_1866  1869 1070 64 8 1 8 32768 8192 | 1 0 1 | 14 11 17 17 17 40 196 3645 10 10 47 4 4 15 7 7 7
HBM2_8Gb_x128        2000 1000 128 4 4 4 32768 2048 | 1 1 1 | 14 4 14 14 14 34 260 3900 4 6 30 2 2 16 6 6 8
HBM1_4Gb_x128        1000 2000 128 4 4 4 16384 2048 | 1 1 1 | 7 2 7 7 7 17 130 1950 2 3 15 2 2 8 3 3 4
GDDR6_8Gb_x16        12121 660 128 16 4 4 16384 2048 | 1 0 1 | 24 16 24 20 24 54 126 11862 9 9 32 3 4 16 3 7 7
DDR4_3200AA          3200 625 64 8 4 4 65536 8192 | 1 0 1 | 22 16 22 22 22 52 576 12480 4 8 34 4 8 24 12 4 12
DDR4_3200W           3200 625 64 8 4 4 65536 8192 | 1 0 1 | 20 16 20 20 20 52 576 12480 4 8 34 4 8 24 12 4 12
DDR4_3200AA_x16      3200 625 64 8 2 4 65536 8192 | 1 0 1 | 22 16 22 22 22 52 576 12480 9 11 48 4 8 24 12 4 12
LPDDR5_6400          6400 1250 16 16 4 4 32768 2048 | 1 0 2 | 17 9 15 15 15 34 168 3125 4 4 16 2 4 28 8 5 10
LPDDR5_6400_16Gb     6400 1250 16 16 4 4 65536 2048 | 1 0 2 | 17 9 15 15 15 34 224 3125 4 4 16 2 4 28 8 5 10
LPDDR5X_8533_16Gb    8533 938 16 16 4 4 65536 2048 | 1 0 2 | 23 12 20 20 20 46 299 4165 6 6 22 2 6 38 11 7 14
HBM2_2000Mbps        2000 1000 64 4 4 4 65536 1024 | 2 1 2 | 14 5 14 12 14 34 350 3900 4 4 15 2 4 16 5 6 8
HBM2_2400Mbps        2400 833 64 4 4 4 65536 1024 | 2 1 2 | 17 6 17 14 17 40 421 4682 5 5 19 2 4 19 6 8 10
DDR5_6400AN          6400 312 32 16 4 4 131072 4096 | 1 0 1 | 46 44 46 46 46 103 1315 12500 16 16 80 8 16 96 24 5 32
DDR5_7200AN          7200 278 32 16 4 4 131072 4096 | 1 0 1 | 52 50 52 52 52 115 1475 14029 18 18 90 8 18 108 27 5 36
HBM3_6400Mbps        6400 625 32 8 4 4 32768 1024 | 2 1 2 | 20 10 31 15 26 45 560 6240 4 5 24 2 4 33 9 7 10
HBM4_8000Mbps        8000 500 32 8 2 8 16384 1024 | 2 1 2 | 20 10 39 19 33 57 800 7800 5 7 30 2 4 42 12 9 13
LPDDR4_4266          4266 469 16 16 1 8 131072 2048 | 1 0 1 | 36 18 39 39 39 90 812 8341 22 22 86 8 8 39 17 22 22
"""
# peak of a channel in bytes a second, MiB of a rank or pseudo channel, bytes of a burst, clocks that its data take
DERIVED = {
    "DDR4_8Gb_x8_3200": (25396825396, 8192, 64, 4),
    "DDR4_8Gb_x8_2400": (19277108433, 8192, 64, 4),
    "DDR4_8Gb_x16_3200": (25396825396, 4096, 64, 4),
    "LPDDR4_8Gb_x16_2400": (19277108433, 4096, 128, 8),
    "LPDDR3_8Gb_x32_1866": (14953271028, 2048, 64, 4),
    "HBM2_8Gb_x128": (32000000000, 1024, 64, 2),
    "HBM1_4Gb_x128": (16000000000, 512, 64, 2),
    "GDDR6_8Gb_x16": (193939393939, 512, 256, 2),
    "DDR4_3200AA": (25600000000, 8192, 64, 4),
    "DDR4_3200W": (25600000000, 8192, 64, 4),
    "DDR4_3200AA_x16": (25600000000, 4096, 64, 4),
    "LPDDR5_6400": (12800000000, 1024, 32, 2),
    "LPDDR5_6400_16Gb": (12800000000, 2048, 32, 2),
    "LPDDR5X_8533_16Gb": (17057569296, 2048, 32, 2),
    "HBM2_2000Mbps": (32000000000, 1024, 32, 2),
    "HBM2_2400Mbps": (38415366146, 1024, 32, 2),
    "DDR5_6400AN": (25641025641, 8192, 64, 8),
    "DDR5_7200AN": (28776978417, 8192, 64, 8),
    "HBM3_6400Mbps": (51200000000, 512, 32, 2),
    "HBM4_8000Mbps": (64000000000, 256, 32, 2),
    "LPDDR4_4266": (8528784648, 2048, 32, 8),
}


@pytest.mark.parametrize("row", ROWS.split("\n")[1:-1], ids=lambda row: row.split()[0])
def test_rows(row: str) -> None:
    name, *numbers = row.replace("|", "").split()
    part = PARTS[name]
    assert {column: int(getattr(part, column)) for column in COLUMNS.split()} == dict(
        zip(COLUMNS.split(), map(int, numbers), strict=True)
    )


@pytest.mark.parametrize("name", PARTS)
def test_what_follows_from_a_row(name: str) -> None:
    """tRC is tRAS + tRP, except for the part whose source rounds each separately."""
    part = PARTS[name]
    assert 0 <= part.rc - part.ras - part.rp <= (name == "HBM3_6400Mbps")
    assert (part.bandwidth, part.rank_bytes >> 20, part.burst_bytes, part.burst_clocks) == DERIVED[name]
    # two transfers a clock, or as many as a faster data clock makes, within the rounding of the clock
    transfers = part.rate * part.tck_ps / 10**6
    assert abs(transfers - round(transfers)) < 0.01


TRANSFERS = {"DDR": 2, "LPDDR3": 2, "LPDDR4": 2, "LPDDR5": 8, "HBM": 2, "HBM3": 4, "HBM4": 4, "GDDR6": 8}
"""Transfers per pin in one clock of the command bus, by standard."""
REFRESH_NS = {"DDR4": 7800, "DDR5": 3900, "LPDDR": 3900, "HBM": 3900, "GDDR6": 7800}
"""tREFI by standard."""
OTHER_REFRESH = {"LPDDR4_8Gb_x16_2400": 7188}  # as in its source


def of_standard(table: dict[str, int], name: str) -> int:
    """Return the row with the longest name that is a prefix of the part's name."""
    return table[max((each for each in table if name.startswith(each)), key=len)]


@pytest.mark.parametrize("name", PARTS)
def test_a_row_keeps_to_its_standard(name: str) -> None:
    part = PARTS[name]
    transfers = of_standard(TRANSFERS, name)
    assert part.rate * part.tck_ps == pytest.approx(transfers * 10**6, rel=0.01)
    assert part.burst_clocks * transfers == part.burst_length
    assert part.bandwidth == pytest.approx(part.pseudo * part.rate * 10**6 * part.bits / 8, rel=0.01)
    # Two bursts never share the bus, and no command comes before its prerequisites.
    assert part.burst_clocks <= part.ccd_s <= part.ccd_l
    assert part.rc >= part.ras + part.rp
    assert part.ras >= part.rcd_rd + part.rtp
    assert part.rcd_wr <= part.rcd_rd
    assert part.cwl <= part.cl
    assert part.rrd_s <= part.rrd_l <= part.faw <= 5 * part.rrd_l
    assert part.rc <= part.rfc < part.refi
    refresh = OTHER_REFRESH.get(name) or of_standard(REFRESH_NS, name)
    assert part.refi * part.tck_ps / 1000 == pytest.approx(refresh, rel=0.01)


REFRESHES_NS = {
    # tRFC of all banks by the density of a die or channel in Gbit: JESD79-5, JESD209-5B table 4, JESD238 table 84.
    "DDR5": {8: 195, 16: 295, 32: 410},
    "LPDDR5": {4: 130, 8: 210, 16: 280, 32: 380},
    "HBM3": {4: 260, 8: 350, 16: 450},
}
DIE_GBIT = {
    "LPDDR5_6400": 8, "LPDDR5_6400_16Gb": 16, "LPDDR5X_8533_16Gb": 16, "DDR5_6400AN": 32, "DDR5_7200AN": 32,
    "HBM3_6400Mbps": 8,
}  # fmt: skip


@pytest.mark.parametrize("name", DIE_GBIT)
def test_refresh_takes_what_the_standard_says_of_its_density(name: str) -> None:
    part, gbit = PARTS[name], DIE_GBIT[name]
    wanted = of_standard(REFRESHES_NS, name)[gbit]
    assert 0 <= part.rfc * part.tck_ps - 1000 * wanted < part.tck_ps
    # DDR5 has two dies of 16 pins in its 32 bits; an HBM channel has two pseudo channels.
    assert part.pseudo * part.rank_bytes * 8 >> 30 == gbit * (part.bits // 16 if part.pseudo == 1 else 1)


SETS_NS = {
    # tRFCpb and tRFCsb by density in Gbit: the same standards.
    "DDR5": {8: 115, 16: 130, 32: 190},
    "LPDDR5": {4: 60, 8: 120, 16: 160, 32: 210},
}


@pytest.mark.parametrize("name", [name for name in DIE_GBIT if PARTS[name].rfc_set])
def test_a_set_of_banks_takes_what_the_standard_says_of_its_density(name: str) -> None:
    part = PARTS[name]
    assert 0 <= part.rfc_set * part.tck_ps - 1000 * of_standard(SETS_NS, name)[DIE_GBIT[name]] < part.tck_ps
    assert part.groups * part.banks % part.refresh_sets == 0
    assert part.rc <= part.rfc_set < part.rfc
    # All sets are refreshed in turn, each before the next.
    assert part.rfc_set + part.rp < part.refi // 8


GRADES = [("LPDDR5_6400_16Gb", "LPDDR5X_8533_16Gb"), ("DDR5_6400AN", "DDR5_7200AN")]


@pytest.mark.parametrize(("slow", "fast"), GRADES)
def test_cells_take_the_same_time_at_a_higher_rate(slow: str, fast: str) -> None:
    """The array of a standard is as fast at each rate: only the bus is faster."""
    one, other = PARTS[slow], PARTS[fast]
    assert other.rate > one.rate
    for timing in ("rcd_rd", "rp", "ras", "rc", "wr", "rfc", "faw", "rrd_l", "ccd_l"):
        before, after = (getattr(part, timing) * part.tck_ps for part in (one, other))
        # Both are rounded up to clocks, some first to the clocks of the slower grade.
        assert abs(after - before) <= 2 * max(one.tck_ps, other.tck_ps), timing


@pytest.mark.parametrize("name", PARTS)
def test_refresh_takes_a_small_share(name: str) -> None:
    assert 0.01 <= PARTS[name].rfc / PARTS[name].refi <= 0.11


def test_a_denser_part_refreshes_for_longer() -> None:
    """Between parts of one standard and source that differ in their rows alone."""
    pairs = [
        (small, large)
        for small in PARTS.values()
        for large in PARTS.values()
        if (small.source, small.rate, small.bits, small.banks, small.groups) ==
        (large.source, large.rate, large.bits, large.banks, large.groups) and small.rows < large.rows
    ]  # fmt: skip
    assert pairs
    for small, large in pairs:
        assert small.rfc < large.rfc


def test_every_part_is_here() -> None:
    assert len(PARTS) == len(DERIVED) == len(ROWS.split("\n")) - 2
