"""Clocks, supplies and DRAM interfaces: limits by node, and what they cost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.energy import idle_energy
from npusim.errors import ConfigError
from npusim.hw import nodes
from npusim.hw.actions import CLOCKS, LEAKAGE, OF_TIME, PHY
from npusim.hw.area import area, structures
from npusim.hw.config import load_config
from npusim.hw.dram_kinds import KINDS, interface
from npusim.hw.energy import action_costs, idle_costs, leakage_uw
from npusim.hw.technology import CLOCK_GATED, POWER_GATED, RUNNING

EDGE = load_config("edge")
NODES = st.integers(nodes.NEWEST_NM, nodes.OLDEST_NM)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(NODES, st.integers(1, 100))
def test_a_clock_has_the_lowest_supply_at_which_it_runs(node: int, percent: int) -> None:
    low, high = nodes.supply_range_mv(node)
    hz = nodes.fastest_hz(node) * percent // 100
    supply = nodes.supply_mv(node, hz)
    assert nodes.fastest_hz(node, supply) >= hz
    assert supply == low or nodes.fastest_hz(node, supply - 1) < hz
    assert nodes.supply_mv(node, nodes.fastest_hz(node)) == high
    if node > nodes.NEWEST_NM:
        assert nodes.fastest_hz(node - 1) >= nodes.fastest_hz(node)


@settings(derandomize=True, max_examples=30, deadline=None)
@given(NODES, st.sampled_from(["clock", "matrix.clock", "vector.clock"]))
def test_a_clock_above_the_limit_is_refused_by_name(node: int, key: str) -> None:
    slow = EDGE.with_(**{"clock": "100 MHz", "technology.node": f"{node} nm"})
    fastest = nodes.fastest_hz(node)
    assert slow.with_(**{key: fastest})
    with pytest.raises(ConfigError, match=rf"{key}: must be <= .* at {node} nm"):
        slow.with_(**{key: fastest + 1})
    assert slow.with_(**{key: 2 * fastest, "technology.any_clock": True})


@pytest.mark.parametrize("supply", [600, 700, 850])
def test_energy_grows_with_the_square_of_the_supply_and_leakage_in_proportion(supply: int) -> None:
    nominal, other = (EDGE.with_(**{"technology.voltage": f"{mv} mV", "clock": "250 MHz"}) for mv in (850, supply))
    before, after = action_costs(nominal), action_costs(other)
    for action in ("mac.int8", "vector", "sram", "dma", "clock"):
        assert after.fj(action) == pytest.approx(before.fj(action) * (supply / 850) ** 2, rel=0.02)
    cells = 1 if supply == 850 else pytest.approx(supply / 850, rel=0.1)  # gates are larger at a low supply
    assert after.fj(LEAKAGE) / before.fj(LEAKAGE) == cells
    assert after.fj("dram") == before.fj("dram")


def test_every_structure_leaks() -> None:
    config = EDGE.with_(cores=2, **{"l2.bytes": "2 MiB", "technology.core_transistors": 10**6})
    leaks = leakage_uw(config)
    assert leaks.keys() == {each.name for each in structures(config)}
    assert all(leaks.values())
    assert action_costs(config).fj(LEAKAGE) == round(sum(leaks.values()))


def test_leakage_is_that_of_its_sources() -> None:
    adder = 278
    assert nodes.cell_leakage_uw(40) * adder == pytest.approx(2.25)
    um2 = nodes.area_factor(7) / nodes.area_factor(40)
    assert nodes.cell_leakage_uw(7) / um2 * 0.379 == pytest.approx(288.6e-6)  # a flip-flop of ASAP7


def test_idle_time_costs_what_its_state_says() -> None:
    second = 10**12
    states = (RUNNING, CLOCK_GATED, POWER_GATED)
    running, gated, off = (idle_energy(EDGE.with_(**{"technology.idle": state}), second) for state in states)
    costs = action_costs(EDGE)
    assert running.total == sum(10**9 * costs.fj(name) for name in ("clock", LEAKAGE, PHY))
    assert gated.total == running.total - running["clock"]
    assert off.total == 0
    assert {name for name in OF_TIME if idle_costs(EDGE.with_(**{"technology.idle": CLOCK_GATED})).fj(name) == 0} == {
        *CLOCKS
    }


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.integers(1, 2000), NODES)
def test_an_interface_has_the_pins_for_its_bandwidth(kind: str, gigabytes: int, node: int) -> None:
    row, bandwidth = KINDS[kind], gigabytes * 10**9
    found, twice = interface(kind, bandwidth, 0, node), interface(kind, 2 * bandwidth, 0, node)
    assert found.pins % row.pins == 0
    assert found.rate <= row.rate <= row.fastest
    assert found.pins * found.rate * 1e6 / 8 == pytest.approx(bandwidth)
    assert found.um2 < twice.um2
    assert found.idle_uw < twice.idle_uw


def test_more_bandwidth_through_the_same_pins_takes_more_area_and_power() -> None:
    slow, fast = (interface("lpddr5", rate * 64 // 8 * 10**6, 64, 7) for rate in (3200, 6400))
    assert (slow.pins, fast.pins) == (64, 64)
    assert slow.um2 < fast.um2
    assert slow.idle_uw < fast.idle_uw
    pins = {"technology.dram": "lpddr4", "technology.dram_pins": 32, "technology.phy": True}
    assert area(EDGE.with_(**pins))["phy"] == interface("lpddr4", EDGE.dram.bandwidth, 32, 16).um2
    with pytest.raises(ConfigError, match=r"dram\.bandwidth: must be <= 17\.064 GB/s with 32 pins of lpddr4"):
        EDGE.with_(**pins, **{"dram.bandwidth": "20 GB/s"})


def test_a_unit_with_its_own_clock_has_its_own_clock_energy() -> None:
    own = EDGE.with_(**{"matrix.clock": "1 GHz"})
    together, apart = action_costs(EDGE), action_costs(own)
    assert apart.fj("clock") + apart.fj("clock_matrix") == pytest.approx(together.fj("clock"), abs=1)
    slow = action_costs(EDGE.with_(**{"matrix.clock": "800 MHz"}))
    assert slow.fj("clock_matrix") < apart.fj("clock_matrix")
    assert slow.fj("mac.int8") < apart.fj("mac.int8")
    assert slow.fj("sram") == apart.fj("sram")
