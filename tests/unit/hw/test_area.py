"""Parts of chips, by hand and by technology."""

from __future__ import annotations

import time

import pytest

from npusim.hw import nodes
from npusim.hw.area import area, pe_bits
from npusim.hw.config import load_config

EDGE = load_config("edge")
BY_HAND = {
    "pe": "10 um2", "sram_kib": "20 um2", "accumulator_kib": "30 um2", "lane": "40 um2", "scalar": "50 um2",
    "dma": "60 um2", "control": "70 um2",
}  # fmt: skip


def test_parts_by_hand() -> None:
    found = area(EDGE.with_(cores=2, technology=None, area=BY_HAND))
    assert {part.name: part.value for part in found.parts} == {
        "matrix": 2 * 1024 * 10, "accumulators": 2 * 256 * 30, "sram": 2 * 1024 * 20, "vector": 2 * 32 * 40,
        "scalar": 2 * 50, "dma": 2 * 2 * 60, "control": 2 * 70,
    }  # fmt: skip
    assert found.total == sum(part.value for part in found.parts)


def test_what_nobody_says_is_not_known() -> None:
    found = area(EDGE.with_(technology=None))
    assert (found.total, found.known) == (None, 0)
    assert set(found.unknown) == {part.name for part in found.parts}
    assert area(EDGE.with_(**{"technology.node": "1 nm"})).total is None


def test_a_pe_by_hand() -> None:
    config = EDGE.with_(**{"technology.node": "45 nm", "matrix.throughput": {"int8": 1}, "technology.logic_layout": 1})
    assert pe_bits(config, config.matrix) == 8 + 2 * 8 + 32
    tight = nodes.tightness(45, nodes.supply_mv(45, 10**9), 10**9)
    cells = (6350 / 16 + 278) * tight + 56 * 5.98
    assert area(config)["matrix"] == pytest.approx(1024 * cells / nodes.area_factor(40), abs=1)


def test_phys_are_on_the_chip_where_the_description_says_so() -> None:
    assert "phy" not in {part.name for part in area(EDGE).parts}
    known = EDGE.with_(**{"technology.phy": True, "technology.dram": "hbm2", "technology.node": "7 nm"})
    one = known.with_(**{"dram.bandwidth": "311.04 GB/s"})
    assert area(one)["phy"] == 10_450_000 + round(552_743_000 / 96.3)  # with its controller
    assert area(one.with_(**{"technology.node": "16 nm"}))["phy"] > area(one)["phy"]
    assert area(one.with_(**{"dram.bandwidth": "622 GB/s"}))["phy"] > 1.9 * area(one)["phy"]
    assert area(one.with_(**{"technology.node": "1 nm"}))["phy"] is None
    assert area(one.with_(**{"technology.dram": "unknown"}))["phy"] is None
    assert area(known.with_(**{"area.phy": "2 mm2"}))["phy"] == 2_000_000


def test_it_screens_thousands_of_designs() -> None:
    """Compared with what reading one description takes, which is some milliseconds."""
    designs = [EDGE.with_(**{"matrix.rows": rows}) for rows in (8, 16, 32)]
    for design in designs:
        area(design)
    start = time.process_time()
    for _ in range(100):
        for design in designs:
            area(design)
    taken = time.process_time() - start
    start = time.process_time()
    for _ in range(3):
        EDGE.with_(**{"matrix.rows": 16})
    assert taken / 300 < (time.process_time() - start) / 3


def test_what_no_unit_is_has_the_area_of_its_transistors() -> None:
    plain = EDGE.with_(**{"technology.node": "7 nm"})
    more = plain.with_(**{"technology.core_transistors": 963_000, "technology.chip": "2 mm2", "cores": 3})
    found = area(more)
    assert (found["core_others"], found["chip_others"]) == (3 * 10_000, 2_000_000)
    older = area(more.with_(**{"technology.node": "28 nm"}))
    assert (older["core_others"], older["chip_others"]) == (round(3 * 963_000 / 15.3), 2_000_000)
    assert not {"core_others", "chip_others"} & {part.name for part in area(plain).parts}
    assert area(more.with_(**{"technology.node": "1 nm"}))["core_others"] is None
