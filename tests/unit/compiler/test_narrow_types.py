"""16-bit activations, 4-bit and scaled weights, and scales found at run time: bit-exact on the integer paths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper, numpy_helper

from npusim.compiler.pipeline import compile_graph, prepare
from npusim.dtypes import DType
from npusim.frontends.onnx import load
from npusim.graph import Graph, Tensor
from npusim.hw.config import Config, load_config
from npusim.hw.cost import cost
from npusim.hw.memory import ALIGNMENT
from npusim.isa.base import decode
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.isa.matrix import Conv, Depthwise
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from npusim.program import Program
from npusim.runtime import Session
from npusim.work import MatrixWork
from tests.support.graphs.execution import interpreted

EDGE = load_config("edge")
SMALL = EDGE.with_(**{"sram.bytes": "24 KiB", "matrix.accumulator_bytes": "8 KiB"})
PLAIN = EDGE.with_(**{"matrix.weight_bits": 8, "matrix.weight_scales": False})
IN_SRAM = EDGE.with_(**{"matrix.accumulator_bytes": 0})
TWO = EDGE.with_(cores=2)
each_device = pytest.mark.parametrize("config", [EDGE, SMALL, IN_SRAM, TWO], ids=["edge", "small", "sums", "two"])
F32, I8, U8, I16, U16, I32 = DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32
CONV = {"layout": "NCHW", "stride": (1, 1), "dilation": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}
Array = npt.NDArray[Any]


def tiles(program: Program) -> list[Conv | Depthwise]:
    found = (command.instruction for command in decode(program.code))
    return [tile for tile in found if isinstance(tile, (Conv, Depthwise))]


def between(build: GraphBuilder, x: Tensor, scale: Any, zero: Any, kind: str, to: DType) -> Tensor:
    parameters = [build.const(np.asarray(scale, np.float32)), build.const(np.asarray(zero, np.int32))]
    return build.add(kind, [x, *parameters], {"to": to})


def activations_of_16_bits(
    dtype: DType, zero: int, weights: Array, kind: str, scale: float = 0.01, groups: int = 1
) -> Graph:
    """Build a product of dequantised 16-bit activations and int8 weights with a bias, quantised again."""
    build = GraphBuilder("a16w8")
    channels = len(weights) if kind == "conv" else weights.shape[1]
    shape = (1, weights.shape[1] * groups, 7, 6) if kind == "conv" else (9, weights.shape[0])
    x = between(build, build.input("x", shape, dtype), 2.0**-12, zero, "dequantize", F32)
    per_channel = np.linspace(0.5, 1, channels).astype(np.float32) * np.float32(2.0**-5)
    along = per_channel.reshape(-1, 1, 1, 1) if kind == "conv" else per_channel
    w = between(build, build.const(weights), along, np.zeros(along.shape), "dequantize", F32)
    bias = build.const(per_channel * np.float32(2.0**-12) * np.arange(channels, dtype=np.float32) * 1000)
    y = build.add(kind, [x, w, bias], {**CONV, "groups": groups} if kind == "conv" else {})
    return build.finish([between(build, y, scale, zero, "quantize", dtype)])


def pixels(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> Array:
    info = np.iinfo(dtype.storage)
    return np.random.default_rng(seed).integers(info.min, info.max, shape, endpoint=True).astype(dtype.storage)


def same_as_meant(graph: Graph, config: Config, feed: dict[str, Array]) -> Program:
    """Compile the graph and check that the program gives exactly what the prepared graph defines."""
    program, prepared = compile_graph(graph, config), prepare(graph, config)
    got, wanted = interpreted(program, config, feed), reference.run(prepared, feed)
    for mine, other in zip(program.outputs, prepared.outputs, strict=True):
        np.testing.assert_array_equal(got[mine.name], wanted[other.name])
    return program


@each_device
@pytest.mark.parametrize(("dtype", "zero"), [(U16, 30000), (U16, 40000), (I16, 0), (I16, -7)])
@pytest.mark.parametrize(
    ("kind", "shape", "groups"),
    [("matmul", (90, 21), 1), ("conv", (20, 40, 3, 3), 1), ("conv", (12, 1, 3, 3), 12), ("conv", (12, 4, 3, 3), 3)],
)
def test_16_bit_activations_are_multiplied_as_integers(
    config: Config, dtype: DType, zero: int, kind: str, shape: tuple[int, ...], groups: int
) -> None:
    weights = np.random.default_rng(1).integers(-128, 128, shape).astype(np.int8)
    graph = activations_of_16_bits(dtype, zero, weights, kind, groups=groups)
    feed = {"x": pixels(dtype, graph.inputs[0].shape)}
    program = same_as_meant(graph, config, feed)
    assert [kind for kind, _ in program.macs] == [dtype]
    assert {tile.out_type for tile in tiles(program) if tile.last} == {dtype}, "requantised on the way out"
    # The model itself is defined in floating point; the result is within one step of it.
    (wanted,) = reference.run(graph, feed).values()
    (got,) = interpreted(program, config, feed).values()
    assert np.abs(got.astype(np.int64) - wanted.astype(np.int64)).max() <= 1


@pytest.mark.parametrize("config", [EDGE, SMALL], ids=["edge", "small"])
@pytest.mark.parametrize(("dtype", "zero", "value"), [(I16, 0, -32768), (U16, 0, 65535), (U16, 65535, 0)])
def test_sums_that_leave_32_bits_are_exact(config: Config, dtype: DType, zero: int, value: int) -> None:
    """1200 products of -32768 and -128 sum to 5e9, which would wrap to a small number in 32 bits."""
    weights = np.full((1200, 3), -128, np.int8)
    graph = activations_of_16_bits(dtype, zero, weights, "matmul", scale=2.0**4)
    feed = {"x": np.full((9, 1200), value, dtype.storage)}
    program = same_as_meant(graph, config, feed)
    assert all(tile.extras.wide for tile in tiles(program))
    (wanted,), (got,) = reference.run(graph, feed).values(), interpreted(program, config, feed).values()
    assert np.abs(got.astype(np.int64) - wanted.astype(np.int64)).max() <= 1


def test_sums_that_cannot_leave_32_bits_have_32() -> None:
    """The bound follows from the weights: 65535 times the sum of a channel, plus the bias."""
    limit = (1 << 31) // 65535
    for total, wide in ((limit - 1, False), (limit + 1, True)):
        weights = np.zeros((400, 2), np.int8)
        weights[: total // 127, 0], weights[total // 127, 0] = 127, total % 127
        graph = activations_of_16_bits(U16, 0, weights, "matmul")
        assert {tile.extras.wide for tile in tiles(compile_graph(graph, EDGE))} == {wide}, total


def test_a_wide_sum_takes_the_room_and_the_time_of_two() -> None:
    slow_exit = EDGE.with_(**{"matrix.output_elements_per_cycle": 1})
    build = GraphBuilder("sums")
    x, w = build.input("x", (48, 64), I16), build.const(np.ones((64, 64), np.int8))
    total = build.add("matmul", [x, w], {"wide": True})
    program = compile_graph(build.finish([between(build, total, 1.0, 0, "dequantize", F32)]), slow_exit)
    for tile in tiles(program):
        work = tile.work()
        assert isinstance(work, MatrixWork)
        sums = work.oh * work.ow * work.oc
        other = replace(work, acc_bytes=4)
        assert cost(slow_exit, work).ps - cost(slow_exit, other).ps == sums * 1000
        (room,) = (access for access in tile.accesses() if access is not None and access.address == tile.acc)
        assert room.high - room.low == sums * 8


def test_int64_sums_are_dequantised_by_the_vector_unit_too() -> None:
    build = GraphBuilder("stored")
    x, w = build.input("x", (5, 40), I16), build.const(pixels(I16, (40, 6), 3))
    total = build.add("matmul", [x, w], {"wide": True})
    graph = build.finish([between(build, total, 0.5, 3, "dequantize", F32)])
    same_as_meant(graph, EDGE, {"x": pixels(I16, (5, 40))})


# Packed weights


def weighted(weights: Array, kind: str, groups: int = 1) -> Graph:
    build = GraphBuilder("packed")
    shape = (1, weights.shape[1] * groups, 7, 6) if kind == "conv" else (9, weights.shape[0])
    attrs = {**CONV, "groups": groups} if kind == "conv" else {}
    zero = 0 if weights.dtype == np.int8 else 7
    y = build.add(kind, [build.input("x", shape, U8), build.const(weights)], {**attrs, "x_zero": 3, "w_zero": zero})
    return build.finish([y])


@each_device
@pytest.mark.parametrize(
    ("kind", "shape", "groups"),
    [("matmul", (91, 21), 1), ("conv", (21, 37, 3, 3), 1), ("conv", (13, 1, 3, 3), 13), ("conv", (9, 3, 3, 3), 3)],
)
@pytest.mark.parametrize(("dtype", "low"), [(np.int8, -8), (np.uint8, 0)])
def test_weights_of_4_bits_stay_packed(
    config: Config, kind: str, shape: tuple[int, ...], groups: int, dtype: Any, low: int
) -> None:
    weights = np.random.default_rng(2).integers(low, low + 16, shape).astype(dtype)
    weights.flat[0], weights.flat[1] = low, low + 15
    graph = weighted(weights, kind, groups)
    program = same_as_meant(graph, config, {"x": pixels(U8, graph.inputs[0].shape)})
    products = tiles(program)
    assert {tile.extras.w_bits for tile in products} == {4}
    # The weights of each tile are aligned to ALIGNMENT.
    plain = compile_graph(graph, PLAIN).constants.nbytes
    assert program.constants.nbytes <= plain // 2 + ALIGNMENT * len(products)


@pytest.mark.parametrize(("bits", "least"), [(4, -8), (4, -3), (8, -9), (4, -2)])
def test_the_widest_weight_decides(bits: int, least: int) -> None:
    weights = np.ones((64, 64), np.int8)
    weights[5, 7] = least
    (tile, *_) = tiles(compile_graph(weighted(weights, "matmul"), EDGE))
    assert (tile.extras.w_bits or 8) == bits, "edge unpacks 4 bits, and no 2"
    two = EDGE.with_(**{"matrix.weight_bits": 2})
    (tile, *_) = tiles(compile_graph(weighted(weights, "matmul"), two))
    assert (tile.extras.w_bits or 8) == (2 if least == -2 else bits)


def test_half_the_bytes_are_moved() -> None:
    weights = np.random.default_rng(2).integers(-8, 8, (1024, 1024)).astype(np.int8)
    feed = {"x": pixels(U8, (9, 1024))}
    runs = [Session(config, cache_dir=False).run(weighted(weights, "matmul"), feed) for config in (EDGE, PLAIN)]
    np.testing.assert_array_equal(*(next(iter(run.outputs.values())) for run in runs))
    saved = runs[1].dram_read_bytes - runs[0].dram_read_bytes
    assert abs(saved - 1024 * 1024 // 2) < 8192, "and commands, of which there may be others"
    assert runs[0].cycles < runs[1].cycles


# Weights with scales


def scaled(kind: str, shape: tuple[int, ...], block: int, groups: int, dtype: Any, to: DType, turned: bool) -> Graph:
    """Build a product of x and dequantised constants with one scale per channel or per block of input channels."""
    rng, build = np.random.default_rng(4), GraphBuilder("scaled")
    low = -8 if dtype == np.int8 else 0
    w = rng.integers(low, low + 16, shape).astype(dtype)
    depth = 1 if kind == "conv" else 0
    rows = list(shape) if kind == "matmul" else [shape[0], shape[1], 1, 1]
    rows[depth] = -(-shape[depth] // block) if block else 1
    scale, zero = rng.random(rows).astype(np.float32), rng.integers(low, low + 16, rows)
    if block:
        scale, zero = (np.repeat(each, block, depth).take(range(shape[depth]), depth) for each in (scale, zero))
    if turned:
        w, scale, zero = w.T, scale.T, zero.T
    known = [build.const(np.ascontiguousarray(w)), build.const(np.ascontiguousarray(scale))]
    real = build.add("dequantize", [*known, build.const(np.ascontiguousarray(zero, np.int32))], {"to": to})
    real = build.add("transpose", [real], {"perm": (1, 0)}) if turned else real
    image = (1, shape[1] * groups, 7, 6) if kind == "conv" else (9, shape[0])
    attrs = {**CONV, "groups": groups, "pads": (0, 0, 0, 0)} if kind == "conv" else {}
    return build.finish([build.add(kind, [build.input("x", image, to), real], attrs)])


@pytest.mark.parametrize("to", [F32, DType.FLOAT16], ids=lambda dtype: dtype.label)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize(
    ("kind", "shape", "block", "groups", "turned"),
    [
        ("matmul", (96, 21), 32, 1, False), ("matmul", (100, 21), 16, 1, True), ("matmul", (90, 5), 0, 1, True),
        ("conv", (21, 37, 3, 3), 0, 1, False), ("conv", (20, 96, 1, 1), 32, 1, False),
        ("conv", (13, 1, 3, 3), 0, 13, False),
        ("conv", (9, 4, 3, 3), 0, 3, False),
    ],
)  # fmt: skip
def test_weights_become_numbers_on_their_way_into_the_array(
    kind: str, shape: tuple[int, ...], block: int, groups: int, turned: bool, dtype: Any, to: DType
) -> None:
    """The bits are those of the vector unit's dequantisation for any tiling, and the weights are moved packed."""
    graph = scaled(kind, shape, block, groups, dtype, to, turned)
    feed = {"x": np.random.default_rng(5).standard_normal(graph.inputs[0].shape).astype(to.storage)}
    outputs = []
    for config in (PLAIN, EDGE, SMALL, IN_SRAM, TWO):
        program = compile_graph(graph, config)
        outputs.append(next(iter(interpreted(program, config, feed).values())))
        np.testing.assert_array_equal(outputs[-1], outputs[0])
        assert {tile.extras.w_bits for tile in tiles(program)} == ({0} if config is PLAIN else {4})
    (wanted,) = reference.run(graph, feed).values()
    np.testing.assert_allclose(outputs[0].astype(np.float64), wanted.astype(np.float64), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("why", ["blocks of 4", "blocks of a window", "a batch of weights"])
def test_what_the_unit_cannot_scale_is_dequantised(why: str) -> None:
    shapes = {"blocks of 4": ("matmul", (96, 21), 4), "blocks of a window": ("conv", (8, 64, 3, 3), 32)}
    if why in shapes:
        graph = scaled(*shapes[why], 1, np.int8, F32, False)
    else:
        build = GraphBuilder("batch")
        w = between(build, build.const(np.ones((2, 8, 4), np.int8)), 0.5, 0, "dequantize", F32)
        graph = build.finish([build.add("matmul", [build.input("x", (2, 5, 8), F32), w])])
    assert prepare(graph, EDGE).ops[0].kind == "dequantize"
    feed = {"x": np.random.default_rng(5).standard_normal(graph.inputs[0].shape).astype(np.float32)}
    got = next(iter(interpreted(compile_graph(graph, EDGE), EDGE, feed).values()))
    np.testing.assert_allclose(got, next(iter(reference.run(graph, feed).values())), rtol=1e-4, atol=1e-4)


# Scales and zero points found at run time


def dynamic(kind: str, *, pads: int = 0, relu: bool = False, per_channel: bool = False) -> Graph:
    """Build what onnxruntime's quantize_dynamic makes of a product with a bias."""
    rng = np.random.default_rng(6)
    conv = kind == "conv"
    shape, channels = ((1, 20, 7, 6), 12) if conv else ((2, 9, 40), 12)
    w = rng.integers(-128, 128, (12, 20, 3, 3) if conv else (40, 12)).astype(np.int8)
    w_scale = rng.random(channels if per_channel else ()).astype(np.float32)
    row = w_scale.reshape(-1, 1, 1) if conv and per_channel else w_scale
    bias = rng.normal(size=(channels, 1, 1) if conv else (channels,)).astype(np.float32)
    stored = {"w": w, "s": row, "b": bias, "wz": np.zeros((), np.int8)}
    source = "x"
    nodes = []
    if relu:
        nodes.append(helper.make_node("Relu", ["x"], ["r"]))
        source = "r"
    product = ("ConvInteger", {"pads": [pads] * 4}) if conv else ("MatMulInteger", {})
    nodes += [
        helper.make_node("DynamicQuantizeLinear", [source], ["q", "qs", "qz"]),
        helper.make_node(product[0], ["q", "w", "qz", "wz"], ["i"], **product[1]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["qs", "s"], ["ss"]),
        helper.make_node("Mul", ["f", "ss"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "dynamic", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )  # fmt: skip
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@each_device
@pytest.mark.parametrize(
    ("kind", "pads", "relu"), [("matmul", 0, False), ("conv", 0, False), ("conv", 1, True), ("conv", 1, False)]
)
@pytest.mark.parametrize("per_channel", [False, True])
def test_dynamic_quantisation_multiplies_bytes(
    config: Config, kind: str, pads: int, relu: bool, per_channel: bool
) -> None:
    graph = dynamic(kind, pads=pads, relu=relu, per_channel=per_channel)
    for spread in (1.0, 1e-20, 0.0):
        x = np.random.default_rng(7).normal(0.3, 1, graph.inputs[0].shape) * spread
        feed = {"x": x.astype(np.float32)}
        program = same_as_meant(graph, config, feed)
        np.testing.assert_array_equal(
            interpreted(program, config, feed)["y"], reference.run(graph, feed)["y"], "not what the model says"
        )
    # Padding has the value of the zero point. If that is only known at run time, it is subtracted from the pixels
    # before they are padded, and the differences need 9 bits.
    assert [dtype for dtype, _ in program.macs] == [I16 if pads and not relu else U8]


def test_scale_bias_and_shift_leave_with_the_sums() -> None:
    program = compile_graph(dynamic("matmul", per_channel=True), EDGE)
    (entry,) = [entry.kind for entry in program.ops if "matmul" in entry.kind]
    assert entry == "matmul+add+dequantize+add"
    kinds = [type(c.instruction).__name__ for c in decode(program.code) if program.ops[c.op].kind == entry]
    assert set(kinds) <= {"Copy", "Conv", "Halt"}, "nothing is left to the vector unit"


def test_of_what_is_never_negative_nobody_looks_for_the_least() -> None:
    kinds = [op.kind for op in prepare(dynamic("conv", relu=True), EDGE).ops]
    assert kinds.count("reduce") == 1
    assert kinds.count("reduce") < [op.kind for op in prepare(dynamic("conv"), EDGE).ops].count("reduce")


def test_equal_ranges_are_found_once() -> None:
    build = GraphBuilder("twice")
    x, made = build.input("x", (6, 8), F32), []
    for _ in range(2):
        most = build.add(
            "reduce", [build.add("reshape", [x], {"shape": (48,)})], {"fn": Reduce.MAX, "axes": (0,), "keepdims": False}
        )
        quantised = build.add("quantize", [x, most, build.const(np.int32(0))], {"to": U8})
        made.append(build.add("cast", [quantised], {"to": I32}))
    graph = build.finish(made)
    assert [op.kind for op in prepare(graph, EDGE).ops].count("reduce") == 1
    same_as_meant(graph, EDGE, {"x": np.arange(48, dtype=np.float32).reshape(6, 8)})


@pytest.mark.parametrize("config", [EDGE, SMALL, IN_SRAM], ids=["edge", "small", "sums"])
@pytest.mark.parametrize("kind", ["conv", "matmul", "elementwise"])
def test_ranges_are_found_while_the_tiles_are_there(config: Config, kind: str) -> None:
    build = GraphBuilder("range")
    if kind == "conv":
        w = build.const(np.random.default_rng(8).standard_normal((40, 8, 3, 3)).astype(np.float32))
        y = build.add("conv", [build.input("x", (2, 8, 30, 31), F32), w], CONV)
    elif kind == "matmul":
        w = build.const(np.random.default_rng(8).standard_normal((70, 90)).astype(np.float32))
        y = build.add("matmul", [build.input("x", (3, 50, 70), F32), w])
    else:
        x = build.input("x", (3, 50, 70), F32)
        y = build.add("binary", [x, x], {"fn": Binary.MUL})
    flat = build.add("reshape", [y], {"shape": (int(np.prod(y.shape)),)})
    ends = [build.add("reduce", [flat], {"fn": fn, "axes": (0,), "keepdims": True}) for fn in (Reduce.MAX, Reduce.MIN)]
    graph = build.finish([build.add("unary", [y], {"fn": Unary.NEG}), *ends])
    feed = {"x": np.random.default_rng(9).standard_normal(graph.inputs[0].shape).astype(np.float32)}
    program = compile_graph(graph, config)
    assert [entry.kind for entry in program.ops if entry.kind.endswith("+reduce+reduce")], program.ops
    got = list(interpreted(program, config, feed).values())
    whole = reference.run(graph, feed)
    np.testing.assert_allclose(got[1], list(whole.values())[1], rtol=1e-4)
    np.testing.assert_allclose(got[2], list(whole.values())[2], rtol=1e-4)


@pytest.mark.parametrize("derived", [False, True])
def test_scaled_weights_are_constants_and_copied_only_where_they_are_derived(derived: bool) -> None:
    """Existing bytes are used without a copy; weights derived from constants become a new constant."""
    weights = np.arange(-60, 60, dtype=np.int8).reshape(12, 10)
    build = GraphBuilder("scaled")
    w = build.const(weights.reshape(-1) if derived else weights)
    w = build.add("reshape", [w], {"shape": (12, 10)}) if derived else w
    real = between(build, w, np.full((1, 10), 0.25), np.zeros((1, 10)), "dequantize", F32)
    graph = prepare(build.finish([build.add("matmul", [build.input("x", (3, 12), F32), real])]), EDGE)
    (product,) = [op for op in graph.ops if op.kind == "matmul"]
    found = product.input(1).data
    assert product.input(1).dtype is I8
    assert found is not None
    np.testing.assert_array_equal(found, weights)
    assert (product.input(1) is w) != derived
