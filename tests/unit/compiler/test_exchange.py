"""Data exchange between cores: which rows and channels go to which core, in which instructions."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.compiler.grouping.groups import Group, form_groups
from npusim.compiler.lower.base import ConstantPool, Context
from npusim.compiler.pipeline import compile_graph, prepare
from npusim.compiler.schedule import sharding
from npusim.compiler.schedule.schedule import FREE
from npusim.compiler.schedule.shards import Shard, axes_of, operand_axes, shard_of
from npusim.dtypes import DType
from npusim.graph import Graph, Tensor
from npusim.hw.config import Config, load_config
from npusim.isa.base import SPACE_SHIFT, Space, decode
from npusim.isa.dma import Copy, Exchange
from npusim.isa.functions import Binary
from npusim.isa.verify import Limits
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from npusim.program import SCRATCH
from npusim.work import DmaWork
from tests.support.graphs.comparison import same_bytes
from tests.support.graphs.execution import interpreted
from tests.support.graphs.schedules import sharded, sharded_build
from tests.support.programs.race_detector import find_races, limits_of

TWO = load_config("tiny").with_(
    **{"cores": 2, "matrix.cols": 4, "exchange.bytes_per_cycle": 8, "interconnect.multicast": True}
)
THREE = TWO.with_(cores=3)


def images(pads: tuple[int, int, int, int] = (1, 1, 1, 1), stride: int = 1) -> Graph:
    """Build a 1 x 1 and a 3 x 3 convolution with 8 x 4 pixels of 8 channels between them."""
    rng = np.random.default_rng(0)
    build = GraphBuilder("images")
    window = {"layout": "NHWC", "dilation": (1, 1), "groups": 1}
    one = build.const(rng.integers(-3, 4, (8, 4, 1, 1)).astype(np.int8))
    two = build.const(rng.integers(-3, 4, (8, 8, 3, 3)).astype(np.int8))
    value = build.input("x", (1, 8, 4, 4), DType.INT8)
    value = build.add("conv", [value, one], {**window, "stride": (1, 1), "pads": (0, 0, 0, 0)})
    value = build.add("cast", [value], {"to": DType.INT8})
    value = build.add("conv", [value, two], {**window, "stride": (stride, 1), "pads": pads})
    return build.finish([value])


def exchanges(axes: tuple[int | None, ...], config: Config, graph: Graph | None = None) -> list[Exchange]:
    """Return the exchange instructions for groups cut along ``axes``. Fails if the stream has a race."""
    prepared = prepare(graph or images(), config)
    order = sharded_build(prepared, config, axes)
    assert order is not None
    assert order.sizes[SCRATCH] == 0  # the value in between is in SRAM
    limits = Limits(
        order.sizes, config.sram.bytes, 1 << 20, config.cores, config.dma.channels, config.units, True, exchange=True
    )
    assert not find_races(order.commands, limits)
    return [c.instruction for c in order.commands if isinstance(c.instruction, Exchange)]


def moved(instructions: list[Exchange]) -> list[tuple[int, int, int]]:
    """Return (source, mask of target cores, bytes) of each instruction."""
    return sorted((each.source, each.cores, int(np.prod(each.dims)) * each.itemsize) for each in instructions)


ROW = 4 * 8  # bytes


def test_neighbours_give_the_rows_around_a_band() -> None:
    assert moved(exchanges((1, 1), TWO)) == [(0, 0b10, ROW), (1, 0b01, ROW)]
    # Of three bands of 3, 3 and 2 rows, the middle one has two neighbours.
    assert moved(exchanges((1, 1), THREE)) == [(0, 0b010, ROW), (1, 0b001, ROW), (1, 0b100, ROW), (2, 0b010, ROW)]


def test_a_window_that_goes_down_needs_what_is_below_it_alone() -> None:
    below = images((0, 1, 2, 1))
    assert moved(exchanges((1, 1), TWO, below)) == [(1, 0b01, 2 * ROW)]


def test_who_reads_all_is_given_what_each_has_made() -> None:
    """Each core receives the other half of the channels or rows when all output channels depend on all inputs."""
    for first in (3, 1):
        assert moved(exchanges((first, 3), TWO)) == [(0, 0b10, 4 * ROW), (1, 0b01, 4 * ROW)]


def test_several_get_the_same_at_once_where_the_device_can() -> None:
    wide = images()
    config = THREE.with_(**{"matrix.cols": 2})
    assert moved(exchanges((1, 3), config, wide)) == [
        (0, 0b110, 3 * ROW), (1, 0b101, 3 * ROW), (2, 0b011, 2 * ROW)
    ]  # fmt: skip
    apart = moved(exchanges((1, 3), config.with_(**{"interconnect.multicast": False}), wide))
    assert [(source, cores) for source, cores, _ in apart] == [
        (0, 0b010), (0, 0b100), (1, 0b001), (1, 0b100), (2, 0b001), (2, 0b010)
    ]  # fmt: skip


def test_what_is_cut_alike_is_not_exchanged() -> None:
    rng = np.random.default_rng(0)
    build = GraphBuilder("rows")
    window = {"layout": "NHWC", "dilation": (1, 1), "groups": 1, "stride": (1, 1), "pads": (0, 0, 0, 0)}
    value = build.input("x", (1, 8, 4, 4), DType.INT8)
    for _ in range(2):
        weight = build.const(rng.integers(-3, 4, (4, 4, 1, 1)).astype(np.int8))
        value = build.add("cast", [build.add("conv", [value, weight], window)], {"to": DType.INT8})
    assert not exchanges((1, 1), TWO, build.finish([value]))


def test_without_a_network_rows_pass_through_dram() -> None:
    """Each core writes the row that its neighbour reads; one transfer serves all cores that read the same bytes."""

    def relayed(axes: tuple[int, int], config: Config) -> tuple[list[int], list[tuple[int, int]]]:
        order = sharded_build(prepare(images(), config), config.with_(exchange=None), axes)
        assert order is not None
        limits = Limits(order.sizes, config.sram.bytes, 1 << 20, config.cores, config.dma.channels, config.units, True)
        assert not find_races(order.commands, limits)
        copies = [c.instruction for c in order.commands if isinstance(c.instruction, Copy)]
        written = [c for c in copies if c.dst >> SPACE_SHIFT == Space.REGION + SCRATCH]
        read = [c for c in copies if c.src >> SPACE_SHIFT == Space.REGION + SCRATCH]
        return (
            [int(np.prod(c.dims)) for c in written],
            [(int(np.prod(c.dims)), len(c.targets(0))) for c in read],
        )

    assert relayed((1, 1), TWO) == ([ROW, ROW], [(ROW, 1), (ROW, 1)])
    assert relayed((1, 3), TWO) == ([4 * ROW, 4 * ROW], [(4 * ROW, 1), (4 * ROW, 1)])
    config = THREE.with_(**{"matrix.cols": 2})
    assert relayed((1, 3), config) == ([3 * ROW, 3 * ROW, 2 * ROW], [(3 * ROW, 2), (2 * ROW, 2), (3 * ROW, 2)])
    apart = relayed((1, 3), config.with_(**{"interconnect.multicast": False}))
    assert apart == (
        [3 * ROW, 3 * ROW, 2 * ROW],
        [(3 * ROW, 1), (2 * ROW, 1), (3 * ROW, 1), (2 * ROW, 1), (3 * ROW, 1), (3 * ROW, 1)],
    )


def test_groups_have_no_rows_where_cores_pass_nothing() -> None:
    prepared = prepare(images(), TWO)
    assert all(1 not in axes_of(group) for group in form_groups(prepared.ops, prepared.outputs))


# Bands


def second(graph: Graph) -> Group:
    prepared = prepare(graph, TWO)
    return form_groups(prepared.ops, prepared.outputs)[-1]


@pytest.mark.parametrize(
    ("pads", "stride", "rows", "wanted", "padding"),
    [
        ((1, 1, 1, 1), 1, (0, 4), (0, 5), (1, 1, 0, 1)),
        ((1, 1, 1, 1), 1, (4, 8), (3, 8), (0, 1, 1, 1)),
        ((1, 1, 1, 1), 1, (2, 5), (1, 6), (0, 1, 0, 1)),
        ((1, 1, 1, 1), 2, (2, 4), (3, 8), (0, 1, 0, 1)),
        ((2, 1, 0, 1), 1, (0, 4), (0, 4), (2, 1, 0, 1)),
        ((0, 1, 2, 1), 1, (6, 8), (6, 8), (0, 1, 2, 1)),
    ],
)
def test_what_a_band_reads(
    pads: tuple[int, int, int, int], stride: int, rows: tuple[int, int], wanted: tuple[int, int], padding: object
) -> None:
    group = second(images(pads, stride))
    axes = operand_axes(group, 1)
    assert axes is not None
    part = shard_of(group, axes, *rows)
    anchor = part.group.anchor
    assert anchor is not None
    x = anchor.input(0)
    assert (part.slices[x][1][1], part.slices[x][1][1] + x.shape[1]) == wanted
    assert anchor.attrs["pads"] == padding
    assert part.group.outputs[0].shape[1] == rows[1] - rows[0]


def test_only_a_group_whose_first_part_has_the_slots_of_all_is_cut_into_bands() -> None:
    assert 1 in axes_of(second(images((1, 0, 1, 0))), passes=True)
    assert 1 in axes_of(second(images((0, 1, 2, 1))), passes=True)
    # Only the last band would need a slot for padding.
    assert 1 not in axes_of(second(images((0, 0, 2, 0))), passes=True)


def test_windows_that_lie_in_the_padding_alone_are_not_cut() -> None:
    assert 1 not in axes_of(second(images((3, 1, 0, 1))), passes=True)


@pytest.mark.parametrize("pads", [(2, 0, 0, 0), (1, 0, 1, 0), (2, 0, 2, 0), (0, 0, 0, 0)])
def test_bands_of_pooled_rows_have_room_where_the_first_has_padding(pads: tuple[int, int, int, int]) -> None:
    """With two images, each core loads rows of the second one while it pools those of the first."""
    rows = (6 + pads[0] + pads[2] - 5) + 1
    build = GraphBuilder("pooled")
    window = {"layout": "NCHW", "kernel": (3, 1), "stride": (1, 1), "dilation": (2, 1), "pads": pads}
    x = build.input("x", (2, 1, 6, 3), DType.FLOAT32)
    more = {"fn": "max", "output_hw": (rows, 3), "count_include_pad": False}
    graph = build.finish([build.add("pool", [x], {**window, **more})])
    exchanges((2,), TWO, graph)


# Grouped convolutions


def in_groups(channels: int, groups: int, each: int) -> Graph:
    """Build a full convolution, then a 3 x 3 convolution with ``groups`` groups of ``each`` output channels."""
    rng = np.random.default_rng(0)
    build = GraphBuilder("groups")
    window = {"layout": "NHWC", "dilation": (1, 1), "stride": (1, 1)}
    one = build.const(rng.integers(-3, 4, (channels, 4, 1, 1)).astype(np.int8))
    two = build.const(rng.integers(-3, 4, (groups * each, channels // groups, 3, 3)).astype(np.int8))
    value = build.input("x", (1, 3, 3, 4), DType.INT8)
    value = build.add("conv", [value, one], {**window, "groups": 1, "pads": (0, 0, 0, 0)})
    value = build.add("cast", [value], {"to": DType.INT8})
    return build.finish([build.add("conv", [value, two], {**window, "groups": groups, "pads": (1, 1, 1, 1)})])


@pytest.mark.parametrize(
    ("channels", "groups", "each", "bounds", "reads", "counts"),
    [
        (9, 9, 1, [(0, 8), (8, 9)], [(0, 8), (8, 9)], [8, 1]),  # by array columns: the last part has one group
        (16, 16, 2, [(0, 16), (16, 32)], [(0, 8), (8, 16)], [8, 8]),
        (8, 2, 3, [(0, 3), (3, 6)], [(0, 4), (4, 8)], [1, 1]),
    ],
)
def test_a_part_of_groups_reads_their_channels(
    channels: int, groups: int, each: int, bounds: object, reads: object, counts: list[int]
) -> None:
    group = second(in_groups(channels, groups, each))
    context = Context(TWO, ConstantPool())
    parts = sharding.cut_group(group, 3, context, [sharding.core_context(context, {}) for _ in range(2)])
    anchors = [part.group.anchor for part in parts]
    assert [places(part, part.group.outputs[0], 3) for part in parts] == bounds
    assert [places(part, op.input(0), 3) for part, op in zip(parts, anchors, strict=True) if op] == reads
    assert [op.attrs["groups"] for op in anchors if op] == counts


def places(part: Shard, tensor: Tensor, axis: int) -> tuple[int, int]:
    start = part.slices[tensor][1][axis]
    return start, start + tensor.shape[axis]


def test_a_group_of_channels_may_be_several_parts() -> None:
    """Two groups of four channels on four cores: two cores share a group, and each reads that group's input."""
    config = TWO.with_(cores=4)
    group = second(in_groups(8, 2, 4))
    context = Context(config, ConstantPool())
    parts = sharding.cut_group(group, 3, context, [sharding.core_context(context, {}) for _ in range(4)])
    read = [places(part, part.group.anchor.input(0), 3) for part in parts if part.group.anchor]
    assert read == [(0, 4), (0, 4), (4, 8), (4, 8)]


