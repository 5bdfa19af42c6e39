"""The report of where values live."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npusim.compiler.pipeline import Explained, explain_graph
from npusim.dtypes import DType
from npusim.hw.config import load_config
from npusim.ops.build import GraphBuilder
from npusim.report.memory import as_json, stages, text
from npusim.runtime import Result, Session
from tests.support.graphs.samples import residual_net

TINY = load_config("tiny")


def explained(kib: int, **overrides: Any) -> tuple[Explained, Result]:
    config = TINY.with_(**{"sram.bytes": kib << 10, **overrides})
    found = explain_graph(residual_net(40, 12, 3), config)
    return found, Session(config, cache_dir=False).run(found.program, timing_only=True)


@pytest.mark.parametrize("kib", [8, 16, 64, 256])
def test_stages_fit_into_sram(kib: int) -> None:
    found, result = explained(kib)
    ordered = stages(found.program)
    assert [stage.first for stage in ordered] == sorted({stage.first for stage in ordered})
    for stage in ordered:
        assert 0 < sum(stage.held.values()) <= kib << 10
        assert stage.constants <= stage.read
    weights = sum(stage.constants for stage in ordered)
    assert weights <= found.program.constants.nbytes
    assert sum(stage.read for stage in ordered) <= result.dram_read_bytes


def test_weights_that_are_loaded_again_are_counted_again() -> None:
    """64 rows in tiles that do not fit beside all weights."""
    build = GraphBuilder("again")
    weights = build.const(np.ones((512, 512), np.float32))
    graph = build.finish([build.add("matmul", [build.input("x", (512, 512), DType.FLOAT32), weights])])
    found = explain_graph(graph, TINY.with_(**{"sram.bytes": 64 << 10}))
    (stage,) = stages(found.program)
    assert stage.constants == 512 * 512 * 4
    assert stage.read > stage.constants


def test_every_value_has_a_row_with_its_reason() -> None:
    found, result = explained(16)
    said = text(found, result)
    assert said.startswith("memory areas of the values of residual on tiny\n")
    for each in found.decisions:
        if each.home != "tile":
            (row,) = [line for line in said.splitlines() if line.split()[:1] == [each.value]]
            assert each.why in row
    assert "of fused operators: on tiles only" in said
    assert "chosen" in said
    assert "SRAM peak" in said


def test_as_json() -> None:
    found, result = explained(16)
    said = as_json(found, result)
    names = [entry.name for entry in found.program.ops]
    assert [value["name"] for value in said["values"]] == [each.value for each in found.decisions]
    for value in said["values"]:
        assert value["made_by"] in (None, *names)
        assert {*value["used_by"]} <= {*names}
        if value["home"] in ("SRAM", "window"):
            assert value["sram"]["offset"] + value["sram"]["bytes"] <= 16 << 10
            assert value["from_ps"] < value["to_ps"] <= result.time_ps
    assert said["memory"] == result.to_json_dict()["memory"]
    assert [name for stage in said["stages"] for name in stage["operators"]] == names
    assert said["orders"][0]["forecast_ps"] == min(order["forecast_ps"] for order in said["orders"])


def test_several_cores() -> None:
    found, result = explained(64, cores=2, **{"matrix.rows": 2, "matrix.cols": 2})
    assert found.orders[0][0].startswith("2 cores")
    assert "several cores work on it" in text(found, result)
