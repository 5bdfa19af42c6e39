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
    keys = {"node": "45 nm", "logic_layout": 1, "floorplan": 1}
    config = EDGE.with_(
        **{"matrix.throughput": {"int8": 1}, **{f"technology.{key}": value for key, value in keys.items()}}
    )
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


def test_the_floorplan_applies_to_placed_blocks() -> None:
    keys = {"phy": True, "dram": "ddr4", "core_transistors": 10**6, "chip": "2 mm2", "control": "1 mm2"}
    base = EDGE.with_(**{f"technology.{key}": value for key, value in keys.items()}, **{"area.lane": "5 um2"})
    block, chip = (area(base.with_(**{"technology.floorplan": factor})) for factor in (1, 3))
    for part in block.parts:
        given = part.name in ("phy", "core_others", "chip_others", "vector")
        assert chip[part.name] == pytest.approx(part.value * (1 if given else 3), abs=3), part.name


def test_small_memories_have_the_periphery_of_a_kibibyte() -> None:
    for node in (65, 45, 22, 7, 3):
        cells = nodes.sram_um2(node, 8 << 10) - nodes.sram_um2(node, 4 << 10)
        assert nodes.sram_um2(node, 256) == pytest.approx(cells / 4 * 1.25)
        assert nodes.sram_um2(node, 32 << 20) == pytest.approx(32 * nodes.sram_um2(node, 1 << 20))


def test_memories_and_counters_of_pes() -> None:
    base = EDGE.with_(**{"technology.node": "45 nm", "technology.floorplan": 1, "technology.sram_layout": 2})
    memory = area(base.with_(**{"technology.pe_memory_bytes": 448}))["matrix"] - area(base)["matrix"]
    # Two counters and comparators of 9 bits beside it.
    cells = 2 * 9 / 32 * (495.5 + 71) * 1.5 / nodes.area_factor(40)
    assert memory == pytest.approx(1024 * (2 * nodes.sram_um2(45, 448) + cells), abs=2)


def test_a_cache_has_tags_and_a_controller_for_each_slice() -> None:
    keys = {"l2.bytes": "4 MiB", "l2.line_bytes": 128, "technology.node": "7 nm", "technology.cache": True}
    narrow, wide = (EDGE.with_(**keys, **{"l2.bytes_per_cycle": width}) for width in (128, 512))
    controllers = area(wide)["cache"] - area(narrow)["cache"]
    assert controllers == pytest.approx(3 * 76e6 / nodes.transistors_per_um2(7), abs=2)
    tags = (4 << 20) // 128 * (48 + 8 - 7) // 8
    layout = nodes.SRAM_LAYOUT * nodes.FLOORPLAN
    assert area(narrow)["cache"] - controllers / 3 == pytest.approx(nodes.sram_um2(7, tags) * layout, abs=2)
    assert "cache" not in {part.name for part in area(wide.with_(**{"technology.cache": False})).parts}
