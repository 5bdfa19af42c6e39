"""Rows that are longer than any SRAM are normalised in passes, to what one pass gives, and the same on every device."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.compiler.passes.legalize import _LONGEST_ROW
from npusim.compiler.pipeline import compile_graph, prepare
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from tests.support.graphs.execution import interpreted
from tests.support.random_devices import TINY

EDGE = load_config("edge")
ROWS = 2


def normalised(row: int, mode: str, dtype: DType = DType.FLOAT32) -> Graph:
    build = GraphBuilder("rows")
    x = build.input("x", (ROWS, row // 64, 64), dtype)
    return build.finish([build.add("normalize", [x], {"axis": 1, "mode": mode, "epsilon": 1e-3})])


@pytest.mark.parametrize("mode", ["layer", "rms"])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16])
def test_long_rows_fit_any_device(mode: str, dtype: DType) -> None:
    graph = normalised(_LONGEST_ROW + 64, mode, dtype)
    shape = graph.inputs[0].shape
    feeds = {"x": (np.random.default_rng(1).standard_normal(shape) * 3 + 5).astype(dtype.storage)}
    (wanted,) = reference.run(graph, feeds).values()
    results = [next(iter(interpreted(compile_graph(graph, c), c, feeds).values())) for c in (TINY, EDGE)]
    error = np.abs(results[0].astype(np.float64) - wanted.astype(np.float64)).max()
    assert error <= (2e-6 if dtype is DType.FLOAT32 else 2e-3) * np.abs(wanted).max()
    np.testing.assert_array_equal(results[0], results[1])


def test_shorter_ones_are_one_instruction() -> None:
    assert [op.kind for op in prepare(normalised(_LONGEST_ROW, "layer"), EDGE).ops] == ["normalize"]
