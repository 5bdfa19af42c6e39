"""Energy and area as rows of a report."""

from __future__ import annotations

import pytest

from npusim.energy import Energy
from npusim.hw.costs import Breakdown, CostItem
from npusim.report.energy import area_rows, energy_rows, joules, square, watts


@pytest.mark.parametrize(
    ("fj", "shown"), [(0, "0 fJ"), (999, "999 fJ"), (1500, "1.50 pJ"), (1_082_000_000_000, "1.08 mJ"), (10**16, "10 J")]
)
def test_energies_have_three_digits(fj: int, shown: str) -> None:
    assert joules(fj) == shown


def test_areas_have_three_digits() -> None:
    assert [square(116), square(1100), square(3_297_910)] == ["116 um2", "0.0011 mm2", "3.3 mm2"]


def test_the_largest_part_comes_first_and_power_is_told() -> None:
    found = Energy((CostItem("sram", 1000, "a"), CostItem("dram", 3000, "b")), {}, ())
    assert energy_rows(found, 2000) == [("energy", "4 pJ = 2 mW: dram 75.0 %, sram 25.0 %")]


def test_what_is_not_known_is_named() -> None:
    found = Energy((CostItem("sram", 1000, "a"), CostItem("dram", None, "no number given")), {}, ())
    assert energy_rows(found, 1) == [("energy", "unknown, because dram have no price; of the rest sram 100.0 %")]
    assert energy_rows(Energy((CostItem("dram", None, ""),), {}, ()), 1) == []


def test_parts_of_a_chip_have_their_sources() -> None:
    found = Breakdown((CostItem("control", 100, "x"), CostItem("sram", 300, "y"), CostItem("phy", None, "z")))
    assert area_rows(found) == [
        ("whole", "not known"), ("sram", "300 um2"), ("control", "100 um2"), ("phy", "not known"), ("sources", "x; y"),
    ]  # fmt: skip
    assert area_rows(Breakdown(found.parts[:2]))[:2] == [("whole", "400 um2"), ("sram", "300 um2 = 75.0 %")]
    assert area_rows(Breakdown(found.parts[2:])) == [("whole", "not known")]


def test_quantities_never_need_a_power_of_ten() -> None:
    assert [joules(value) for value in (999, 999_499, 999_500, 24_960_040_652, 10**19)] == [
        "999 fJ", "999 pJ", "1.00 nJ", "25.0 uJ", "10000 J",
    ]  # fmt: skip
    assert [watts(value) for value in (633_206.2, 999_960, 2e6)] == ["633 mW", "1.00 W", "2 W"]
    assert [square(value) for value in (999, 917_000, 1_234_000_000)] == ["999 um2", "0.917 mm2", "1234 mm2"]
