"""Replacing single values without reading the others again gives the same result and the same error texts."""

from __future__ import annotations

from typing import Any

import pytest

from npusim.errors import ConfigError
from npusim.hw import config as module
from npusim.hw.config import Config, list_configs, load_config

OVERRIDES: list[dict[str, Any]] = [
    {"dram.bandwidth": "8 GB/s", "matrix.rows": 16}, {"matrix.mesh.least_rows": 8}, {"dram.efficiency": "1/3"},
    {"matrix.mesh.least_rows": 8, "matrix.rows": 8}, {"matrix.grid.taps": 3, "dram.latency_ps": 5000}, {},
    {"clock": 10**9, "name": "x"}, {"matrix.clock": "1 GHz"}, {"matrix.throughput": {"int8": 2}},
    {"vector.cost": {"simple": 3}}, {"sram.bytes": 12345}, {"matrix.throughput.int8": 2}, {"vector": None},
    {"bogus.x": 3}, {"compiler.keeps_values": False, "name": ""}, {"matrix.rows": "many"}, {"matrix.clock": None},
]  # fmt: skip


def outcome(config: Config, overrides: dict[str, Any]) -> tuple[str, ...]:
    try:
        found = config.with_(**overrides)
    except ConfigError as error:
        return (str(error),)
    return found.to_toml(), found.name, found.origin, repr(sorted(found.origins.items()))


@pytest.mark.parametrize("name", list_configs())
def test_the_short_way_and_the_long_one_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, short = load_config(name), module._with_leaves
    assert short(config, {"dram.bytes": "4 GiB"} if config.dram.kind == "fixed" else {}) is not None
    quick = [outcome(config, each) for each in OVERRIDES]
    monkeypatch.setattr(module, "_with_leaves", lambda *_: None)
    assert quick == [outcome(config, each) for each in OVERRIDES]
