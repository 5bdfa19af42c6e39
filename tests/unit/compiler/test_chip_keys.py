"""Configuration keys for missing and optional chip features: their effect on compiled programs."""

import numpy as np
import pytest

from npusim.compiler.pipeline import compile_graph, explain_graph
from npusim.device.npu import NpuDevice
from npusim.dtypes import DType
from npusim.errors import CompileError, ScheduleError
from npusim.hw.config import load_config
from npusim.isa.base import Unit, decode
from npusim.isa.functions import Unary
from npusim.isa.verify import Limits
from npusim.ops.build import GraphBuilder
from npusim.runtime import Session
from tests.support.graphs.execution import interpreted
from tests.support.programs.race_detector import find_races

TINY = load_config("tiny")
FLASH = {"constants.bytes": 1 << 20, "constants.bandwidth": 10**9, "constants.latency": "300 ns"}


def chain(layers=3, rows=16, channels=16):
    """Build a chain of float32 3 x 3 convolutions."""
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
    kept, left = run(big, graph), run(big.with_(**{"compiler.keeps_values": False}), graph)
    value = 16 * 16 * 16 * 4
    assert kept.dram_write_bytes < left.dram_write_bytes
    assert left.dram_write_bytes - kept.dram_write_bytes == 2 * value
    [a], [b] = kept.outputs.values(), left.outputs.values()
    assert a.tobytes() == b.tobytes()


def test_inputs_wait_for_the_matrix_unit_where_they_are_not_loaded_ahead():
    graph = chain(1, rows=32)
    config = TINY.with_(**{"compiler.keeps_values": False})
    ahead, behind = run(config, graph), run(config.with_(**{"compiler.inputs_ahead": False}), graph)
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
    config = TINY.with_(**{"compiler.keeps_values": False})
    plain, slow = run(config, graph), run(config.with_(**{"compiler.layer_cycles": 100_000}), graph)
    busy = [result.timeline.counters.units["sequencer"].busy_ps for result in (plain, slow)]
    assert busy[1] - busy[0] == 3 * 100_000_000  # three layers, one after the other
    # Units still work through their queues during the switch. A layer is shorter than the switch, so most of it shows.
    assert 250_000_000 < slow.time_ps - plain.time_ps <= 300_000_000


@pytest.mark.parametrize("changes", [{}, {"cores": 3}, {"sram.bytes": "16 KiB"}, {"compiler.keeps_values": False}])
def test_layers_one_by_one(changes):
    graph, apart = chain(4), TINY.with_(**{**changes, "compiler.layer_by_layer": True})
    for timing_only in (False, True):  # two simulators
        plain = run(apart, graph, timing_only=timing_only)
        slow = run(apart.with_(**{"compiler.layer_time": "30 us"}), graph, timing_only=timing_only)
        assert slow.time_ps - plain.time_ps == 4 * 30_000_000
        for result, pause in ((plain, 0), (slow, 30_000_000)):
            times = {}
            for span in result.timeline.spans:
                first, last = times.get(span.op, (span.start_ps, 0))
                times[span.op] = min(first, span.start_ps), max(last, span.end_ps)
            assert sorted(times) == [0, 1, 2, 3]
            for number in range(1, 4):
                # The command that starts a layer is dispatched in a cycle.
                assert times[number][0] == times[number - 1][1] + pause + 10**12 // apart.clock_hz
        assert plain.time_ps > run(TINY.with_(**changes), graph).time_ps


def schedule_of(graph, config):
    return explain_graph(graph, config).schedule


def test_a_compiler_without_cascades():
    graph, small = chain(3, rows=48), TINY.with_(**{"dram.bandwidth": "1 GB/s"})
    assert schedule_of(graph, small).cascades
    for changes in ({"compiler.cascades": False}, {"compiler.layer_by_layer": True}):
        assert not schedule_of(graph, small.with_(**changes)).cascades
        with pytest.raises(ScheduleError, match="cascades: must be empty, because the compiler of tiny makes none"):
            compile_graph(graph, small.with_(**changes), schedule=schedule_of(graph, small))


def test_instructions_of_layers_come_before_a_job_begins():
    graph = chain()
    plain, loaded = run(TINY, graph), run(TINY.with_(**{"compiler.layer_bytes": "4000 B"}), graph)
    fabric = NpuDevice(TINY).machine.fabric
    more = fabric.latency_ps + fabric.flow_ps(3 * 4000)
    assert loaded.time_ps - plain.time_ps == more
    moved = [span._replace(start_ps=span.start_ps + more, end_ps=span.end_ps + more) for span in plain.timeline.spans]
    assert loaded.timeline.spans == moved
    [a], [b] = plain.outputs.values(), loaded.outputs.values()
    assert a.tobytes() == b.tobytes()


