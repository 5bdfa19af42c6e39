"""Groups computed together as one block-diagonal convolution: the values do not depend on the neighbouring groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from npusim.compiler.passes import fill_groups
from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.isa.base import decode
from npusim.isa.matrix import Conv
from npusim.ops import reference
from npusim.ops.budget import Budget
from npusim.ops.build import GraphBuilder
from tests.support.graphs.execution import interpreted

LAYOUTS = ("NHWC", "NCHW")


def grouped(
    groups: int, ic: int, oc: int, dtype: DType, *, kernel: int = 3, stride: int = 1, dilation: int = 1,
    layout: str = "NHWC", pads: tuple[int, ...] = (1, 0, 2, 1), w_zero: int = 0,
) -> Graph:  # fmt: skip
    """Build a padded grouped convolution of 9 x 7 pixels with ``ic`` input and ``oc`` output channels per group."""
    rng, build = np.random.default_rng(groups * ic * oc), GraphBuilder("grouped")
    shape = (1, 9, 7, groups * ic) if layout == "NHWC" else (1, groups * ic, 9, 7)
    x = build.input("x", shape, dtype)
    values = rng.integers(-100, 100, (groups * oc, ic, kernel, kernel))
    data = (values / 64).astype(np.float32) if dtype.is_float else values.astype(dtype.storage)
    w = build.const(data, dtype=dtype)
    window = {
        "layout": layout, "stride": (stride,) * 2, "dilation": (dilation,) * 2, "pads": pads, "groups": groups,
    }  # fmt: skip
    if not dtype.is_float:
        window |= {"x_zero": 3, "w_zero": w_zero}
    return build.finish([build.add("conv", [x, w], window, "y")])


def run(graph: Graph, config: Config, joined: int, monkeypatch: pytest.MonkeyPatch) -> tuple[npt.NDArray[Any], int]:
    """Return the result with ``joined`` groups computed together, and the number of block-diagonal instructions."""
    monkeypatch.setattr(fill_groups, "_joined", lambda op, homes, config: joined)
    (x,) = graph.inputs
    rng = np.random.default_rng(7)
    values = rng.integers(-100, 100, x.shape)
    if x.dtype.is_float:
        data = (values / 7).astype(x.dtype.storage)
        data[rng.random(x.shape) < 0.02] = np.inf
        data[rng.random(x.shape) < 0.02] = np.nan
    else:
        data = values.astype(x.dtype.storage)
    program = compile_graph(graph, config)
    tiles = [command.instruction for command in decode(program.code) if isinstance(command.instruction, Conv)]
    return interpreted(program, config, {"x": data})["y"], sum(tile.extras.block_ic > 0 for tile in tiles)


@pytest.mark.parametrize("sram", [None, 12288])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT8])
@pytest.mark.parametrize(
    ("groups", "ic", "oc", "options"),
    [
        (12, 1, 1, {}),
        (12, 1, 2, {"layout": "NCHW"}),
        (8, 4, 3, {"stride": 2}),
        (6, 20, 8, {"dilation": 2}),
        (4, 48, 16, {"kernel": 1}),
        (4, 33, 5, {"w_zero": 5}),
        (4, 8, 4, {"kernel": 1, "layout": "NCHW", "pads": (0, 0, 0, 0), "w_zero": 5}),
    ],
)
def test_no_value_changes(
    groups: int, ic: int, oc: int, options: dict[str, Any], dtype: DType, sram: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Any number of joined groups gives the bits of the plain grouped convolution, also when the reduction is tiled."""
    config = load_config("cpu_reference" if dtype.is_float else "edge")
    if sram:
        config = config.with_(**{"sram.bytes": sram})
    graph = grouped(groups, ic, oc, dtype, **options)
    plain, none = run(graph, config, 1, monkeypatch)
    assert not none
    for count in range(2, groups + 1):
        if groups % count == 0:
            found, some = run(graph, config, count, monkeypatch)
            # An integer convolution with zeros may become a product with the image.
            assert some or options.get("layout") == "NCHW"
            np.testing.assert_array_equal(found.view(np.uint8), plain.view(np.uint8))
    assert not dtype.is_float or 0 < np.isfinite(plain).sum() < plain.size


def test_the_reference_of_the_filled_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filled graph gives the results of the original graph."""
    graph, edge = grouped(8, 3, 2, DType.INT8), load_config("edge")
    monkeypatch.setattr(fill_groups, "_joined", lambda op, homes, config: 4)
    filled = fill_groups.fill_groups(graph, edge, Budget.of(edge))
    assert [op.attrs["blocks"] for op in filled.ops] == [(3, 2)]
    feeds = {"x": np.random.default_rng(0).integers(-100, 100, (1, 9, 7, 24)).astype(np.int8)}
    np.testing.assert_array_equal(reference.run(filled, feeds)["y"], reference.run(graph, feeds)["y"])


def test_shards_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores that compute a part of the output channels each start at their position on the diagonal."""
    graph, config = grouped(8, 4, 3, DType.INT8), load_config("edge").with_(cores=5)
    plain, _ = run(graph, config, 1, monkeypatch)
    found, some = run(graph, config, 8, monkeypatch)
    assert some
    np.testing.assert_array_equal(found, plain)


@pytest.mark.parametrize("name", ["edge", "server", "nvdla_2048", "tpuv1", "scalesim"])
def test_zeros_are_used_where_they_save_time(name: str) -> None:
    """Some of 64 narrow groups are joined if the unit has more rows than a group has channels."""
    config = load_config(name)
    filled = fill_groups.fill_groups(grouped(64, 2, 2, DType.INT8), config, Budget.of(config))
    assert filled.ops[0].attrs["groups"] < 64
    assert filled.ops[0].attrs["blocks"] == (2, 2)


def test_zeros_are_not_used_where_they_cost_time() -> None:
    """Groups as wide as the array gain nothing from being joined."""
    edge = load_config("edge")
    filled = fill_groups.fill_groups(grouped(2, 128, 128, DType.INT8), edge, Budget.of(edge))
    assert not filled.ops[0].attrs["blocks"]
