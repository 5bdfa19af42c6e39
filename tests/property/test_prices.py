"""Prices and sizes: a price affects only its own part, and larger or older components need more."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.hw.actions import ACCUMULATORS, CLOCK, DMA, DRAM, LEAKAGE, OPERANDS, SCALAR, SRAM, VECTOR
from npusim.hw.area import area
from npusim.hw.config import Config, load_config
from npusim.hw.energy import action_costs
from npusim.runtime import Session
from tests.support.priced_device import PRICES, matrix, priced, product

KEYS = {
    "operand_byte": OPERANDS, "accumulator_byte": ACCUMULATORS, "vector": VECTOR, "sram_byte": SRAM, "dma_byte": DMA,
    "dram_byte": DRAM, "clock_cycle": CLOCK, "leakage": LEAKAGE, "scalar": SCALAR,
}  # fmt: skip
AREAS = {
    "pe": "matrix", "sram_kib": "sram", "accumulator_kib": "accumulators", "lane": "vector", "scalar": "scalar",
    "dma": "dma", "control": "control", "wires": "wires", "phy": "phy",
}  # fmt: skip


def parts(config: Config) -> dict[str, int | None]:
    """Return the parts of a product and of a vector sum together."""
    found: dict[str, int | None] = {}
    with Session(config, cache_dir=False) as session:
        for number, graph in enumerate((matrix(100), product())):
            energy = session.run(session.compile(graph), timing_only=True).energy
            found |= {f"{part.name} {number}": part.value for part in energy.parts}
    return found


BASE = parts(priced())


def tenfold(text: str) -> str:
    value, unit = text.split()
    return f"{10 * int(value)} {unit}"


@pytest.mark.parametrize("key", KEYS)
def test_a_price_ten_times_as_high_makes_its_part_ten_times_as_large(key: str) -> None:
    after = parts(priced(**{key: tenfold(PRICES[key])}))
    for name, value in BASE.items():
        assert after[name] == (10 * value if name.startswith(f"{KEYS[key]} ") else value)
    assert after.keys() == BASE.keys()
    if key != "scalar":  # neither of the two needs that unit
        assert after != BASE


def test_so_does_that_of_a_mac() -> None:
    after = parts(priced(mac={**PRICES["mac"], "int8": "3000 fJ"}))
    assert after == {name: 10 * value if name.startswith("mac.int8 ") else value for name, value in BASE.items()}
    assert after != BASE


@pytest.mark.parametrize("key", AREAS)
def test_an_area_ten_times_as_large_moves_its_part_alone(key: str) -> None:
    base = load_config("edge").with_(area=dict.fromkeys(AREAS, "1000 um2"), **{"technology.phy": True})
    before, after = area(base), area(base.with_(**{f"area.{key}": "10000 um2"}))
    for part in before.parts:
        assert after[part.name] == part.value * (10 if part.name == AREAS[key] else 1)
    assert after != before


LARGER: dict[str, tuple[Any, Any]] = {
    "matrix.rows": (16, 64), "matrix.cols": (16, 64), "matrix.arrays": (1, 2), "sram.bytes": ("512 KiB", "4 MiB"),
    "matrix.accumulator_bytes": ("64 KiB", "1 MiB"), "vector.lanes": (8, 64), "vector.lane_bytes": (2, 4),
    "dma.channels": (1, 3), "dma.max_outstanding": (16, 256), "cores": (1, 2), "sram.banks": (4, 64),
    "technology.pe_register_bytes": (0, 64), "technology.node": ("7 nm", "28 nm"), "technology.logic_layout": (1, 2),
    "technology.sram_layout": (1, 2), "technology.floorplan": (1, 2), "technology.pe_memory_bytes": (0, 448),
    "technology.control": ("1 um2", "1 mm2"),
    "technology.accumulator_pixels": (64, 4096),
}  # fmt: skip


@pytest.mark.parametrize("key", LARGER)
def test_more_of_a_thing_takes_more_silicon(key: str) -> None:
    base = load_config("edge")
    small, large = (area(base.with_(**{key: value})).total for value in LARGER[key])
    assert small < large


@settings(derandomize=True, max_examples=40, deadline=None)
@given(
    node=st.integers(2, 129),
    older=st.integers(1, 60),
    kib=st.sampled_from([64, 256, 1024, 8192]),
    dtype=st.sampled_from(["int8", "int16", "int32", "float16", "bfloat16", "float32"]),
)
def test_older_nodes_and_larger_memories_take_more(node: int, older: int, kib: int, dtype: str) -> None:
    slow = load_config("edge").with_(clock="100 MHz")

    def at(nm: int, size: int) -> Config:
        return slow.with_(**{"technology.node": f"{nm} nm", "sram.bytes": f"{size} KiB"})

    new, old, large = at(node, kib), at(min(130, node + older), kib), at(node, 2 * kib)
    for action in (f"mac.{dtype}", SRAM, ACCUMULATORS, VECTOR, CLOCK):
        assert action_costs(new).fj(action) <= action_costs(old).fj(action)
    assert action_costs(new).fj(f"mac.{dtype}") < action_costs(at(130, kib)).fj(f"mac.{dtype}")
    assert action_costs(new).fj(SRAM) < action_costs(large).fj(SRAM)
    assert area(new).total < area(old).total
    assert area(new).total < area(large).total