@pytest.mark.parametrize(("channels", "groups", "each"), [(9, 9, 1), (16, 16, 2), (8, 2, 3), (8, 2, 4)])
@pytest.mark.parametrize("axes", [(3, 3), (1, 3), (3, 1)])
def test_parts_of_groups_compute_the_same_bits(axes: tuple[int, int], channels: int, groups: int, each: int) -> None:
    graph = in_groups(channels, groups, each)
    x = np.random.default_rng(1).integers(-5, 6, graph.inputs[0].shape).astype(np.int8)
    (wanted,) = reference.run(graph, {"x": x}).values()
    program = sharded(graph, TWO, axes)
    assert program is not None
    (found,) = interpreted(program, TWO, {"x": x}).values()
    np.testing.assert_array_equal(found, wanted)


def test_without_a_way_the_channels_of_groups_are_not_cut() -> None:
    group = second(in_groups(16, 16, 1))
    assert 3 in axes_of(group, passes=True)
    assert 3 not in axes_of(group)


def test_windows_and_the_chain_behind_them_read_different_rows_of_one_tensor() -> None:
    rng = np.random.default_rng(0)
    build = GraphBuilder("residual")
    window = {"layout": "NHWC", "dilation": (1, 1), "groups": 1, "stride": (1, 1), "pads": (1, 1, 1, 1)}
    value = build.input("x", (1, 8, 4, 8), DType.FLOAT32)
    weight = build.const(rng.standard_normal((8, 8, 3, 3)).astype(np.float32))
    made = build.add("conv", [value, weight], window)
    graph = build.finish([build.add("binary", [made, value], {"fn": Binary.ADD})])
    prepared = prepare(graph, TWO)
    (group,) = form_groups(prepared.ops, prepared.outputs)
    axes = operand_axes(group, 1)
    assert axes is not None
    shard = shard_of(group, axes, 2, 5).group
    assert shard.anchor is not None
    assert shard.anchor.input(0).shape[1] == 5
    assert [tensor.shape[1] for tensor in shard.loads()] == [3]


