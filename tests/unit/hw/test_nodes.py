"""Published figures at their nodes, and values between and beyond them."""

from __future__ import annotations

import pytest

from npusim.hw import nodes


def test_a_power_passes_through_its_points() -> None:
    points = [(1, 1.0), (2, 4.0), (4, 8.0)]
    for at, value in [*points, (8, 16.0), (0.5, 0.25)]:
        assert nodes.between(points, at) == pytest.approx(value)
    assert nodes.between(points[::-1], 2) == pytest.approx(4)
    assert nodes.between(points[::-1], 8) == pytest.approx(16)


@pytest.mark.parametrize(("node", "picojoules"), [(45, 0.2), (7, 0.07)])
def test_arithmetic_at_the_nodes_of_its_source(node: int, picojoules: float) -> None:
    assert nodes.operation_pj("mul_int8", node) == pytest.approx(picojoules)


def test_above_45_nm_energy_is_stillmakers() -> None:
    assert nodes.operation_pj("mul_int8", 65) / 0.2 == pytest.approx((3.755 - 4.398 + 1.975) / (1.103 - 0.362 + 0.2767))


@pytest.mark.parametrize(
    ("node", "read_and_write", "area"), [(45, 153.43 + 129.13, 3.2473), (22, 36.34 + 31.45, 0.8563)]
)
def test_a_memory_as_cacti_gives_it(node: int, read_and_write: float, area: float) -> None:
    assert nodes.sram_pj(node, 1 << 20, 16) == pytest.approx(read_and_write / 2)
    assert nodes.sram_um2(node, 1 << 20) == pytest.approx(area * 1e6)


def test_a_wider_port_takes_more_an_access_and_less_a_byte() -> None:
    narrow, wide = nodes.sram_pj(28, 2 << 20, 16), nodes.sram_pj(28, 2 << 20, 256)
    assert wide / narrow == pytest.approx(5.86, rel=0.01)  # 416 pJ for 2048 bits by CACTI's 128
    assert narrow < wide < 16 * narrow


@pytest.mark.parametrize("node", [2, 3, 4, 5, 6, 7, 8, 16, 22, 28, 40, 45, 65, 90])
def test_an_older_node_takes_more_of_everything(node: int) -> None:
    older = node + 1
    assert nodes.operation_pj("add_int32", older) >= nodes.operation_pj("add_int32", node)
    assert nodes.area_factor(older) > nodes.area_factor(node)
    for size in (1 << 10, 100_000, 1 << 24):
        assert nodes.sram_pj(older, size, 16) >= nodes.sram_pj(node, size, 16)
        assert nodes.sram_um2(older, size) >= nodes.sram_um2(node, size)
        assert nodes.sram_leakage_uw(older, size) >= nodes.sram_leakage_uw(node, size) > 0


def test_there_is_nothing_for_other_nodes() -> None:
    assert [nodes.known(node) for node in (1, 2, 130, 131)] == [False, True, True, False]
