"""The layers that took the time, and the sentence that says why."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.hw.config import load_config
from npusim.report.layers import covered, kind_text, layers, slowest, unit_kind, why
from npusim.summary import OpReport
from npusim.timeline import Span
from tests.support.sample_run import NS, sample

CONFIG = load_config("tiny").with_(**{"dram.bandwidth": "8 GB/s", "clock": "1 GHz", "matrix.rows": 8, "matrix.cols": 8})


def test_the_parts_add_up_to_the_whole() -> None:
    run = sample()
    assert sum(layer.added_ps for layer in layers(run)) == run.time_ps


def test_a_layer_that_ran_in_the_shadow_of_others_adds_nothing() -> None:
    run = sample()
    run.timeline.spans.append(Span("core0.scalar", 100 * NS, 900 * NS, 3, "scalar.gather", 0, 64, "latency"))
    run.ops.append(OpReport("aside", "gather", "core0.scalar", 100 * NS, 900 * NS, 800, 0, 64, "latency"))
    assert {layer.timing.name: layer.added_ps // NS for layer in layers(run)} == {
        "aside": 0,
        "load": 1000,
        "conv": 1000,
        "tail": 200,
    }


def test_an_operator_without_instructions_is_no_layer() -> None:
    run = sample()
    run.timeline.spans = [span for span in run.timeline.spans if span.op != 1]
    del run.ops[1]  # as a result has it: rows only for operators that ran
    found = layers(run)
    assert [layer.timing.name for layer in found] == ["load", "tail"]
    assert list(found[1].busy_ps) == ["vector"]


def test_the_slowest_come_first_and_equal_ones_in_order_of_time() -> None:
    assert [layer.timing.name for layer in slowest(layers(sample()), 2)] == ["load", "conv"]


def test_a_memory_bound_layer_names_bandwidth_and_bytes() -> None:
    load = layers(sample())[0]
    assert why(load, CONFIG) == "DMA busy 100.0 %, DRAM at 100.0 % of its peak: 8 kB moved, no MACs"


def test_a_memory_bound_layer_with_macs_names_their_ratio() -> None:
    run = sample()
    run.ops[0] = dataclasses.replace(run.ops[0], macs=32_000)
    assert (
        why(layers(run)[0], CONFIG)
        == "DMA busy 100.0 %, DRAM at 100.0 % of its peak: 8 kB moved for 32 kMAC, 4.0 per byte"
    )


def test_a_layer_that_waits_for_sram_does_not_blame_the_dram() -> None:
    run = sample()
    run.timeline.spans[1] = run.timeline.spans[1]._replace(bound="memory")
    assert why(layers(run)[1], CONFIG) == "matrix busy 100.0 %, mostly with passing SRAM, with 2 instructions"


def test_a_compute_bound_layer_names_the_rate_of_the_array() -> None:
    assert why(layers(sample())[1], CONFIG) == "matrix busy 100.0 % at 32 MACs/cycle on 64 elements"


def test_a_latency_bound_layer_names_its_busiest_unit() -> None:
    run = sample()
    run.ops[2] = dataclasses.replace(run.ops[2], start_ps=2000 * NS)
    assert why(layers(run)[2], CONFIG) == (
        "short steps, one after another: 1 instruction of 200 ns on average, vector busy 25.0 %"
    )


def test_of_a_layer_that_takes_turns_its_own_turns_count() -> None:
    run = sample()
    load, conv, _, tail = run.timeline.spans
    run.timeline.spans = [
        load,
        conv._replace(end_ps=1100 * NS, macs=3200),
        load._replace(start_ps=1100 * NS, end_ps=2000 * NS),
        conv._replace(start_ps=2000 * NS, end_ps=2100 * NS, macs=3200),
        tail,
    ]
    run.ops[1] = dataclasses.replace(run.ops[1], start_ps=1000 * NS, end_ps=2100 * NS, macs=6400)
    layer = next(layer for layer in layers(run) if layer.timing.name == "conv")
    assert (layer.added_ps, layer.window_ps) == (200 * NS, 200 * NS)
    assert why(layer, CONFIG) == "matrix busy 100.0 % at 32 MACs/cycle on 64 elements"


def test_units_are_told_by_kind() -> None:
    assert [unit_kind(name) for name in ("core0.dma1", "core3.matrix", "core12.dma10")] == ["dma", "matrix", "dma"]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted).map(tuple), max_size=8))
def test_covered_counts_each_moment_once(intervals: list[tuple[int, int]]) -> None:
    moments = {moment for start, end in intervals for moment in range(start, end)}
    assert covered(intervals) == len(moments)


@pytest.mark.parametrize(
    ("kind", "result", "shown"),
    [
        ("conv+dequantize+add+quantize", "int8[1, 4]", "conv + add (int8)"),
        ("conv+dequantize+dequantize+add+quantize", "", "conv + add (quantized)"),
        ("conv+relu", "float32[1, 4]", "conv + relu"),
        ("dequantize+quantize", "int8[]", "dequantize + quantize"),
        ("host nonzero", "", "host nonzero"),
    ],
)
def test_a_kind_for_readers_names_its_type_instead_of_conversions(kind: str, result: str, shown: str) -> None:
    assert kind_text(kind, result) == shown
