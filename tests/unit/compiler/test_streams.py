"""Weights stored compressed in DRAM: which ones, how much they save, and that nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.cache import read_program, write_program
from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.errors import DeviceFaultError
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.hw.cost import cost
from npusim.isa import base
from npusim.isa.base import decode
from npusim.isa.dma import Expand, MulticastExpand, expanded_bytes, expanding
from npusim.isa.matrix import Conv
from npusim.ops.build import GraphBuilder
from npusim.program import CONSTANTS, ConstantData, Deferred, Program
from npusim.report import explain
from npusim.report import program as report
from npusim.report.format import capacity, grouped
from npusim.runtime import Session
from npusim.timing.tile import tilings
from npusim.timing.tile_problem import EpilogueCosts, MatrixProblem, Tiling
from npusim.weights import WeightFile, view_of
from npusim.work import DmaWork
from tests.support.graphs.comparison import same_bytes
from tests.support.graphs.execution import interpreted
from tests.support.graphs.samples import residual_net
from tests.support.tile_definition import score

EDGE, TINY = load_config("edge"), load_config("tiny")
RATE = "dma.decoder_weights_per_cycle"
I8, F32 = DType.INT8, DType.FLOAT32
CONV = {"layout": "NCHW", "stride": (1, 1), "dilation": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}
Array = npt.NDArray[Any]


def decoding(config: Config, rate: int = 64) -> Config:
    return config.with_(**{RATE: rate})


def weights(shape: tuple[int, ...], spread: float, pruned: float = 0, seed: int = 1) -> Array:
    rng = np.random.default_rng(seed)
    made = rng.normal(0, spread, shape).round().clip(-128, 127)
    return (made * (rng.random(shape) >= pruned)).astype(np.int8)


def layers(count: int = 3, width: int = 128, spread: float = 5, pruned: float = 0) -> Graph:
    build = GraphBuilder("layers")
    value = build.input("x", (4, width), I8)
    for number in range(count):
        value = build.add("matmul", [value, build.const(weights((width, width), spread, pruned, number))])
        value = build.add("cast", [value], {"to": I8})
    return build.finish([value])


def convolutions(groups: int = 1) -> Graph:
    """Build a convolution with ``groups`` groups and a depthwise one."""
    build = GraphBuilder("convolutions")
    x = build.input("x", (1, 32, 9, 8), I8)
    y = build.add("conv", [x, build.const(weights((64, 32 // groups, 3, 3), 4))], {**CONV, "groups": groups})
    y = build.add("cast", [y], {"to": I8})
    y = build.add("conv", [y, build.const(weights((64, 1, 3, 3), 3))], {**CONV, "groups": 64})
    return build.finish([build.add("cast", [y], {"to": I8})])


def packed(block: int = 0) -> Graph:
    """Build a product with mostly zero 4-bit weights. With ``block`` they have one scale per block of input
    channels."""
    build = GraphBuilder("packed")
    w = build.const(weights((256, 64), 1.5, 0.8).clip(-8, 7))
    x = build.input("x", (4, 256), F32 if block else I8)
    if block:
        rows = 1 + np.arange(256 // block, dtype=np.float32).reshape(-1, 1)
        scales = build.const(np.repeat(rows, block, axis=0) * np.ones(64, np.float32))
        w = build.add("dequantize", [w, scales, build.const(np.zeros((256, 64), np.int32))], {"to": F32})
    return build.finish([build.add("matmul", [x, w])])


def streams(program: Program) -> list[Expand]:
    return [each.instruction for each in decode(program.code) if isinstance(each.instruction, Expand)]


def check(graph: Graph, config: Config, plain: Config) -> tuple[Program, int, int]:
    """Run on devices with and without a decoder and compare the outputs, also in program order.

    Returns the program and the bytes read with and without the decoder.
    """
    rng = np.random.default_rng(7)
    inputs = {t.name: rng.integers(-4, 5, t.shape).astype(t.dtype.storage) for t in graph.inputs}
    with Session(config, cache_dir=False) as session, Session(plain, cache_dir=False) as without:
        program = session.compile(graph)
        found, wanted = session.run(program, inputs), without.run(graph, inputs)
    with Session(config, cache_dir=False) as session:
        timed = session.run(program, timing_only=True)
    same_bytes(found.outputs, wanted.outputs, "with a decoder against without")
    same_bytes(interpreted(program, config, inputs), wanted.outputs, "in order")
    assert timed.timeline.digest() == found.timeline.digest()
    return program, found.dram_read_bytes, wanted.dram_read_bytes


@pytest.mark.parametrize("changes", [{}, {"cores": 3}, {"sram.bytes": "16 KiB"}, {"compiler.resident_weights": True}])
@pytest.mark.parametrize("graph", [layers(), convolutions(), convolutions(4)], ids=["layers", "conv", "groups"])
def test_streams_are_loaded_and_nothing_else_changes(graph: Graph, changes: dict[str, object]) -> None:
    plain = EDGE.with_(**changes)
    program, read, before = check(graph, decoding(plain), plain)
    stored, made = expanded_bytes(program.code)
    assert streams(program)
    assert stored < 0.75 * made
    # With a decoder, using more cores may pay off although each core loads its own data.
    assert before - read > (0.9 * (made - stored) if plain.cores == 1 else 0)
    assert program.region_bytes[CONSTANTS] < made or plain.cores > 1


@pytest.mark.parametrize("block", [0, 32])
def test_packed_weights_are_symbols_of_their_bits(block: int) -> None:
    program, read, before = check(packed(block), decoding(EDGE), EDGE)
    tile = next(e.instruction for e in decode(program.code) if isinstance(e.instruction, Conv))
    stream = streams(program)[0]
    assert stream.bits == tile.extras.w_bits == 4
    assert stream.work().decoded == 2 * stream.nbytes
    assert read < before


def test_a_decoder_that_is_there_for_nothing_changes_nothing() -> None:
    rng = np.random.default_rng(3)
    build = GraphBuilder("noise")
    x = build.input("x", (4, 64), I8)
    noise = build.finish([build.add("matmul", [x, build.const(rng.integers(-128, 128, (64, 64)).astype(np.int8))])])
    build = GraphBuilder("floats")
    x = build.input("x", (4, 64), F32)
    floats = build.finish([build.add("matmul", [x, build.const(np.zeros((64, 64), np.float32))])])
    build = GraphBuilder("computed")
    a, b = build.input("a", (4, 64), I8), build.input("b", (64, 64), I8)
    computed = build.finish([build.add("matmul", [a, b])])
    for graph in (noise, floats, computed):
        with Session(EDGE, cache_dir=False) as plain, Session(decoding(EDGE), cache_dir=False) as session:
            assert session.compile(graph).code == plain.compile(graph).code


def test_a_decoder_that_is_slower_than_the_memory_is_not_waited_for() -> None:
    graph = layers()
    cycles = []
    for rate in (0, 1, 4, 16, 64, 256):
        config = EDGE.with_(**{RATE: rate})
        with Session(config, cache_dir=False) as session:
            program = session.compile(graph)
            assert bool(streams(program)) == (rate >= 16)
            cycles.append(session.run(program, timing_only=True).cycles)
    assert cycles == sorted(cycles, reverse=True)
    assert cycles[-1] < 0.8 * cycles[0]


def test_the_sparser_the_quicker() -> None:
    sizes, cycles = [], []
    for pruned in (0, 0.3, 0.6, 0.9, 1):
        with Session(decoding(EDGE, 256), cache_dir=False) as session:
            program = session.compile(layers(pruned=pruned, spread=20))
            sizes.append(program.region_bytes[CONSTANTS])
            cycles.append(session.run(program, timing_only=True).cycles)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0] / 20
    assert cycles == sorted(cycles, reverse=True)


def test_several_cores_expand_what_is_read_once() -> None:
    config = decoding(EDGE.with_(cores=2, **{"interconnect.multicast": True}))
    build = GraphBuilder("wide")
    x = build.input("x", (512, 256), I8)
    w = build.const(weights((256, 64), 4))
    graph = build.finish([build.add("cast", [build.add("matmul", [x, w])], {"to": I8})])
    program, read, before = check(graph, config, config.with_(**{RATE: 0}))
    both = [each for each in streams(program) if isinstance(each, MulticastExpand)]
    assert both
    assert {each.cores for each in both} == {3}
    assert read < before


def test_when_only_times_are_wanted_the_ratio_still_comes_from_the_data() -> None:
    digests = []
    for timing_only in (False, True):
        with Session(decoding(EDGE), cache_dir=False) as session:
            program = session.compile(layers(), timing_only=timing_only)
            assert program.timing_only == timing_only
            assert streams(program)
            digests.append((program.code, session.run(program, timing_only=True).timeline.digest()))
    assert digests[0] == digests[1]


def test_files_hold_the_streams(tmp_path: Path) -> None:
    config, graph = decoding(EDGE), layers()
    path = tmp_path / "layers.npu"
    with Session(config, cache_dir=False) as session:
        program = session.compile(graph)
        write_program(program, path)
        x = np.arange(512, dtype=np.int8).reshape(4, 128) % 7
        wanted = session.run(program, {"x": x}).outputs
    again = read_program(path)
    assert again.code == program.code
    assert (again.constants.joined() == program.constants.joined()).all()
    with Session(config, cache_dir=False) as session:
        same_bytes(session.run(again, {"x": x}).outputs, wanted, "from a file")


def test_the_file_of_weights_is_watched_behind_streams(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(4096))
    array = view_of(WeightFile.at(path), 0, (4096,), None, np.dtype(np.uint8))
    inner = Deferred(lambda *arrays: arrays[0], [array], 4096)
    data = ConstantData(4096, [(0, Deferred(lambda *arrays: np.asarray(arrays[0]), [inner], 4096))])
    assert not data.joined().any()
    assert not data.lost
    path.write_bytes(bytes(4095))
    assert data.lost


@pytest.mark.parametrize("spoil", [0x00, 0xFF, 0xFE])
def test_a_damaged_stream_is_a_fault(spoil: int) -> None:
    config, graph = decoding(TINY), layers(1, 64)
    with Session(config, cache_dir=False) as session:
        program = session.compile(graph)
        (first, *_) = streams(program)
        data = program.constants.joined().copy()
        at = first.src & ((1 << 48) - 1)
        data[at : at + first.size] = spoil
        program.constants = ConstantData.of(data)
        with pytest.raises(DeviceFaultError, match=f"the stream of {first.size} bytes at r0"):
            session.run(program, {"x": np.zeros((4, 64), np.int8)})


def test_what_a_stream_costs() -> None:
    """The longest of reading, writing and decoding."""
    fast = decoding(EDGE, 4096)
    stream = expanding(1 << 16, 1 << 12, 8)
    read = DmaWork(1 << 12, 1, 1 << 12, 1 << 12, 0, constants=True)
    written = (1 << 16) // EDGE.dma.bytes_per_cycle
    terms = dict(cost(fast, stream).terms)
    assert terms["transfer"] == dict(cost(fast, read).terms)["transfer"]
    assert terms["transfer"] + terms["writing"] == pytest.approx(written, abs=1)
    slow = dict(cost(decoding(EDGE, 4), stream).terms)
    assert slow["transfer"] + slow["writing"] == pytest.approx((1 << 16) // 4, abs=1)
    four = dict(cost(decoding(EDGE, 4), expanding(1 << 15, 1 << 12, 4)).terms)
    assert four == slow  # the same number of weights


@given(
    st.integers(1, 1024), st.integers(1, 300), st.integers(1, 200), st.sampled_from([0, 2, 4]),
    st.sampled_from([1, 8, 64]), st.booleans(), st.sampled_from([1, 2]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_the_search_knows_what_its_definition_does(
    kilo: int, ic: int, oc: int, bits: int, rate: int, slow: bool, cores: int
) -> None:
    config = decoding(EDGE.with_(cores=cores), rate)
    problem = MatrixProblem(
        1, 9, 7, 1, oc, ic, 3, 3, 1, 1, 1, 1, False, True, I8, I8, I8, EpilogueCosts(), False, w_bits=bits, w_kilo=kilo
    )
    for tile in (Tiling(1, 9, 7, oc, ic, False), Tiling(1, 3, 7, -(-oc // 2), ic, slow)):
        assert tilings(problem, config).score(tile) == score(problem, tile, config)
        assert score(problem, tile, config) <= score(problem._replace(w_kilo=1024), tile, config)


def test_reports_say_what_streams_save() -> None:
    with Session(decoding(EDGE), cache_dir=False) as session:
        program = session.compile(layers(1, 256))
        result = session.run(program, timing_only=True)
    stream, *others = streams(program)
    size, made = (sum(getattr(each, name) for each in (stream, *others)) for name in ("size", "nbytes"))
    assert report.as_json(program)["streams"] == {"bytes": size, "expanded_bytes": made}
    said = f"streams    {capacity(size)} are loaded for {capacity(made)} of weights, ratio {size / made:.3f}"
    assert said in report.text(program, "")
    found = explain.text(explain.explain(program, result, decoding(EDGE), 0), decoding(EDGE))
    ratio = f"ratio {stream.size / stream.nbytes:.3f}"
    assert f"reads {grouped(stream.size)} B that become {grouped(stream.nbytes)} B, {ratio}" in found
    with Session(EDGE, cache_dir=False) as session:
        plain = session.compile(layers(1, 256))
    assert "streams" not in report.text(plain, "")
    assert "streams" not in report.as_json(plain)


def test_streams_that_cannot_be_decoded_count_as_far_as_they_can() -> None:
    with Session(decoding(EDGE), cache_dir=False) as session:
        code = session.compile(layers(2, 128)).code
    whole = expanded_bytes(code)
    assert expanded_bytes(b"") == (0, 0)
    assert expanded_bytes(code[:-1]) == whole
    assert whole > expanded_bytes(code[: len(code) // 3]) >= (0, 0)
    assert expanded_bytes(b"\xff" * 40) == (0, 0)
    assert expanded_bytes(b"\x14" + bytes(40)) == (0, 0)  # length zero: the decoder cannot skip it


def test_who_asks_what_expands_has_nothing_else_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports ask this for every program, and most programs have no streams."""
    monkeypatch.setattr(base, "decode", None)
    program = compile_graph(residual_net(8, 8, 1), TINY)
    assert expanded_bytes(program.code) == (0, 0)
