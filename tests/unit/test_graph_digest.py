"""Fingerprints of graphs whose constants are views that repeat their bytes."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.compiler.pipeline import compile_graph
from npusim.errors import CompileError
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.ops.build import GraphBuilder


def constant_graph(data: np.ndarray) -> Graph:
    builder = GraphBuilder("constant")
    return builder.finish([builder.add("reshape", [builder.const(data)], {"shape": data.shape})])


def test_a_repeated_constant_is_digested_by_what_it_repeats() -> None:
    huge = np.broadcast_to(np.float32(1.5), (1 << 20, 1 << 12))  # 16 GiB if it were written out
    assert constant_graph(huge).fingerprint() != constant_graph(huge[:-1]).fingerprint()
    other = np.broadcast_to(np.float32(2.5), huge.shape)
    assert constant_graph(huge).fingerprint() != constant_graph(other).fingerprint()
    again = np.broadcast_to(np.float32(1.5), huge.shape)
    assert constant_graph(huge).fingerprint() == constant_graph(again).fingerprint()


def test_a_repeated_constant_that_fits_nowhere_is_refused_before_it_is_written_out() -> None:
    huge = np.broadcast_to(np.float32(1.5), (1 << 18, 1 << 12))
    config = load_config("edge").with_(**{"dram.bytes": 5 << 30})
    with pytest.raises(CompileError, match=r"^reshape \(reshape\): wants 1431655764 bytes for values"):
        compile_graph(constant_graph(huge), config)
