"""Large and dilated kernels split into parts, and dilated ones by phases, give the bits of the unsplit kernel."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.compiler.lower import conv_forms, phases
from npusim.compiler.lower.conv import ConvLowering
from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.isa.base import decode
from npusim.isa.functions import Binary
from npusim.isa.matrix import Conv, Depthwise
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from npusim.program import Program
from npusim.timing import tile
from tests.support.examples import examples
from tests.support.graphs.execution import interpreted

LARGE = load_config("tiny").with_(**{"sram.bytes": 4 << 20})
SMALL = LARGE.with_(**{"sram.bytes": 4096})
Case = tuple[Graph, dict[str, npt.NDArray[Any]]]


def convolution(
    dtype: DType,
    image: tuple[int, int],
    channels: tuple[int, int],
    kernel: tuple[int, int],
    dilation: tuple[int, int] = (1, 1),
    stride: tuple[int, int] = (1, 1),
    groups: int = 1,
    layout: str = "NHWC",
    pads: tuple[int, int, int, int] | None = None,
    computed: bool = False,
    images: int = 1,
    added: bool = False,
) -> Case:
    """Build a convolution and its inputs.

    ``channels`` are those of the input and the result. The default ``pads`` keep the image size. With ``computed`` the
    weights are an input; with ``added`` another input is added to the result.
    """
    rng, build = np.random.default_rng(sum(kernel)), GraphBuilder("kernel")

    def values(*shape: int) -> npt.NDArray[Any]:
        if dtype.is_float:
            return rng.standard_normal(shape).astype(dtype.storage)
        return rng.integers(-9, 10, shape).astype(dtype.storage)

    reach = [(size - 1) * step for size, step in zip(kernel, dilation, strict=True)]
    around = (reach[0] // 2, reach[1] // 2, reach[0] - reach[0] // 2, reach[1] - reach[1] // 2)
    shape = (images, *image, channels[0]) if layout == "NHWC" else (images, channels[0], *image)
    weights = values(channels[1], channels[0] // groups, *kernel)
    x, feeds = build.input("x", shape, dtype), {"x": values(*shape)}
    w = build.input("w", weights.shape, dtype) if computed else build.const(weights)
    if computed:
        feeds["w"] = weights
    attrs = {"layout": layout, "stride": stride, "dilation": dilation, "pads": pads or around, "groups": groups}
    if not added:
        return build.finish([build.add("conv", [x, w], attrs, "y")]), feeds
    sums = build.add("conv", [x, w], attrs)
    other = build.input("other", sums.shape, sums.dtype)
    feeds["other"] = rng.integers(-9, 10, sums.shape).astype(sums.dtype.storage)
    return build.finish([build.add("binary", [sums, other], {"fn": Binary.ADD}, "y")]), feeds


def cuts(program: Program) -> set[tuple[int, int]]:
    """Return the kernel heights and widths of the instructions."""
    return {(each.kh, each.kw) for each in products(program)}


def products(program: Program) -> list[Conv | Depthwise]:
    """Return the instructions of the matrix unit."""
    found = [command.instruction for command in decode(program.code)]
    return [each for each in found if isinstance(each, Conv | Depthwise)]


def whole(graph: Graph) -> Program:
    """Compile for a large SRAM so that every instruction has the whole kernel."""
    tile.forget()
    no_parts = mock.patch.object(tile, "can_cut_taps", return_value=False)
    with no_parts, mock.patch.object(conv_forms, "phased", return_value=None):
        program = compile_graph(graph, LARGE)
    tile.forget()
    assert len(cuts(program)) == 1
    return program


def check(case: Case, small: Config = SMALL) -> Program:
    """Check that the split kernel gives the bits of the whole one, and for integers those of the reference."""
    graph, feeds = case
    program = compile_graph(graph, small)
    found = interpreted(program, small, feeds)["y"]
    np.testing.assert_array_equal(found, interpreted(whole(graph), LARGE, feeds)["y"])
    if not graph.inputs[0].dtype.is_float:
        np.testing.assert_array_equal(found, reference.run(graph, feeds)["y"])
    return program


I8, F32 = DType.INT8, DType.FLOAT32


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (convolution(I8, (9, 9), (40, 8), (3, 3), (8, 8)), "rows"),
        (convolution(F32, (9, 9), (40, 8), (3, 3), (8, 8)), "rows"),
        (convolution(F32, (7, 7), (16, 8), (15, 15)), "rows"),
        (convolution(F32, (1, 40), (64, 8), (1, 3), (1, 29)), "cols"),
        (convolution(I8, (1, 40), (64, 8), (1, 31)), "cols"),
        (convolution(F32, (6, 6), (8, 8), (9, 9), (5, 5), groups=8), "rows"),
        (convolution(I8, (6, 6), (64, 8), (5, 5), (2, 2), (2, 2), groups=2, layout="NCHW"), "rows"),
        (convolution(F32, (6, 6), (40, 8), (5, 3), (7, 7), computed=True), "rows"),
    ],
)  # fmt: skip
def test_parts_of_kernels_sum_up_to_the_same_bits(case: Case, expected: str) -> None:
    (kernel,) = cuts(whole(case[0]))
    found = cuts(check(case))
    assert all(rows < kernel[0] if expected == "rows" else cols < kernel[1] for rows, cols in found), found


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        {"image": (23, 9), "channels": (40, 8), "kernel": (3, 3), "dilation": (5, 4)},
        {"image": (23, 9), "channels": (40, 8), "kernel": (3, 3), "dilation": (5, 4), "images": 3},
        {"image": (23, 9), "channels": (8, 8), "kernel": (3, 2), "dilation": (6, 1), "stride": (4, 2)},
        {"image": (20, 7), "channels": (16, 16), "kernel": (2, 3), "dilation": (4, 3), "groups": 16, "layout": "NCHW"},
        {"image": (20, 7), "channels": (16, 16), "kernel": (2, 3), "dilation": (4, 3), "pads": (0, 0, 0, 0)},
        {"image": (1, 61), "channels": (40, 8), "kernel": (1, 3), "dilation": (1, 7)},
        {"image": (1, 64), "channels": (40, 8), "kernel": (1, 2), "dilation": (1, 8), "pads": (0, 8, 0, 0)},
        {"image": (1, 61), "channels": (40, 8), "kernel": (1, 2), "dilation": (1, 8), "pads": (0, 5, 0, 0)},
        {"image": (1, 61), "channels": (16, 16), "kernel": (1, 4), "dilation": (1, 9), "layout": "NCHW", "images": 2},
        {"image": (1, 61), "channels": (16, 16), "kernel": (1, 4), "dilation": (1, 9), "groups": 16},
        {"image": (1, 61), "channels": (16, 16), "kernel": (1, 2), "dilation": (1, 16), "pads": (0, 0, 0, 0)},
        {"image": (1, 61), "channels": (40, 8), "kernel": (1, 3), "dilation": (1, 7), "computed": True},
        {"image": (1, 61), "channels": (40, 8), "kernel": (1, 3), "dilation": (1, 7), "stride": (1, 2)},
        {"image": (1, 64), "channels": (40, 8), "kernel": (1, 3), "dilation": (1, 8), "stride": (1, 6), "images": 2},
        {"image": (1, 61), "channels": (16, 16), "kernel": (1, 4), "dilation": (1, 9), "stride": (1, 3), "groups": 16},
        {"image": (1, 61), "channels": (8, 8), "kernel": (1, 2), "dilation": (1, 4), "stride": (1, 8)},
        {"image": (1, 61), "channels": (16, 16), "kernel": (1, 3), "dilation": (1, 6), "stride": (1, 4)},
    ],
)  # fmt: skip
def test_phases_sum_up_to_the_same_bits(arguments: dict[str, Any], added: bool) -> None:
    """The outputs of one phase are computed as neighbours, for any phase boundaries and tile sizes."""
    for dtype in (I8, F32):
        graph, feeds = convolution(dtype, **arguments, added=added)
        expected = interpreted(whole(graph), LARGE, feeds)["y"]
        anchor = next(op for op in graph.ops if op.kind == "conv")
        assert phases.phased(anchor) is not None
        # Make the phase lowering look free so that it is chosen.
        with mock.patch.object(
            ConvLowering, "estimate", lambda lowering: not isinstance(lowering, phases.PhaseConvLowering)
        ):
            for kib, cores in ((4, 1), (16, 3), (4096, 1)):
                config = LARGE.with_(**{"sram.bytes": kib << 10, "cores": cores})
                program = compile_graph(graph, config)
                np.testing.assert_array_equal(interpreted(program, config, feeds)["y"], expected)
        assert {(each.kh > 1, each.dh) for each in products(program)} == {(True, 1)}


@given(st.data())
@settings(max_examples=examples(40))
def test_any_convolution_fits_and_keeps_its_bits(data: st.DataObject) -> None:
    """With 4 KiB of SRAM, also for kernels larger than the image."""
    draw = data.draw
    small = st.integers(1, 9)
    groups = draw(st.sampled_from([1, 1, 2, 8]))
    # Channel blocks of other sizes cannot be split.
    channels = (
        draw(st.sampled_from([1, 8, 33, 70] if groups == 1 else [1, 8, 32])) * groups,
        draw(st.sampled_from([1, 5, 16])) * groups,
    )
    check(
        convolution(
            draw(st.sampled_from([I8, DType.FLOAT16, F32])), (draw(small), draw(small)), channels,
            (draw(st.integers(1, 7)), draw(st.integers(1, 7))), (draw(small), draw(small)),
            (draw(st.integers(1, 3)), draw(st.integers(1, 3))), groups, draw(st.sampled_from(["NHWC", "NCHW"])),
            computed=draw(st.booleans()), images=draw(st.integers(1, 2)), added=draw(st.booleans()),
        )
    )  # fmt: skip
