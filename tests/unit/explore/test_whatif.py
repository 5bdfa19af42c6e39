"""What-if: which numbers are resources, how they are changed, and what the change gains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from npusim.demo import as_onnx, network
from npusim.errors import ConfigError, NpusimError
from npusim.explore.measure import Measurer
from npusim.explore.whatif import DOUBLED, HALVED, INFINITE, MOST, Resource, WhatIfPoint, resources, what_if
from npusim.explore.whatif_text import text
from npusim.hw.config import Config, load_config
from npusim.runtime import Session
from tests.support.devices import each_model

EDGE = load_config("edge")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whatif") / "demo.onnx"
    path.write_bytes(as_onnx())
    return path


def named(config: Config, key: str) -> Resource:
    return next(each for each in resources(config) if each.key == key)


def values(config: Config, key: str) -> dict[str, str]:
    """Return the value that each change gives a key, or the reason for none."""
    return {
        change: next(value for name, value, *_ in made.resolved() if name == key) if isinstance(made, Config) else made
        for change, made in named(config, key).variants(config)
    }


@pytest.mark.parametrize("name", each_model())
def test_each_change_of_each_resource_of_a_device_is_a_device_or_says_why_not(name: str) -> None:
    config = load_config(name)
    found, plain = resources(config), list(config.resolved())
    assert {"dram.bandwidth", "sram.bytes", "dma.channels", "clock"} <= {each.key for each in found}
    for resource in found:
        for _, made in resource.variants(config):
            if isinstance(made, Config):
                differ = [
                    key for (key, old, *_), (_, new, *_) in zip(plain, made.resolved(), strict=True) if old != new
                ]
                assert differ == [resource.key]
            else:
                assert made


def test_what_is_a_resource_follows_from_the_sections() -> None:
    keys = {each.key: each for each in resources(EDGE)}
    assert not keys["matrix.rows"].cost
    assert not keys["sram.bytes_per_cycle"].cost
    for cost in ("dram.latency", "matrix.setup_cycles", "scalar.cycles_per_element", "vector.cost", "host.irq"):
        assert keys[cost].cost, cost
    assert "compiler.layer_cycles" not in keys  # it costs nothing already
    assert "dram.read_queue" not in keys  # of another kind of DRAM
    assert not [key for key in keys if key.startswith(("energy.", "technology.", "area."))]
    jedec = EDGE.with_(**{"dram.kind": "jedec", "dram.part": "LPDDR4_4266", "dram.channels": 2, "dram.efficiency": 1})
    assert "dram.read_queue" in {each.key for each in resources(jedec)}


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("sram.bytes", {INFINITE: '"1 GiB"', DOUBLED: '"2 MiB"', HALVED: '"512 KiB"'}),
        ("dram.latency", {INFINITE: '"0 ps"', DOUBLED: '"240 ns"', HALVED: '"60 ns"'}),
        ("dma.channels", {INFINITE: "16", DOUBLED: "4", HALVED: "1"}),
        ("dram.efficiency", {INFINITE: "1", DOUBLED: "no other value is legal", HALVED: '"17/40"'}),
        ("cores", {INFINITE: "64", DOUBLED: "2", HALVED: "no other value is legal"}),
        ("matrix.clock", {INFINITE: '"64 GHz"', DOUBLED: '"2 GHz"', HALVED: '"500 MHz"'}),
    ],
)
def test_what_a_change_makes_of_a_value(key: str, wanted: dict[str, str]) -> None:
    assert MOST == 1024
    found = values(EDGE, key)
    if key == "matrix.clock":  # doubled until it is not legal any more
        assert found[INFINITE].endswith('GHz"')
        found[INFINITE] = wanted[INFINITE]
    assert found == wanted


def test_a_table_of_costs_is_scaled_as_one() -> None:
    found = values(EDGE, "vector.cost")
    assert found[INFINITE] == "{ simple = 1, divide = 1, sqrt = 1, transcendental = 1, convert = 1, reduce = 1 }"
    assert found[HALVED] == "{ simple = 1, divide = 2, sqrt = 2, transcendental = 4, convert = 1, reduce = 1 }"


def test_a_value_that_contradicts_others_says_so() -> None:
    assert "preload_hidden" in values(EDGE, "matrix.weight_buffers")[HALVED]


def test_gains_are_those_of_runs_and_the_best_is_first(model: Path) -> None:
    table = what_if(EDGE, Measurer(model), "demo", ["dram.bandwidth", "host.irq", "matrix.throughput", "dram.bytes"])
    with Session(EDGE.with_(**{"dram.bandwidth": 2 * EDGE.dram.bandwidth}), cache_dir=False) as session:
        doubled = session.run(network(), timing_only=True).time_ps
    with Session(EDGE, cache_dir=False) as session:
        base = session.run(network(), timing_only=True).time_ps
    rows = {row.resource.key: row for row in table.rows}
    assert rows["dram.bandwidth"].gain_ps(DOUBLED) == base - doubled > 0
    assert rows["dram.bandwidth"].gain_ps(HALVED) is not None
    assert rows["dram.bandwidth"].best_ps == rows["dram.bandwidth"].gain_ps(INFINITE)
    # The interrupt is host time, and all of it is saved.
    assert rows["host.irq"].gain_ps(INFINITE) == EDGE.host.irq_ps
    assert table.rows[0].resource.key == "matrix.throughput"
    assert not rows["dram.bytes"].moves
    infinite = rows["matrix.throughput"].points[INFINITE]
    assert isinstance(infinite, WhatIfPoint)
    assert (table.base.binds[0][0], infinite.binds[0][0]) == (("matrix", "compute"), ("dma", "dram"))
    assert sum(ps for _, ps in table.base.binds) == table.base.time_ps
    shown = text(table)
    assert "no effect: dram.bytes" in shown
    assert "behind it  with matrix.throughput" in shown
    said = table.to_json_dict()["resources"]
    assert {each["key"] for each in said} == set(rows)


def test_processes_change_nothing_but_time(model: Path) -> None:
    devices = [EDGE, EDGE.with_(**{"dma.channels": 1}), EDGE.with_(**{"dram.bandwidth": "1 GB/s"})]
    assert Measurer(model, jobs=2)(devices) == Measurer(model)(devices)


def test_a_device_that_cannot_have_the_model_has_a_reason_instead_of_a_time() -> None:
    def measure(devices: Sequence[Config]) -> list[WhatIfPoint | str]:
        return [WhatIfPoint(100, 200, 5, None, ()) if device == EDGE else "too small" for device in devices]

    table = what_if(EDGE, measure, "m", ["sram.bytes"])
    assert [table.rows[0].gain_ps(change) for change in (INFINITE, DOUBLED, HALVED)] == [None] * 3
    assert table.to_json_dict()["resources"][0]["changes"][HALVED] == {"error": "too small"}
    with pytest.raises(NpusimError, match=r"^nowhere$"):
        what_if(EDGE, lambda devices: ["nowhere"] * len(devices))


def test_a_key_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match=r"no number of edge is called dram\.width; there are clock, "):
        what_if(EDGE, lambda devices: [], only=["dram", "dram.width"])