def test_weights_that_stay_take_no_more_than_they_may():
    graph = chain()
    free = TINY.with_(**{"sram.bytes": "256 KiB", "compiler.resident_weights": True})
    whole, bounded, none = (
        compile_graph(graph, free.with_(**{"compiler.resident_bytes": most})).resident_bytes
        for most in (0, 20_000, 1000)
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
    config = TINY.with_(**{"compiler.keeps_values": False})
    inside, apart = run(config, graph), run(config.with_(**{"compiler.parts_in_place": False}), graph)
    kinds = [op.kind for op in compile_graph(graph, config.with_(**{"compiler.parts_in_place": False})).ops]
    assert kinds.count("slice") == kinds.count("concat") == 1
    assert apart.dram_write_bytes - inside.dram_write_bytes == 4 * 64 * (8 + 24)
    assert inside.time_ps < apart.time_ps
    [a], [b] = inside.outputs.values(), apart.outputs.values()
    assert a.tobytes() == b.tobytes()


def test_parts_that_are_copied_keep_the_order_of_their_source():
    """Half the channels of a convolution's result, which is NHWC in memory, are the input of the next one."""
    rng = np.random.default_rng(0)
    net = GraphBuilder("parts")
    x = net.input("x", (1, 16, 12, 12), DType.FLOAT32)
    attrs = {"layout": "NCHW", "stride": (1, 1), "dilation": (1, 1), "pads": (0, 0, 0, 0), "groups": 1}
    sizes = (32, 16, 1, 1), (16, 16, 1, 1), (8, 32, 1, 1)
    weights = [net.const(rng.standard_normal(size, np.float32)) for size in sizes]
    x = net.add("conv", (x, weights[0]), attrs)
    half = net.add("slice", (x,), {"starts": (0, 16, 0, 0), "steps": (1,) * 4, "sizes": (1, 16, 12, 12)})
    graph = net.finish([net.add("conv", (half, weights[1]), attrs), net.add("conv", (x, weights[2]), attrs)])
    program = compile_graph(graph, TINY.with_(**{"compiler.parts_in_place": False, "compiler.keeps_values": False}))
    [place] = [number for number, op in enumerate(program.ops) if op.kind == "slice"]
    copies = [step.instruction.work() for step in decode(program.code) if step.op == place and step.unit == Unit.DMA]
    # One copy, in runs of the 16 channels of a pixel, without a transposition in SRAM.
    assert [(work.bytes, work.run_bytes) for work in copies] == [(4 * 16 * 144, 4 * 16)]


def pooled(kernel, stride, pad, fn="max", layers=1, outside=False):
    """Build int8 convolutions, each followed by pooling. With ``outside``, the last convolution's result is also an
    output."""
    rng = np.random.default_rng(0)
    net = GraphBuilder("pooled")
    x = net.input("x", (1, 4, 40, 40), DType.INT8)
    scale, zero = net.const(np.float32(20)), net.const(np.int32(0))
    results = []
    for _ in range(layers):
        w = net.const(rng.integers(-4, 5, (16, x.shape[1], 3, 3)).astype(np.int8))
        attrs = {"layout": "NCHW", "stride": (1, 1), "dilation": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}
        total = net.add(
            "dequantize", (net.add("conv", (x, w), attrs), net.const(np.float32(1)), zero), {"to": DType.FLOAT32}
        )
        y = net.add("quantize", (total, scale, zero), {"to": DType.INT8})
        rows = (y.shape[2] + 2 * pad - kernel) // stride + 1
        results = [y] if outside else []
        attrs = {"kernel": (kernel,) * 2, "stride": (stride,) * 2, "dilation": (1, 1), "pads": (pad,) * 4}
        more = {"layout": "NCHW", "fn": fn, "output_hw": (rows, rows), "count_include_pad": False}
        x = net.add("pool", (y,), {**attrs, **more})
    return net.finish([*results, x])


NVDLA = load_config("nvdla_512")
ON_THE_WAY = NVDLA.with_(**{"compiler.pools_outputs": True})


@pytest.mark.parametrize("fn", ["max", "average"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("kernel", "stride", "pad"), [(2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 3, 2)])
def test_pooling_takes_rows_as_they_leave(kernel, stride, pad, layers, fn):
    graph = pooled(kernel, stride, pad, fn, layers)
    x = {"x": np.random.default_rng(1).integers(-128, 128, graph.inputs[0].shape).astype(np.int8)}
    apart, together = (Session(config, cache_dir=False).run(graph, x) for config in (NVDLA, ON_THE_WAY))
    for name, array in apart.outputs.items():
        assert array.tobytes() == together.outputs[name].tobytes()
        assert array.tobytes() == interpreted(together.program, ON_THE_WAY, x)[name].tobytes()
    assert together.cycles < apart.cycles
    # The first convolution's result is neither written nor read back, except for its share of a second image of its
    # rows.
    assert apart.dram_write_bytes - together.dram_write_bytes >= 16 * 40 * 40
    assert apart.dram_read_bytes - together.dram_read_bytes >= 16 * 40 * 40 * 3 // 4
    acc = NVDLA.matrix.accumulator_bytes
    program = together.program
    limits = Limits(program.region_bytes, NVDLA.sram.bytes, acc, 1, NVDLA.dma.channels, NVDLA.units)
    assert not find_races(list(decode(program.code)), limits)
    timed = Session(ON_THE_WAY, cache_dir=False).run(program, timing_only=True)
    assert timed.timeline.digest() == together.timeline.digest()


def test_what_others_want_leaves_before_it_is_pooled():
    graph = pooled(2, 2, 0, outside=True)
    assert compile_graph(graph, NVDLA).code == compile_graph(graph, ON_THE_WAY).code


def test_where_sram_keeps_values_rows_went_to_pooling_before():
    graph = pooled(3, 2, 1, layers=2)
    keeping = NVDLA.with_(**{"compiler.keeps_values": True})
    assert (
        compile_graph(graph, keeping).code
        == compile_graph(graph, keeping.with_(**{"compiler.pools_outputs": True})).code
    )


def test_nothing_else_stays_where_pooling_takes_rows():
    graph = chain()
    config = TINY.with_(**{"compiler.keeps_values": False, "sram.bytes": 1 << 20})
    assert (
        compile_graph(graph, config).code == compile_graph(graph, config.with_(**{"compiler.pools_outputs": True})).code
    )


def test_where_a_value_lives_is_said_of_pooling_on_the_way():
    found = explain_graph(pooled(3, 2, 1, layers=2), ON_THE_WAY)
    homes = {each.home for each in found.decisions if not each.value.startswith("x")}
    assert "window" in homes
    assert "SRAM" not in homes
