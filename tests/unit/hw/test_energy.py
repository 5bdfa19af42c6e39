"""The source of an action's price: a table, a technology, or none."""

from __future__ import annotations

import pytest

from npusim.hw.config import load_config
from npusim.hw.dram_kinds import KINDS
from npusim.hw.energy import action_costs, mac_pj

TINY = load_config("tiny")


def test_who_says_nothing_has_no_prices() -> None:
    assert len(action_costs(TINY)) == 0
    assert len(action_costs(TINY.with_(**{"technology.node": "1 nm"}))) == 0


def test_the_table_goes_before_the_technology() -> None:
    config = TINY.with_(
        **{
            "technology.node": "45 nm",
            "technology.voltage": "1 V",
            "energy.mac": {"int8": "1 pJ"},
            "energy.leakage": "2 mW",
        }
    )
    found = action_costs(config)
    assert (found.fj("mac.int8"), found.fj("leakage")) == (1000, 2000)
    assert found["mac.int8"].source == "the description: energy.mac.int8"
    assert found.fj("mac.float32") == 4600  # 3.7 and 0.9 pJ
    assert "ISCA 2021" in found["mac.float32"].source


def test_a_mac_is_a_product_and_a_sum_of_32_bits() -> None:
    assert mac_pj("int8", 45) == pytest.approx(0.2 + 0.1)
    assert mac_pj("float16", 7) == pytest.approx(0.34 + 0.38)
    assert mac_pj("bfloat16", 7) == pytest.approx(0.21 + 0.38)
    assert mac_pj("int16", 45) == pytest.approx((0.2 * 3.1) ** 0.5 + 0.1)


def test_a_scalar_element_is_priced_as_a_lane_operation_unless_it_is_given() -> None:
    assert action_costs(TINY.with_(**{"energy.vector": "5 pJ"})).fj("scalar") == 5000
    assert action_costs(TINY.with_(**{"energy.vector": "5 pJ", "energy.scalar": "2 pJ"})).fj("scalar") == 2000


@pytest.mark.parametrize("dram", KINDS)
def test_dram_by_its_sort_whatever_the_node(dram: str) -> None:
    for node in ("16 nm", "3 nm"):
        config = TINY.with_(**{"technology.node": node, "technology.dram": dram})
        assert action_costs(config).fj("dram") == KINDS[dram].byte_fj


def test_accumulators_are_cheaper_than_the_memory() -> None:
    found = action_costs(load_config("edge"))
    assert found.fj("accumulators") < found.fj("sram")


def test_each_has_its_source() -> None:
    assert all(price.source and price.fj is not None for price in action_costs(load_config("edge")).values())


def test_constants_of_their_own_memory_have_a_price_of_their_own() -> None:
    assert action_costs(TINY.with_(**{"energy.constants_byte": "3 pJ"})).fj("constants") == 3000
    assert action_costs(TINY.with_(**{"energy.dram_byte": "3 pJ"})).fj("constants") is None
