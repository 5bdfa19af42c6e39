"""Rows longer than SRAM are computed in parts, with the bits of whole rows; each pass reads a row once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.compiler.lower.long_rows import SOFTMAX_BLOCK
from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.isa.base import decode
from npusim.isa.row_parts import RowPart
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from npusim.work import DmaWork
from tests.support.graphs.execution import interpreted
from tests.support.random_devices import TINY

KIB = 1024
SMALL, ROOMY = TINY.with_(**{"sram.bytes": 4 * KIB}), load_config("edge")
FLOATS = (DType.FLOAT32, DType.FLOAT16)
KINDS: dict[str, tuple[dict[str, Any], tuple[DType, ...], int]] = {
    "softmax": ({"axis": 1, "log": False}, FLOATS, 3),
    "log softmax": ({"axis": 1, "log": True}, FLOATS, 3),
    "masked softmax": ({"axis": 1, "log": False, "masked": True}, FLOATS, 3),
    "normalize": ({"axis": 1, "mode": "layer", "epsilon": 1e-3}, FLOATS, 4),
    "rms normalize": ({"axis": 1, "mode": "rms", "epsilon": 1e-3}, FLOATS, 3),
    "cumsum": ({"axis": 1, "exclusive": False, "reverse": True}, (*FLOATS, DType.INT32), 2),
    "cumprod": ({"axis": 1, "exclusive": True, "reverse": False}, (*FLOATS, DType.INT32), 2),
    "arg_reduce": ({"axis": 1, "fn": "min", "keepdims": False, "select_last": True}, (*FLOATS, DType.INT8), 1),
}
"""Attributes, types, and how often the bytes of a row are moved."""


def rows(name: str, shape: tuple[int, ...], dtype: DType) -> Graph:
    build = GraphBuilder(name)
    x = build.input("x", shape, dtype)
    return build.finish(build.add_all(name.rsplit(maxsplit=1)[-1], [x], KINDS[name][0]))


def values(shape: tuple[int, ...], dtype: DType, seed: int, special: bool) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    if dtype.is_integer:
        return rng.integers(-99, 99, shape).astype(dtype.storage)
    array = (rng.standard_normal(shape) * 3 + 1).astype(dtype.storage)
    if special:
        array[rng.random(shape) < 0.3] = -np.inf
        array[0, : shape[1] // 2] = -np.inf
        array[-1, rng.integers(shape[1])] = rng.choice([np.inf, np.nan, -np.inf])
    return array


@given(st.sampled_from(sorted(KINDS)), st.data())
def test_parts_give_the_bits_of_whole_rows(name: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(KINDS[name][1]))
    # Includes rows over several axes and rows that are strided in memory.
    shape = data.draw(st.sampled_from([(2, 1030), (1, 2048), (2, 1500, 3), (3, 40, 33)]))
    graph = rows(name, shape, dtype)
    feeds = {"x": values(shape, dtype, data.draw(st.integers(0, 99)), data.draw(st.booleans()))}
    small, roomy = (next(iter(interpreted(compile_graph(graph, c), c, feeds).values())) for c in (SMALL, ROOMY))
    np.testing.assert_array_equal(small, roomy)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_row_of_a_vocabulary_runs_and_moves_as_often_as_its_passes_need(name: str) -> None:
    dtype, shape = KINDS[name][1][0], (1, 50_000)
    graph = rows(name, shape, dtype)
    program = compile_graph(graph, SMALL)
    parts = [command.instruction for command in decode(program.code) if isinstance(command.instruction, RowPart)]
    assert len(parts) > 50
    works = [command.instruction.work() for command in decode(program.code)]
    moved = sum(work.reads + work.writes for work in works if isinstance(work, DmaWork))
    assert 0 < moved <= KINDS[name][2] * 50_000 * dtype.itemsize * 1.01
    feeds = {"x": values(shape, dtype, 1, special=False)}
    (wanted,) = reference.run(graph, feeds).values()
    (found,) = interpreted(program, SMALL, feeds).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_rows_that_fit_are_one_instruction() -> None:
    program = compile_graph(rows("softmax", (4, 300), DType.FLOAT32), ROOMY)
    assert not any(isinstance(command.instruction, RowPart) for command in decode(program.code))


def test_blocks_of_a_softmax_are_those_of_the_kernel() -> None:
    """Other block boundaries would change the sums: they are rescaled when the maximum grows."""
    row = np.linspace(-20, 20, 3 * SOFTMAX_BLOCK, dtype=np.float32)[None]
    graph = rows("softmax", row.shape, DType.FLOAT32)
    found = [next(iter(interpreted(compile_graph(graph, c), c, {"x": row}).values())) for c in (SMALL, ROOMY)]
    np.testing.assert_array_equal(*found)


@given(st.data())
def test_the_largest_of_long_rows(data: st.DataObject) -> None:
    """Top-k over blocks of blocks. Ties, frequent among small integers, go to the lower index."""
    shape = data.draw(st.sampled_from([(1, 3000), (2, 1777, 2), (3, 5001)]))
    attrs = {"axis": 1, "k": data.draw(st.integers(1, 16)), "largest": data.draw(st.booleans())}
    dtype = data.draw(st.sampled_from([DType.FLOAT32, DType.INT8, DType.INT32]))
    build = GraphBuilder("topk")
    graph = build.finish(build.add_all("topk", [build.input("x", shape, dtype)], attrs))
    feeds = {"x": np.random.default_rng(data.draw(st.integers(0, 99))).integers(-99, 99, shape).astype(dtype.storage)}
    found = interpreted(compile_graph(graph, SMALL), SMALL, feeds)
    for name, wanted in reference.run(graph, feeds).items():
        np.testing.assert_array_equal(found[name], wanted)
