"""Sums of parts, some of which may be unknown."""

from __future__ import annotations

import pytest

from npusim.hw.costs import ActionCost, ActionCosts, Breakdown, CostItem


def test_a_sum_of_what_is_known() -> None:
    found = Breakdown((CostItem("a", 1, "x"), CostItem("b", 2, "y")))
    assert (found.total, found.known, found.unknown, found["b"]) == (3, 3, (), 2)
    assert found.to_json_dict()["parts"][1] == {"name": "b", "value": 2, "source": "y"}


def test_one_unknown_part_leaves_no_total() -> None:
    found = Breakdown((CostItem("a", 1, "x"), CostItem("b", None, "y")))
    assert (found.total, found.known, found.unknown, found["b"]) == (None, 1, ("b",), None)
    with pytest.raises(KeyError):
        found["c"]


def test_an_action_without_a_price_is_not_free_unless_nobody_takes_it() -> None:
    prices = ActionCosts({"sram": ActionCost(3, "x")})
    assert prices.part("sram", 4) == CostItem("sram", 12, "x")
    assert prices.part("dram", 4).value is None
    assert prices.part("dram", 0).value == 0
    assert ("dram" in prices, prices.fj("dram"), list(prices), len(prices)) == (False, None, ["sram"], 1)
