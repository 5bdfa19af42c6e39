"""Sharding over cores: what a part needs of its operands, what stays on a core, and what is read once for all."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from npusim.compiler.buffers import Buffer, View
from npusim.compiler.codegen import issue as schedule
from npusim.compiler.codegen.issue import Item, Scheduler, Slot, Tile
from npusim.compiler.grouping.groups import form_groups
from npusim.compiler.pipeline import compile_graph, explain_graph, prepare
from npusim.compiler.schedule.schedule import FREE, LayerShard
from npusim.compiler.schedule.sharding import Shards
from npusim.compiler.schedule.shards import axes_of, interval, operand_axes, shard_of
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.isa.base import Command, Instruction, Space, Unit, region
from npusim.isa.dma import Copy, Fill, Multicast
from npusim.isa.functions import Binary, Unary
from npusim.ops.budget import Budget
from npusim.ops.build import GraphBuilder
from npusim.program import CONSTANTS, SCRATCH
from tests.support.graphs.comparison import same_bytes
from tests.support.graphs.execution import interpreted
from tests.support.graphs.schedules import sharded_build
from tests.support.programs.streams import copy, fill

FOUR = load_config("tiny").with_(**{"cores": 4, "interconnect.multicast": True, "dma.channels": 2})


def weights(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def tokens_net() -> Graph:
    """Build a matrix product, a softmax and another matrix product over tokens."""
    build = GraphBuilder("tokens")
    x = build.input("x", (64, 32), DType.FLOAT32)
    zeros = {"x_zero": 0, "w_zero": 0}
    y = build.add("matmul", [x, build.const(weights(32, 32))], zeros)
    y = build.add("softmax", [y], {"axis": 1, "log": False})
    y = build.add("matmul", [y, build.const(weights(32, 16))], zeros)
    return build.finish([build.add("binary", [y, build.const(weights(16))], {"fn": Binary.ADD})])


def shards_of(graph: Graph, config: Config) -> Shards:
    found = sharded_build(prepare(graph, config), config)
    assert found is not None
    return found.plan.shards


@pytest.mark.parametrize(
    ("size", "parts", "unit", "wanted"),
    [
        (8, 4, 1, [(0, 2), (2, 4), (4, 6), (6, 8)]),
        (7, 3, 1, [(0, 3), (3, 5), (5, 7)]),
        (2, 3, 1, [(0, 1), (1, 2), (2, 2)]),
        (40, 2, 16, [(0, 32), (32, 40)]),
        (40, 4, 16, [(0, 16), (16, 32), (32, 40), (40, 40)]),
    ],
)
def test_parts_of_a_dimension(size: int, parts: int, unit: int, wanted: list[tuple[int, int]]) -> None:
    assert [interval(size, part, parts, unit) for part in range(parts)] == wanted


def test_what_a_part_needs_of_its_operands() -> None:
    graph = prepare(tokens_net(), FOUR)
    first, softmax, second = form_groups(graph.ops, graph.outputs)
    assert [axes_of(group) for group in (first, softmax, second)] == [[0, 1], [0], [0, 1]]
    rows, columns = operand_axes(second, 0), operand_axes(second, 1)
    assert rows is not None
    assert columns is not None
    a, b = second.ops[0].inputs[:2]
    bias = next(t for op in second.ops for t in op.inputs if t is not None and t.shape == (16,))
    assert [rows[tensor] for tensor in (a, b, bias)] == [0, None, None]
    assert [columns[tensor] for tensor in (a, b, bias)] == [None, 1, 0]
    part = shard_of(second, columns, 4, 8)
    assert part.group.outputs[0].shape == (64, 4)
    sliced = {whole: (tensor, starts) for tensor, (whole, starts) in part.slices.items()}
    assert a not in sliced
    assert sliced[b][1] == (0, 4)
    assert b.data is not None
    np.testing.assert_array_equal(sliced[b][0].data, b.data[:, 4:8])


def test_what_a_core_reads_again_itself_is_in_its_sram() -> None:
    graph = tokens_net()
    found = shards_of(graph, FOUR)
    for core, context in enumerate(found.contexts):
        own = {view.buffer for tensor, view in context.views.items() if tensor in context.own and view.buffer.on_chip}
        assert {buffer.core for buffer in own} == {core}
        # sixteen rows of each of the two values in between
        assert sorted(buffer.nbytes for buffer in own) == [16 * 32 * 4] * 2
    program = compile_graph(graph, FOUR)
    assert program.region_bytes[SCRATCH] == 0


def test_what_all_need_is_read_once() -> None:
    program = compile_graph(tokens_net(), FOUR)
    reads = dict.fromkeys((CONSTANTS, SCRATCH), 0)
    masks = set()
    for command in commands_of(program.code):
        for access in command.instruction.accesses():
            if access is not None and not access.write and access.address >> 48 >= Space.REGION:
                number = (access.address >> 48) - Space.REGION
                work: Any = command.instruction.work()
                reads[number] = reads.get(number, 0) + work.reads
        if isinstance(command.instruction, Multicast):
            masks.add(command.instruction.cores)
    assert reads[CONSTANTS] == (32 * 32 + 32 * 16 + 16) * 4
    assert reads[SCRATCH] == 0
    assert masks == {0b1111}


def test_where_values_of_parts_live_can_be_asked() -> None:
    config = FOUR.with_(**{"dram.latency": "500 ns", "interconnect.multicast": False})
    build = sharded_build(prepare(tokens_net(), config), config)
    assert build is not None
    explained = explain_graph(tokens_net(), config, build.plan.complete())
    assert explained.orders[0][0].startswith("4 cores, sharded")
    assert explained.program.places


def commands_of(code: bytes) -> list[Command]:
    from npusim.isa.base import decode

    return list(decode(code))


# The scheduler

CONSTANT = Buffer("weights", CONSTANTS, 4096)


def load(slot: Slot, offset: int, size: int = 64) -> Item:
    view = View(CONSTANT, offset, (size,), (1,), DType.UINT8)
    return Item(copy(slot.address, region(CONSTANTS, offset), size), (view,), (slot,))


def write(slot: Slot, instruction: Instruction) -> Item:
    return Item(instruction, (), (slot,))


def scheduled(steps: list[Tile], config: Config = FOUR) -> list[Instruction]:
    scheduler = Scheduler(config, Budget.of(config))
    scheduler.add(0, "test", [[step] for step in steps])
    return [command.instruction for command in scheduler.finish()[:-1]]


def slots(start: int = 0, size: int = 64) -> list[Slot]:
    return [Slot(core, Space.SRAM, start, size) for core in range(2)]


def test_equal_loads_of_one_turn_become_one() -> None:
    one, two = slots()
    [both] = scheduled([Tile([load(one, 0)]), Tile([load(two, 0)])])
    assert isinstance(both, Multicast)
    assert both.cores == 0b11


def test_other_bytes_or_another_place_are_loaded_apart() -> None:
    (one, _), (_, high) = slots(), slots(64)
    assert [type(each) for each in scheduled([Tile([load(one, 0)]), Tile([load(high, 0)])])] == [Copy, Copy]
    one, two = slots()
    assert [type(each) for each in scheduled([Tile([load(one, 0)]), Tile([load(two, 64)])])] == [Copy, Copy]


def test_without_multicast_every_core_loads() -> None:
    config = FOUR.with_(**{"interconnect.multicast": False})
    one, two = slots()
    assert [type(each) for each in scheduled([Tile([load(one, 0)]), Tile([load(two, 0)])], config)] == [Copy, Copy]


def test_a_load_does_not_overtake_what_fills_its_slot() -> None:
    (one, two), (three, four) = slots(), slots(64)
    steps = [Tile([write(one, fill(0, 64, 7)), load(one, 0), load(three, 64)]), Tile([load(two, 0), load(four, 64)])]
    kinds = [type(each) for each in scheduled(steps)]
    assert kinds.count(Multicast) == 1
    assert kinds.index(Fill) < kinds.index(Copy)


def test_a_load_for_cores_that_are_too_much_to_wait_for_is_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "MOST_WAITS", 2)
    config = dataclasses.replace(FOUR)
    scheduler = Scheduler(config, Budget.of(config))
    places = [Slot(core, Space.SRAM, 0, 64) for core in range(4)]
    scheduler.add(0, "first", [[Tile(compute=[write(slot, fill(0, 64, 1))])] for slot in places])
    scheduler.add(0, "then", [[Tile([load(slot, 0)])] for slot in places])
    masks = [c.instruction.cores for c in scheduler.finish() if isinstance(c.instruction, Multicast)]
    assert masks == [0b0011, 0b1100]


def test_a_large_load_is_divided_among_the_channels() -> None:
    config = load_config("server").with_(cores=2)
    size = 1 << 20
    one, two = slots(0, size)
    pieces = scheduled([Tile([load(one, 0, size)]), Tile([load(two, 0, size)])], config)
    assert [piece.dims[3] for piece in pieces if isinstance(piece, Multicast)] == [size // 2, size // 2]
    assert sorted(piece.dst for piece in pieces if isinstance(piece, Multicast)) == [0, size // 2]


def test_what_is_empty_is_no_part_of_anything() -> None:
    """A product without elements next to an operator that is sharded."""
    build = GraphBuilder("nothing")
    left, right = build.input("left", (0, 1, 0), DType.INT8), build.input("right", (0, 0, 1), DType.INT8)
    x = build.input("x", (40, 30), DType.FLOAT32)
    nothing = build.add("matmul", [left, right])
    graph = build.finish([nothing, build.add("unary", [x], {"fn": Unary.RELU})])
    program = compile_graph(graph, load_config("tiny").with_(cores=2))
    inputs = {"left": np.zeros((0, 1, 0), np.int8), "right": np.zeros((0, 0, 1), np.int8)}
    inputs["x"] = np.full((40, 30), -1, np.float32)
    found = interpreted(program, load_config("tiny").with_(cores=2), inputs)
    assert [array.shape for array in found.values()] == [(0, 1, 1), (40, 30)]
    assert not found[program.outputs[1].name].any()


@pytest.mark.parametrize("axis", [1, 2])
def test_cores_share_the_heads_or_the_rows_of_a_fused_attention(axis: int) -> None:
    build = GraphBuilder("attention")
    query, key, value = (build.input(name, (1, 4, 6, 8), DType.FLOAT32) for name in ("query", "key", "value"))
    scores = build.add("matmul", [query, build.add("transpose", [key], {"perm": (0, 1, 3, 2)})])
    shares = build.add("softmax", [scores], {"axis": 3, "log": False})
    graph = build.finish([build.add("matmul", [shares, value])])
    config = load_config("server").with_(cores=3)
    prepared = prepare(graph, config)
    name = prepared.ops[-3].name
    schedule = FREE.with_(
        "fused_attention", "shards", cores=3, fused_attention=(name,), shards=(LayerShard(name, axis),)
    )
    explained = explain_graph(graph, config, schedule)
    assert explained.schedule.fused_attention == (name,)
    assert explained.schedule.shards == (LayerShard(name, axis),)
    assert {command.core for command in commands_of(explained.program.code) if command.unit == Unit.MATRIX} == {0, 1, 2}
    rng = np.random.default_rng(0)
    inputs = {each: rng.standard_normal((1, 4, 6, 8)).astype(np.float32) for each in ("query", "key", "value")}
    alone = compile_graph(graph, config.with_(cores=1))
    same_bytes(
        interpreted(explained.program, config, inputs), interpreted(alone, config.with_(cores=1), inputs), "cores"
    )