@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 1, 1, 1)])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("decoder", [False, True])
def test_without_multicast_cores_load_parts_of_shared_operands_and_send_them(
    pads: tuple[int, int, int, int], kernel: int, decoder: bool
) -> None:
    rng, build = np.random.default_rng(kernel), GraphBuilder("shared")
    weights = build.const(rng.choice([0, 0, 0, 1, -2], (24, 32, kernel, kernel)).astype(np.int8))
    x = build.input("x", (1, 12, 6, 32), DType.INT8)
    window = {"layout": "NHWC", "dilation": (1, 1), "groups": 1, "stride": (1, 1), "pads": pads}
    graph = build.finish([build.add("conv", [x, weights], window)])
    more = {"dma.decoder_weights_per_cycle": 8} if decoder else {}
    config = THREE.with_(**{"interconnect.multicast": False, "exchange.bytes_per_cycle": 64, **more})
    feeds = {"x": rng.integers(-9, 9, (1, 12, 6, 32)).astype(np.int8)}
    wanted = interpreted(compile_graph(graph, config.with_(cores=1)), config.with_(cores=1), feeds)
    reads = []
    for exchange in (True, False):
        program = compile_graph(graph, config, schedule=FREE.with_(cores=3, exchange=exchange))
        commands = list(decode(program.code))
        assert not find_races(commands, limits_of(program, config))
        assert exchange == any(isinstance(each.instruction, Exchange) for each in commands)
        same_bytes(interpreted(program, config, feeds), wanted, f"exchange {exchange}")
        works = [each.instruction.asked() for each in commands]
        reads.append(sum(work.reads for work in works if isinstance(work, DmaWork)))
    assert reads[0] < reads[1]
