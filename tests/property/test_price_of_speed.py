"""No key of a description makes a device faster for nothing: a price rises, or the key is listed as unpriced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from npusim.demo import network
from npusim.dtypes import DType
from npusim.errors import NpusimError
from npusim.graph import Graph
from npusim.hw.area import area
from npusim.hw.build import walk
from npusim.hw.config import Config, load_config
from npusim.hw.energy import action_costs
from npusim.hw.keys import Choice, Count, Flag, Key, MapOf, Quantity, Ratio
from npusim.hw.technology import UNPRICED
from npusim.ops.build import GraphBuilder
from npusim.runtime import Session

DEVICES = (
    load_config("edge").with_(**{"technology.phy": True}),
    load_config("edge").with_(
        **{"cores": 2, "l2.bytes": "2 MiB", "exchange.bytes_per_cycle": 32, "sram.bytes": "64 KiB",
           "matrix.accumulator_bytes": "8 KiB", "technology.phy": True, "dma.decoder_weights_per_cycle": 4,
           "dma.local_bytes_per_cycle": 8, "matrix.port_bytes_per_cycle": 16, "vector.port_bytes_per_cycle": 16,
           "matrix.clock": "800 MHz", "vector.clock": "500 MHz"}
    ),
)  # fmt: skip


def wide() -> Graph:
    """A product that is bound by its weights."""
    builder = GraphBuilder("wide")
    x = builder.input("x", (4, 2048), DType.INT8)
    w = builder.const(np.ones((2048, 512), np.int8))
    return builder.finish([builder.add("matmul", [x, w])])


GRAPHS = (network(), wide())


def others(entry: Key, value: Any) -> Iterator[Any]:
    """Yield values on both sides of that of a device."""
    match entry.kind:
        case Flag():
            yield not value
        case Choice():
            yield from (option for option in entry.kind.options() if option != value)
        case MapOf():
            yield from ({name: str(number * by) for name, number in value.items()} for by in (2, 0.5))
            yield {name: max(1, int(number) // 2) for name, number in value.items()}
        case Ratio():
            yield from (str(value / 2), str(min(2 * value, entry.kind.maximum)))
        case Count() | Quantity():
            yield from (2 * (value or 1), (value or 2) // 2, 0)


def time_ps(config: Config) -> int:
    with Session(config, cache_dir=False) as session:
        return sum(session.run(session.compile(graph), timing_only=True).time_ps for graph in GRAPHS)


def prices(config: Config) -> dict[str, int | None]:
    """Everything that a device costs: the area of each part, and the energy of each action."""
    found: dict[str, int | None] = {f"area.{part.name}": part.value for part in area(config).parts}
    return found | {name: cost.fj for name, cost in action_costs(config).items()}


def is_dearer(config: Config, than: Config) -> bool:
    before = prices(than)
    return any((value or 0) > (before.get(name) or 0) for name, value in prices(config).items())


def free(config: Config) -> dict[str, float]:
    """Keys with a value that makes a device faster and nothing dearer, with the smallest relative time."""
    found: dict[str, float] = {}
    base = time_ps(config)
    for path, entry, value in walk(config):
        if path.startswith(("host.", "energy.", "area.", "name", "description", "pci.", "firmware.")):
            continue
        for other in others(entry, value):
            try:
                variant = config.with_(**{path: other})
                relative = time_ps(variant) / base
            except NpusimError:
                continue
            if relative < 1 and not is_dearer(variant, config):
                found[path] = min(relative, found.get(path, 1))
    return found


@pytest.mark.slow
def test_a_faster_device_is_dearer_or_the_key_is_listed() -> None:
    found = [free(config) for config in DEVICES]
    # Of two schedules that take the same time within 1 %, either may be chosen.
    assert {key for each in found for key, relative in each.items() if relative < 0.99} <= set(UNPRICED)
    assert set(UNPRICED) <= {key for each in found for key in each}


@pytest.mark.parametrize(
    ("key", "faster"),
    [
        ("clock", "1200 MHz"), ("matrix.clock", "1 GHz"), ("vector.clock", "1 GHz"), ("dram.bandwidth", "20 GB/s"),
        ("dma.bytes_per_cycle", 64), ("dma.max_outstanding", 128), ("interconnect.bytes_per_cycle", 128),
        ("sram.bytes_per_cycle", 32), ("l2.bytes_per_cycle", 128), ("exchange.bytes_per_cycle", 64),
        ("matrix.port_bytes_per_cycle", 0), ("vector.port_bytes_per_cycle", 0), ("dma.decoder_weights_per_cycle", 8),
    ],
)  # fmt: skip
def test_a_rate_has_a_price(key: str, faster: object) -> None:
    assert is_dearer(DEVICES[1].with_(**{key: faster}), DEVICES[1])


def test_a_wider_port_of_a_core_has_a_price() -> None:
    narrow, wide = (DEVICES[1].with_(**{"interconnect.core_bytes_per_cycle": width}) for width in (8, 16))
    assert is_dearer(wide, narrow)
