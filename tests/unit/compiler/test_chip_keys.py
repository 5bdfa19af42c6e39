"""Keys that say what a chip cannot do, or has besides: what compiled programs make of them."""

import numpy as np
import pytest

from npusim.compiler.pipeline import compile_graph
from npusim.device.npu import NpuDevice
from npusim.dtypes import DType
from npusim.errors import CompileError
from npusim.hw.config import load_config
from npusim.isa.functions import Unary
from npusim.ops.build import GraphBuilder
from npusim.runtime import Session

TINY = load_config("tiny")
FLASH = {"constants.bytes": 1 << 20, "constants.bandwidth": 10**9, "constants.latency": "300 ns"}


def chain(layers=3, rows=16, channels=16):
    """Convolutions of 3 x 3, float32, one after the other."""
    rng = np.random.default_rng(0)
    net = GraphBuilder("chain")
    x = net.input("x", (1, rows, rows, channels), DType.FLOAT32)
    attrs = {"layout": "NHWC", "stride": (1, 1), "dilation": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}
    for _ in range(layers):
        w = net.const(rng.standard_normal((channels, channels, 3, 3), np.float32))
        x = net.add("conv", (x, w), attrs)
    return net.finish([x])


def run(config, graph, **how):
    session = Session(config, cache_dir=False)
    x = np.random.default_rng(1).standard_normal(graph.inputs[0].shape, np.float32)
    return session.run(session.compile(graph), {"x": x}, **how)


def test_values_leave_where_sram_holds_operands_only():
    graph = chain()
    big = TINY.with_(**{"sram.bytes": 1 << 20})
    kept, left = run(big, graph), run(big.with_(**{"sram.keeps_values": False}), graph)
    value = 16 * 16 * 16 * 4
    assert kept.dram_write_bytes < left.dram_write_bytes
    assert left.dram_write_bytes - kept.dram_write_bytes == 2 * value
    [a], [b] = kept.outputs.values(), left.outputs.values()
    assert a.tobytes() == b.tobytes()


def test_inputs_wait_for_the_matrix_unit_where_they_are_not_loaded_ahead():
    graph = chain(1, rows=32)
    config = TINY.with_(**{"sram.keeps_values": False})
    ahead, behind = run(config, graph), run(config.with_(**{"dma.inputs_ahead": False}), graph)
    assert ahead.cycles < behind.cycles
    [a], [b] = ahead.outputs.values(), behind.outputs.values()
    assert a.tobytes() == b.tobytes()


def test_constants_have_a_memory_and_a_port():
    graph = chain()
    plain, slow = run(TINY, graph), run(TINY.with_(**FLASH), graph)
    fast = run(TINY.with_(**{**FLASH, "constants.bandwidth": 8 * 10**9, "constants.latency": "0 ns"}), graph)
    assert fast.cycles < plain.cycles < slow.cycles
    [a], [b] = plain.outputs.values(), slow.outputs.values()
    assert a.tobytes() == b.tobytes()


def test_more_constants_than_their_memory_has_are_refused():
    graph = chain()
    with pytest.raises(CompileError, match="bytes of constants, tiny has 1024 for them"):
        compile_graph(graph, TINY.with_(**{**FLASH, "constants.bytes": 1024}))


def test_a_scale_of_one_is_not_loaded():
    net = GraphBuilder("net")
    x = net.input("x", (4, 8), DType.INT8)
    w = net.const(np.ones((8, 8), np.int8))
    total = net.add("matmul", (x, w))
    factors = [net.const(np.float32(value)) for value in (1, 0.5)]
    zero = net.const(np.int32(0))
    sizes = []
    for factor in factors:
        real = net.add("dequantize", (total, factor, zero), {"to": DType.FLOAT32})
        graph = net.finish([net.add("quantize", (real, net.const(np.float32(2)), zero), {"to": DType.INT8})])
        sizes.append(compile_graph(graph, TINY).region_bytes[0])
    assert sizes[0] < sizes[1]


def test_turning_to_another_layer_takes_the_sequencer_time():
    graph = chain()
    config = TINY.with_(**{"sram.keeps_values": False})
    plain, slow = run(config, graph), run(config.with_(layer_cycles=100_000), graph)
    busy = [result.timeline.counters.units["sequencer"].busy_ps for result in (plain, slow)]
    assert busy[1] - busy[0] == 3 * 100_000_000  # three layers, one after the other
    # Units work on what they have meanwhile; a layer is shorter than that here, so nearly all of it shows.
    assert 250_000_000 < slow.time_ps - plain.time_ps <= 300_000_000


def test_instructions_of_layers_come_before_a_job_begins():
    graph = chain()
    plain, loaded = run(TINY, graph), run(TINY.with_(layer_bytes="4000 B"), graph)
    fabric = NpuDevice(TINY).machine.fabric
    more = fabric.latency_ps + fabric.flow_ps(3 * 4000)
    assert loaded.time_ps - plain.time_ps == more
    moved = [span._replace(start_ps=span.start_ps + more, end_ps=span.end_ps + more) for span in plain.timeline.spans]
    assert loaded.timeline.spans == moved
    [a], [b] = plain.outputs.values(), loaded.outputs.values()
    assert a.tobytes() == b.tobytes()


def test_weights_that_stay_take_no_more_than_they_may():
    graph = chain()
    free = TINY.with_(**{"sram.bytes": "256 KiB", "sram.resident_weights": True})
    whole, bounded, none = (
        compile_graph(graph, free.with_(**{"sram.resident_bytes": most})).resident_bytes for most in (0, 20_000, 1000)
    )
    layer = 16 * 16 * 9 * 4
    assert whole == 3 * layer
    assert bounded == 2 * layer
    assert none == 0


def test_parts_are_copied_where_they_cannot_lie_in_place():
    net = GraphBuilder("parts")
    x = net.input("x", (1, 8, 8, 16), DType.FLOAT32)
    attrs = {"starts": (0, 0, 0, 8), "steps": (1, 1, 1, 1), "sizes": (1, 8, 8, 8)}
    half = net.add("slice", (x,), attrs)
    parts = [net.add("unary", (part,), {"fn": Unary.EXP}) for part in (x, half)]
    graph = net.finish([net.add("unary", (net.add("concat", parts, {"axis": 3}),), {"fn": Unary.RELU})])
    config = TINY.with_(**{"sram.keeps_values": False})
    inside, apart = run(config, graph), run(config.with_(**{"dma.parts_in_place": False}), graph)
    kinds = [op.kind for op in compile_graph(graph, config.with_(**{"dma.parts_in_place": False})).ops]
    assert kinds.count("slice") == kinds.count("concat") == 1
    assert apart.dram_write_bytes - inside.dram_write_bytes == 4 * 64 * (8 + 24)
    assert inside.time_ps < apart.time_ps
    [a], [b] = inside.outputs.values(), apart.outputs.values()
    assert a.tobytes() == b.tobytes()
